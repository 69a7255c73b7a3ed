"""Columns that withColumn adds to a stream keep their event time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql.connect.proto import Relation

from firesteel.spark_connect.added_columns import keep_event_times


def stream(*, timed: bool = True) -> Relation:
    relation = Relation()
    if timed:
        relation.with_watermark.event_time = "t"
    else:
        relation.local_relation.schema = "t TIMESTAMP"
    return relation


def added(relation: Relation, *columns: tuple[str, str]) -> Relation:
    """Adds columns: their names, and a column, or the function of one."""
    result = Relation()
    result.common.plan_id = 7
    result.with_columns.input.CopyFrom(relation)
    for name, source in columns:
        alias = result.with_columns.aliases.add(name=[name])
        function, _, argument = source.rpartition(" ")
        expression = alias.expr
        if function:
            expression.unresolved_function.function_name = function
            expression = expression.unresolved_function.arguments.add()
        expression.unresolved_attribute.unparsed_identifier = argument
    return result


def columns_of(relation: Relation) -> list[str]:
    """Returns the columns of a projection: their names, or what they are replaced by."""
    return [
        f"{each.alias.name[0]}*"
        if each.HasField("alias")
        else each.unresolved_attribute.unparsed_identifier
        for each in relation.project.expressions
    ]


def keep(
    relation: Relation, names: Sequence[str] | None = ("k", "t"), *, case_sensitive: bool = False
) -> Relation:
    keep_event_times(relation, lambda _: names, case_sensitive=case_sensitive)
    return relation


def test_columns_are_replaced_in_place_and_added_at_the_end() -> None:
    kept = keep(added(stream(), ("T", "t"), ("w", "window t"), ("n", "upper k")), ["a`b", "t", "k"])
    assert columns_of(kept) == ["`a``b`", "T*", "`k`", "w*", "n*"]
    assert kept.common.plan_id == 7
    assert kept.project.input == stream()
    sensitive = keep(added(stream(), ("T", "t")), ["t", "k"], case_sensitive=True)
    assert columns_of(sensitive) == ["`t`", "`k`", "T*"]


@pytest.mark.parametrize(
    ("relation", "names"),
    [
        (added(stream(), ("n", "upper k")), ["k", "t"]),  # no event time
        (added(stream(timed=False), ("u", "t")), ["t"]),  # no watermark
        (added(stream(), ("u", "t")), ["t", "t"]),
        (added(stream(), ("u", "t"), ("U", "t")), ["t"]),
        (added(stream(), ("u", "t")), None),  # Spark refuses it
    ],
)
def test_other_columns_are_left_to_spark(relation: Relation, names: list[str] | None) -> None:
    before = Relation.FromString(relation.SerializeToString())
    assert keep(relation, names) == before


def test_relations_of_any_depth_are_changed() -> None:
    outer = Relation()
    outer.filter.input.CopyFrom(added(added(stream(), ("u", "t")), ("w", "window u")))
    kept = keep(outer).filter.input
    assert columns_of(kept) == ["`k`", "`t`", "`u`", "w*"]
    assert columns_of(kept.project.input) == ["`k`", "`t`", "u*"]


def test_a_chain_of_columns_is_analysed_once() -> None:
    asked = []

    def names_of(relation: bytes) -> list[str]:
        asked.append(relation)
        return ["t", "k`2"]

    chain = added(added(added(stream(), ("u", "t")), ("T", "u")), ("w", "window u"))
    keep_event_times(chain, names_of, case_sensitive=False)
    assert asked == [stream().SerializeToString()]
    assert columns_of(chain) == ["`T`", "`k``2`", "`u`", "w*"]

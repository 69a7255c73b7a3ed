"""Flows of a pipeline that add columns are analysed when the pipeline runs."""

from __future__ import annotations

import pytest
from pyspark.sql.connect.proto import PipelineCommand, Relation

from firesteel.spark_connect.postponed_analysis import function_of, postpone_analysis

GRAPH = "6f1c-22"


def table(name: str = "orders") -> Relation:
    relation = Relation()
    relation.common.plan_id = 3
    relation.read.named_table.unparsed_identifier = name
    return relation


def above(kind: str, relation: Relation) -> Relation:
    result = Relation()
    getattr(result, kind).input.CopyFrom(relation)
    return result


def postponed(relation: Relation) -> Relation:
    flow = PipelineCommand.DefineFlow(dataflow_graph_id=GRAPH)
    flow.relation_flow_details.relation.CopyFrom(relation)
    postpone_analysis(flow)
    return flow.relation_flow_details.relation


@pytest.mark.parametrize("kind", ["with_columns", "with_columns_renamed"])
def test_tables_below_added_columns_are_filtered_by_a_later_function(kind: str) -> None:
    for leaf in (table(), Relation(sql={"query": "SELECT * FROM orders"})):  # type: ignore[arg-type]
        found = postponed(above("project", above(kind, above("filter", leaf))))
        filtered = getattr(found.project.input, kind).input.filter.input.filter
        assert filtered.condition.unresolved_function.function_name == function_of(GRAPH)
        assert filtered.input == leaf


def test_each_side_of_a_join_counts() -> None:
    join = Relation()
    join.join.left.CopyFrom(above("with_columns", table("left")))
    join.join.right.CopyFrom(table("right"))
    found = postponed(join).join
    assert found.left.with_columns.input.filter.input == table("left")
    assert found.right == table("right")


@pytest.mark.parametrize("kind", ["drop", "with_watermark", "sample"])
def test_what_must_be_analysed_at_once_is_not_changed(kind: str) -> None:
    for relation in (
        above(kind, above("with_columns", table())),
        above("with_columns", above(kind, table())),
        above("filter", table()),
    ):
        assert postponed(relation) == relation


def test_graphs_have_functions_of_their_own() -> None:
    assert function_of(GRAPH) == "firesteel_runs_6f1c_22"

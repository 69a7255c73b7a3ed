"""The names of a query's columns are the same whenever the query is planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firesteel.spark_connect.names import Names


@dataclass
class Attribute:
    """Stands for an attribute of Catalyst, or for its expression id."""

    text: str
    number: int

    def name(self) -> str:
        return self.text

    def exprId(self) -> Attribute:
        return self

    resultId = exprId

    def id(self) -> int:
        return self.number


def names_of(first: int) -> list[str]:
    texts = ("k", "K", "a b", "k_1", "k", f"hour(at#{first}-T60000ms, Some(UTC))", f"k#{first}L")
    attributes: list[Any] = [Attribute(text, first + n) for n, text in enumerate(texts)]
    names = Names()
    return [
        *map(names.column, attributes),
        names.column(attributes[0]),
        names.time(attributes[1]),
        names.result(Attribute("", first + 10)),
        names.uid("join"),
        names.uid("join"),
    ]


def test_names_do_not_depend_on_expression_ids() -> None:
    assert names_of(7) == names_of(1_000)


def test_names_are_unique_without_their_case() -> None:
    columns = ["k_1", "K_2", "a_b_1", "k_1_1", "k_3", "hour_at_Some_UTC__1", "k_4", "k_1"]
    assert names_of(7) == [*columns, "K_2_time", "result_1_result", "join-1", "join-2"]

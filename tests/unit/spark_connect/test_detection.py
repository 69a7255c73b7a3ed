"""The name of an application in the text of a program."""

from __future__ import annotations

import pytest

from firesteel.client.spark_programs.detection import application_name


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("SparkSession.builder.appName('totals').getOrCreate()", "totals"),
        ("SparkSession.builder.config('a', 'b').appName('totals').config('c', 'd')", "totals"),
        ("def other(x):\n    return x.appName('inner')", ""),
        ("b = SparkSession.builder\nfor _ in x:\n    SparkSession.builder.appName(f'{_}')", ""),
        ("def f():\n    return builder.appName('a')\nspark.builder.appName('b')", "b"),
        ("if x:\n    s.builder.appName('first')\ns.builder.appName('second').y()", "first"),
    ],
)
def test_the_first_literal_name_of_a_session_is_that_of_the_program(
    program: str, name: str
) -> None:
    assert application_name(program.encode()) == name

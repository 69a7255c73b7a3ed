"""Whether Spark or Python generates a sequence."""

from __future__ import annotations

import json

import pytest

from firesteel import Environment
from firesteel.connectors import SequenceSource


@pytest.mark.parametrize("rate", [None, 10.0])
def test_spark_generates_a_sequence_that_it_transforms(rate: float | None) -> None:
    env = Environment(parallelism=2)
    env.from_source(SequenceSource(0, 10**9, rate_per_s=rate)).transform(lambda df: df).print()
    source = env.job_graph("numbers").vertices[0].operators[0]
    assert source.runs_on_spark == (rate is None)
    assert json.loads(source.coordinator_options_json)["split_rows"] == (
        10_000_000 if rate is None else 1
    )


def test_python_makes_a_sequence_that_spark_does_not_transform_immediately() -> None:
    env = Environment(parallelism=2)
    numbers = env.from_sequence(0, 10**9)
    numbers.transform(lambda df: df).print()
    numbers.print()
    source = env.job_graph("numbers").vertices[0].operators[0]
    assert not source.runs_on_spark
    assert json.loads(source.coordinator_options_json)["split_rows"] == 1_000_000

"""Positions within splits: a source that is restored at any of them emits exactly the rest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import pytest

from firesteel import Environment, Watermarks
from firesteel.common.operator_messages import SplitAssigned
from firesteel.connectors import MALFORMED_TAG, SequenceSource
from firesteel.datastream import DataStream
from firesteel.operator import SourceOperator
from firesteel.testing import OperatorHarness
from taskexecutor.executor.analysis.analyze import analyze
from taskexecutor.executor.connectors import spark_source
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import create_operator
from taskexecutor.executor.spark.jvm.engine import SparkEngine


@pytest.fixture(autouse=True)
def small_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As small as they can be."""
    monkeypatch.setattr(spark_source, "TARGET_S", 0.0)


class Program:
    """Of which any number of source subtasks can be made."""

    def __init__(
        self,
        engine: SparkEngine,
        source: Any,
        program: Callable[[DataStream], DataStream],
        watermarks: Watermarks | None = None,
    ) -> None:
        env = Environment(parallelism=1)
        program(env.from_source(source, watermarks=watermarks)).print()
        graph = env.job_graph("positions")
        schemas = [operator.schema for operator in analyze(graph, engine)]
        operators = [o for o in graph.vertices[0].operators if o.runs_on_spark]
        self._engine = engine
        self._opened = [
            OpenedOperator(o, cloudpickle.loads(o.spec), s)
            for o, s in zip(operators, schemas, strict=False)
        ]

    def started(self) -> OperatorHarness:
        tags = (MALFORMED_TAG,)
        return OperatorHarness(
            create_operator(self._opened), [], spark=self._engine.session, side_output_tags=tags
        ).open()


def operator_of(harness: OperatorHarness) -> SourceOperator:
    assert isinstance(harness.operator, SourceOperator)
    return harness.operator


def rows_read(harness: OperatorHarness) -> int:
    return operator_of(harness).context.counter("numRecordsIn").value


class Seen:
    """What a source has emitted, and counted."""

    def __init__(self, harness: OperatorHarness) -> None:
        self.rows = harness.rows()
        self.malformed = [row for b in harness.side(MALFORMED_TAG) for row in b.to_pylist()]
        self.read = rows_read(harness)
        self.watermarks = harness.watermarks_us


def read_to_end(harness: OperatorHarness) -> list[tuple[str, Seen]]:
    """The positions on the way, with what was emitted before each."""
    operator = operator_of(harness)
    found = [(json.dumps(operator.position()), Seen(harness))]
    while not operator.waiting:
        harness.poll()
        operator.flush()
        found.append((json.dumps(operator.position()), Seen(harness)))
    return found


def check(program: Program, *splits: str, aggregated: bool = False, every: int = 1) -> int:
    """Restores a source at each position of a run, or every so many. Returns how many there are."""
    harness = program.started()
    for number, split in enumerate(splits):
        harness.deliver(SplitAssigned(number=number, split_json=split))
    positions = read_to_end(harness)
    whole = Seen(harness)
    harness.close()
    fresh = {len(positions) // every // 2 * every}
    restored: OperatorHarness | None = None
    for number, (position, before) in list(enumerate(positions))[::every]:
        if number in fresh or restored is None:
            if restored is not None:
                restored.close()
            restored = program.started()
        skipped = Seen(restored)
        operator_of(restored).restore(json.loads(position))
        if number == 0:  # the splits were still on their way
            for split_number, split in enumerate(splits):
                restored.deliver(SplitAssigned(number=split_number, split_json=split))
        operator_of(restored).waiting = False
        read_to_end(restored)
        after = Seen(restored)
        rows = before.rows + after.rows[len(skipped.rows) :]
        malformed = before.malformed + after.malformed[len(skipped.malformed) :]
        if aggregated:
            assert totals(rows) == totals(whole.rows), position
        else:
            assert rows == whole.rows, position
        assert malformed == whole.malformed, position
        assert before.read + after.read - skipped.read == whole.read, position
        assert max(whole.watermarks, default=None) == max(after.watermarks, default=None)
    assert restored is not None
    restored.close()
    return len(positions)


def totals(rows: Sequence[dict[str, Any]]) -> dict[Any, int]:
    found: Counter[Any] = Counter()
    for row in rows:
        found[row["k"]] += row["_rows"]
    return found


def test_a_sequence_goes_on_at_any_position(engine: SparkEngine) -> None:
    splits = [f'{{"start": {at}, "end": {at + 700}}}' for at in (-700, 0)]
    for function in (lambda df: df.where("n % 3 = 0"), lambda df: df.where("rand() < 2")):
        program = Program(
            engine,
            SequenceSource(-700, 700, "n", split_rows=700),
            lambda numbers, function=function: numbers.transform(function, per_bundle=True),
        )
        assert check(program, *splits, every=7) > 2

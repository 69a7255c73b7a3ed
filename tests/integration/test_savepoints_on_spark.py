"""States of a savepoint as DataFrames, which Spark's workers read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from tests.unit.checkpoints.savepoints import Own, Written, processor


def test_every_state_is_the_same_on_spark(engine: SparkEngine, tmp_path: Path) -> None:
    written = Written(tmp_path, "rocksdb")
    written.add("sold", *processor(written.create))
    written.add("in memory", *processor())
    written.add("own", OperatorHarness(Own()).open())
    states = {
        (uid, name): state
        for uid, operator in written.read().items()
        for name, state in operator.items()
    }
    assert len(states) == 13
    for where, state in states.items():
        found = state.to_spark(engine.session)
        expected = state.to_arrow()
        assert found.columns == expected.column_names, where
        assert _rows(found.toArrow()) == _rows(expected), where


def _rows(table: pa.Table) -> list[str]:
    return sorted(repr(list(row.values())) for row in table.to_pylist())

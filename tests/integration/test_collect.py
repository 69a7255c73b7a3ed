"""How results leave Spark: in order, on several cores, never more than the reader can take, and
without blocking others.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import collect
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock
from tests.integration.conftest import Slot, session_conf

ROWS = 4_000_000
PARTITIONS = 8


@pytest.fixture(scope="module")
def engine(slot: Slot) -> SparkEngine:
    return slot.spark(cores=2)


def test_rows_come_in_their_order(engine: SparkEngine) -> None:
    # The first partitions take longest.
    slow = "aggregate(sequence(0, (7 - id DIV 1000) * 20), 0D, (a, v) -> a + sqrt(v)) >= 0"
    frame = engine.session.range(0, 8_000, 1, PARTITIONS).where(slow)
    found = pa.Table.from_batches(collect(frame, to_arrow(frame.schema), PlanMeter(TaskClock())))
    assert found["id"].to_pylist() == list(range(8_000))


def test_a_reader_that_waits_does_not_keep_others_from_spark(engine: SparkEngine) -> None:
    """Such a reader is a source whose consumer, in the same slot, runs Spark on its rows."""
    scheduler = engine.session._jsc.sc().dagScheduler()
    jobs_before = scheduler.numTotalJobs()
    frame = engine.session.range(0, ROWS, 1, PARTITIONS)
    counts: list[int] = []
    result = collect(frame, to_arrow(frame.schema), PlanMeter(TaskClock()))
    read = next(result).num_rows
    other = threading.Thread(
        target=lambda: counts.append(engine.session.range(0, 1000, 1, 2).count()), daemon=True
    )
    other.start()
    other.join(60)
    assert counts == [1000]
    assert scheduler.numTotalJobs() - jobs_before == 3, (
        "two partitions of the result, and the other's count"
    )
    assert read + sum(batch.num_rows for batch in result) == ROWS


def test_tasks_go_by_the_sessions_values(engine: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"n": ""}\n')
    session = engine.session
    empty = "spark.sql.legacy.json.allowEmptyString.enabled"  # every parser of a line reads it
    with session_conf(engine, {empty: "true"}), engine.job_group("group", "test", lambda: False):
        frame = session.read.schema("n INT, _corrupt_record STRING").json(str(tmp_path))
        rows = pa.Table.from_batches(collect(frame, to_arrow(frame.schema), PlanMeter(TaskClock())))
    assert rows.to_pylist() == [{"n": None, "_corrupt_record": None}]

"""Collected rows of a job with checkpoints: the sink, its coordinator, and what clients see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from dispatcher.results import ResultStore, follow
from firesteel.common.ids import AttemptId, stable_id
from firesteel.common.operator_messages import OperatorEvent, OperatorMessage
from firesteel.testing import OperatorHarness
from jobmaster.core.coordinators import CollectCoordinator
from jobmaster.core.coordinators.base import Spool
from taskexecutor.executor.connectors.collect_sink import Collecting
from taskexecutor.executor.state import RestoredOperatorState

JOB, SINK, SCHEMA = stable_id("job"), stable_id("sink"), pa.schema([("n", pa.int64())])


class Master:
    """The way of the rows: coordinator, spool, client."""

    def __init__(self, folder: Path) -> None:
        self.store = ResultStore(folder)
        self.coordinator = CollectCoordinator()
        self.chunks = 0

    def attempt(
        self,
        number: int,
        restored: RestoredOperatorState | None = None,
        *,
        interval_ms: int = 0,
        checkpoints: bool = True,
    ) -> OperatorHarness:
        harness = OperatorHarness(
            Collecting(interval_ms),
            [SCHEMA],
            checkpoints=checkpoints,
            attempt=number,
            restored=restored,
        )
        harness.environment.send_event = lambda event: self._received(harness, event)
        return harness.open()

    def _received(self, harness: OperatorHarness, event: OperatorEvent) -> None:
        attempt = AttemptId(event.attempt_id)
        for answer in self.coordinator.receive(attempt, 0, event.message):
            if isinstance(answer, Spool):
                self.store.append(JOB, SINK, 1, self.chunks, answer.ipc_stream, answer.group)
                self.chunks += 1
                self._answer(harness, self.coordinator.spooled(attempt, answer.sequence, ""))

    def _answer(self, harness: OperatorHarness, answers: Sequence[OperatorMessage]) -> None:
        for answer in answers:
            harness.deliver(answer)  # type: ignore[arg-type]

    def seen(self) -> list[int]:
        async def collect() -> list[int]:
            found: list[int] = []
            chunks = follow(self.store, JOB, SINK, ended=lambda: True, wait=asyncio.Event().wait)
            async for chunk in chunks:
                found += pa.ipc.open_stream(chunk.ipc_stream).read_all()["n"].to_pylist()
            return found

        return asyncio.run(collect())


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def test_rows_are_seen_once_when_their_checkpoint_is_complete(tmp_path: Path) -> None:
    master = Master(tmp_path)
    first = master.attempt(0)
    first.process(numbers(1, 2))
    first.checkpoint(1)
    first.process(numbers(3))
    first.flush()
    assert master.seen() == [], "the checkpoint is not complete"
    first.complete(1)
    assert master.seen() == [1, 2]
    restored = first.checkpoint(2)  # which is complete, but the task never hears of it
    first.process(numbers(4))
    first.flush()
    first.close()  # it fails
    assert master.seen() == [1, 2]

    second = master.attempt(1, restored)
    assert master.seen() == [1, 2, 3], "what a complete checkpoint holds is shown"
    second.process(numbers(4))
    second.finish()
    restored = second.checkpoint(3, finished=True)
    assert master.seen() == [1, 2, 3]
    second.complete(3)
    second.close()
    assert master.seen() == [1, 2, 3, 4]
    master.attempt(2, restored).close()
    assert master.seen() == [1, 2, 3, 4], "shown again, it is there once"


def test_rows_of_a_checkpoint_that_was_given_up_are_seen_with_the_next(tmp_path: Path) -> None:
    master = Master(tmp_path)
    sink = master.attempt(0)
    for checkpoint_id in (1, 2):
        sink.process(numbers(checkpoint_id))
        sink.checkpoint(checkpoint_id)
    sink.process(numbers(3))
    sink.checkpoint(3)
    sink.complete(2)
    assert master.seen() == [1, 2]
    sink.close()


HOUR_MS = 3_600_000


def test_rows_that_come_soon_after_others_wait_for_more(tmp_path: Path) -> None:
    master = Master(tmp_path)
    sink = master.attempt(0, interval_ms=HOUR_MS, checkpoints=False)
    for number in range(4):
        sink.process(numbers(number))
        sink.flush()
    assert master.seen() == [0], "the first ones do not wait"
    due_ms = time.time_ns() // 1_000_000 + HOUR_MS
    sink.processing_time(due_ms)
    assert (master.seen(), master.chunks) == ([0, 1, 2, 3], 2)
    sink.process(numbers(4))
    sink.flush()
    sink.finish()
    sink.close()
    assert (master.seen(), master.chunks) == ([0, 1, 2, 3, 4], 3)


def test_rows_that_wait_for_more_are_in_the_checkpoint(tmp_path: Path) -> None:
    master = Master(tmp_path)
    sink = master.attempt(0, interval_ms=HOUR_MS)
    for number in range(2):
        sink.process(numbers(number))
        sink.flush()
    sink.checkpoint(1)
    sink.complete(1)
    assert master.seen() == [0, 1]
    sink.close()

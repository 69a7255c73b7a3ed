"""Checkpoints that overtake what waits between tasks: they are complete while it waits, and what
they have overtaken is processed once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from firesteel.common.checkpoints.messages import (
    CheckpointAcknowledged,
    CheckpointAnswer,
    DataEnded,
)
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import OperatorId, stable_id
from firesteel.common.job_graph import JobEdge, Partitioner
from firesteel.common.states import ExecutionState
from firesteel.elements import CheckpointBarrier, EndOfData, EndOfPartition
from firesteel.operator import OperatorState, StreamOperator
from firesteel.testing import Journal, RecordingSource
from taskexecutor.executor.exchange import Exchange, Locations
from taskexecutor.executor.state import RestoredInFlight, RestoredOperatorState
from taskexecutor.executor.state.files import read_snapshot
from taskexecutor.executor.task.input_task import StepRows
from taskexecutor.executor.task.interfaces import CheckpointServices
from tests.unit.task.runs import Run, batch, in_edge, operator, out_edge, vertex
from tests.waiting import PATIENCE_S, eventually

WINDOW_BYTES = 4096
BATCHES = [batch(*range(start, start + 100)) for start in range(0, 4000, 100)]
IN, OUT = in_edge("link", partitioner=Partitioner.FORWARD), out_edge("link", 0)
SINK, SOURCE = OperatorId(stable_id("sink")), OperatorId(stable_id("src"))

BARRIER = CheckpointBarrier(checkpoint_id=1, timestamp_ms=0)
UNALIGNED = replace(BARRIER, unaligned=True)
PATIENT = replace(BARRIER, aligned_timeout_ms=1)


class SlowSink(StreamOperator):
    """Takes a batch per permit, and keeps the numbers that it has taken."""

    def __init__(self, permits: int = 0) -> None:
        self.permits = threading.Semaphore(permits)
        self.taken: list[int] = []
        self.begun = threading.Event()  # with the first batch

    def initialize_state(self, state: OperatorState) -> None:
        self.taken = state.list_state("taken")  # starts with the restored rows

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self.begun.set()
        assert self.permits.acquire(timeout=PATIENCE_S)
        self.taken.extend(batch.column(0).to_pylist())


class Answers:
    """A task's answers, and the files that they name."""

    def __init__(self, directory: Path) -> None:
        self.storage = CheckpointStorage(str(directory))
        self.data_ended = threading.Event()
        self.acknowledged: queue.Queue[CheckpointAcknowledged] = queue.Queue()
        self.services = CheckpointServices(self.storage, self._put, unaligned=True)

    def _put(self, answer: CheckpointAnswer) -> None:
        if isinstance(answer, CheckpointAcknowledged):
            self.acknowledged.put(answer)
        elif isinstance(answer, DataEnded):
            self.data_ended.set()

    def next(self) -> CheckpointAcknowledged:
        return self.acknowledged.get(timeout=PATIENCE_S)

    def restored(self, answer: CheckpointAcknowledged) -> dict[OperatorId, RestoredOperatorState]:
        return {
            part.operator_id: read_snapshot(self.storage, part)
            for part in answer.snapshot.operators
        }


@pytest.fixture
def new_exchange() -> Iterator[Callable[[], Exchange]]:
    made: list[Exchange] = []

    def new() -> Exchange:
        made.append(
            Exchange(
                host="127.0.0.1",
                window_bytes=WINDOW_BYTES,
                batch_rows=65536,
                partition_timeout_s=600,
            )
        )
        return made[-1]

    yield new
    for exchange in made:
        exchange.close()


class Pipeline:
    """src =exchange=> sink, in two processes' worth of exchange."""

    def __init__(
        self,
        new_exchange: Callable[[], Exchange],
        directory: Path,
        sink: SlowSink,
        restored: dict[OperatorId, RestoredOperatorState] | None = None,
    ) -> None:
        self.source_answers = Answers(directory / "source")
        self.sink_answers = Answers(directory / "sink")
        upstream = new_exchange()
        self.sink_operator = sink
        self.source = Run(
            vertex(operator("src")),
            {"src": RecordingSource("src", Journal(), BATCHES)},
            out_edges=[OUT],
            exchange=upstream,
            checkpoints=self.source_answers.services,
            restored=restored,
        )
        self.sink = Run(
            vertex(operator("sink", ())),
            {"sink": sink},
            in_edges=[(IN, 1)],
            exchange=new_exchange(),
            locations=Locations((upstream.address,), (0,), (0,)),
            checkpoints=self.sink_answers.services,
            restored=restored,
        )
        for run in (self.sink, self.source):
            run.start()

    def await_back_pressure(self) -> None:
        assert self.sink_operator.begun.wait(PATIENCE_S)
        eventually(lambda: any(p.overdrawn for p in self.source.task._partitions))

    def cancel(self) -> None:
        self.sink_operator.permits.release(len(BATCHES))
        for run in (self.source, self.sink):
            run.task.cancel()
        for run in (self.source, self.sink):
            run.join()


def in_flight(answer: CheckpointAcknowledged) -> int:
    return sum(
        count for o in answer.snapshot.operators for h in o.in_flight for _, count in h.batches
    )


@pytest.mark.parametrize("barrier", [UNALIGNED, PATIENT], ids=["unaligned", "timeout"])
def test_behind_a_full_exchange_it_overtakes_and_every_row_counts_once(
    new_exchange: Callable[[], Exchange], tmp_path: Path, barrier: CheckpointBarrier
) -> None:
    first = Pipeline(new_exchange, tmp_path / "first", SlowSink())
    first.await_back_pressure()
    first.source.task.trigger_checkpoint(barrier)
    source = first.source_answers.next()  # although its consumer takes nothing
    kind: Any = first.sink.task._kind
    eventually(lambda: kind._gates[0].arrived)
    first.sink_operator.permits.release()
    if barrier is PATIENT:  # the next step starts after its deadline
        eventually(lambda: kind._alignment.deadline)
        eventually(lambda: kind._alignment.deadline <= time.monotonic())
        first.sink_operator.permits.release()
    sink = first.sink_answers.next()
    assert in_flight(sink) >= WINDOW_BYTES // 800 - 3
    (part,) = sink.snapshot.operators
    assert len(read_snapshot(first.sink_answers.storage, part).lists["taken"]) <= 400
    first.cancel()

    restored = {**first.source_answers.restored(source), **first.sink_answers.restored(sink)}
    again = Pipeline(new_exchange, tmp_path / "again", SlowSink(len(BATCHES)), restored)
    eventually(lambda: len(again.sink_operator.taken) >= 4000)
    again.cancel()
    assert again.sink_operator.taken == list(range(4000)), "each once, in order"


def test_an_aligned_barrier_waits_for_all_that_is_ahead_of_it(
    new_exchange: Callable[[], Exchange], tmp_path: Path
) -> None:
    pipeline = Pipeline(new_exchange, tmp_path, SlowSink())
    pipeline.await_back_pressure()
    pipeline.source.task.trigger_checkpoint(BARRIER)
    source = pipeline.source_answers.next()
    emitted = pipeline.source_answers.restored(source)[SOURCE].lists["firesteel.position"][0][0]
    pipeline.sink_operator.permits.release(len(BATCHES))
    sink = pipeline.sink_answers.next()
    taken = pipeline.sink_answers.restored(sink)[SINK].lists["taken"]
    assert taken == list(range(emitted * 100))
    assert in_flight(sink) == 0
    pipeline.cancel()


def fed_by_hand(
    exchange: Exchange, answers: Answers, sink: SlowSink, edge: JobEdge = IN, **options: object
) -> Run:
    """A sink with two producers."""
    return Run(
        vertex(operator("sink", ())),
        {"sink": sink},
        in_edges=[(edge, 2)],
        exchange=exchange,
        locations=Locations((exchange.address,), (0, 0), (0, 0)),
        checkpoints=answers.services,
        **options,  # type: ignore[arg-type]
    )


def overtaken(exchange: Exchange, answers: Answers, sink: SlowSink) -> tuple[Run, Any, Any]:
    """Returns a sink that has received its first producer's barrier and the row after it."""
    edge = in_edge("link")
    run = fed_by_hand(exchange, answers, sink, edge)
    ahead, behind = (run.producer(edge, subtask, producers=2) for subtask in range(2))
    run.start()
    run.wait_for(ExecutionState.RUNNING)
    ahead.emit_event(UNALIGNED)
    ahead.emit(batch(1))
    eventually(lambda: sink.taken)
    return run, ahead, behind


def test_what_comes_before_the_last_barrier_is_part_of_it(
    new_exchange: Callable[[], Exchange], tmp_path: Path
) -> None:
    answers, sink = Answers(tmp_path), SlowSink(99)
    run, ahead, behind = overtaken(new_exchange(), answers, sink)
    behind.emit(batch(2))
    behind.emit_event(UNALIGNED)
    behind.emit(batch(3))
    answer = answers.next()
    state = answers.restored(answer)[SINK]
    assert "taken" not in state.lists, "the snapshot is as old as the first barrier"
    (flying,) = state.in_flight
    assert [(p, b.column(0).to_pylist()) for p, b in flying.batches] == [(1, [2])]
    for producer in (ahead, behind):
        producer.emit_event(EndOfData())
        producer.emit_event(EndOfPartition())
    assert answers.data_ended.wait(PATIENCE_S)
    run.task.trigger_checkpoint(replace(UNALIGNED, checkpoint_id=2))
    answer = answers.next()
    assert in_flight(answer) == 0
    assert sorted(answers.restored(answer)[SINK].lists["taken"]) == [1, 2, 3]
    run.task.notify_checkpoint(2, completed=True)
    assert run.join().states[-1] is ExecutionState.FINISHED


def test_a_checkpoint_that_is_given_up_while_it_records_is_forgotten(
    new_exchange: Callable[[], Exchange], tmp_path: Path
) -> None:
    answers, sink = Answers(tmp_path), SlowSink(99)
    run, ahead, behind = overtaken(new_exchange(), answers, sink)
    run.task.notify_checkpoint(1, completed=False)
    behind.emit_event(UNALIGNED)
    for producer in (behind, ahead):
        producer.emit(batch(2))
        producer.emit_event(replace(UNALIGNED, checkpoint_id=2))
    assert answers.next().checkpoint_id == 2
    assert not [path for path in answers.storage.files() if path.startswith("chk-1/")]
    run.task.cancel()
    run.join()


def test_with_other_parallelisms_each_takes_its_own_rows_first(
    new_exchange: Callable[[], Exchange], tmp_path: Path
) -> None:
    edge = replace(in_edge("link", partitioner=Partitioner.HASH), key_columns=("value",))
    flying = RestoredInFlight(
        result_id=edge.result_id, file="", batches=[(7, batch(*range(50))), (1, batch(*range(50)))]
    )
    exchange, answers = new_exchange(), Answers(tmp_path)
    sink = SlowSink(99)
    run = Run(
        vertex(operator("sink", ()), parallelism=2),
        {"sink": sink},
        in_edges=[(edge, 1)],
        exchange=exchange,
        locations=Locations((exchange.address,), (0,), (0,)),
        checkpoints=answers.services,
        restored={SINK: RestoredOperatorState(in_flight=[flying])},
    )
    producer = exchange.create_partition(
        job_id=run.config.job_id,
        result_id=edge.result_id,
        producer=0,
        attempt=0,
        partitioner=Partitioner.HASH,
        producers=1,
        consumers=2,
        max_parallelism=128,
        key_columns=("value",),
    )
    producer.emit(batch(*range(50)))
    run.start()
    sent = sorted(
        value
        for element in producer.queued(1)
        if isinstance(element, pa.RecordBatch)
        for value in element.column(0).to_pylist()
    )
    run.wait_for(ExecutionState.RUNNING)
    eventually(lambda: len(sink.taken) == 3 * (50 - len(sent)))
    own = [value for value in range(50) if value not in sent]
    assert 0 < len(own) < 50
    assert sink.taken == own * 3, "what was overtaken first, of both producers in their order"
    run.task.cancel()
    run.join()


def test_a_task_takes_fewer_rows_at_once_while_its_steps_are_slow() -> None:
    rows = StepRows()
    for limit in (2000, 4000, 8000):
        assert rows.on_step(rows.limit, 0.001)
        assert rows.limit == limit
    assert not rows.on_step(8000, 0.1)
    assert rows.on_step(8000, 8.0)
    assert rows.limit == 100, "a tenth of a second's worth"
    assert not rows.on_step(100, 0.1)
    assert not rows.on_step(20, 0.02), "it says nothing about more rows"
    assert rows.on_step(100, 0.01)
    assert rows.limit == 200

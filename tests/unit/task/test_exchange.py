"""Tasks over the real exchange: two processes' worth of it, and tasks in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from firesteel.common.job_graph import Partitioner
from firesteel.common.states import ExecutionState
from firesteel.testing import Journal, RecordingOperator, RecordingSource
from taskexecutor.executor.exchange import Exchange, Locations
from tests.unit.task.runs import Run, batch, in_edge, operator, out_edge, vertex
from tests.waiting import eventually

FINISHED = ExecutionState.FINISHED
LINK_OUT, LINK_IN = out_edge("link", 0), in_edge("link", partitioner=Partitioner.FORWARD)
BATCHES = [batch(*range(start, start + 100)) for start in range(0, 5000, 100)]


@pytest.fixture
def exchanges() -> Iterator[list[Exchange]]:
    made = [
        Exchange(host="127.0.0.1", window_bytes=4096, batch_rows=65536, partition_timeout_s=600)
        for _ in range(2)
    ]
    yield made
    for exchange in made:
        exchange.close()


class Pair:
    """A source task and a sink task, in one process or two."""

    def __init__(self, upstream: Exchange, downstream: Exchange, endless: bool = False) -> None:
        self.journal = Journal()
        self.received: list[int] = []
        self.first = threading.Event()

        def take(op: RecordingOperator, data: pa.RecordBatch, index: int) -> None:
            self.received.extend(data.column(0).to_pylist())
            self.first.set()

        self.source = Run(
            vertex(operator("src")),
            {"src": RecordingSource("src", self.journal, BATCHES, endless=endless)},
            out_edges=[LINK_OUT],
            exchange=upstream,
        )
        self.sink = Run(
            vertex(operator("sink", ())),
            {"sink": RecordingOperator("sink", self.journal, on_batch=take)},
            in_edges=[(LINK_IN, 1)],
            exchange=downstream,
            locations=Locations(addresses=(upstream.address,), address_index=(0,), attempts=(0,)),
        )


@pytest.mark.parametrize("same_process", [True, False])
def test_every_record_arrives_once_and_both_tasks_finish(
    exchanges: list[Exchange], same_process: bool
) -> None:
    pair = Pair(exchanges[0], exchanges[0 if same_process else 1])
    pair.sink.start()  # the consumer may well be first
    pair.source.start()
    pair.source.join()
    pair.sink.join()
    assert pair.source.errors == pair.sink.errors == []
    assert pair.source.states[-1] is pair.sink.states[-1] is FINISHED
    assert pair.received == list(range(5000))
    calls = pair.journal.calls
    assert calls.index("sink.finish") > calls.index("src.finish")
    assert pair.source.final_metrics.records_out == pair.sink.final_metrics.records_in == 5000


def test_a_task_whose_producers_had_finished_before_has_their_last_words(
    exchanges: list[Exchange],
) -> None:
    journal = Journal()
    sink = Run(
        vertex(operator("sink", ())),
        {"sink": RecordingOperator("sink", journal)},
        in_edges=[(LINK_IN, 3)],
        exchange=exchanges[0],
        locations=Locations((), (), (), ended=True),
    ).run()
    assert sink.errors == []
    assert sink.states[-1] is FINISHED
    assert journal.calls.count("sink.process_watermark(max)") == 1
    assert journal.calls[-2:] == ["sink.finish", "sink.close"]


@pytest.mark.parametrize("same_process", [True, False])
def test_a_task_that_is_out_of_credit_is_cancelled(
    exchanges: list[Exchange], same_process: bool
) -> None:
    pair = Pair(exchanges[0], exchanges[0 if same_process else 1])
    gone_on = threading.Event()
    pair.journal.hooks["sink.process_batch(0)"] = lambda: gone_on.wait(60)  # a slow consumer
    pair.sink.task.neighbour_failure_grace_s = 60
    pair.sink.start()
    pair.source.start()
    pair.source.wait_for(ExecutionState.RUNNING)
    pair.source.task.cancel()
    pair.source.join()
    assert pair.source.states[-1] is ExecutionState.CANCELED
    gone_on.set()
    pair.sink.task.cancel()
    pair.sink.join()
    assert pair.sink.states[-1] is ExecutionState.CANCELED


def test_a_task_that_waits_for_credit_shows_as_back_pressured(
    exchanges: list[Exchange],
) -> None:
    pair = Pair(exchanges[0], exchanges[0])  # the sink is not there: the window fills up

    def shown(name: str) -> float:
        return next(
            s.value
            for s in pair.source.task.samples()
            if s.name == f"flink_taskmanager_job_task_{name}"
        )

    pair.source.start()
    pair.source.wait_for(ExecutionState.RUNNING)
    eventually(lambda: shown("isBackPressured"), "the task is back-pressured")
    shown("backPressuredTimeMsPerSecond")
    before = pair.source.task.metrics()
    time.sleep(0.1)
    after = pair.source.task.metrics()
    assert after.back_pressured_ms - before.back_pressured_ms >= 90
    assert after.busy_ms - before.busy_ms < 50
    assert shown("backPressuredTimeMsPerSecond") > 0
    pair.source.task.cancel()
    pair.source.join()
    assert pair.source.states[-1] is ExecutionState.CANCELED


@pytest.mark.parametrize("consumer_in_its_process", [True, False])
def test_unconnected_producers_and_consumers_can_be_cancelled(
    exchanges: list[Exchange], consumer_in_its_process: bool
) -> None:
    """Also when the job was released over there, so that no answer ever comes."""
    pair = Pair(exchanges[0], exchanges[0 if consumer_in_its_process else 1])
    exchanges[0].release_job(pair.sink.config.job_id)
    pair.sink.start()
    pair.sink.wait_for(ExecutionState.RUNNING)
    pair.sink.task.cancel()
    pair.sink.join()
    assert pair.sink.states[-1] is ExecutionState.CANCELED
    pair.source.start()  # its consumer has come and gone
    pair.source.wait_for(ExecutionState.RUNNING)
    pair.source.task.cancel()
    pair.source.join()
    assert pair.source.states[-1] is ExecutionState.CANCELED
    assert exchanges[0].partitions_awaited == 0


@pytest.mark.parametrize("same_process", [True, False])
def test_a_failed_consumer_stops_its_producer(
    exchanges: list[Exchange], same_process: bool
) -> None:
    pair = Pair(exchanges[0], exchanges[0 if same_process else 1])
    pair.journal.fail_in("sink.process_batch(0)", ValueError("sink is broken"))
    pair.source.task.neighbour_failure_grace_s = 0.01
    pair.sink.start()
    pair.source.start()
    pair.sink.join()
    pair.source.join()
    assert pair.sink.errors[0].summary == "ValueError: sink is broken"
    assert pair.source.states[-1] is ExecutionState.FAILED
    assert "abandoned the partition" in pair.source.errors[0].summary

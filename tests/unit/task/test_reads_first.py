"""An operator that reads one input to its end before the other: that one waits, and its producer
with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from firesteel.common.states import ExecutionState
from firesteel.elements import EndOfData, EndOfPartition, Watermark
from firesteel.testing import Journal, MemoryExchange, RecordingOperator, RecordingSource
from taskexecutor.executor.exchange import Exchange, Locations
from tests.unit.task.runs import Run, batch, in_edge, operator, out_edge, vertex


def reader(journal: Journal) -> RecordingOperator:
    made = RecordingOperator("reader", journal, inputs=2)
    made.reads_first = 1
    return made


def test_the_other_input_waits_for_the_end_of_the_first() -> None:
    journal = Journal()
    rows, first = in_edge("rows", input_index=0), in_edge("first", input_index=1)
    run = Run(
        vertex(operator("reader", (), ())),
        {"reader": reader(journal)},
        in_edges=[(rows, 2), (first, 2)],
        exchange=MemoryExchange(capacity=100),
    )
    for edge, value in ((rows, 1), (first, 2)):
        for subtask in range(2):
            producer = run.producer(edge, subtask, producers=2)
            for element in (batch(value), Watermark(5)):
                producer.emit(element) if not isinstance(
                    element, Watermark
                ) else producer.emit_event(element)
            producer.emit_event(EndOfData())
            producer.emit_event(EndOfPartition())
    run.run()
    assert run.states[-1] is ExecutionState.FINISHED, run.errors
    calls = journal.of("process_batch", "end_input", "process_watermark")
    assert calls == [
        "reader.process_batch(1)",
        "reader.process_batch(1)",
        "reader.end_input(1)",
        "reader.process_batch(0)",
        "reader.process_batch(0)",
        "reader.process_watermark(5)",
        "reader.process_watermark(max)",
        "reader.end_input(0)",
    ]


def test_the_task_runs_when_the_first_has_ended() -> None:
    """Checkpoints are of tasks that run: a barrier behind rows that wait could not be reached."""
    journal = Journal()
    read = threading.Event()
    journal.hooks["reader.process_batch(1)"] = read.set
    rows, first = in_edge("rows", input_index=0), in_edge("first", input_index=1)
    run = Run(
        vertex(operator("reader", (), ())),
        {"reader": reader(journal)},
        in_edges=[(rows, 1), (first, 1)],
    )
    producer, other = run.producer(first), run.producer(rows)
    producer.emit(batch(1))
    run.start()
    assert read.wait(60)
    assert run.states == [ExecutionState.INITIALIZING]
    producer.emit_event(EndOfData())
    run.wait_for(ExecutionState.RUNNING)
    producer.emit_event(EndOfPartition())
    for event in (EndOfData(), EndOfPartition()):
        other.emit_event(event)
    run.join()
    assert run.states == [
        ExecutionState.INITIALIZING,
        ExecutionState.RUNNING,
        ExecutionState.FINISHED,
    ]


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    made = Exchange(host="127.0.0.1", window_bytes=4096, batch_rows=65536, partition_timeout_s=600)
    yield made
    made.close()


def test_the_other_producer_is_stopped_by_back_pressure(exchange: Exchange) -> None:
    journal = Journal()
    edges = {
        "rows": (out_edge("rows", 0), in_edge("rows", input_index=0)),
        "first": (out_edge("first", 0), in_edge("first", 0, 1)),
    }
    go_on = threading.Event()
    elements = {"rows": [batch(*range(100)) for _ in range(100)], "first": [batch(1), batch(2)]}
    sources = {}
    for name in edges:
        source = RecordingSource(name, journal, elements[name])
        sources[name] = Run(
            vertex(operator(name)), {name: source}, out_edges=[edges[name][0]], exchange=exchange
        )
    journal.hooks["first.exhausted"] = lambda: go_on.wait(60)  # type: ignore[assignment,return-value]
    here = Locations(addresses=(exchange.address,), address_index=(0,), attempts=(0,))
    sink = Run(
        vertex(operator("reader", (), ())),
        {"reader": reader(journal)},
        in_edges=[(edges["rows"][1], 1), (edges["first"][1], 1)],
        exchange=exchange,
        locations=here,
    )
    for run in (sink, *sources.values()):
        run.start()
    waited = threading.Event()
    for _ in range(12_000):
        partition = sources["rows"].task._partitions
        if partition and partition[0].blocked:
            break
        waited.wait(0.005)
    assert partition[0].blocked, "the producer waits for credit"
    assert "reader.process_batch(0)" not in journal.calls
    go_on.set()
    for run in (sink, *sources.values()):
        assert run.join().states[-1] is ExecutionState.FINISHED, run.errors
    handled = journal.of("process_batch")
    assert handled == ["reader.process_batch(1)"] * 2 + ["reader.process_batch(0)"] * 100

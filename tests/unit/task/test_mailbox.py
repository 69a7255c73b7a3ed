"""The mailbox, and what reaches a running task from other threads."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest

from firesteel.common.ids import stable_id
from firesteel.common.operator_messages import (
    ChunkAcknowledged,
    ChunkCollected,
    OperatorEvent,
    SplitAssigned,
    SplitRequested,
    SplitsExhausted,
    ToOperator,
)
from firesteel.common.states import ExecutionState
from firesteel.elements import EndOfData, EndOfPartition
from firesteel.operator import SourceOperator, StreamOperator, TaskCancelled
from firesteel.testing import (
    Journal,
    MemoryExchange,
    OperatorHarness,
    RecordingOperator,
    RecordingSource,
)
from taskexecutor.executor.task.input import InputReader
from taskexecutor.executor.task.mailbox import Mailbox
from tests.unit.task.runs import Run, batch, in_edge, operator, out_edge, vertex


def test_mails_are_taken_in_order() -> None:
    mailbox = Mailbox()
    seen: list[int] = []
    for number in range(3):
        mailbox.put(lambda number=number: seen.append(number))
    while (mail := mailbox.take()) is not None:
        mail()
    assert seen == [0, 1, 2]


def test_a_wake_before_the_wait_is_not_lost() -> None:
    mailbox = Mailbox()
    mailbox.wake()
    mailbox.wake()
    mailbox.wait(None)
    mailbox.wait(0)  # the wake is used up; this one times out


def test_a_closed_mailbox_takes_nothing_and_never_sleeps() -> None:
    mailbox = Mailbox()
    mailbox.put(lambda: None)
    mailbox.close()
    mailbox.put(lambda: None)
    assert mailbox.take() is None
    mailbox.wait(None)


def test_a_sleeping_task_is_handed_a_mail_within_a_millisecond() -> None:
    mailbox = Mailbox()
    delays_s: list[float] = []
    answered = threading.Semaphore(0)

    def serve() -> None:
        while len(delays_s) < 200:
            mailbox.wait(None)
            while (mail := mailbox.take()) is not None:
                mail()

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in range(200):
        put_s = time.perf_counter()
        mailbox.put(
            lambda put_s=put_s: (delays_s.append(time.perf_counter() - put_s), answered.release())
        )
        answered.acquire()
    thread.join(60)
    assert sorted(delays_s)[50] < 0.001  # most of them, unless the machine is busy


class SplitSource(RecordingSource, SourceOperator):
    """Asks for a split at a time, as file sources do."""

    def open(self) -> None:
        self.ended = False
        self.asked = False

    def handle_coordinator_event(self, event: object) -> None:
        super().handle_coordinator_event(event)
        self.asked = False
        if isinstance(event, SplitAssigned):
            self.elements.append(batch(int(event.split_json)))
        else:
            self.ended = True

    def poll(self, max_wait_s: float) -> bool:
        self.waiting = not self.elements
        if self.elements:
            self.output.emit(self.elements.popleft())
        if not self.asked and not self.ended:
            self.asked = True
            self.context.send_to_coordinator(SplitRequested(received=0))
        return not self.ended or bool(self.elements)


def test_a_source_and_its_coordinator() -> None:
    journal = Journal()
    out = out_edge("out", 1)
    run = Run(
        vertex(operator("src", coordinator_kind="test"), operator("map", (0,))),
        {"src": SplitSource("src", journal, []), "map": RecordingOperator("map", journal)},
        out_edges=[out],
    )
    splits = [1, 2, 3]

    def coordinate(event: OperatorEvent) -> None:
        assert isinstance(event.message, SplitRequested)
        assert (event.operator_id, event.subtask, event.job_id) == (
            stable_id("src"),
            0,
            stable_id("job"),
        )
        if splits:
            answer: ToOperator = SplitAssigned(number=0, split_json=str(splits.pop(0)))
        else:
            answer = SplitsExhausted()
        threading.Thread(target=run.task.handle_event, args=(stable_id("src"), answer)).start()

    run.on_event = coordinate
    run.start().join()
    assert run.states[-1] is ExecutionState.FINISHED
    assert [e for e in run.sent(out) if isinstance(e, pa.RecordBatch)] == [
        batch(1),
        batch(2),
        batch(3),
    ]


def test_an_event_for_another_task_is_dropped() -> None:
    journal = Journal()
    run = Run(vertex(operator("src")), {"src": RecordingSource("src", journal, [batch(1)])})
    journal.hooks["src.poll"] = lambda: run.task.handle_event(
        stable_id("stranger"), SplitsExhausted()
    )
    assert run.run().states[-1] is ExecutionState.FINISHED


def test_an_operator_may_wait_for_its_coordinator_in_the_middle_of_a_batch() -> None:
    journal = Journal()
    edge = in_edge("in")
    acknowledged: list[object] = []

    def collect(op: RecordingOperator, data: pa.RecordBatch, index: int) -> None:
        op.context.send_to_coordinator(ChunkCollected(sequence=0, ipc_stream=b"rows"))
        while not acknowledged:
            op.context.yield_to_mail(1.0)

    class Sink(RecordingOperator):
        def handle_coordinator_event(self, event: object) -> None:
            acknowledged.append(event)

    run = Run(
        vertex(operator("sink", ())),
        {"sink": Sink("sink", journal, on_batch=collect)},
        in_edges=[(edge, 1)],
    )
    producer = run.producer(edge)
    producer.emit(batch(1))
    for element in (EndOfData(True), EndOfPartition()):
        producer.emit_event(element)

    def coordinate(event: OperatorEvent) -> None:
        assert event.message == ChunkCollected(sequence=0, ipc_stream=b"rows")
        answer = (stable_id("sink"), ChunkAcknowledged(sequence=0))
        threading.Thread(target=run.task.handle_event, args=answer).start()

    run.on_event = coordinate
    run.start().join()
    assert run.states[-1] is ExecutionState.FINISHED
    assert len(acknowledged) == 1


def test_a_task_that_waits_for_its_coordinator_is_cancelled() -> None:
    journal = Journal()
    edge = in_edge("in")
    waiting = threading.Event()

    def wait(op: RecordingOperator, data: pa.RecordBatch, index: int) -> None:
        waiting.set()
        while True:
            op.context.yield_to_mail(60.0)

    run = Run(
        vertex(operator("sink", ())),
        {"sink": RecordingOperator("sink", journal, on_batch=wait)},
        in_edges=[(edge, 1)],
    )
    run.producer(edge).emit(batch(1))
    run.start()
    assert waiting.wait(60)
    run.task.cancel()
    run.join()
    assert run.states[-1] is ExecutionState.CANCELED
    harness = OperatorHarness(RecordingOperator("x", Journal()))
    harness.cancel()
    with pytest.raises(TaskCancelled):
        harness.environment.yield_to_mail(60.0)


def test_a_mail_that_fails_fails_the_task() -> None:
    journal = Journal()
    source = RecordingSource("src", journal, [], endless=True)

    def fail() -> None:
        raise ValueError("in a mail")

    journal.hooks["src.waits"] = lambda: source.context.request_mail(fail)
    run = Run(vertex(operator("src")), {"src": source}).run()
    assert run.states[-1] is ExecutionState.FAILED
    assert run.errors[0].summary == "ValueError: in a mail"


@pytest.mark.parametrize("source", [True, False])
def test_a_task_reads_nothing_while_an_operator_is_full(source: bool) -> None:
    class Limited(StreamOperator):
        held = False
        taken = threading.Semaphore(0)

        @property
        def full(self) -> bool:
            return self.held

        def process_batch(self, data: pa.RecordBatch, input_index: int) -> None:
            assert not self.held, "a batch came while the operator was full"
            self.held = True
            self.output.emit(data)
            self.taken.release()

        def release(self) -> None:
            self.held = False

    limited, edge, out = Limited(), in_edge("in"), out_edge("out", 1 if source else 0)
    batches = [batch(1), batch(2), batch(3)]
    if source:
        operators = {"src": RecordingSource("src", Journal(), batches), "limited": limited}
        chain = vertex(operator("src"), operator("limited", (0,)))
        run = Run(chain, operators, out_edges=[out])
    else:
        run = Run(
            vertex(operator("limited", ())),
            {"limited": limited},
            in_edges=[(edge, 1)],
            out_edges=[out],
        )
        producer = run.producer(edge)
        for element in batches:
            producer.emit(element)
        producer.emit_event(EndOfData(True))
        producer.emit_event(EndOfPartition())
    run.start()
    for _ in batches:
        assert limited.taken.acquire(timeout=60)
        limited.context.request_mail(limited.release)
    run.join()
    assert run.states[-1] is ExecutionState.FINISHED, run.errors
    assert [e for e in run.sent(out) if isinstance(e, pa.RecordBatch)] == batches


def test_a_processing_time_timer_wakes_a_sleeping_task() -> None:
    journal = Journal()
    source = RecordingSource("src", journal, [], endless=True)
    run = Run(vertex(operator("src")), {"src": source})
    journal.hooks["src.open"] = lambda: source.context.timers.register_processing_time(
        int(time.time() * 1000) + 20
    )
    journal.hooks["src.on_processing_time"] = run.task.cancel
    run.start().join()
    assert "src.on_processing_time" in journal.calls
    assert run.states[-1] is ExecutionState.CANCELED


def test_no_gate_starves_another() -> None:
    exchange = MemoryExchange(capacity=1000)
    edges = [in_edge("busy"), in_edge("quiet")]
    gates = []
    for edge in edges:
        gates.append(
            exchange.create_gate(
                job_id="", result_id=edge.result_id, consumer=0, producers=1, consumers=1,
                pattern=edge.pattern, locations=None,
                on_available=lambda: None,
            )
        )  # fmt: skip
    run = Run(vertex(operator("x", ())), {}, exchange=exchange)
    busy, quiet = (run.producer(edge) for edge in edges)
    for number in range(10):
        busy.emit(batch(number))
    quiet.emit(batch(100))
    reader = InputReader(gates)
    order = [polled[0] for _ in range(11) if (polled := reader.poll()) is not None]
    assert order == [0, 1, *[0] * 9]
    assert reader.poll() is None

"""The order of an operator's life, for each kind of task: to the end, cancelled and failing in each
phase (spec 000, 001).
"""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from firesteel.common.states import ExecutionState
from firesteel.elements import MAX_WATERMARK, EndOfData, EndOfPartition, Watermark
from firesteel.testing import Journal, MemoryExchange, RecordingOperator, RecordingSource
from tests.unit.task.runs import Run, batch, in_edge, operator, out_edge, vertex

INITIALIZING, RUNNING = ExecutionState.INITIALIZING, ExecutionState.RUNNING
FINISHED, CANCELED, FAILED = ExecutionState.FINISHED, ExecutionState.CANCELED, ExecutionState.FAILED
OUT = out_edge("out", 2)
IN = in_edge("in")


def source_run(journal: Journal, endless: bool = False, **options: object) -> Run:
    """src -> map -> last -> (out)"""
    return Run(
        vertex(operator("src"), operator("map", (0,)), operator("last", (1,))),
        {
            "src": RecordingSource(
                "src", journal, [batch(1), Watermark(5), batch(2)], endless=endless
            ),
            "map": RecordingOperator("map", journal),
            "last": RecordingOperator("last", journal),
        },
        out_edges=[OUT],
        **options,  # type: ignore[arg-type]
    )


def test_a_source_task_to_its_end() -> None:
    journal = Journal()
    run = source_run(journal).run()
    assert run.states == [INITIALIZING, RUNNING, FINISHED]
    assert journal.calls == [
        *["last.setup", "map.setup", "src.setup"],
        *["last.initialize_state", "map.initialize_state", "src.initialize_state"],
        *["last.open", "map.open", "src.open"],
        *["src.poll", "map.process_batch(0)", "last.process_batch(0)"],
        *["src.poll", "map.process_watermark(5)", "last.process_watermark(5)"],
        *["src.poll", "map.process_batch(0)", "last.process_batch(0)"],
        "src.exhausted",
        *(f"{name}.process_watermark(max)" for name in ("src", "map", "last")),
        "src.finish",
        *["map.end_input(0)", "map.finish"],
        *["last.end_input(0)", "last.finish"],
        *["src.close", "map.close", "last.close"],
    ]  # fmt: skip
    assert run.sent(OUT) == [
        batch(1),
        Watermark(5),
        batch(2),
        MAX_WATERMARK,
        EndOfData(True),
        EndOfPartition(),
    ]
    assert run.exchange.partitions[(OUT.result_id, 0, 0)].closed


def test_the_end_of_partition_is_sent_when_the_operators_are_closed() -> None:
    journal = Journal()
    run = source_run(journal)
    at_close: list[object] = []
    journal.hooks["src.close"] = lambda: at_close.extend(run.sent(OUT))
    run.run()
    assert at_close[-1] == EndOfData(True)
    assert run.sent(OUT)[-1] == EndOfPartition()


def test_operators_close_only_when_the_consumers_have_taken_end_of_data() -> None:
    journal = Journal()
    run = source_run(journal, exchange=MemoryExchange(await_consumers=True))
    finished = threading.Event()
    journal.hooks["last.finish"] = finished.set
    run.start()
    assert finished.wait(60)
    gate = run.exchange.create_gate(
        job_id="", result_id=OUT.result_id, consumer=0, producers=1, consumers=1,
        pattern=OUT.pattern, locations=None,
        on_available=lambda: None,
    )  # fmt: skip
    taken: list[object] = []
    while EndOfPartition() not in taken:
        polled = gate.poll()
        if polled is not None:
            if polled[1] == EndOfData(True):
                assert "src.close" not in journal.calls
            taken.append(polled[1])
    run.join()
    assert taken[-2:] == [EndOfData(True), EndOfPartition()]
    assert run.states[-1] is FINISHED


def one_input_run(journal: Journal, **options: object) -> Run:
    """(in) -> map -> other -> last -> (out)"""
    return Run(
        vertex(operator("map", ()), operator("other", (0,)), operator("last", (1,))),
        {name: RecordingOperator(name, journal) for name in ("map", "other", "last")},
        in_edges=[(IN, 1)],
        out_edges=[OUT],
        **options,  # type: ignore[arg-type]
    )


def test_a_one_input_task_to_its_end() -> None:
    journal = Journal()
    run = one_input_run(journal)
    producer = run.producer(IN)
    producer.emit(batch(1))
    for event in (Watermark(7), MAX_WATERMARK, EndOfData(True), EndOfPartition()):
        producer.emit_event(event)
    run.run()
    assert run.states == [INITIALIZING, RUNNING, FINISHED]
    assert journal.of("setup", "initialize_state", "open") == [
        f"{name}.{call}"
        for call in ("setup", "initialize_state", "open")
        for name in ("last", "other", "map")
    ]
    assert journal.calls[9:] == [
        *["map.process_batch(0)", "other.process_batch(0)", "last.process_batch(0)"],
        *["map.process_watermark(7)", "other.process_watermark(7)", "last.process_watermark(7)"],
        *[
            "map.process_watermark(max)",
            "other.process_watermark(max)",
            "last.process_watermark(max)",
        ],
        *[
            "map.end_input(0)",
            "map.finish",
            "other.end_input(0)",
            "other.finish",
            "last.end_input(0)",
            "last.finish",
        ],
        *["map.close", "other.close", "last.close"],
    ]
    assert run.final_metrics.records_in == 1
    assert run.final_metrics.records_out == 1
    assert run.exchange.gates[0].closed


def test_a_task_with_inputs_closes_only_after_their_end_of_partition() -> None:
    journal = Journal()
    run = one_input_run(journal)
    finished = threading.Event()
    journal.hooks["last.finish"] = finished.set
    producer = run.producer(IN)
    producer.emit_event(MAX_WATERMARK)
    producer.emit_event(EndOfData(True))
    run.start()
    assert finished.wait(60)
    producer.await_acknowledged()
    assert "map.close" not in journal.calls
    producer.emit_event(EndOfPartition())
    run.join()
    assert journal.of("close") == ["map.close", "other.close", "last.close"]
    assert run.states[-1] is FINISHED


def test_a_two_input_task_ends_each_input_when_it_ends() -> None:
    journal = Journal()
    left, right = in_edge("left", 0, 0), in_edge("right", 0, 1)
    ended = threading.Event()
    journal.hooks["join.end_input(0)"] = ended.set
    run = Run(
        vertex(operator("join", (), ()), operator("last", (0,))),
        {
            "join": RecordingOperator("join", journal, inputs=2),
            "last": RecordingOperator("last", journal),
        },
        in_edges=[(left, 1), (right, 1)],
    )
    first, second = run.producer(left), run.producer(right)
    for event in (MAX_WATERMARK, EndOfData(True), EndOfPartition()):
        first.emit_event(event)
    run.start()
    assert ended.wait(60)
    second.emit(batch(1))
    for event in (Watermark(3), MAX_WATERMARK, EndOfData(True), EndOfPartition()):
        second.emit_event(event)
    run.join()
    assert run.states[-1] is FINISHED
    assert journal.calls[6:] == [
        "join.end_input(0)",
        *["join.process_batch(1)", "last.process_batch(0)"],
        *["join.process_watermark(3)", "last.process_watermark(3)"],
        *["join.process_watermark(max)", "last.process_watermark(max)"],
        *["join.end_input(1)", "join.finish", "last.end_input(0)", "last.finish"],
        *["join.close", "last.close"],
    ]


def test_a_stop_without_drain_neither_ends_inputs_nor_finishes() -> None:
    journal = Journal()
    run = one_input_run(journal)
    producer = run.producer(IN)
    producer.emit(batch(1))
    producer.emit_event(EndOfData(False))
    producer.emit_event(EndOfPartition())
    run.run()
    assert run.states[-1] is FINISHED
    assert journal.of("end_input", "finish", "process_watermark") == []
    assert journal.of("close") == ["map.close", "other.close", "last.close"]
    assert run.sent(OUT) == [batch(1), EndOfData(False), EndOfPartition()]


# -- failing

PHASES = [
    ("other.setup", ["other.close", "last.close"]),
    ("other.initialize_state", ["map.close", "other.close", "last.close"]),
    ("other.open", ["map.close", "other.close", "last.close"]),
    ("other.process_batch(0)", ["map.close", "other.close", "last.close"]),
    ("other.process_watermark(7)", ["map.close", "other.close", "last.close"]),
    ("other.on_event_time(6)", ["map.close", "other.close", "last.close"]),
    ("other.on_processing_time", ["map.close", "other.close", "last.close"]),
    ("other.end_input(0)", ["map.close", "other.close", "last.close"]),
    ("other.finish", ["map.close", "other.close", "last.close"]),
    ("other.close", ["map.close", "other.close", "last.close"]),
]
AFTERWARDS = (
    "setup",
    "initialize_state",
    "open",
    "process_batch",
    "process_watermark",
    "end_input",
    "finish",
)


def prepared(journal: Journal) -> Run:
    """A one-input task with timers, and all of its input."""

    def register(op: RecordingOperator, data: pa.RecordBatch, index: int) -> None:
        op.context.timers.register_event_time(6, key="k")
        op.context.timers.register_processing_time(1, key="k")

    run = one_input_run(journal)
    run.operators["other"] = RecordingOperator("other", journal, on_batch=register)
    producer = run.producer(IN)
    producer.emit(batch(1))
    for event in (Watermark(7), MAX_WATERMARK, EndOfData(True), EndOfPartition()):
        producer.emit_event(event)
    return run


@pytest.mark.parametrize(("phase", "closed"), PHASES)
def test_a_failure_in_any_phase_jumps_to_close(phase: str, closed: list[str]) -> None:
    journal = Journal()
    journal.fail_in(phase, ValueError("boom"))
    run = prepared(journal).run()
    assert run.states[-1] is FAILED
    assert journal.of("close") == closed
    failed_at = journal.calls.index(phase)
    assert not [
        call for call in journal.calls[failed_at + 1 :] if call.split(".")[1].startswith(AFTERWARDS)
    ]
    assert run.errors[0].summary == "ValueError: boom"
    assert run.errors[0].task_name == "map -> other -> last (1/1)#0"
    assert (RUNNING in run.states) == (not phase.endswith(("setup", "initialize_state", "open")))


def test_a_failing_close_does_not_prevent_others_and_is_reported() -> None:
    journal = Journal()
    journal.fail_in("map.close", ValueError("first"))
    journal.fail_in("last.close", ValueError("second"))
    run = prepared(journal).run()
    assert run.states[-1] is FAILED
    assert journal.of("close") == ["map.close", "other.close", "last.close"]
    assert run.errors[0].summary == "ValueError: first"


def test_a_failure_in_close_does_not_hide_what_went_before() -> None:
    journal = Journal()
    journal.fail_in("other.open", ValueError("cause"))
    journal.fail_in("map.close", ValueError("consequence"))
    run = prepared(journal).run()
    assert run.errors[0].summary == "ValueError: cause"
    assert journal.of("close") == ["map.close", "other.close", "last.close"]


def test_a_function_that_exits_fails_its_task_only() -> None:
    journal = Journal()
    journal.fail_in("other.process_batch(0)", SystemExit(3))
    assert prepared(journal).run().states[-1] is FAILED


def test_a_task_whose_report_cannot_be_sent_fails_with_what_can_be_said() -> None:
    journal = Journal()
    run = prepared(journal)

    def refuse(state: ExecutionState) -> None:
        if state is FINISHED:
            raise ValueError("too large \ud83d")

    run.on_state = refuse
    assert run.run().states[-2:] == [FINISHED, FAILED]
    assert run.errors[0].summary == (
        r"the task was FINISHED (the full report could not be sent: ValueError: too large \ud83d)"
    )
    assert run.errors[0].task_name == "map -> other -> last (1/1)#0"


def test_a_task_that_cannot_report_that_it_runs_fails() -> None:
    journal = Journal()
    run = prepared(journal)

    def refuse(state: ExecutionState) -> None:
        if state is RUNNING:
            raise ValueError("not sent")

    run.on_state = refuse
    assert run.run().states[-1] is FAILED
    assert run.errors[0].summary == "ValueError: not sent"


def test_operators_that_cannot_be_built_fail_the_task() -> None:
    run = Run(vertex(operator("missing")), {})
    assert run.run().states == [INITIALIZING, FAILED]
    assert "KeyError" in run.errors[0].summary


def test_a_failed_producer_is_reported_only_without_a_cancellation() -> None:
    journal = Journal()
    run = one_input_run(journal)
    run.task.neighbour_failure_grace_s = 0.01
    producer = run.producer(IN)
    run.start()
    run.wait_for(RUNNING)
    producer.abort()
    run.join()
    assert run.states[-1] is FAILED
    assert "lost the input" in run.errors[0].summary


def test_a_task_that_lost_its_producer_and_is_cancelled_was_cancelled() -> None:
    journal = Journal()
    run = one_input_run(journal)
    run.task.neighbour_failure_grace_s = 60
    producer = run.producer(IN)
    closed = threading.Event()
    journal.hooks["last.close"] = closed.set
    run.start()
    run.wait_for(RUNNING)
    producer.abort()
    assert closed.wait(60)
    run.task.cancel()
    run.join()
    assert run.states[-1] is CANCELED


# -- cancelling


@pytest.mark.parametrize(("phase", "closed"), PHASES)
def test_a_cancellation_in_any_phase_jumps_to_close(phase: str, closed: list[str]) -> None:
    journal = Journal()
    run = prepared(journal)
    journal.hooks[phase] = run.task.cancel
    run.run()
    assert run.states[-1] is CANCELED
    assert run.errors == []
    assert journal.of("close") == closed
    assert EndOfPartition() not in run.sent(OUT)


def test_a_task_cancelled_before_it_runs_touches_nothing() -> None:
    journal = Journal()
    run = prepared(journal)
    run.task.cancel()
    assert run.run().states == [CANCELED]
    assert journal.calls == []


def test_a_task_that_waits_for_input_is_cancelled() -> None:
    journal = Journal()
    run = one_input_run(journal).start()
    run.wait_for(RUNNING)
    run.task.cancel()
    run.join()
    assert run.states == [INITIALIZING, RUNNING, CANCELED]
    assert journal.of("end_input", "finish") == []


def test_a_source_that_waits_is_cancelled() -> None:
    journal = Journal()
    run = source_run(journal, endless=True)
    waits = threading.Event()
    journal.hooks["src.waits"] = waits.set
    run.start()
    assert waits.wait(60)
    run.task.cancel()
    run.join()
    assert run.states[-1] is CANCELED
    assert journal.of("close") == ["src.close", "map.close", "last.close"]


def test_a_task_that_waits_for_credit_is_cancelled() -> None:
    journal = Journal()
    run = source_run(journal, exchange=MemoryExchange(capacity=1, await_consumers=True))
    second = threading.Event()
    journal.hooks["last.process_watermark(5)"] = second.set
    run.start()
    assert second.wait(60)
    run.task.cancel()
    run.join()
    assert run.states[-1] is CANCELED
    assert journal.of("finish") == []


def test_a_task_that_waits_for_acknowledgement_is_cancelled() -> None:
    journal = Journal()
    run = source_run(journal, exchange=MemoryExchange(await_consumers=True))
    finished = threading.Event()
    journal.hooks["last.finish"] = finished.set
    run.start()
    assert finished.wait(60)
    run.task.cancel()
    run.join()
    assert run.states[-1] is CANCELED
    assert journal.of("close") == ["src.close", "map.close", "last.close"]


def test_a_failure_while_waiting_for_acknowledgement_closes_everything() -> None:
    def fail() -> None:
        raise ValueError("too late")

    journal = Journal()
    run = source_run(journal, exchange=MemoryExchange(await_consumers=True))
    journal.hooks["last.finish"] = lambda: run.operators["last"].context.request_mail(fail)
    run.start().join()
    assert run.states[-1] is FAILED
    assert run.errors[0].summary == "ValueError: too late"
    assert journal.of("close") == ["src.close", "map.close", "last.close"]


def test_a_function_that_swallows_exceptions_is_cancelled_all_the_same() -> None:
    journal = Journal()
    run = one_input_run(journal)

    def stubborn(op: RecordingOperator, data: pa.RecordBatch, index: int) -> None:
        run.task.cancel()
        while True:
            try:
                op.output.emit(data)
            except Exception:
                continue

    run.operators["map"] = RecordingOperator("map", journal, on_batch=stubborn)
    run.producer(IN).emit(batch(1))
    assert run.run().states[-1] is CANCELED


def test_a_cancelled_task_that_fails_to_close_has_failed() -> None:
    journal = Journal()
    run = prepared(journal)
    journal.hooks["other.process_batch(0)"] = run.task.cancel
    journal.fail_in("other.close", OSError("cannot close"))
    run.run()
    assert run.states[-1] is FAILED
    assert "cannot close" in run.errors[0].summary
    assert journal.of("close") == ["map.close", "other.close", "last.close"]


# -- what operators must not do


def test_nothing_is_emitted_after_finish() -> None:
    class Late(RecordingOperator):
        def close(self) -> None:
            self.output.emit(batch(9))

    journal = Journal()
    run = prepared(journal)
    run.operators["map"] = Late("map", journal)
    run.run()
    assert run.states[-1] is FAILED
    assert "after" in run.errors[0].summary

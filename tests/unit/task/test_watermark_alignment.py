"""Watermark alignment in a task: when it reports, when it stops, and its metrics."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from firesteel import Watermarks
from firesteel.common.ids import stable_id
from firesteel.common.job_graph import Operator
from firesteel.common.operator_messages import (
    OperatorEvent,
    Resend,
    WatermarkLimit,
    WatermarkReported,
)
from firesteel.common.states import ExecutionState
from firesteel.elements import (
    MAX_TIMESTAMP_US,
    MAX_WATERMARK,
    MIN_TIMESTAMP_US,
    StreamStatus,
    Watermark,
)
from firesteel.operators import AssignWatermarksSpec, SourceSpec, WatermarkAlignmentSpec
from firesteel.testing import Journal, OperatorHarness, RecordingOperator, RecordingSource
from taskexecutor.executor.operators.watermarks import AssignWatermarks
from taskexecutor.executor.timing.watermark_alignment import WatermarkAlignment
from tests.unit.task.runs import Run, batch, in_edge, operator, out_edge, vertex
from tests.waiting import PATIENCE_S

SPEC = WatermarkAlignmentSpec(group="g", max_drift_us=10_000, update_interval_us=1_000_000)


class Surroundings:
    """The surroundings of an alignment; time stands still unless a test advances it."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bool]] = []
        self.now_ms = 5_000
        self.due_ms: list[int] = []
        self.alignment = WatermarkAlignment(
            SPEC,
            self._send,
            self.due_ms.append,
            now_ms=lambda: self.now_ms,
            now_ns=lambda: self.now_ms * 1_000_000,
        )

    def _send(self, report: WatermarkReported) -> None:
        self.sent.append((report.watermark_us, report.idle))

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        due, self.due_ms[:] = (
            [at for at in self.due_ms if at <= self.now_ms],
            [at for at in self.due_ms if at > self.now_ms],
        )
        for _ in due:
            self.alignment.on_timer()

    def reports(self) -> list[tuple[int, bool]]:
        sent, self.sent = self.sent, []
        return sent


def test_reports_are_an_interval_apart_and_the_last_one_is_not_forgotten() -> None:
    world = Surroundings()
    world.alignment.limit(100_000)
    for watermark_us in (1_000, 2_000, 3_000):
        world.alignment.event(Watermark(watermark_us))
    assert world.reports() == [(1_000, False)]
    world.pass_ms(999)
    assert world.reports() == []
    world.pass_ms(1)
    assert world.reports() == [(3_000, False)]
    world.pass_ms(5_000)
    assert world.reports() == [], "nothing is new"
    assert world.due_ms == []
    world.alignment.event(Watermark(4_000))
    assert world.reports() == [(4_000, False)]


def test_a_large_part_of_the_drift_is_reported_immediately() -> None:
    """While a split is read, no timer fires."""
    world = Surroundings()
    world.alignment.limit(100_000)
    for watermark_us in (1_000, 3_499, 3_500, 5_999, 6_000):
        world.alignment.event(Watermark(watermark_us))
    assert world.reports() == [(1_000, False), (3_500, False), (6_000, False)]


def test_a_stop_an_end_and_idleness_are_reported_immediately() -> None:
    world = Surroundings()
    world.alignment.limit(5_000)
    world.alignment.event(Watermark(1_000))
    world.alignment.event(Watermark(5_001))
    assert world.alignment.stopped
    assert world.reports() == [(1_000, False), (5_001, False)]
    world.alignment.event(StreamStatus(True))
    world.alignment.event(StreamStatus(False))
    assert world.reports() == [(5_001, True), (5_001, False)]
    world.alignment.event(MAX_WATERMARK)
    assert world.reports() == [(MAX_TIMESTAMP_US, False)]
    assert not world.alignment.stopped, "there is nothing to read any more"
    world.alignment.report()
    assert world.reports() == [(MAX_TIMESTAMP_US, False)], "asked again, it reports again"


def test_nothing_is_read_past_the_first_watermark_before_the_group_answers() -> None:
    world = Surroundings()
    assert not world.alignment.stopped
    world.alignment.event(Watermark(0))
    assert world.alignment.stopped
    world.alignment.limit(MIN_TIMESTAMP_US)
    assert world.alignment.stopped
    world.alignment.limit(0)
    assert not world.alignment.stopped


def test_how_long_it_was_stopped_and_how_far_it_is_ahead() -> None:
    world = Surroundings()
    alignment = world.alignment
    world.pass_ms(100)
    assert (alignment.stopped_ms, alignment.drift_ms) == (0, 0)
    alignment.event(Watermark(20_000))
    world.pass_ms(30)
    assert (alignment.stopped_ms, alignment.drift_ms) == (30, 0), (
        "it stands, but does not know which subtask it waits for"
    )
    alignment.limit(12_000)
    world.pass_ms(5)
    assert (alignment.stopped_ms, alignment.drift_ms) == (35, 18), "the slowest is at 2 ms"
    alignment.limit(22_000)
    world.pass_ms(1_000)
    assert (alignment.stopped_ms, alignment.drift_ms) == (35, 8)
    alignment.limit(21_000)
    alignment.event(Watermark(21_001))
    world.pass_ms(2)
    assert alignment.stopped_ms == 37
    alignment.limit(MAX_TIMESTAMP_US)
    assert alignment.drift_ms == 0


# -- whole tasks; the test is the JobMaster


def aligned(name: str, spec: Any, *inputs: tuple[int, ...]) -> Operator:
    return dataclasses.replace(
        operator(name, *inputs, coordinator_kind="alignment"), spec=cloudpickle.dumps(spec)
    )


class Master:
    """Gets the reports of a run, and answers."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.name = run, name
        self._reports: list[int] = []
        self._reported = threading.Condition()
        run.on_event = self._on_event

    def _on_event(self, event: OperatorEvent) -> None:
        assert event.operator_id == stable_id(self.name)
        assert isinstance(event.message, WatermarkReported)
        with self._reported:
            self._reports.append(event.message.watermark_us)
            self._reported.notify_all()

    def next_report(self) -> int:
        with self._reported:
            assert self._reported.wait_for(lambda: self._reports, PATIENCE_S), (
                f"no report in state {self.run.states}"
            )
            return self._reports.pop(0)

    def ask_again(self) -> int:
        """When the answer is there, the mails before it have been handled, and the task has looked
        for input after each.
        """
        self.run.task.handle_event(stable_id(self.name), Resend())
        return self.next_report()

    def allow(self, limit_us: int) -> None:
        self.run.task.handle_event(stable_id(self.name), WatermarkLimit(limit_us=limit_us))


def test_a_source_that_is_ahead_is_not_polled() -> None:
    journal = Journal()
    spec = SourceSpec(source="numbers", watermark_alignment=SPEC)
    elements = [
        batch(1),
        Watermark(1_000),
        batch(2),
        Watermark(2_000),
        batch(3),
        Watermark(30_000),
        batch(4),
    ]
    out = out_edge("out", 0)
    run = Run(
        vertex(aligned("src", spec)),
        {spec: RecordingSource("src", journal, elements)},  # type: ignore[dict-item]
        out_edges=[out],
    )
    master = Master(run, "src")
    run.start()
    assert master.next_report() == 1_000
    assert [master.ask_again(), master.ask_again()] == [1_000, 1_000]
    assert journal.of("poll") == ["src.poll"] * 2
    metrics = run.task.metrics()
    assert metrics.aligning_ms > 0
    master.allow(11_000)
    assert master.next_report() == 30_000, "2,000 was within the limit"
    master.ask_again(), master.ask_again()
    assert journal.of("poll") == ["src.poll"] * 6
    (drift,) = [
        s.value for s in run.task.samples() if s.name.endswith("operator_watermarkAlignmentDrift")
    ]
    assert drift == 29
    paused = {s.name.rsplit("_", 1)[1]: s.value for s in run.task.samples() if "aused" in s.name}
    assert paused["accumulatedPausedTimeMs"] > 0
    assert set(paused) == {"accumulatedPausedTimeMs", "pausedTimeMsPerSecond"}
    master.allow(MAX_TIMESTAMP_US)
    assert master.next_report() == MAX_TIMESTAMP_US
    run.join()
    assert run.states[-1] is ExecutionState.FINISHED
    assert [e for e in run.sent(out) if isinstance(e, pa.RecordBatch)] == [
        batch(n) for n in (1, 2, 3, 4)
    ]


def test_what_is_before_a_source_that_is_ahead_waits_too() -> None:
    """An example is the partitions of a PythonSource: the task takes no input, whichever of its
    operators is aligned.
    """
    journal = Journal()
    spec = AssignWatermarksSpec(column="at", watermark_alignment=SPEC)
    incoming = in_edge("in")
    run = Run(
        vertex(operator("read"), aligned("align", spec, (0,))),
        {"read": RecordingOperator("read", journal), spec: RecordingOperator("align", journal)},  # type: ignore[dict-item]
        in_edges=[(incoming, 1)],
    )
    master = Master(run, "align")
    producer = run.producer(incoming)
    run.start()
    run.wait_for(ExecutionState.RUNNING)
    for element in (Watermark(1_000), Watermark(50_000)):
        producer.emit(batch(7))
        producer.emit_event(element)
    assert master.next_report() == 1_000
    master.ask_again(), master.ask_again()
    assert journal.of("process_batch") == ["read.process_batch(0)", "align.process_batch(0)"]
    master.allow(MAX_TIMESTAMP_US)
    master.ask_again()
    run.task.cancel()
    run.join()
    assert run.states[-1] is ExecutionState.CANCELED


def test_a_stopped_task_is_cancelled_like_any_other() -> None:
    journal = Journal()
    spec = SourceSpec(source="numbers", watermark_alignment=SPEC)
    run = Run(
        vertex(aligned("src", spec)),
        {spec: RecordingSource("src", journal, [Watermark(1), batch(1)])},  # type: ignore[dict-item]
    )
    master = Master(run, "src")
    run.start()
    assert master.next_report() == 1
    master.ask_again()
    run.task.cancel()
    run.join()
    assert run.states[-1] is ExecutionState.CANCELED
    assert journal.of("poll", "close") == ["src.poll", "src.close"]


# -- operators


SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC"))])


def at(*times_us: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(times_us, SCHEMA.field("at").type)], schema=SCHEMA)


def reported(harness: OperatorHarness) -> list[tuple[int, bool]]:
    return [(event.message.watermark_us, event.message.idle) for event in harness.sent]


def test_watermarks_behind_a_source_stop_it_and_a_stop_is_not_idleness() -> None:
    clock = Surroundings()
    spec = (
        Watermarks.bounded("at")
        .with_idleness("100 ms")
        .with_alignment("g", max_drift="10 ms")
        .assigner_spec()
    )
    operator = AssignWatermarks(spec, lambda: clock.now_ms)
    harness = OperatorHarness(
        operator, [SCHEMA], output_schema=SCHEMA, watermark_alignment=spec.watermark_alignment
    )
    assert harness._node.watermark_alignment is not None
    harness._node.watermark_alignment._now_ns = lambda: clock.now_ms * 1_000_000
    harness.open()

    def pass_ms(ms: int) -> None:
        clock.now_ms += ms
        harness.processing_time(clock.now_ms)

    pass_ms(40)
    harness.process(at(20_000))
    assert harness.stopped
    assert reported(harness) == [(19_999, False)]
    for _ in range(50):
        pass_ms(20)
    assert harness.elements[1:] == [Watermark(19_999)], (
        "not idle: there may be more rows that were not requested"
    )
    harness.deliver(WatermarkLimit(limit_us=25_000))
    harness.run_mails()
    assert not harness.stopped
    pass_ms(90)
    assert harness.elements[1:] == [Watermark(19_999)]
    pass_ms(20)
    pass_ms(20)
    assert harness.elements[1:] == [Watermark(19_999), StreamStatus(True)]
    assert reported(harness)[-1] == (19_999, True)


@pytest.mark.parametrize("ahead", [True, False])
def test_watermarks_that_are_held_advance_with_those_of_the_stream_before(ahead: bool) -> None:
    spec = Watermarks.bounded("at").assigner_spec(held=True)
    harness = OperatorHarness(AssignWatermarks(spec), [SCHEMA], output_schema=SCHEMA).open()
    if ahead:
        harness.watermark(1)
    assert harness.watermarks_us == [], "without rows, there is no event time"
    harness.process(at(500, 100))
    harness.process(at(300))
    assert harness.watermarks_us == []
    harness.watermark(2)
    assert harness.watermarks_us == [499]
    harness.process(at(400))
    harness.watermark(3)
    assert harness.watermarks_us == [499], "it does not go back"
    harness.process(at(700))
    harness.end()
    assert harness.watermarks_us == [499, MAX_TIMESTAMP_US]


def test_a_stream_held_back_while_idle_becomes_idle_again() -> None:
    clock = Surroundings()
    spec = Watermarks.bounded("at").with_idleness("100 ms").assigner_spec(held=True)
    harness = OperatorHarness(
        AssignWatermarks(spec, lambda: clock.now_ms), [SCHEMA], output_schema=SCHEMA
    ).open()
    harness.process(at(500))
    for _ in range(2):
        clock.now_ms += 100
        harness.processing_time(clock.now_ms)
    harness.watermark(1)
    for _ in range(2):
        clock.now_ms += 100
        harness.processing_time(clock.now_ms)
    assert harness.elements[1:] == [
        StreamStatus(True),
        StreamStatus(False),
        Watermark(499),
        StreamStatus(True),
    ]

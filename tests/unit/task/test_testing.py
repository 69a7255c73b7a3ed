"""The harness that is shipped for testing operators."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from firesteel.common.operator_messages import SplitRequested, SplitsExhausted
from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US, StreamStatus
from firesteel.operator import OperatorState, StreamOperator
from firesteel.testing import Journal, OperatorHarness, RecordingOperator, RecordingSource
from taskexecutor.executor.state import KeyedStateEntry, RestoredOperatorState
from tests.unit.task.runs import SCHEMA, batch


class CountPerKey(StreamOperator):
    """Counts values, emits a value's count when event time reaches ten times the value."""

    def initialize_state(self, state: OperatorState) -> None:
        self.counts = state.keyed

    def process_batch(self, data: pa.RecordBatch, input_index: int) -> None:
        for value in data.column(0).to_pylist():
            self.counts.put("count", value, (self.counts.get("count", value) or 0) + 1)
            self.context.timers.register_event_time(value * 10, key=value)
            if value * 10 <= self.context.timers.current_watermark_us:
                self.output.emit_side("late", batch(value))

    def on_event_time(self, timestamp_us: int, key: Any, namespace: Any) -> None:
        self.output.emit(batch(key, self.counts.get("count", key)))


def test_an_operator_with_keyed_state_and_timers() -> None:
    harness = OperatorHarness(CountPerKey(), [SCHEMA], side_output_tags=["late"]).open()
    harness.process(batch(1, 2, 1))
    harness.watermark(15)
    assert harness.batches == [batch(1, 2)]
    assert harness.watermarks_us == [15]
    harness.process(batch(1))
    assert harness.side("late") == [batch(1)]
    harness.end()
    assert harness.rows()[2:] == [{"value": 1}, {"value": 3}, {"value": 2}, {"value": 1}]
    assert harness.watermarks_us == [15, MAX_TIMESTAMP_US]


def test_an_operator_with_restored_state() -> None:
    restored = RestoredOperatorState(keyed=[KeyedStateEntry("count", 1, None, 41)])
    harness = OperatorHarness(CountPerKey(), [SCHEMA], restored=restored).open()
    harness.process(batch(1))
    harness.end()
    assert harness.batches == [batch(1, 42)]


def test_two_inputs_combine_their_watermarks() -> None:
    harness = OperatorHarness(RecordingOperator("join", Journal(), inputs=2)).open()
    harness.watermark(10, 0)
    assert harness.watermarks_us == []
    harness.watermark(5, 1)
    assert harness.watermarks_us == [5]
    harness.idle(1)
    assert harness.watermarks_us == [5, 10]
    harness.idle(0)
    assert harness.elements[-1] == StreamStatus(True)


def test_a_source_and_its_coordinator_without_a_task() -> None:
    journal = Journal()
    source = RecordingSource("src", journal, [batch(1)])
    harness = OperatorHarness(source).open()
    source.context.send_to_coordinator(SplitRequested(received=0))
    assert harness.sent[0].message == SplitRequested(received=0)
    harness.deliver(SplitsExhausted())
    assert harness.poll()
    assert "src.handle_coordinator_event(SplitsExhausted)" in journal.calls
    assert not harness.poll()
    assert harness.timers.current_watermark_us == MIN_TIMESTAMP_US
    harness.end()
    with pytest.raises(TypeError, match="not an operator event"):
        source.context.send_to_coordinator("a message")


def test_processing_time_is_the_callers() -> None:
    journal = Journal()
    operator = RecordingOperator("x", journal)
    harness = OperatorHarness(operator).open()
    operator.context.timers.register_processing_time(100)
    harness.processing_time(99)
    assert "x.on_processing_time" not in journal.calls
    harness.processing_time(100)
    assert "x.on_processing_time" in journal.calls

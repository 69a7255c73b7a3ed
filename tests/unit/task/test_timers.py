"""Timers: order, once each, watermarks, and the quiesced timer service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskexecutor.executor.timing.timers import (
    OperatorTimers,
    TaskTimers,
    Timer,
    TimerQueue,
    TimerServiceState,
)


class Fired:
    def __init__(self) -> None:
        self.task = TaskTimers()
        self.event: list[tuple[int, Any, Any]] = []
        self.processing: list[tuple[int, Any, Any]] = []
        self.timers: OperatorTimers = self.task.for_operator(
            self.event.extend, lambda *timer: self.processing.append(timer)
        )


def test_event_timers_fire_in_order_when_the_watermark_passes() -> None:
    fired = Fired()
    for timestamp_us, key in ((30, "c"), (10, "a"), (20, "b"), (10, "z")):
        fired.timers.register_event_time(timestamp_us, key, "window")
    fired.timers.advance_watermark(20)
    assert fired.event == [(10, "a", "window"), (10, "z", "window"), (20, "b", "window")]
    assert fired.timers.current_watermark_us == 20
    fired.timers.advance_watermark(100)
    assert fired.event[3:] == [(30, "c", "window")]


def test_a_timer_registered_twice_fires_once() -> None:
    fired = Fired()
    fired.timers.register_event_time(10, "a")
    fired.timers.register_event_time(10, "a")
    fired.timers.register_event_time(10, "a", "other namespace")
    fired.timers.advance_watermark(10)
    assert fired.event == [(10, "a", None), (10, "a", "other namespace")]
    fired.timers.register_event_time(10, "a")  # it is no longer pending
    fired.timers.advance_watermark(11)
    assert len(fired.event) == 3


def test_a_deleted_timer_does_not_fire_unless_registered_again() -> None:
    fired = Fired()
    fired.timers.register_event_time(10, "a")
    fired.timers.delete_event_time(10, "a")
    fired.timers.delete_event_time(10, "never registered")
    fired.timers.advance_watermark(5)
    fired.timers.register_event_time(10, "a")
    fired.timers.advance_watermark(10)
    assert fired.event == [(10, "a", None)]


def test_a_firing_timer_may_register_one_that_is_due_as_well() -> None:
    task = TaskTimers()
    fired: list[int] = []

    def on_event_times(due: Iterator[Timer]) -> None:
        for timer in due:
            fired.append(timer.timestamp)
            if timer.timestamp < 5:
                timers.register_event_time(timer.timestamp + 1)

    timers = task.for_operator(on_event_times, lambda *timer: None)
    timers.register_event_time(1)
    timers.advance_watermark(4)
    assert fired == [1, 2, 3, 4]


def test_processing_timers_set_when_the_task_must_wake() -> None:
    fired = Fired()
    assert fired.task.next_due_ms is None
    fired.timers.register_processing_time(200, "b")
    fired.timers.register_processing_time(100, "a")
    assert fired.task.next_due_ms == 100
    fired.task.fire_processing_time(99)
    assert fired.processing == []
    fired.task.fire_processing_time(150)
    assert fired.processing == [(100, "a", None)]
    assert fired.task.next_due_ms == 200
    fired.timers.delete_processing_time(200, "b")
    fired.task.fire_processing_time(300)
    assert fired.processing == [(100, "a", None)]
    assert fired.task.next_due_ms is None


def test_a_timer_that_registers_itself_for_the_past_does_not_stop_the_task() -> None:
    task = TaskTimers()
    fired: list[int] = []

    def again(timestamp_ms: int, key: Any, namespace: Any) -> None:
        fired.append(timestamp_ms)
        timers.register_processing_time(timestamp_ms)

    timers = task.for_operator(lambda due: None, again)
    timers.register_processing_time(1)
    task.fire_processing_time(10)
    assert fired == [1]
    assert task.next_due_ms == 1


def test_a_quiesced_service_drops_what_is_pending_and_what_comes() -> None:
    fired = Fired()
    fired.timers.register_event_time(10)
    fired.timers.register_processing_time(10)
    fired.task.quiesce()
    fired.timers.register_event_time(11)
    fired.timers.register_processing_time(11)
    fired.timers.advance_watermark(100)
    fired.task.fire_processing_time(100)
    assert fired.event == fired.processing == []
    fired.task.shut_down()
    fired.task.shut_down()
    fired.task.quiesce()
    assert fired.task.state is TimerServiceState.SHUT_DOWN


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "pop"]), st.integers(0, 8), st.sampled_from("ab")),
    max_size=80,
)


@given(ACTIONS)
def test_the_queue_is_a_sorted_set(actions: list[tuple[str, int, str]]) -> None:
    queue = TimerQueue()
    model: list[Timer] = []  # in order of registration
    for action, timestamp, key in actions:
        timer = Timer(timestamp, key, None)
        if action == "add":
            queue.add(timer)
            if timer not in model:
                model.append(timer)
        elif action == "remove":
            queue.remove(timer)
            model = [pending for pending in model if pending != timer]
        else:
            due = sorted(
                (pending for pending in model if pending.timestamp <= timestamp),
                key=lambda p: p.timestamp,
            )
            assert queue.pop_due(timestamp) == (due[0] if due else None)
            if due:
                model.remove(due[0])
        assert len(queue) == len(model)
        assert queue.next_timestamp() == min((pending.timestamp for pending in model), default=None)
        assert list(queue.pending()) == model
        assert sorted(queue.pending().values()) == list(queue.pending().values())

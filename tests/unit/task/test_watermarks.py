"""The watermark valve: single stories, and what holds for any history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.elements import (
    MAX_TIMESTAMP_US,
    MAX_WATERMARK,
    MIN_TIMESTAMP_US,
    StreamStatus,
    Watermark,
)
from firesteel.errors import FiresteelError
from taskexecutor.executor.timing.watermarks import (
    SettledWatermark,
    WatermarkValve,
    valve_of_inputs,
)

IDLE, ACTIVE = StreamStatus(True), StreamStatus(False)


def test_the_slowest_channel_decides() -> None:
    valve = WatermarkValve(2)
    assert valve.on_watermark(0, 10) == ()
    assert valve.on_watermark(1, 5) == (Watermark(5),)
    assert valve.on_watermark(0, 20) == ()
    assert valve.on_watermark(1, 30) == (Watermark(20),)


def test_watermarks_never_go_back() -> None:
    valve = WatermarkValve(1)
    assert valve.on_watermark(0, 10) == (Watermark(10),)
    assert valve.on_watermark(0, 9) == ()
    assert valve.on_watermark(0, 10) == ()


def test_an_idle_channel_does_not_hold_the_others_back() -> None:
    valve = WatermarkValve(2)
    valve.on_watermark(0, 10)
    assert valve.on_status(1, True) == (Watermark(10),)
    assert valve.on_watermark(0, 20) == (Watermark(20),)


def test_a_channel_that_comes_back_late_counts_once_it_has_caught_up() -> None:
    valve = WatermarkValve(2)
    valve.on_watermark(0, 10)
    valve.on_status(1, True)
    assert valve.on_status(1, False) == ()
    assert valve.on_watermark(1, 5) == ()
    assert valve.on_watermark(0, 12) == (Watermark(12),)
    assert valve.on_watermark(1, 15) == ()
    assert valve.on_watermark(0, 20) == (Watermark(15),)


def test_all_channels_idle_is_idle_and_the_furthest_watermark_holds() -> None:
    valve = WatermarkValve(2)
    valve.on_watermark(0, 10)
    valve.on_watermark(1, 30)
    assert valve.on_status(0, True) == (Watermark(30),)
    assert valve.on_status(1, True) == (IDLE,)
    assert valve.on_watermark(1, 40) == ()  # idle channels do not count
    assert valve.on_status(0, False) == (ACTIVE,)


def test_a_channel_that_is_done_does_not_end_event_time_for_idle_ones() -> None:
    valve = WatermarkValve(2)
    valve.on_watermark(0, 10)
    assert valve.on_status(0, True) == ()
    assert valve.on_watermark(1, MAX_TIMESTAMP_US) == (Watermark(10), IDLE)
    assert valve.on_status(0, False) == (ACTIVE,)
    assert valve.on_watermark(0, 20) == (Watermark(20),)
    assert valve.on_watermark(0, MAX_TIMESTAMP_US) == (MAX_WATERMARK,)


def test_the_end_of_all_channels_is_the_end_of_event_time() -> None:
    valve = WatermarkValve(2)
    assert valve.on_end(0) == ()
    valve.on_status(1, True)
    assert valve.idle
    assert valve.on_end(1) == (ACTIVE, MAX_WATERMARK)


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(
            st.integers(-3, 12).map(lambda t: ("watermark", t)),
            st.booleans().map(lambda idle: ("status", idle)),
            st.just(("watermark", MAX_TIMESTAMP_US)),
            st.just(("end", 0)),
        ),
    ),
    max_size=60,
)


@given(EVENTS)
def test_any_history_keeps_the_promises(events: list[tuple[int, tuple[str, int]]]) -> None:
    """Watermarks rise strictly, never past an active channel that was aligned with them; idle
    alternates with active.
    """
    valve = WatermarkValve(3)
    told_us, idle = MIN_TIMESTAMP_US, False
    channel_us = [MIN_TIMESTAMP_US] * 3
    active = [True] * 3
    for channel, (what, value) in events:
        if what == "watermark":
            outcome = valve.on_watermark(channel, value)
            if active[channel]:
                channel_us[channel] = max(channel_us[channel], value)
        elif what == "status":
            outcome = valve.on_status(channel, bool(value))
            active[channel] = not value
        else:
            outcome = valve.on_end(channel)
            channel_us[channel], active[channel] = MAX_TIMESTAMP_US, True
        before_us = told_us
        for event in outcome:
            if isinstance(event, Watermark):
                assert event.timestamp_us > told_us
                told_us = event.timestamp_us
            else:
                assert event.idle != idle
                idle = event.idle
        open_channels = [c for c in range(3) if channel_us[c] != MAX_TIMESTAMP_US]
        if told_us > before_us:
            # An active channel that had kept up before must not be overtaken.
            assert all(
                channel_us[c] >= told_us or channel_us[c] < before_us
                for c in open_channels
                if active[c]
            )
        assert (told_us == MAX_TIMESTAMP_US) == (not open_channels)
        assert idle == (bool(open_channels) and not any(active[c] for c in open_channels))
        assert (valve.watermark_us, valve.idle) == (told_us, idle)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50)), max_size=100))
def test_without_idleness_it_is_the_minimum(events: list[tuple[int, int]]) -> None:
    valve = WatermarkValve(5)
    channel_us = [MIN_TIMESTAMP_US] * 5
    for channel, timestamp_us in events:
        valve.on_watermark(channel, timestamp_us)
        channel_us[channel] = max(channel_us[channel], timestamp_us)
        assert valve.watermark_us == min(channel_us)


def test_idle_inputs_count_for_the_watermark_of_a_query() -> None:
    valve = valve_of_inputs("min")
    assert [valve.add_channel(), valve.add_channel()] == [0, 1]
    assert valve.on_watermark(0, 100) == ()
    assert valve.on_status(0, True) == ()
    assert valve.on_watermark(1, 50) == (Watermark(50),)
    assert valve.on_status(1, True) == (IDLE,)
    assert valve.on_status(1, False) == (ACTIVE,)
    assert valve.on_watermark(1, 70) == (Watermark(70),)
    assert valve.on_watermark(1, 170) == (Watermark(100),)


def test_the_latest_input_may_decide_for_a_query() -> None:
    valve = valve_of_inputs("max")
    valve.add_channel()
    valve.add_channel()
    assert valve.on_watermark(0, 100) == (Watermark(100),)
    assert valve.on_watermark(1, 50) == ()
    assert valve.on_watermark(1, MAX_TIMESTAMP_US) == (), "it has ended"
    assert valve.on_watermark(0, MAX_TIMESTAMP_US) == (MAX_WATERMARK,)
    with pytest.raises(FiresteelError, match=r"multipleWatermarkPolicy is 'avg'; it must be min"):
        valve_of_inputs("avg")


def test_at_a_barrier_channels_that_have_caught_up_have_the_latest_watermark() -> None:
    valve = SettledWatermark(2)
    assert valve.on_watermark(0, 100) == ()
    assert valve.on_status(0, True) == ()
    assert valve.settle() == (), "the other one has not caught up"
    assert valve.on_watermark(1, 50) == ()
    assert valve.on_status(1, True) == ()
    assert valve.on_status(1, False) == (), "rows follow, but it had caught up"
    assert valve.settle() == (Watermark(100), IDLE)
    assert valve.settle() == (ACTIVE,), "it has not since then"
    valve.on_status(1, True)
    assert valve.settle() == (IDLE,)
    assert valve.settle() == (ACTIVE, IDLE), "again, because rows may have ended it downstream"


def test_at_a_barrier_the_earliest_channel_that_has_not_caught_up_decides() -> None:
    valve = SettledWatermark(3)
    valve.on_status(0, True)
    valve.on_watermark(1, 30)
    valve.on_watermark(2, 20)
    assert valve.settle() == (Watermark(20),)
    valve.on_watermark(2, 40)
    assert valve.settle() == (Watermark(30),)


def test_an_ended_channel_leaves_its_watermark() -> None:
    valve = SettledWatermark(2)
    valve.on_watermark(0, 100)
    assert valve.on_watermark(0, MAX_TIMESTAMP_US) == ()
    assert valve.on_end(0) == ()
    valve.on_watermark(1, 50)
    valve.on_status(1, True)
    assert valve.settle() == (Watermark(100), IDLE)
    valve.on_watermark(1, 200)
    assert valve.on_end(1) == (ACTIVE, Watermark(200), MAX_WATERMARK)
    assert valve.on_end(1) == ()
    assert valve.settle() == ()


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 99) | st.booleans()),
            max_size=8,
        ),
        max_size=8,
    )
)
def test_consumers_agree_at_each_barrier_in_whichever_order_they_read(
    epochs: list[list[tuple[int, int | bool]]],
) -> None:
    valves = SettledWatermark(3), SettledWatermark(3)
    for events in epochs:
        # The second consumer reads the channels in another order, each in its own order.
        other = sorted(events, key=lambda event: (event[0] * 7) % 3)
        for valve, order in zip(valves, (events, other), strict=True):
            for channel, event in order:
                if isinstance(event, bool):
                    assert valve.on_status(channel, event) == ()
                else:
                    assert valve.on_watermark(channel, event) == ()
        assert valves[0].settle() == valves[1].settle()
        assert valves[0].watermark_us == valves[1].watermark_us

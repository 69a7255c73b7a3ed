"""The event time of several partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firesteel.elements import StreamStatus, Watermark
from taskexecutor.executor.connectors.kafka.partition_watermarks import PartitionWatermarks

S = 1_000_000


def _of(*partitions: str, delay_s: int = 0, idle_s: int | None = None) -> PartitionWatermarks[str]:
    times = PartitionWatermarks[str](delay_s * S, None if idle_s is None else idle_s * S)
    for partition in partitions:
        times.add(partition, None)
    return times


def test_the_slowest_partition_determines_event_time() -> None:
    times = _of("a", "b", delay_s=1)
    times.rows("a", 9 * S)
    assert times.advance(0) == []
    times.rows("b", 5 * S)
    assert times.advance(0) == [Watermark(4 * S - 1)]
    times.rows("b", 3 * S)
    assert times.advance(0) == []


def test_a_partition_that_is_read_to_its_end_becomes_idle() -> None:
    times = _of("a", "b", idle_s=10)
    times.rows("a", 9 * S)
    times.read_to_end("b", 100.0)
    assert times.due_s() == 110.0
    assert times.advance(109.9) == []
    assert times.advance(110.0) == [Watermark(9 * S - 1)]
    times.rows("b", 2 * S)
    times.rows("a", 20 * S)
    assert times.advance(111.0) == []  # it holds back the others again


def test_a_partition_with_unread_records_is_never_idle() -> None:
    times = _of("a", "b", idle_s=10)
    times.rows("a", 9 * S)
    assert times.due_s() is None
    assert times.advance(1_000_000.0) == []


def test_a_subtask_without_partitions_is_idle_at_once() -> None:
    times = _of()
    assert times.advance(0) == [StreamStatus(True)]
    assert times.advance(1) == []
    times.add("new", None)
    assert times.advance(2) == [StreamStatus(False)]
    times.rows("new", 3 * S)
    assert times.advance(3) == [Watermark(3 * S - 1)]


def test_when_all_are_idle_the_latest_time_counts() -> None:
    times = _of("a", "b", idle_s=1)
    times.rows("a", 4 * S)
    times.rows("b", 7 * S)
    for partition in ("a", "b"):
        times.read_to_end(partition, 0.0)
    assert times.advance(1.0) == [Watermark(7 * S - 1), StreamStatus(True)]


def test_an_ended_partition_does_not_hold_back_the_others() -> None:
    times = _of("a", "b")
    times.rows("a", 4 * S)
    times.remove("b")
    assert times.advance(0) == [Watermark(4 * S - 1)]


def test_the_restored_time_of_a_partition_counts() -> None:
    times = _of("a")
    times.add("restored", 5 * S)
    times.rows("a", 9 * S)
    assert times.advance(0) == [Watermark(5 * S - 1)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1_000)), min_size=1))
def test_no_watermark_is_ahead_of_a_partition(rows: list[tuple[str, int]]) -> None:
    times = _of("a", "b", "c")
    latest = dict.fromkeys("abc", -1)
    emitted = -1
    for partition, time_us in rows:
        times.rows(partition, time_us)
        latest[partition] = max(latest[partition], time_us)
        for event in times.advance(0):
            assert isinstance(event, Watermark)
            assert event.timestamp_us > emitted
            emitted = event.timestamp_us
        assert emitted < max(0, min(latest.values()))

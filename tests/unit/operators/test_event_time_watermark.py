"""Spark's watermarks: when they advance, what restores them, and how several are combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.operators import EventTimeWatermarkSpec, SessionParts
from firesteel.operators.watermarks import MULTIPLE_WATERMARK_POLICY
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.watermarks import EventTimeWatermark
from taskexecutor.executor.state import RestoredOperatorState
from taskexecutor.executor.timing.watermarks import WatermarkValve

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC"))])
SPEC = EventTimeWatermarkSpec(column="at", delay_us=10_000)


def batch(*times_us: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(times_us, SCHEMA.field("at").type)], schema=SCHEMA)


def opened(
    spec: EventTimeWatermarkSpec = SPEC,
    *,
    restored: RestoredOperatorState | None = None,
    policy: str = "",
) -> OperatorHarness:
    config = {MULTIPLE_WATERMARK_POLICY: policy} if policy else {}
    return OperatorHarness(
        EventTimeWatermark(spec), [SCHEMA], output_schema=SCHEMA, restored=restored, config=config
    ).open()


def test_it_advances_when_the_input_is_idle() -> None:
    harness = opened()
    harness.process(batch(50_000))
    harness.process(batch(30_000, None))
    assert harness.watermarks_us == []
    harness.idle()
    assert harness.elements[-2:] == [Watermark(40_000), StreamStatus(True)]
    harness.idle(idle=False)
    harness.process(batch(45_000))
    harness.idle()
    assert harness.watermarks_us == [40_000], "it never goes back"
    harness.process(batch(70_000))
    harness.idle(idle=False)
    harness.idle()
    assert harness.watermarks_us == [40_000, 60_000]


def test_the_column_of_times_is_dropped() -> None:
    rows = pa.record_batch({"id": [1, 2], "at": batch(50_000, 30_000).column(0)})
    schema = rows.schema.remove(1)
    operator = EventTimeWatermark(replace(SPEC, drops_column=True))
    harness = OperatorHarness(operator, [rows.schema], output_schema=schema).open()
    harness.process(rows)
    harness.idle()
    assert [each.schema for each in harness.batches] == [schema]
    assert harness.watermarks_us == [40_000]


PARTS = replace(SPEC, parts=SessionParts(column="part", gap_us=10))


def parts(harness: OperatorHarness, *times_us: int | None) -> list[int]:
    harness.process(batch(*times_us))
    column: list[int] = harness.batches[-1].column("part").to_pylist()
    return column


def in_parts(restored: RestoredOperatorState | None = None) -> OperatorHarness:
    schema = SCHEMA.append(pa.field("part", pa.int64()))
    operator = EventTimeWatermark(PARTS)
    return OperatorHarness(operator, [SCHEMA], output_schema=schema, restored=restored).open()


def test_parts_are_intervals_until_a_consumer_may_have_a_watermark() -> None:
    harness = in_parts()
    assert parts(harness, 100, 109, 110, 95, -1) == [109, 109, 119, 99, -1]
    assert parts(harness, 50_000, 3) == [50_009, 9]
    harness.idle()
    harness.idle(idle=False)
    assert parts(harness, 100, 109, 110) == [100, 109, 110]
    assert parts(in_parts(harness.checkpoint(1)), 100, 109) == [100, 109]


def test_rows_without_a_time_have_no_part() -> None:
    harness = in_parts()
    assert parts(harness, 100, None, 109) == [109, 109]
    harness.idle()
    assert parts(harness, None, 100) == [100]


def test_a_subtask_without_rows_holds_no_consumer_back_either() -> None:
    harness = in_parts()
    harness.idle()
    harness.idle(idle=False)
    assert parts(harness, 100, 109) == [100, 109]


def test_rows_that_the_first_watermark_passes_are_parts_of_their_own() -> None:
    assert parts(in_parts(), -10, -11, -9, -1, 0) == [-10, -11, -1, -1, 9]


@given(st.lists(st.integers(-40, 200)), st.integers(1, 30))
def test_rows_of_a_part_are_in_one_session_and_equally_late(
    times_us: list[int], gap_us: int
) -> None:
    schema = SCHEMA.append(pa.field("part", pa.int64()))
    spec = replace(SPEC, parts=SessionParts(column="part", gap_us=gap_us))
    harness = OperatorHarness(EventTimeWatermark(spec), [SCHEMA], output_schema=schema).open()
    found = parts(harness, *times_us) if times_us else []
    for one, part in zip(times_us, found, strict=True):
        for other, same_part in zip(times_us, found, strict=True):
            if part == same_part:
                assert abs(one - other) < gap_us
                assert (one + gap_us <= 0) == (other + gap_us <= 0)


def test_an_eager_one_advances_with_each_batch() -> None:
    harness = opened(replace(SPEC, eagerly=True))
    harness.process(batch(50_000))
    harness.process(batch(40_000))
    harness.process(batch(51_000))
    assert harness.watermarks_us == [40_000, 41_000]


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1), st.integers(0, 10**5))
def test_times_are_rounded_down_to_milliseconds(times_us: list[int], delay_us: int) -> None:
    harness = opened(replace(SPEC, delay_us=delay_us))
    harness.process(batch(*times_us))
    harness.idle()
    milliseconds = max(time_us // 1_000 for time_us in times_us) - delay_us // 1_000
    assert harness.watermarks_us == [milliseconds * 1_000]


def test_neither_upstream_watermarks_nor_the_end_pass() -> None:
    harness = opened()
    harness.watermark(99_000)
    harness.process(batch(50_000))
    assert harness.watermarks_us == []
    harness.watermark(MAX_TIMESTAMP_US)
    assert harness.watermarks_us == [40_000], "a source that has ended has been read"


def test_a_restored_one_is_emitted_again_without_rows() -> None:
    before = opened()
    before.process(batch(50_000))
    restored = opened(restored=before.checkpoint(1))
    restored.process(batch(10_000))
    restored.idle()
    assert restored.watermarks_us == [40_000]


@pytest.mark.parametrize(("policy", "expected"), [("", [5_000, 20_000]), ("max", [20_000, 40_000])])
def test_two_in_one_chain(policy: str, expected: Sequence[int]) -> None:
    harness = opened(replace(SPEC, combined=True), policy=policy)
    harness.process(batch(30_000))
    if policy != "max":
        harness.idle()
        assert harness.watermarks_us == [], "the upstream one has seen no time"
        harness.idle(idle=False)
    harness.watermark(5_000)
    harness.idle()
    harness.idle(idle=False)
    harness.watermark(40_000)
    harness.idle()
    assert harness.watermarks_us == expected


def test_rows_without_event_time_hold_nothing_back() -> None:
    harness = opened(EventTimeWatermarkSpec())
    harness.process(batch(1))
    harness.idle()
    assert harness.watermarks_us == [MAX_TIMESTAMP_US]
    valve = WatermarkValve(2)
    valve.on_watermark(0, MAX_TIMESTAMP_US)
    assert valve.on_watermark(1, 7) == (Watermark(7),)


@given(
    st.lists(st.lists(st.integers(0, 100), max_size=3), min_size=1, max_size=4),
    st.permutations(range(4)),
)
def test_the_watermark_is_that_of_all_subtasks_once_all_have_caught_up(
    rows: list[list[int]], order: list[int]
) -> None:
    valve = WatermarkValve(len(rows))
    for channel in (each for each in order if each < len(rows)):
        harness = opened(replace(SPEC, delay_us=0))
        harness.process(batch(*(1_000 * each for each in rows[channel])))
        harness.idle()
        for element in harness.elements:
            if isinstance(element, Watermark):
                valve.on_watermark(channel, element.timestamp_us)
            elif isinstance(element, StreamStatus):
                valve.on_status(channel, element.idle)
    latest = max((1_000 * each for some in rows for each in some), default=MIN_TIMESTAMP_US)
    assert valve.watermark_us == latest
    assert valve.idle

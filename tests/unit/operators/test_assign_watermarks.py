"""Watermarks of rows that pass: bounded, custom, idle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel import Environment, Watermarks
from firesteel.elements import MAX_TIMESTAMP_US, StreamStatus
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.watermarks import AssignWatermarks

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC"))])


def batch(*times_us: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(times_us, SCHEMA.field("at").type)], schema=SCHEMA)


class Clock:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def opened(watermarks: Watermarks, clock: Clock | None = None) -> OperatorHarness:
    operator = AssignWatermarks(watermarks.assigner_spec(), clock or Clock())
    return OperatorHarness(operator, [SCHEMA], output_schema=SCHEMA, name="Watermarks").open()


@given(
    st.lists(st.lists(st.one_of(st.none(), st.integers(0, 1_000)), max_size=5), max_size=10),
    st.integers(0, 300),
)
def test_bounded_follows_the_latest_time_so_far(
    times: list[list[int | None]], delay_us: int
) -> None:
    harness = opened(
        Watermarks.bounded("at", max_out_of_orderness=timedelta(microseconds=delay_us))
    )
    expected: list[int] = []
    latest = None
    for some in times:
        harness.process(batch(*some))
        for at in some:
            latest = at if latest is None else max(latest, at or latest)
        if latest is not None and (not expected or latest - delay_us - 1 > expected[-1]):
            expected.append(latest - delay_us - 1)
    assert harness.watermarks_us == expected
    harness.end()
    assert harness.watermarks_us[-1] == MAX_TIMESTAMP_US
    assert sum(b.num_rows for b in harness.batches) == sum(map(len, times))


def test_watermarks_of_the_stream_before_end_here() -> None:
    harness = opened(Watermarks.bounded("at"))
    harness.watermark(500)
    harness.process(batch(10))
    assert harness.watermarks_us == [9]


class Oldest:
    """Remembers what it has seen, and says that nothing older than the last batch's oldest will
    come.
    """

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, batch: pa.RecordBatch) -> Any:
        self.batches += 1
        return None if self.batches == 1 else pc.min(batch["at"])


def test_custom_functions_have_a_memory_and_may_say_nothing() -> None:
    harness = opened(Watermarks.custom(Oldest()))
    for times in ((100, 50), (70, 90), (60,), (95, None), (None,)):
        harness.process(batch(*times))
    assert harness.watermarks_us == [69, 94]  # 60 would go back


@pytest.mark.parametrize(
    "reached",
    [
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 1),
        datetime(1970, 1, 1, 1, 0, 1, tzinfo=datetime.strptime("+0100", "%z").tzinfo),
        pd.Timestamp("1970-01-01 00:00:01", tz="UTC"),
        pa.scalar(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ],
)
def test_timestamps_of_any_kind(reached: Any) -> None:
    harness = opened(Watermarks.custom(lambda batch: reached))
    harness.process(batch(1))
    assert harness.watermarks_us == [999_999]


def test_what_is_no_timestamp_is_refused() -> None:
    harness = opened(Watermarks.custom(lambda batch: 17))
    with pytest.raises(
        FiresteelError,
        match=r"Watermarks: the function returned int 17; it must return a timestamp",
    ):
        harness.process(batch(1))


def statuses(harness: OperatorHarness) -> list[bool]:
    return [element.idle for element in harness.elements if isinstance(element, StreamStatus)]


def test_without_rows_for_a_while_the_stream_is_idle_until_the_next_one() -> None:
    clock = Clock()
    harness = opened(Watermarks.bounded("at").with_idleness("30 ms"), clock)

    def until(now_ms: int) -> None:
        clock.now_ms = now_ms
        harness.processing_time(now_ms)

    until(1_020)
    harness.process(batch(1))
    until(1_040)
    assert statuses(harness) == []
    until(1_050)
    assert statuses(harness) == [True]
    clock.now_ms = 1_500
    harness.process(batch(2))
    assert statuses(harness) == [True, False]
    until(1_529)
    assert statuses(harness) == [True, False]
    until(1_530)
    assert statuses(harness) == [True, False, True]
    harness.end()


def test_a_stream_that_never_has_rows_is_idle_too() -> None:
    clock = Clock()
    harness = opened(Watermarks.bounded("at").with_idleness(timedelta(seconds=1)), clock)
    clock.now_ms = 2_000
    harness.processing_time(2_000)
    assert statuses(harness) == [True]


def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(InvalidProgram, match="takes a function, not str"):
        Watermarks.custom("at")  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match="at least 1 ms"):
        Watermarks.bounded("at").with_idleness("0 s")
    with pytest.raises(InvalidProgram, match="use Watermarks.bounded"):
        Environment().from_sequence(0, 1).assign_timestamps_and_watermarks("at")  # type: ignore[arg-type]

"""drop_duplicates against a row-by-row oracle that forgets nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.elements import MAX_TIMESTAMP_US
from firesteel.errors import FiresteelError
from firesteel.operators import DropDuplicatesSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.drop_duplicates import DropDuplicates
from tests.batches import batch_of
from tests.long import fewer

SCHEMA = pa.schema(
    [("key", pa.float64()), ("other", pa.string()), ("at", pa.timestamp("us")), ("n", pa.int64())]
)
KEYS = [(1.0, "a"), (1.0, None), (float("nan"), "a"), (None, None)]


def opened(within_us: int, **settings: Any) -> OperatorHarness:
    spec = DropDuplicatesSpec(
        key_columns=("KEY", "other"),
        time_column="at" if within_us else "",
        within_us=within_us,
        **settings,
    )
    return OperatorHarness(DropDuplicates(spec), [SCHEMA]).open()


def batch(*rows: tuple[int, int, int]) -> pa.RecordBatch:
    """Rows of (key, time, number)."""
    return batch_of(SCHEMA, [(*KEYS[key], time, number) for key, time, number in rows])


def kept(harness: OperatorHarness) -> list[int]:
    return [row["n"] for row in harness.rows()]


def late(harness: OperatorHarness) -> int:
    return harness.metrics.counters["numLateRecordsDropped"].value


FLOWS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=8)
    | st.integers(0, 60),
    max_size=10,
)


@settings(max_examples=fewer(200))
@given(flow=FLOWS, within=st.sampled_from([0, 1, 7, 40]))
def test_what_is_kept_is_what_an_oracle_keeps(
    flow: list[list[tuple[int, int]] | int], within: int
) -> None:
    harness = opened(within)
    chosen: dict[int, list[int]] = {}
    watermark, number, dropped = -1, 0, 0
    expected = []
    for element in flow:
        if isinstance(element, int):
            watermark = max(watermark, element)
            harness.watermark(watermark)
            continue
        rows = [(key, time, number + index) for index, (key, time) in enumerate(element)]
        number += len(rows)
        harness.process(batch(*rows))
        mine = []
        for key, time, n in sorted(rows, key=lambda row: row[1]) if within else rows:
            if within and time <= watermark:
                dropped += 1
            elif not any(abs(time - t) < within or not within for t in chosen.get(key, ())):
                chosen.setdefault(key, []).append(time)
                mine.append(n)
        expected += sorted(mine)  # in the order of arrival
    assert kept(harness) == expected
    assert late(harness) == dropped
    harness.watermark(MAX_TIMESTAMP_US)
    if within:
        assert not harness.operator._kept  # type: ignore[attr-defined]
        assert not harness.operator._ending  # type: ignore[attr-defined]


def test_keys_are_forgotten_once_their_time_is_over() -> None:
    harness = opened(16)
    harness.process(batch((0, 10, 0), (1, 10, 1), (0, 30, 2)))
    harness.watermark(27)
    assert len(harness.operator._kept) == 1  # type: ignore[attr-defined]
    harness.process(batch((0, 28, 3), (0, 45, 4), (0, 46, 5), (1, 28, 6)))
    assert kept(harness) == [0, 1, 2, 5, 6]


def test_a_row_without_a_time_is_named() -> None:
    harness = opened(5)
    rows = batch((0, 1, 0)).set_column(2, SCHEMA.field("at"), pa.nulls(1, SCHEMA.field("at").type))
    with pytest.raises(FiresteelError, match="'at'"):
        harness.process(rows)

"""drop_duplicates by Spark's rules, against a dictionary."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.elements import MAX_TIMESTAMP_US
from firesteel.operators import DropDuplicatesSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.grouping import key_times
from taskexecutor.executor.operators.drop_duplicates import DropDuplicatesByWatermark, _create
from taskexecutor.executor.state import RestoredOperatorState
from tests.batches import batch_of
from tests.long import fewer

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
WITH_TIME = DropDuplicatesSpec(
    key_columns=("k", "at"), late_column="at", time_is_key=True, expires_after_us=0
)
FOREVER = DropDuplicatesSpec(key_columns=("k",), late_column="at")
WITHIN = DropDuplicatesSpec(key_columns=("k",), late_column="at", expires_after_us=10)


def opened(
    spec: DropDuplicatesSpec, restored: RestoredOperatorState | None = None
) -> OperatorHarness:
    return OperatorHarness(_create(spec), [SCHEMA], restored=restored).open()


def process(harness: OperatorHarness, *rows: tuple[str, int | None, int]) -> list[int]:
    """Returns the numbers of the rows that are kept."""
    harness.elements.clear()
    harness.process(batch_of(SCHEMA, list(rows)))
    return [row["n"] for row in harness.rows()]


def late(harness: OperatorHarness) -> int:
    return harness.metrics.counters["numLateRecordsDropped"].value


def test_a_key_with_its_time_expires_with_the_watermark() -> None:
    harness = opened(WITH_TIME)
    assert process(harness, ("a", 20, 1), ("a", 20, 2), ("a", 21, 3), ("a", None, 4)) == [1, 3, 4]
    harness.watermark(20)
    assert process(harness, ("a", 20, 5), ("a", 21, 6), ("a", None, 7), ("b", 19, 8)) == []
    assert late(harness) == 2
    assert isinstance(harness.operator, DropDuplicatesByWatermark)


def test_a_key_without_its_time_is_kept_but_late_rows_are_dropped() -> None:
    harness = opened(FOREVER)
    assert process(harness, ("a", 20, 1)) == [1]
    harness.watermark(30)
    assert process(harness, ("a", 99, 2), ("b", 30, 3), ("b", 31, 4)) == [4]
    assert late(harness) == 1


def test_within_the_watermark_a_key_expires_after_the_time_of_its_first_row() -> None:
    harness = opened(WITHIN)
    assert process(harness, ("a", 20, 1), ("a", 5, 2), ("b", None, 3), ("b", None, 4)) == [1, 3]
    harness.watermark(10)
    assert process(harness, ("b", None, 5)) == [5], "as if its time were the epoch"
    harness.watermark(29)
    assert process(harness, ("a", 40, 6)) == []
    harness.watermark(30)
    assert process(harness, ("a", 40, 7), ("a", 41, 8)) == [7]
    harness.watermark(MAX_TIMESTAMP_US)
    assert process(harness, ("a", 42, 9)) == [], "the end of the input expires nothing"


def test_the_watermark_is_restored_without_any_key() -> None:
    harness = opened(WITHIN)
    harness.watermark(10)
    assert process(harness, ("a", None, 1)) == [1], "its time, the epoch + 10, has passed"
    restored = opened(WITHIN, harness.checkpoint(1))
    for number in (2, 3):
        assert process(restored, ("a", None, number)) == [number]


@pytest.mark.parametrize("spec", [WITH_TIME, FOREVER, WITHIN], ids=["time", "forever", "within"])
@settings(max_examples=fewer(150), deadline=None)
@given(
    steps=st.lists(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.none() | st.integers(-2, 60)),
            min_size=1,
            max_size=8,
        )
        | st.integers(0, 70)
        | st.just("restore"),
        max_size=25,
    ),
    few=st.booleans(),
)
def test_what_is_kept_is_what_a_dictionary_keeps(
    spec: DropDuplicatesSpec, steps: list[Any], few: bool
) -> None:
    harness, expiries, watermark_us, number = opened(spec), dict[Any, float](), 0, 0
    with pytest.MonkeyPatch.context() as patched:
        if few:
            patched.setattr(key_times, "FEWEST", 0)
        for checkpoint, step in enumerate(steps):
            if step == "restore":
                harness = opened(spec, harness.checkpoint(checkpoint))
            elif isinstance(step, int):
                watermark_us = max(watermark_us, step)
                harness.watermark(step)
            else:
                rows, expected = [], []
                # a row without a time may expire immediately, but not within its batch
                known = {key for key, at in expiries.items() if at > watermark_us}
                for key, at_us in step:
                    number += 1
                    rows.append((key, at_us, number))
                    if at_us is not None and at_us <= watermark_us:
                        continue
                    of = (key, at_us) if spec is WITH_TIME else key
                    if of in known:
                        continue
                    known.add(of)
                    expected.append(number)
                    if spec.expires_after_us is None or (spec is WITH_TIME and at_us is None):
                        expiries[of] = float("inf")
                    else:
                        expiries[of] = (at_us or 0) + spec.expires_after_us
                assert process(harness, *rows) == expected


def test_forgotten_keys_leave_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_times, "FEWEST", 50)
    operator = DropDuplicatesByWatermark(WITHIN)
    harness = OperatorHarness(operator, [SCHEMA]).open()
    for start in range(1, 5_000, 100):
        rows = [(f"{start + n}", start + n, start + n) for n in range(100)]
        assert len(process(harness, *rows)) == 100
        harness.watermark(start + 99)
        assert operator._known.count <= 300

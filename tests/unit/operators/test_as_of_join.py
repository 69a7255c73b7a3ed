"""As-of joins against pandas' merge_asof, and against the versions themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.elements import MAX_TIMESTAMP_US
from firesteel.errors import FiresteelError
from firesteel.operators import AsOfSpec, EventTimes, JoinSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.joins import as_of_join, waiting_rows
from taskexecutor.executor.operators.joins.as_of_join import AsOfJoin
from tests.batches import batch_of
from tests.long import fewer

TIME = pa.timestamp("us", "UTC")
NAN = float("nan")
LEFT = pa.schema([("left", pa.int64()), ("k", pa.float64()), ("text", pa.string()), ("at", TIME)])
RIGHT = pa.schema(
    [
        ("K", pa.float64()),
        ("row_kind", pa.string()),
        ("word", pa.string()),
        ("time", TIME),
        ("right", pa.int64()),
    ]
)
KEYS = [(1.0, "a"), (1.0, "b"), (NAN, "a"), (0.0, "a"), (-0.0, "a"), (None, "a"), (1.0, None)]
EQUAL = [0, 1, 2, 3, 3, None, None]  # what the oracle compares; None is equal to nothing
TIMES = EventTimes(columns=("at", "time"), shifts_us=(0, -1))


def opened(
    how: Any = "inner", tolerance_us: int | None = None, *, whole: bool = False, **more: Any
) -> OperatorHarness:
    spec = JoinSpec(
        left_keys=("k", "text"),
        right_keys=("k", "word"),
        how=how,
        whole=whole,
        within=AsOfSpec(times=TIMES, tolerance_us=tolerance_us),
    )
    return OperatorHarness(AsOfJoin(spec), [LEFT, RIGHT], **more).open()


def left(rows: list[tuple[int, int]], first: int = 0) -> pa.RecordBatch:
    """Each with the place of its key and its time."""
    return batch_of(LEFT, [(n, *KEYS[key], at) for n, (key, at) in enumerate(rows, first)])


def right(rows: list[tuple[int, int, bool]], first: int = 0) -> pa.RecordBatch:
    """Each with the place of its key, its time, and whether it is a deletion."""
    numbered = enumerate(rows, first)
    return batch_of(
        RIGHT,
        [
            (KEYS[key][0], "delete" if gone else "insert", KEYS[key][1], time, number)
            for number, (key, time, gone) in numbered
        ],
    )


def pairs(harness: OperatorHarness) -> Counter[tuple[int, int | None]]:
    return Counter((row["left"], row["right"]) for row in harness.rows())


def counted(harness: OperatorHarness, name: str) -> int:
    return harness.metrics.counters[name].value


TIMED = st.tuples(st.integers(0, 6), st.integers(0, 30))


@settings(max_examples=fewer(50), deadline=None)
@given(
    rows=st.lists(TIMED, max_size=15),
    versions=st.lists(TIMED, max_size=15),
    tolerance=st.none() | st.integers(1, 9),
)
def test_a_left_join_of_whole_streams_is_pandas_merge_asof(
    rows: list[tuple[int, int]], versions: list[tuple[int, int]], tolerance: int | None
) -> None:
    harness = opened("left", tolerance)
    harness.process(left(rows), 0)
    harness.process(right([(*version, False) for version in versions]), 1)
    harness.watermark(MAX_TIMESTAMP_US)
    # pandas joins nulls: here, each is a separate key.
    frames = [
        pd.DataFrame(
            [
                (-1 - number if EQUAL[key] is None else 10 + EQUAL[key], time - side, number)
                for number, (key, time) in enumerate(mine)
            ],
            columns=["key", "time", name],
            dtype="int64",
        ).sort_values("time", kind="stable")
        for side, (name, mine) in enumerate((("left", rows), ("right", versions)))
    ]
    frames[1].loc[frames[1]["key"] < 0, "key"] = -100
    merged = pd.merge_asof(*frames, on="time", by="key", tolerance=tolerance)
    expected = Counter(
        (number, None if pd.isna(version) else int(version))
        for number, version in zip(merged["left"], merged["right"], strict=True)
    )
    assert pairs(harness) == expected
    for row in harness.rows():
        assert (row["right"] is None) == (row["time"] is None)
        assert "row_kind" not in row and "K" not in row


FLOWS = st.lists(
    st.tuples(st.just("rows"), st.lists(TIMED, min_size=1, max_size=6))
    | st.tuples(
        st.just("versions"),
        st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30), st.booleans()), min_size=1),
    )
    | st.tuples(st.sampled_from(["watermark", "restore"]), st.integers(0, 30)),
    max_size=14,
)


@settings(max_examples=fewer(120), deadline=None)
@given(flow=FLOWS, how=st.sampled_from(["inner", "left"]), tolerance=st.none() | st.integers(1, 9))
def test_rows_join_the_versions_that_have_come_before_the_watermark(
    flow: list[Any], how: Any, tolerance: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(as_of_join, "LEAST", 3)
        patch.setattr(waiting_rows, "_MOST_ROWS", 5)
        harness = opened(how, tolerance)
        waiting: list[tuple[int, int, int]] = []
        versions: list[tuple[int, int, int, bool]] = []
        expected: Counter[tuple[int, int | None]] = Counter()
        found: Counter[tuple[int, int | None]] = Counter()
        counts, watermark, late = [0, 0], -100, [0, 0]
        for what, some in [*flow, ("watermark", MAX_TIMESTAMP_US)]:
            if what == "rows":
                harness.process(left(some, counts[0]), 0)
                for number, (key, at) in enumerate(some, counts[0]):
                    if at > watermark:
                        waiting.append((number, key, at))
                    late[0] += at <= watermark
                counts[0] += len(some)
            elif what == "versions":
                harness.process(right(some, counts[1]), 1)
                for number, (key, time, gone) in enumerate(some, counts[1]):
                    versions.append((number, key, time - 1, gone))
                    late[1] += time - 1 <= watermark
                counts[1] += len(some)
            elif what == "watermark":
                watermark = max(watermark, some)
                harness.watermark(watermark)
                for number, key, at in [row for row in waiting if row[2] <= watermark]:
                    valid, since, deleted = None, -100, False
                    for version, other, time, gone in versions:
                        if EQUAL[other] == EQUAL[key] is not None and since <= time <= at:
                            valid, since, deleted = version, time, gone
                    if deleted or (tolerance is not None and at - since > tolerance):
                        valid = None
                    if valid is not None or how == "left":
                        expected[number, valid] += 1
                waiting = [row for row in waiting if row[2] > watermark]
                assert found + pairs(harness) == expected
            else:
                state = harness.checkpoint(1)
                assert counted(harness, "numLateRecordsDropped") == late[0]
                assert counted(harness, "numLateVersions") == late[1]
                late = [0, 0]
                found += pairs(harness)
                harness = opened(how, tolerance, restored=state)
        assert not waiting


def test_what_no_row_to_come_may_join_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_of_join, "LEAST", 10)
    for tolerance in (None, 3):
        harness = opened("left", tolerance)
        operator: Any = harness.operator
        for at in range(1, 300):
            harness.process(right([(at % 2, at + 1, False)], at), 1)
            # Rows of a key that no version has.
            rows = left([(0, at)])
            other = rows.set_column(2, LEFT.field(2), pa.array([f"{at}"]))
            harness.process(pa.concat_batches([rows, other]), 0)
            harness.watermark(at)
            assert operator._versions.count + operator._index.count <= 20
        assert operator._waiting.count == 0
        found = [row["right"] for row in harness.rows() if row["text"] == "a"]
        assert found == [None, *(at - at % 2 for at in range(2, 300))]


def test_nothing_is_late_in_a_batch() -> None:
    harness = opened("left", whole=True)
    harness.watermark(50)
    harness.process(left([(0, 10), (0, 30)]), 0)
    harness.watermark(60)
    harness.process(right([(0, 1, False), (0, 21, False)]), 1)
    harness.flush()
    assert not harness.rows()
    assert harness.watermarks_us == []
    harness.watermark(MAX_TIMESTAMP_US)
    assert pairs(harness) == {(0, 0): 1, (1, 1): 1}
    assert counted(harness, "numLateRecordsDropped") == 0


def test_rows_beyond_a_bundle_come_in_the_order_of_time() -> None:
    harness = opened("left")
    harness.process(right([(0, 1, False)]), 1)
    for first in range(100_000, 0, -10_000):
        harness.process(left([(0, at) for at in range(first - 10_000, first)], first), 0)
        harness.flush()
    harness.watermark(50_000)
    assert len(harness.rows()) == 50_001
    harness.watermark(MAX_TIMESTAMP_US)
    for batch in harness.batches:
        times = batch["at"].cast(pa.int64()).to_pylist()
        assert times == sorted(times)
    found = [row["right"] for row in harness.rows()]
    assert found == [0] * 100_000


def test_a_version_of_another_kind_is_an_error() -> None:
    harness = opened()
    changed = right([(0, 1, False)]).set_column(1, RIGHT.field(1), pa.array(["update"]))
    harness.process(changed, 1)
    message = "a version has 'update' in its column 'row_kind'; allowed are 'insert' and 'delete'"
    with pytest.raises(FiresteelError, match=message):
        harness.flush()

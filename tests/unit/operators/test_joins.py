"""Joins against an oracle that compares all rows of one stream with all rows of the other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.elements import MAX_TIMESTAMP_US, Watermark
from firesteel.errors import FiresteelError
from firesteel.operators import (
    EventTimes,
    IntervalSpec,
    JoinSpec,
    SameWindowSpec,
    TimeToLiveSpec,
    TumblingSpec,
)
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.joins import rows_by_key, stream_join
from taskexecutor.executor.operators.joins.joined_columns import JoinedColumns
from taskexecutor.executor.operators.joins.stream_join import StreamJoin
from tests.backends import creator, databases
from tests.batches import batch_of
from tests.long import fewer

TIME = pa.timestamp("us", "UTC")
NAN = float("nan")
LEFT = pa.schema([("left", pa.int64()), ("k", pa.float64()), ("text", pa.string()), ("at", TIME)])
RIGHT = pa.schema(
    [("K", pa.float64()), ("word", pa.string()), ("time", TIME), ("right", pa.int64())]
)
KEYS = [(1.0, "a"), (1.0, "b"), (NAN, "a"), (0.0, "a"), (-0.0, "a"), (None, "a"), (1.0, None)]
EQUAL = [0, 1, 2, 3, 3, None, None]  # what the oracle compares; None is equal to nothing

HOWS = ["inner", "left", "right", "full", "semi"]

Row = tuple[int, int]  # the place of its key, its time
FLOWS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30)), min_size=1, max_size=6),
    )
    | st.integers(0, 30),
    max_size=10,
)


def spec(**settings: Any) -> JoinSpec:
    return JoinSpec(left_keys=("k", "text"), right_keys=("k", "word"), **settings)


def opened(join: JoinSpec, **settings: Any) -> OperatorHarness:
    return OperatorHarness(StreamJoin(join, **settings), [LEFT, RIGHT]).open()


def batch(side: int, rows: list[Row], first: int) -> pa.RecordBatch:
    if side:
        return batch_of(RIGHT, [(*KEYS[key], at, n) for n, (key, at) in enumerate(rows, first)])
    return batch_of(LEFT, [(n, *KEYS[key], at) for n, (key, at) in enumerate(rows, first)])


def there(harness: OperatorHarness) -> Counter[tuple[int | None, int | None]]:
    """Pairs of row numbers that have come and not gone."""
    found: Counter[tuple[int | None, int | None]] = Counter()
    for row in harness.rows():
        pair = row["left"], row.get("right")  # a semi join has the rows of the left stream only
        found[pair] += 1 if row.get("row_kind", "insert") == "insert" else -1
        assert found[pair] >= 0, row
    return +found


def late(harness: OperatorHarness) -> int:
    return harness.metrics.counters["numLateRecordsDropped"].value


@settings(max_examples=fewer(100), deadline=None)
@given(flow=FLOWS, how=st.sampled_from(HOWS), few=st.booleans())
def test_at_any_time_the_result_is_what_pandas_merges(
    flow: list[tuple[int, list[Row]] | int], how: Any, few: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(rows_by_key, "PAIRS", 3)
        harness = opened(spec(how=how))
        rows: tuple[list[Row], list[Row]] = ([], [])
        for element in flow:
            if isinstance(element, int):
                harness.watermark(element)
                continue
            side, some = element
            harness.process(batch(side, some, len(rows[side])), side)
            rows[side].extend(some)
            harness.flush()
            frames = []
            for name, mine in zip(("left", "right"), rows, strict=True):
                # pandas joins nulls: here, each is a separate key.
                keys = [EQUAL[key] for key, _ in mine]
                texts = [f"{name}{n}" if key is None else str(key) for n, key in enumerate(keys)]
                frames.append(pd.DataFrame({"key": texts, name: range(len(mine))}, dtype=object))
            kind = {"full": "outer", "semi": "inner"}.get(how, how)
            merged = frames[0].merge(frames[1], on="key", how=kind)
            if how == "semi":
                merged = merged.drop_duplicates("left").assign(right=None)
            merged = merged.astype(object).where(merged.notna(), None)
            assert there(harness) == Counter(zip(merged["left"], merged["right"], strict=True))
        assert late(harness) == 0


TIMES = EventTimes(columns=("at", "time"), shifts_us=(0, -1))
WITHIN = st.one_of(
    st.tuples(st.integers(-9, 9), st.integers(0, 9)).map(
        lambda bounds: IntervalSpec(times=TIMES, lower_us=bounds[0], upper_us=sum(bounds))
    ),
    st.tuples(st.integers(1, 12), st.integers(0, 5)).map(
        lambda window: SameWindowSpec(
            times=TIMES, window=TumblingSpec(size_us=window[0], offset_us=window[1])
        )
    ),
)


def end_of_window(within: SameWindowSpec, time: int) -> int:
    window = within.window
    return time - (time - window.offset_us) % window.size_us + window.size_us


def last_match(within: IntervalSpec | SameWindowSpec, side: int, time: int) -> int:
    """The latest time of a row of the other side that a row of this one may join."""
    if isinstance(within, SameWindowSpec):
        return end_of_window(within, time) - 1
    return time - within.lower_us if side else time + within.upper_us


Numbered = tuple[int, int, int]  # its number, the place of its key, its time


def same_key(left: int, right: int, *, nulls: bool) -> bool:
    if EQUAL[left] is None:
        return nulls and left == right
    return EQUAL[left] == EQUAL[right]


def near_in_time(
    how: str,
    within: IntervalSpec | SameWindowSpec,
    rows: tuple[list[Numbered], list[Numbered]],
    *,
    nulls: bool,
) -> Counter[tuple[int | None, int | None]]:
    """Every pair that there can be of these rows, and the rows without one. `nulls`: equal keys
    with nulls match.
    """
    expected: Counter[tuple[int | None, int | None]] = Counter()
    for left, key, left_time in rows[0]:
        for right, other_key, right_time in rows[1]:
            if isinstance(within, IntervalSpec):
                near = within.lower_us <= right_time - left_time <= within.upper_us
            else:
                near = end_of_window(within, left_time) == end_of_window(within, right_time)
            if near and same_key(key, other_key, nulls=nulls):
                expected[left, right] += 1
    if how == "semi":
        return Counter({(left, None): 1 for left, _ in expected})
    if how in ("left", "full"):
        matched = {left for left, _ in expected}
        expected.update((left, None) for left, _, _ in rows[0] if left not in matched)
    if how in ("right", "full"):
        matched = {right for _, right in expected}
        expected.update((None, right) for right, _, _ in rows[1] if right not in matched)
    return expected


@settings(max_examples=fewer(250), deadline=None)
@given(
    flow=FLOWS,
    within=WITHIN,
    how=st.sampled_from(HOWS),
    few=st.booleans(),
    held=st.booleans(),
    holds=st.booleans(),
)
def test_rows_join_those_near_in_time_and_are_forgotten(
    flow: list[tuple[int, list[Row]] | int],
    within: IntervalSpec | SameWindowSpec,
    how: Any,
    few: bool,
    held: bool,
    holds: bool,
) -> None:
    if isinstance(within, SameWindowSpec) and how == "semi":
        how = "inner"  # windows have no semi joins
    join = spec(within=within, how=how, holds_null_keys=holds)
    if held:
        join = join.with_delayed_watermark()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_join, "LEAST_BYTES", 200)
        if few:
            patch.setattr(rows_by_key, "PAIRS", 3)
        harness = opened(join)
        counts, watermark, dropped = [0, 0], -100, 0
        rows: tuple[list[Numbered], list[Numbered]] = ([], [])
        for element in [*flow, MAX_TIMESTAMP_US]:
            if isinstance(element, int):
                watermark = max(watermark, element)
                harness.watermark(watermark)
                harness.flush()  # it may have been there before
                waiting = [
                    {
                        n
                        for n, key, time in mine
                        if (holds or EQUAL[key] is not None)
                        and last_match(within, side, time) > watermark
                    }
                    for side, mine in enumerate(rows)
                ]
                assert there(harness) == {
                    (left, right): count
                    for (left, right), count in near_in_time(
                        how, within, rows, nulls=holds and how == "full"
                    ).items()
                    if (left is not None or right not in waiting[1])
                    and (right is not None or left not in waiting[0] or how == "semi")
                }
                continue
            side, some = element
            harness.process(batch(side, some, counts[side]), side)
            for number, (key, at) in enumerate(some, counts[side]):
                time = last = at - side  # the shift
                if isinstance(within, SameWindowSpec):
                    last = end_of_window(within, time) - 1
                if last <= watermark:
                    dropped += 1
                else:
                    rows[side].append((number, key, time))
            counts[side] += len(some)
        assert late(harness) == dropped
        if isinstance(within, SameWindowSpec):
            for pair in harness.batches:
                columns = [pair[name].cast(pa.int64()).to_pylist() for name in ("at", "time")]
                ends = pair["window_end"].cast(pa.int64()).to_pylist()
                for left, right, end in zip(*columns, ends, strict=True):
                    assert end == end_of_window(within, right - 1 if left is None else left)
        check_event_time(harness, how, within, held)


@pytest.mark.parametrize(
    ("late_by", "passed", "missed"),
    [(None, 0, 2), (("", ""), 2, 0), (("at", "time"), 1, 1)],
)
@pytest.mark.parametrize("how", HOWS)
def test_rows_that_the_watermark_passed_are_late_or_have_no_match(
    how: Any, late_by: tuple[str, str] | None, passed: int, missed: int
) -> None:
    """The times of right rows are a microsecond before the column by which they are late."""
    within = IntervalSpec(times=TIMES, lower_us=0, upper_us=0, late_by=late_by)
    harness = opened(spec(within=within, how=how))
    harness.process(batch(0, [(0, 10)], 0), 0)
    harness.watermark(10)
    harness.process(batch(1, [(0, 11), (0, 10)], 0), 1)
    harness.flush()
    left = {(0, None): 1} if how in ("left", "full") else {}
    right = {(None, number): 1 for number in range(passed)} if how in ("right", "full") else {}
    assert there(harness) == Counter(left | right)
    assert late(harness) == missed


def check_event_time(
    harness: OperatorHarness, how: str, within: IntervalSpec | SameWindowSpec, held: bool
) -> None:
    """Checks that no row of the result is older than the watermark in the result's event time, or
    in any of its times if the watermark is held back.
    """
    shift = {"at": 0, "time": -1, "window_end": -1}
    if isinstance(within, SameWindowSpec):
        names = ["at", "time", "window_end"] if held else ["window_end"]
    elif held:
        names = ["at"] if how == "semi" else ["at", "time"]
    else:
        names = {"semi": ["at"], "left": ["at"], "right": ["time"], "full": ["at", "time"]}.get(
            how, []
        )
    watermark = -(2**63)
    for element in harness.elements:
        if isinstance(element, Watermark):
            watermark = element.timestamp_us
        elif isinstance(element, pa.RecordBatch):
            for name in names:
                for time in element[name].cast(pa.int64()).to_pylist():
                    assert time is None or time + shift[name] > watermark


@pytest.mark.parametrize("how", HOWS)
def test_rows_that_do_not_meet_their_own_condition_have_no_match(how: Any) -> None:
    schemas = [
        schema.append(pa.field(name, pa.bool_()))
        for schema, name in ((LEFT, "mine"), (RIGHT, "theirs"))
    ]
    within = IntervalSpec(times=TIMES, lower_us=-5, upper_us=5)
    join = spec(within=within, how=how, conditions=("mine", "theirs"))
    harness = OperatorHarness(StreamJoin(join), schemas).open()
    for side, schema in enumerate(schemas):
        rows = batch(side, [(0, 10)] * 3, 0)
        harness.process(rows.append_column(schema.field(4), pa.array([True, False, None])), side)
    harness.flush()
    alone: dict[str, list[tuple[int | None, int | None]]] = {
        "left": [(1, None), (2, None)],
        "right": [(None, 1), (None, 2)],
        "full": [(1, None), (2, None), (None, 1), (None, 2)],
    }
    pair = (0, None) if how == "semi" else (0, 0)
    assert there(harness) == Counter([pair, *alone.get(how, [])])


def test_rows_and_keys_are_forgotten_as_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_join, "LEAST_BYTES", 240)  # ten rows
    schemas = [pa.schema([("k", pa.int64()), (name, TIME)]) for name in ("at", "time")]
    within = IntervalSpec(times=EventTimes(columns=("at", "time")), lower_us=-2, upper_us=3)
    operator: Any = StreamJoin(JoinSpec(left_keys=("k",), right_keys=("k",), within=within))
    harness = OperatorHarness(operator, schemas).open()
    for at in range(200):
        for side, schema in enumerate(schemas):
            rows = [{"k": 10**12 * at, schema.names[1]: at}]
            harness.process(pa.RecordBatch.from_pylist(rows, schema=schema), side)
        harness.watermark(at)
        # Before the watermark, rows of four times are needed of the left side and of three of the
        # right one: twice as many may be there, and those of the latest time.
        assert sum(side.count for side in operator._sides) <= 2 * (4 + 3) + 2
        assert operator._index.count <= 2 * (4 + 3) + 2
    assert len(harness.rows()) == 200


def test_rows_are_forgotten_after_their_time_to_live() -> None:
    now = [1_000]
    harness = opened(spec(how="left", within=TimeToLiveSpec(ttl_ms=100)), now_ms=lambda: now[0])
    harness.process(batch(0, [(0, 0), (1, 0)], 0), 0)
    harness.flush()
    assert there(harness) == {(0, None): 1, (1, None): 1}
    now[0] = 1_099
    harness.process(batch(1, [(0, 0)], 0), 1)
    harness.flush()
    assert there(harness) == {(0, 0): 1, (1, None): 1}
    now[0] = 1_100
    harness.process(batch(1, [(0, 0), (1, 0)], 1), 1)
    harness.flush()
    assert there(harness) == {(0, 0): 1, (1, None): 1}, "the left rows are gone"
    now[0] = 1_210
    harness.process(batch(0, [(0, 0)], 2), 0)
    harness.flush()
    assert there(harness) == {(0, 0): 1, (1, None): 1, (2, None): 1}


def test_a_key_with_many_rows_costs_what_it_gives() -> None:
    """Rows near in time are found among fifty thousand of the same key."""
    times = EventTimes(columns=("at", "time"))
    harness = opened(spec(within=IntervalSpec(times=times, lower_us=0, upper_us=0)))
    for side in (0, 1):
        harness.process(batch(side, [(0, at) for at in range(50_000)], 0), side)
    harness.flush()
    pairs = pa.Table.from_batches(harness.batches)
    assert pairs.num_rows == 50_000
    assert pairs["left"].equals(pairs["right"])


def test_a_hot_key_comes_in_batches_of_bounded_size() -> None:
    schemas = [pa.schema([("k", pa.int64()), (name, pa.int64())]) for name in ("left", "right")]
    sizes, hot = (900, 2_000), (600, 1_800)
    harness = OperatorHarness(
        StreamJoin(JoinSpec(left_keys=("k",), right_keys=("k",))), schemas
    ).open()
    frames = []
    for side, (size, many) in enumerate(zip(sizes, hot, strict=True)):
        rows = {
            "k": [0] * many + list(range(1, size - many + 1)),
            schemas[side].names[1]: range(size),
        }
        frames.append(pd.DataFrame(rows))
        harness.process(pa.RecordBatch.from_pandas(frames[-1], schema=schemas[side]), side)
        harness.flush()
    assert max(batch.num_rows for batch in harness.batches) <= rows_by_key.PAIRS
    found = pa.Table.from_batches(harness.batches).to_pandas()
    expected = frames[0].merge(frames[1], on="k")
    assert len(expected) > 10 * rows_by_key.PAIRS
    order = ["k", "left", "right"]
    pd.testing.assert_frame_equal(
        *(each.sort_values(order, ignore_index=True)[order] for each in (found, expected))
    )


CHANGED = [
    pa.schema([("k", pa.int64()), (name, pa.float64()), ("row_kind", pa.string())])
    for name in ("left", "right")
]
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(
            st.tuples(st.sampled_from([0, 1, 2, None]), st.integers(0, 1), st.booleans()),
            min_size=1,
            max_size=6,
        ),
        st.booleans(),  # whether it is restored then
    ),
    max_size=10,
)


@settings(max_examples=fewer(200), deadline=None)
@given(flow=CHANGES, how=st.sampled_from(["inner", "left", "right", "full"]))
def test_what_goes_from_a_side_goes_from_the_result(flow: list[Any], how: Any) -> None:
    values = [NAN, None]
    join = JoinSpec(left_keys=("k",), right_keys=("k",), how=how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_join, "LEAST_BYTES", 150)
        harness = OperatorHarness(StreamJoin(join), CHANGED).open()
        results: Counter[Any] = Counter()
        rows: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
        for side, changes, restored in flow:
            kinds = []
            for key, value, comes in changes:
                comes = comes or not rows[side][key, value]
                rows[side][key, value] += 1 if comes else -1
                kinds.append("insert" if comes else "delete")
            columns = [[key for key, *_ in changes], [values[v] for _, v, _ in changes], kinds]
            batch = batch_of(CHANGED[side], zip(*columns, strict=True))
            before = len(harness.rows())
            harness.process(batch, side)
            harness.flush()
            for row in harness.rows()[before:]:
                pair = row["k"], repr(row["left"]), repr(row["right"])
                results[pair] += 1 if row["row_kind"] == "insert" else -1
                assert results[pair] >= 0, row
            expected: Counter[Any] = Counter()
            left, right = (list((+each).elements()) for each in rows)
            for key, value in left:
                mine = [v for k, v in right if k == key and key is not None]
                for other in mine:
                    expected[key, repr(values[value]), repr(values[other])] += 1
                if not mine and how in ("left", "full"):
                    expected[key, repr(values[value]), "None"] += 1
            for key, value in right:
                if (key is None or key not in [k for k, _ in left]) and how in ("right", "full"):
                    expected[key, "None", repr(values[value])] += 1
            assert +results == expected
            if restored:
                state = harness.checkpoint(1)
                harness = OperatorHarness(StreamJoin(join), CHANGED, restored=state).open()


def test_rows_beyond_the_memory_for_state_are_in_files() -> None:
    schemas = [
        pa.schema([("id", pa.int64()), ("text", pa.string())]),
        pa.schema([("id", pa.int64())]),
    ]
    with databases() as folder:
        create = creator("rocksdb", folder)  # with 8 MiB
        operator: Any = StreamJoin(JoinSpec(left_keys=("id",), right_keys=("id",)))
        harness = OperatorHarness(operator, schemas, create_keyed_state=create).open()
        for first in range(0, 200_000, 20_000):
            numbers = range(first, first + 20_000)
            rows = {"id": list(numbers), "text": [f"{number:0100}" for number in numbers]}
            harness.process(pa.RecordBatch.from_pydict(rows, schema=schemas[0]), 0)
            harness.flush()
        assert operator._memory.in_files_bytes > 8 << 20
        wanted = list(range(0, 200_000, 999))
        harness.process(pa.RecordBatch.from_pydict({"id": wanted}, schema=schemas[1]), 1)
        harness.flush()
        found = sorted((row["id"], int(row["text"])) for row in harness.rows())
        assert found == [(number, number) for number in wanted]
        harness.close()


def test_a_row_that_goes_must_be_there() -> None:
    harness = OperatorHarness(
        StreamJoin(JoinSpec(left_keys=("k",), right_keys=("k",))), CHANGED
    ).open()
    gone = [{"k": 1, "left": 2.0, "row_kind": "delete"}]
    harness.process(pa.RecordBatch.from_pylist(gone, schema=CHANGED[0]), 0)
    with pytest.raises(FiresteelError, match="left stream that does not exist: .*'left': 2.0"):
        harness.flush()


def test_columns_of_the_result() -> None:
    window = SameWindowSpec(times=TIMES, window=TumblingSpec(size_us=5))
    names = ["k", "left", "text", "at", "word", "time", "right", "window_start", "window_end"]
    assert JoinedColumns(spec(within=window), LEFT, RIGHT).schema.names == names
    assert JoinedColumns(spec(within=window, how="full"), LEFT, RIGHT).schema.names == names
    assert JoinedColumns(spec(how="left"), LEFT, RIGHT).schema.names[-1] == "row_kind"
    other = pa.schema([*RIGHT, ("LEFT", pa.int8())])
    with pytest.raises(FiresteelError, match="two columns 'LEFT'; rename or drop"):
        JoinedColumns(spec(), LEFT, other)
    changed = pa.schema([("row_kind", pa.string()), *RIGHT])
    assert JoinedColumns(spec(), LEFT, changed).schema.names == [*names[:-2], "row_kind"]


def test_the_schemas_of_both_streams_are_needed() -> None:
    with pytest.raises(FiresteelError, match="schemas of both streams must be known"):
        OperatorHarness(StreamJoin(spec()), [LEFT, None]).open()

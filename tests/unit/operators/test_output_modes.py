"""Running aggregation in Spark's output modes, with keys that expire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.common.checkpoints.key_group_content import RowsSlice
from firesteel.common.process import temporary
from firesteel.elements import MAX_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.operator import ColumnMemory
from firesteel.operators import RunningAggregateSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor import column_memory
from taskexecutor.executor.column_memory import IN_MEMORY, SlotColumnMemory
from taskexecutor.executor.columnar.grouping import key_times, latest_rows
from taskexecutor.executor.columnar.grouping.key_times import KeyTimes
from taskexecutor.executor.columnar.grouping.keyed_partials import KeyedPartials
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from taskexecutor.executor.state import HashMapKeyedStateBackend, RestoredOperatorState
from tests.long import fewer

TIME = pa.timestamp("us", "UTC")
PARTIALS = pa.schema(
    [("end", TIME), ("k", pa.string()), ("_p0_sum", pa.int64()), ("_rows", pa.int64())]
)
OUTPUT = pa.schema([("end", TIME), ("k", pa.string()), ("s", pa.int64())])
Mode = Literal["update", "append", "complete"]
Row = tuple[int | None, str, int]  # end, k, x


def spec(mode: Mode, *, expires: str = "end", at_barriers: bool = False) -> RunningAggregateSpec:
    return RunningAggregateSpec(
        key_columns=("end", "k"),
        aggregates=parse_aggregates(["sum(x) AS s"]),
        mode=mode,
        expires=expires,
        at_barriers=at_barriers,
    )


def partials(rows: Sequence[Row]) -> pa.RecordBatch:
    ends, keys, values = zip(*rows, strict=True)
    columns: list[pa.Array] = [
        pa.array(ends, TIME),
        pa.array(keys, pa.string()),
        pa.array(values, pa.int64()),
        pa.array([1] * len(rows), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PARTIALS)


def opened(
    of: RunningAggregateSpec,
    restored: RestoredOperatorState | None = None,
    subtask: int = 0,
    parallelism: int = 1,
    memory: ColumnMemory = IN_MEMORY,
) -> OperatorHarness:
    return OperatorHarness(
        RunningAggregate(of),
        [PARTIALS],
        output_schema=OUTPUT,
        restored=restored,
        subtask=subtask,
        parallelism=parallelism,
        create_keyed_state=partial(HashMapKeyedStateBackend, columns=memory),
    ).open()


def emitted(harness: OperatorHarness) -> list[Row]:
    """Returns the rows that were emitted since the last call."""
    rows = []
    for batch in harness.batches:
        ends = batch.column("end").cast(pa.int64()).to_pylist()
        rows += list(zip(ends, *(batch.column(n).to_pylist() for n in ("k", "s")), strict=True))
    harness.elements.clear()
    return rows


def process(harness: OperatorHarness, *rows: Row) -> list[Row]:
    harness.process(partials(rows))
    harness.flush()
    return sorted(emitted(harness), key=repr)


def late(harness: OperatorHarness) -> int:
    return harness.operator.context.counter("numLateRecordsDropped").value


def test_update_emits_changed_keys_and_forgets_those_that_expire() -> None:
    harness = opened(spec("update"))
    assert process(harness, (10, "a", 1), (20, "a", 2)) == [(10, "a", 1), (20, "a", 2)]
    harness.watermark(10)
    assert harness.elements == [Watermark(10)]
    harness.elements.clear()
    assert process(harness, (10, "a", 5), (10, "b", 5), (11, "a", 1), (20, "a", 1)) == [
        (11, "a", 1),
        (20, "a", 3),
    ]
    assert late(harness) == 2


def test_append_emits_a_key_once_when_it_expires() -> None:
    harness = opened(spec("append"))
    assert process(harness, (10, "a", 1), (20, "a", 2), (10, "a", 3)) == []
    harness.watermark(9)
    assert emitted(harness) == []
    harness.watermark(10)
    assert isinstance(harness.elements[0], pa.RecordBatch), "rows come before their watermark"
    assert emitted(harness) == [(10, "a", 4)]
    assert process(harness, (10, "a", 1)) == []
    harness.watermark(MAX_TIMESTAMP_US)
    assert emitted(harness) == [], "the end of the input completes nothing"
    harness.finish()
    assert emitted(harness) == []


def test_a_key_without_a_time_never_expires() -> None:
    harness = opened(spec("append"))
    process(harness, (None, "a", 1))
    harness.watermark(10**15)
    process(harness, (None, "a", 1))
    harness.watermark(10**16)
    assert emitted(harness) == []
    assert late(harness) == 0
    harness = opened(spec("update"))
    harness.watermark(10**15)
    assert process(harness, (None, "a", 1)) == [(None, "a", 1)]
    harness.watermark(10**16)
    assert process(harness, (None, "a", 1)) == [(None, "a", 2)]


def test_times_up_to_the_epoch_are_late_from_the_start() -> None:
    harness = opened(spec("update"))
    assert process(harness, (0, "a", 1), (-5, "a", 1), (1, "a", 1)) == [(1, "a", 1)]
    assert late(harness) == 2


def test_complete_emits_all_keys_at_a_barrier_if_any_has_changed() -> None:
    harness = opened(spec("complete"))
    harness.watermark(50)
    assert process(harness, (10, "a", 1), (20, "b", 2)) == []
    harness.snapshot(1)
    assert sorted(emitted(harness)) == [(10, "a", 1), (20, "b", 2)]
    harness.snapshot(2)
    assert emitted(harness) == []
    process(harness, (20, "b", 1))
    restored = opened(spec("complete"), harness.checkpoint(3))
    assert sorted(emitted(harness)) == [(10, "a", 1), (20, "b", 3)]
    restored.snapshot(4)
    assert emitted(restored) == [], "it was emitted before the checkpoint"
    assert late(harness) == 0


@pytest.mark.parametrize("mode", ["update", "append"])
def test_at_barriers_each_key_is_emitted_once_and_watermarks_follow(mode: Mode) -> None:
    harness = opened(spec(mode, at_barriers=True))
    for x in (1, 2, 3):
        assert process(harness, (10, "a", x), (20 + x, "b", x)) == []
    harness.watermark(10)
    harness.idle()
    assert harness.elements == [StreamStatus(True)]
    harness.elements.clear()
    harness.snapshot(1)
    rows = {"append": 1, "update": 4}[mode]
    batches, events = harness.elements[:-2], harness.elements[-2:]
    assert events == [Watermark(10), StreamStatus(True)], "idle again, after rows"
    assert sum(batch.num_rows for batch in batches if isinstance(batch, pa.RecordBatch)) == rows
    assert (10, "a", 6) in emitted(harness)
    harness.snapshot(2)
    assert emitted(harness) == []


def test_keys_are_forgotten_at_each_barrier() -> None:
    of = replace(spec("update", expires="", at_barriers=True), forgets=True)
    harness = opened(of)
    assert process(harness, (10, "a", 1), (10, "b", 2)) == []
    assert process(harness, (10, "a", 4)) == []
    restored = opened(of, harness.checkpoint(1))
    assert sorted(emitted(harness)) == [(10, "a", 5), (10, "b", 2)]
    for each in (harness, restored):
        process(each, (10, "a", 7))
        each.snapshot(2)
        assert emitted(each) == [(10, "a", 7)]
    harness.snapshot(3)
    assert emitted(harness) == []


class Model:
    """Spark's rules, row by row."""

    def __init__(self, of: RunningAggregateSpec) -> None:
        self.spec = of
        self.watermark_us = 0
        self.sums: dict[tuple[int | None, str], int] = {}
        self.held: dict[tuple[int | None, str], int] = {}
        self.changed = False

    def rows(self, rows: Sequence[Row]) -> dict[tuple[int | None, str], int]:
        changed = {}
        expires = self.spec.expires and self.spec.mode != "complete"
        for end, key, x in rows:
            if expires and end is not None and end <= self.watermark_us:
                continue
            self.sums[end, key] = self.sums.get((end, key), 0) + x
            changed[end, key] = self.sums[end, key]
            self.changed = True
        return self._out(changed) if self.spec.mode == "update" else {}

    def watermark(self, us: int) -> dict[tuple[int | None, str], int]:
        self.watermark_us = max(us, self.watermark_us)
        if not self.spec.expires or self.spec.mode == "complete":
            return {}
        gone = {
            (end, key): x
            for (end, key), x in self.sums.items()
            if end is not None and end <= self.watermark_us
        }
        for key in gone:
            del self.sums[key]
        return self._out(gone) if self.spec.mode == "append" else {}

    def barrier(self) -> dict[tuple[int | None, str], int]:
        if self.spec.mode == "complete":
            changed, self.changed = self.changed, False
            return dict(self.sums) if changed else {}
        held, self.held = self.held, {}
        return held

    def _out(self, rows: dict[tuple[int | None, str], int]) -> dict[tuple[int | None, str], int]:
        if not self.spec.at_barriers:
            return rows
        self.held.update(rows)
        return {}


STEPS = st.lists(
    st.tuples(
        st.just("rows"),
        st.lists(
            st.tuples(st.none() | st.integers(-2, 40), st.sampled_from("abc"), st.integers(-9, 9)),
            min_size=1,
            max_size=8,
        ),
    )
    | st.tuples(st.just("watermark"), st.integers(-5, 45))
    | st.tuples(st.sampled_from(["barrier", "restore"]), st.none()),
    max_size=25,
)


@pytest.mark.parametrize("expires", ["end", ""])
@pytest.mark.parametrize("at_barriers", [False, True])
@pytest.mark.parametrize("mode", ["update", "append", "complete"])
@settings(max_examples=fewer(60), deadline=None)
@given(steps=STEPS, few=st.booleans(), paged=st.booleans())
def test_the_rows_are_those_of_sparks_rules(
    mode: Mode,
    at_barriers: bool,
    expires: str,
    steps: list[tuple[str, Any]],
    few: bool,
    paged: bool,
) -> None:
    if mode == "append" and not expires:
        return
    of = spec(mode, expires=expires, at_barriers=at_barriers)
    with pytest.MonkeyPatch.context() as patched:
        if few:
            patched.setattr(key_times, "FEWEST", 0)
            patched.setattr(latest_rows, "MOST_OUTDATED", 0)
        if paged:
            patched.setattr(column_memory, "_SMALL_BYTES", 1)
            patched.setattr(column_memory, "_TINY_BYTES", 1)
            patched.setattr(column_memory, "_PIECE_BYTES", (512, 512))
        memory = SlotColumnMemory(0, temporary.SHARED_MEMORY) if paged else IN_MEMORY
        model, harness, checkpoint = Model(of), opened(of, memory=memory), 0
        for step, argument in steps:
            expected: dict[tuple[int | None, str], int] = {}
            if step == "rows":
                harness.process(partials(argument))
                harness.flush()
                expected = model.rows(argument)
            elif step == "watermark":
                harness.watermark(argument)
                expected = model.watermark(argument)
            else:
                checkpoint += 1
                restored = harness.checkpoint(checkpoint)
                expected = model.barrier()
            found = emitted(harness)
            assert Counter(found) == Counter((*key, x) for key, x in expected.items())
            if step == "restore":
                harness = opened(of, restored, memory=memory)


def test_expired_keys_leave_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_times, "FEWEST", 100)
    operator = RunningAggregate(spec("append"))
    harness = OperatorHarness(operator, [PARTIALS], output_schema=OUTPUT).open()
    for start in range(1, 20_000, 1_000):
        process(harness, *((start + n, f"{start + n}", 1) for n in range(1_000)))
        harness.watermark(start + 899)
        assert len(emitted(harness)) == (900 if start == 1 else 1_000)
        state = operator._state
        assert isinstance(state, KeyedPartials)
        assert state.keys == 100
        assert state._index.count <= 2_200, "expired keys are forgotten"
        assert sum(piece.num_rows for piece in state._log.pieces) <= 2_200
    found = [entry for entry in harness.checkpoint(1).keyed if isinstance(entry, RowsSlice)]
    assert sum(entry.table.num_rows for entry in found) == 100


def test_distinct_values_of_expired_keys_leave_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_times, "FEWEST", 10)
    (item,) = parse_aggregates(["count(DISTINCT x) AS n"])
    (values_column,) = item.partial
    schema = pa.schema(
        [("end", TIME), (values_column, pa.list_(pa.int64())), ("_rows", pa.int64())]
    )
    operator = RunningAggregate(
        RunningAggregateSpec(key_columns=("end",), aggregates=(item,), mode="append", expires="end")
    )
    output = pa.schema([("end", TIME), ("n", pa.int64())])
    harness = OperatorHarness(operator, [schema], output_schema=output).open()

    def values(*rows: tuple[int, list[int]]) -> None:
        ends, lists = zip(*rows, strict=True)
        columns = [
            pa.array(ends, TIME),
            pa.array(lists, pa.list_(pa.int64())),
            pa.array([1] * len(rows)),
        ]
        harness.process(pa.RecordBatch.from_arrays(columns, schema=schema))

    for end in range(1, 200):
        values((end, [1, 2]), (end, [2, 3]), (1_000, [end]))
        harness.watermark(end)
    assert [row["n"] for row in harness.rows()] == [3] * 199
    rows = operator._distinct.frozen(values_column)()
    assert rows is not None
    assert rows.num_rows < 199 + 3 * 30
    values((1_000, [5, 500]))
    harness.watermark(1_000)
    assert harness.rows()[-1]["n"] == 200


def test_subtasks_of_another_number_continue_at_the_latest_watermark() -> None:
    """Keys up to it may have been emitted."""
    of = spec("append")
    parts = [opened(of, subtask=subtask, parallelism=2) for subtask in range(2)]
    process(parts[0], (10, "a", 1), (30, "a", 1))
    process(parts[1], (10, "b", 1), (30, "b", 1))
    parts[0].watermark(10)
    assert emitted(parts[0]) == [(10, "a", 1)]
    states = [part.checkpoint(1) for part in parts]
    merged = RestoredOperatorState(
        keyed=[entry for state in states for entry in state.keyed],
        union_lists={
            "watermarks": [item for state in states for item in state.union_lists["watermarks"]]
        },
    )
    whole = opened(of, merged)
    assert process(whole, (10, "a", 1)) == [], "it is late"
    whole.snapshot(2)
    assert emitted(whole) == [(10, "b", 1)]
    second = replace(states[1], union_lists=merged.union_lists)
    same = opened(of, second, 1, 2)
    assert process(same, (10, "b", 1)) == []
    same.watermark(10)
    assert emitted(same) == [(10, "b", 2)], "with as many subtasks, each continues at its own"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=60), st.data())
def test_key_times_are_a_dictionary(times: list[tuple[int, int]], data: st.DataObject) -> None:
    found, live, passed_us, count = KeyTimes(IN_MEMORY), dict[int, int](), -1, 0
    for number, time_us in times:
        if data.draw(st.booleans()):
            passed_us = max(passed_us, data.draw(st.integers(0, 45)))
            gone = sorted(key for key, at_us in live.items() if at_us <= passed_us)
            assert found.expire(passed_us).tolist() == gone
            live = {key: at_us for key, at_us in live.items() if at_us > passed_us}
        number = min(number, count)
        count = max(count, number + 1)
        found.set(np.array([number]), np.array([time_us]))
        live.pop(number, None)
        if time_us > passed_us:
            live[number] = time_us
        assert found.expired == count - len(live)
        assert np.flatnonzero(found.live()).tolist() == sorted(live)
        assert found.live(np.array([number])).tolist() == [number in live]

"""Count windows and windows with triggers: which rows fire, and when. What Spark makes of them is
in tests/integration/test_triggered_windows.py.
"""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from firesteel.common.checkpoints.key_group_content import decode_key_group
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from firesteel.operators import (
    CountSpec,
    GlobalSpec,
    SessionSpec,
    SlidingSpec,
    TumblingSpec,
    WindowApplySpec,
)
from firesteel.testing import OperatorHarness
from firesteel.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerResult,
)
from taskexecutor.executor.operators.windows import triggered_windows
from taskexecutor.executor.operators.windows.count_windows import CountWindows
from taskexecutor.executor.operators.windows.triggered_windows import TriggeredWindows
from taskexecutor.executor.state import RestoredOperatorState
from taskexecutor.executor.state.files import encoded
from taskexecutor.executor.state.keyed_rows import _key_groups
from tests.batches import batch_of

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("k", pa.string()), ("at", TIME), ("n", pa.int64())])
MS = 1_000


class Rows:
    """Emits the rows of each run as they are, with the number of the run."""

    def __init__(self, together: bool = True) -> None:
        self.together = together
        self.runs = 0

    def setup(self, context: RuntimeContext, output: Output) -> None:
        self._output = output

    def run(self, table: pa.Table) -> None:
        table = table.append_column("run", pa.repeat(self.runs, table.num_rows))
        self.runs += 1
        for batch in table.combine_chunks().to_batches():
            self._output.emit(batch)

    def close(self) -> None:
        pass


def batch(*rows: tuple[str | None, int, int]) -> pa.RecordBatch:
    """Makes a batch of keys, times in milliseconds and numbers."""
    return batch_of(ROWS, [(key, at * MS, number) for key, at, number in rows])


def halves(harness: OperatorHarness) -> list[RestoredOperatorState]:
    """The state of each of two subtasks that are restored from a checkpoint of one."""
    snapshot = harness.snapshot(1)
    found = [
        RestoredOperatorState(
            keyed=[
                entry
                for number, content in encoded(snapshot)
                for entry in decode_key_group(content)
                if number * 2 // 128 == half
            ],
            lists=snapshot.lists,
            union_lists=snapshot.union_lists,
            broadcasts=snapshot.broadcasts,
            watermark_us=snapshot.watermark_us,
        )
        for half in range(2)
    ]
    restored: list[RestoredOperatorState] = pickle.loads(pickle.dumps(found))
    return restored


def half_of(key: str | None) -> int:
    """The subtask that has the key."""
    table = pa.table({"k": pa.array([key], pa.string())})
    return int(_key_groups(table, ("k",), 128)[0]) * 2 // 128


def count_spec(size: int, slide: int, keys: tuple[str, ...] = ("k",)) -> WindowApplySpec:
    window = CountSpec(size=size, slide=slide)
    return WindowApplySpec(key_columns=keys, window=window, time_column="")


def counted(size: int, slide: int, **more: Any) -> OperatorHarness:
    keys = more.pop("keys", ("k",))
    operator = CountWindows(count_spec(size, slide, keys), Rows(more.pop("together", True)))
    return OperatorHarness(operator, [ROWS], **more).open()


def windows_of(harness: OperatorHarness) -> list[tuple[Any, ...]]:
    """Returns, for each fired window, its key, its bounds in milliseconds or its number, the numbers
    of its rows.
    """
    found: dict[tuple[Any, ...], list[int]] = {}
    for row in harness.rows():
        if "window_id" in row:
            window: tuple[Any, ...] = (row["window_id"],)
        else:
            window = tuple(
                round(row[name].timestamp() * 1e3) for name in ("window_start", "window_end")
            )
        found.setdefault((row["run"], row["k"], *window), []).append(row["n"])
    return [(*window[1:], numbers) for window, numbers in found.items()]


@pytest.mark.parametrize(("size", "slide"), [(3, 3), (1, 1), (4, 2), (5, 3), (3, 1), (2, 5)])
@pytest.mark.parametrize("together", [True, False])
def test_count_windows(size: int, slide: int, together: bool) -> None:
    """Against PyFlink's assigner, row by row, with a checkpoint and another parallelism between."""
    chance = random.Random(size * 10 + slide)
    rows = [(chance.choice(["a", "b", None]), 0, n) for n in range(80)]
    of_key: dict[str | None, list[int]] = {}
    expected = []
    for key, _, n in rows:
        mine = of_key.setdefault(key, [])
        mine.append(n)
        ends, rest = divmod(len(mine) - size, slide)
        if ends >= 0 and not rest:
            expected.append((key, ends, mine[ends * slide :][:size]))
    first = counted(size, slide, together=together)
    for start in range(0, 40, 8):
        first.process(batch(*rows[start : start + 8]))
    found = windows_of(first)
    for subtask, restored in enumerate(halves(first)):
        second = counted(
            size, slide, together=together, restored=restored, subtask=subtask, parallelism=2
        )
        left = [row for row in rows[40:] if half_of(row[0]) == subtask]
        for start in range(0, len(left), 5):
            second.process(batch(*left[start : start + 5]))
        second.end()
        found += windows_of(second)
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_a_run_has_one_window_of_a_key_unless_they_may_be_together() -> None:
    rows = batch(*(("ab"[n % 2], 0, n) for n in range(12)))
    apart, together = counted(2, 2, together=False), counted(2, 2)
    for harness in (apart, together):
        harness.process(rows)
    assert {row["run"] for row in together.rows()} == {0}
    by_run: dict[int, list[str]] = {}
    for key, number, _ in [(row["k"], row["window_id"], 0) for row in apart.rows()]:
        by_run.setdefault(number, []).append(key)
    assert by_run == {number: ["a", "a", "b", "b"] for number in range(3)}
    assert [row["run"] for row in apart.rows()] == [row["window_id"] for row in apart.rows()]


def test_count_windows_of_all_rows_and_of_a_large_slide() -> None:
    harness = counted(2, 3, keys=())
    harness.process(batch(*(("ab"[n % 2], 0, n) for n in range(10))))
    harness.end()
    numbers = [row["n"] for row in harness.rows()]
    assert numbers == [0, 1, 3, 4, 6, 7]


def triggered(
    window: Any,
    trigger: Trigger,
    *,
    together: bool = True,
    clock_ms: list[int] | None = None,
    at_end: bool = False,
    **more: Any,
) -> OperatorHarness:
    clock = [0] if clock_ms is None else clock_ms
    spec = WindowApplySpec(
        key_columns=("k",),
        window=window,
        time_column="" if window.processing_time else "at",
        trigger=trigger,
        at_end=at_end,
        late_tag="late",
    )
    operator = TriggeredWindows(spec, Rows(together), clock_us=lambda: clock[0] * MS)
    return OperatorHarness(operator, [ROWS], side_output_tags=("late",), **more).open()


TEN = TumblingSpec(size_us=10 * MS)


def test_a_count_trigger_fires_with_all_rows_unless_it_purges() -> None:
    rows = [("a", 0, 1), ("b", 0, 2), ("a", 0, 3), ("a", 0, 4), ("a", 0, 5)]
    harness = triggered(GlobalSpec(), CountTrigger.of(2))
    harness.process(batch(*rows))
    assert windows_of(harness) == [("a", 0, [1, 3]), ("a", 1, [1, 3, 4, 5])]
    harness = triggered(GlobalSpec(), PurgingTrigger.of(CountTrigger.of(2)))
    harness.process(batch(*rows[:3]))
    harness.process(batch(*rows[3:]))
    harness.end()
    assert windows_of(harness) == [("a", 0, [1, 3]), ("a", 1, [4, 5])]


def test_an_event_time_trigger_fires_as_windows_do_without_one() -> None:
    harness = triggered(TEN, EventTimeTrigger.create())
    harness.process(batch(("a", 1, 1), ("b", 12, 2), ("a", 9, 3)))
    harness.watermark(10 * MS - 2)
    assert windows_of(harness) == []
    harness.watermark(10 * MS - 1)
    assert windows_of(harness) == [("a", 0, 10, [1, 3])]
    harness.process(batch(("a", 5, 4), ("b", 13, 5)))
    assert [row["n"] for side in harness.side("late") for row in side.to_pylist()] == [4]
    harness.end()
    assert windows_of(harness)[1:] == [("b", 10, 20, [2, 5])]


def test_pyflinks_example_of_a_continuous_trigger() -> None:
    """tumbling_time_window_with_continuous_trigger.py: windows of 10 ms, every 5 ms."""
    harness = triggered(TEN, ContinuousEventTimeTrigger.of("5 ms"))
    harness.process(batch(*(("hi", n, n) for n in (1, 2, 3, 4, 5, 8, 9, 15))))
    harness.end()
    found = [(*window[1:3], len(window[3])) for window in windows_of(harness)]
    assert sorted(found) == [(0, 10, 7), (0, 10, 7), (10, 20, 1)]


def test_a_continuous_trigger_of_a_global_window_ends_with_event_time() -> None:
    harness = triggered(GlobalSpec(), ContinuousEventTimeTrigger.of("5 ms"))
    harness.process(batch(("a", 1, 1), ("a", 2, 2)))
    harness.watermark(6 * MS)
    harness.process(batch(("a", 7, 3)))
    harness.watermark(11 * MS)
    assert windows_of(harness) == [("a", 0, [1, 2]), ("a", 1, [1, 2, 3])]
    harness.end()
    assert windows_of(harness)[2] == ("a", 2, [1, 2, 3])
    assert len(windows_of(harness)) <= 4


def test_early_results_in_processing_time_and_a_final_one_at_the_end() -> None:
    clock = [3]
    harness = triggered(TEN, ContinuousProcessingTimeTrigger.of("5 ms"), clock_ms=clock)
    harness.process(batch(("a", 1, 1), ("b", 2, 2)))
    clock[0] = 6
    harness.processing_time(6)
    assert windows_of(harness) == [("a", 0, 10, [1]), ("b", 0, 10, [2])]
    harness.process(batch(("a", 3, 3)))
    harness.watermark(10 * MS)
    assert windows_of(harness)[2:] == [("a", 0, 10, [1, 3]), ("b", 0, 10, [2])]
    clock[0] = 11
    harness.processing_time(11)
    harness.end()
    assert len(windows_of(harness)) == 4, "the windows are over"


def test_processing_time_windows_fire_when_the_clock_passes_their_end() -> None:
    clock = [3]
    window = TumblingSpec(size_us=10 * MS, processing_time=True)
    harness = triggered(window, ProcessingTimeTrigger.create(), clock_ms=clock)
    harness.process(batch(("a", 0, 1)))
    harness.processing_time(9)
    assert windows_of(harness) == []
    harness.processing_time(10)
    assert windows_of(harness) == [("a", 0, 10, [1])]
    clock[0] = 12
    harness.process(batch(("a", 0, 2)))
    harness.end()
    assert windows_of(harness)[1:] == [("a", 10, 20, [2])], "it is left when the input ends"


def test_in_a_batch_timers_of_processing_time_fire_once_at_the_end() -> None:
    clock = [3]
    harness = triggered(
        GlobalSpec(), ContinuousProcessingTimeTrigger.of("5 ms"), clock_ms=clock, at_end=True
    )
    harness.process(batch(("a", 0, 1)))
    harness.processing_time(100)
    harness.process(batch(("a", 0, 2)))
    harness.end()
    assert windows_of(harness) == [("a", 0, [1, 2])]


def test_sliding_windows_have_panes_of_their_own() -> None:
    harness = triggered(
        SlidingSpec(size_us=10 * MS, slide_us=5 * MS), PurgingTrigger.of(CountTrigger.of(2))
    )
    harness.process(batch(("a", 6, 1), ("a", 12, 2), ("a", 7, 3)))
    assert sorted(windows_of(harness)) == [("a", 0, 10, [1, 3]), ("a", 5, 15, [1, 2])]


def test_sessions_merge_what_triggers_have_counted() -> None:
    window = SessionSpec(gap_us=5 * MS)
    harness = triggered(window, CountTrigger.of(3))
    harness.process(batch(("a", 0, 1), ("a", 8, 2)))
    harness.process(batch(("a", 4, 3)))
    assert windows_of(harness) == [("a", 0, 13, [1, 2, 3])]
    harness = triggered(window, EventTimeTrigger.create())
    harness.process(batch(("a", 0, 1), ("b", 1, 2), ("a", 4, 3), ("a", 20, 4)))
    harness.watermark(9 * MS)
    assert windows_of(harness) == [("b", 1, 6, [2]), ("a", 0, 9, [1, 3])]
    harness.process(batch(("a", 2, 5)))
    assert [row["n"] for side in harness.side("late") for row in side.to_pylist()] == [5]
    harness.end()
    assert windows_of(harness)[2:] == [("a", 20, 25, [4])]


class Largest(Trigger):
    """Fires when a record is the largest of its window so far, and again 5 ms later in each time."""

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
        largest = ctx.get_partitioned_state("largest")
        if largest.value() is not None and element.n <= largest.value():
            return TriggerResult.CONTINUE
        largest.update(element["n"])
        ctx.register_event_time_timer(timestamp + 5)
        ctx.register_processing_time_timer(ctx.get_current_processing_time() + 5)
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.get_partitioned_state("largest").clear()
        return TriggerResult.FIRE_AND_PURGE

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state("largest").clear()


def test_a_trigger_of_the_program_its_state_and_its_timers_are_restored() -> None:
    clock = [100]
    harness = triggered(GlobalSpec(), Largest(), clock_ms=clock)
    harness.process(batch(("a", 1, 5), ("a", 2, 4), ("b", 1, 1)))
    assert windows_of(harness) == [("a", 0, [5]), ("b", 0, [1])]
    found = []
    for subtask, restored in enumerate(halves(harness)):
        again = triggered(
            GlobalSpec(), Largest(), clock_ms=clock, restored=restored, subtask=subtask,
            parallelism=2,
        )  # fmt: skip
        if half_of("a") == subtask:
            again.process(batch(("a", 3, 4)))
            assert windows_of(again) == [], "5 is larger"
        again.processing_time(106)
        again.watermark(6 * MS)
        again.watermark(7 * MS)
        again.end()
        found += windows_of(again)
    assert sorted(found) == [
        ("a", 1, [5, 4, 4]),
        ("a", 2, [5, 4, 4]),
        ("b", 1, [1]),
        ("b", 2, [1]),
    ]


class Wrong(Largest):
    def __init__(self, result: Any) -> None:
        self.result = result

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        return self.result()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda: True, r"Wrong\.on_element returned bool True; it must return a TriggerResult"),
        (lambda: [][1], "Wrong failed: IndexError"),
    ],
)
def test_mistakes_of_triggers(result: Any, message: str) -> None:
    harness = triggered(GlobalSpec(), Wrong(result))
    with pytest.raises(FiresteelError, match=message):
        harness.process(batch(("a", 1, 5)))


def test_rows_and_keys_of_no_window_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggered_windows, "_SPARE", 8)
    harness = triggered(TEN, PurgingTrigger.of(CountTrigger.of(2)))
    operator: Any = harness.operator
    for start in range(0, 400, 10):
        rows = [(f"key {start + n // 2}", start + n, start + n) for n in range(9)]
        harness.process(batch(*rows))
        harness.watermark((start + 9) * MS)
    assert [window[3] for window in windows_of(harness)] == [
        [n, n + 1] for start in range(0, 400, 10) for n in range(start, start + 8, 2)
    ]
    assert operator._logged < 40 and operator._known.count < 40
    again: Any = triggered(TEN, NeverTrigger(), restored=harness.checkpoint(1)).operator
    assert len(again._panes) == len(operator._panes)
    harness.end()


def test_times_that_are_not_whole_milliseconds() -> None:
    """A trigger sees milliseconds; a window fires when all of its records may have come."""
    harness = triggered(TumblingSpec(size_us=1_500), EventTimeTrigger.create())
    harness.process(batch(("a", 1, 1)))
    harness.watermark(1_499)
    harness.watermark(1_998)
    assert windows_of(harness) == []
    harness.watermark(1_999)
    assert [window[3] for window in windows_of(harness)] == [[1]]


def test_ranks() -> None:
    from taskexecutor.executor.operators.windows.fired_rows import ranks_within

    codes = np.array([3, 1, 3, 3, 0, 1])
    assert ranks_within(codes).tolist() == [0, 0, 1, 2, 0, 1]

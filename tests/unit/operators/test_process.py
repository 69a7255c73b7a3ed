"""process: functions of one stream, compared with the same functions row by row in plain Python;
PyFlink's own examples, with their results.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from firesteel import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    ReduceFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.functions import FunctionContext, ProcessContext
from firesteel.operators import ProcessSpec, RowTimeSpec
from firesteel.state import StateDescriptor
from firesteel.testing import OperatorHarness, restored_from
from taskexecutor.executor.operators.process.analysis import check_function
from taskexecutor.executor.operators.process.process import Process
from taskexecutor.executor.state import CreateKeyedState
from tests.backends import BACKENDS, creator, databases
from tests.batches import batch_of
from tests.unit.task.checkpoints.vertices import Vertex

ROWS = pa.schema([("key", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
RESULT = pa.schema([("key", pa.string()), ("what", pa.string()), ("n", pa.int64())])


CREATE: CreateKeyedState


@pytest.fixture(scope="module", params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    global CREATE
    with databases() as folder:
        CREATE = creator(request.param, folder)
        yield


def rows(*values: tuple[str, int, int]) -> pa.RecordBatch:
    """Key, number, and event time in milliseconds."""
    return batch_of(ROWS, [(key, number, ms * 1000) for key, number, ms in values])


def spec_of(function: Any, *, keyed: bool = True, **settings: Any) -> ProcessSpec:
    settings.setdefault("side_outputs", {"odd": None})
    settings.setdefault("time", RowTimeSpec(column="at"))
    keys = ("key",) if keyed else None
    return ProcessSpec(function=function, key_columns=keys, schema=RESULT, **settings)


def harness_of(
    function: Any, restored: Any = None, *, now: list[int] | None = None, **settings: Any
) -> OperatorHarness:
    """`now`: the wall clock, in its only element."""
    clock = now if now is not None else [0]
    return OperatorHarness(
        Process(spec_of(function, **settings), lambda: clock[0]),
        [ROWS],
        output_schema=RESULT,
        name="Process",
        side_output_tags=("odd",),
        restored=restored,
        create_keyed_state=CREATE,
    ).open()


def emitted(harness: OperatorHarness) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in harness.rows()]


class Sums(KeyedProcessFunction):
    """The sum of a key after each row, and again after as many milliseconds as the row's number."""

    def open(self, runtime_context: FunctionContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "BIGINT"))

    def process_element(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        total = (self.total.value() or 0) + value.n
        self.total.update(total)
        timestamp = ctx.timestamp()
        assert timestamp is not None
        ctx.timer_service().register_event_time_timer(timestamp + abs(value.n))
        if value.n < 0:
            ctx.output("odd", {"n": value.n, "at": value.at, "key": value.key})
        yield Row(what="row", key=ctx.get_current_key(), n=total)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[Any]:
        assert ctx.timestamp() == timestamp
        assert ctx.time_domain() == "event_time"
        yield ctx.get_current_key(), f"timer {timestamp}", self.total.value()


KEYS = st.sampled_from(["a", "b", "c"])
EVENTS = st.one_of(
    st.lists(st.tuples(KEYS, st.integers(-5, 9), st.integers(0, 40)), max_size=8),
    st.integers(0, 50),
)


@given(st.lists(EVENTS, max_size=25), st.booleans())
def test_any_batches_and_watermarks_give_what_rows_one_by_one_give(
    events: list[Any], restart: bool
) -> None:
    harness = harness_of(Sums())
    found: list[tuple[Any, ...]] = []
    odd: list[Any] = []
    total: dict[str, int] = defaultdict(int)
    timers: dict[str, set[int]] = defaultdict(set)
    expected: list[tuple[Any, ...]] = []
    expected_odd, watermark = [], -1

    def reach(now: float) -> None:
        for key, times in timers.items():
            for due in sorted(due for due in times if due <= now):
                expected.append((key, f"timer {due}", total[key]))
                times.remove(due)

    for number, event in enumerate(events):
        if isinstance(event, int):
            harness.watermark(event * 1000)
            if event > watermark:
                watermark = event
                reach(watermark)
        else:
            harness.process(rows(*event))
            for key, n, ms in event:
                total[key] += n
                timers[key].add(ms + abs(n))
                expected.append((key, "row", total[key]))
                expected_odd += [n] if n < 0 else []
        if restart and number % 5 == 4:
            found += emitted(harness)
            odd += [row["n"] for batch in harness.side("odd") for row in batch.to_pylist()]
            harness = harness_of(Sums(), restored_from(harness.snapshot()))
    harness.end()
    reach(float("inf"))
    odd += [row["n"] for batch in harness.side("odd") for row in batch.to_pylist()]
    assert sorted(found + emitted(harness)) == sorted(expected)
    assert sorted(odd) == sorted(expected_odd)


def test_rows_of_a_key_and_its_timers_are_in_order() -> None:
    harness = harness_of(Sums())
    harness.process(rows(("a", 3, 5), ("b", 1, 1), ("a", 4, 0), ("a", 1, 1)))
    assert [row for row in emitted(harness) if row[0] == "a"] == [
        ("a", "row", 3),
        ("a", "row", 7),
        ("a", "row", 8),
    ]
    harness.watermark(8_000)
    fired = emitted(harness)[4:]
    assert sorted(fired[:2]) == [("a", "timer 2", 8), ("b", "timer 2", 1)]
    assert fired[2:] == [("a", "timer 4", 8), ("a", "timer 8", 8)]


class Chain(KeyedProcessFunction):
    """Timers that register and delete others while they fire."""

    def process_element(self, value: Row, ctx: ProcessContext) -> None:
        ctx.timer_service().register_event_time_timer(value.n)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[Any]:
        timers = ctx.timer_service()
        if timestamp == 1:
            timers.delete_event_time_timer(2)
            timers.register_event_time_timer(3)
            timers.register_event_time_timer(100)
        yield ctx.get_current_key(), "timer", timestamp


def test_a_firing_timer_registers_and_deletes_others() -> None:
    harness = harness_of(Chain())
    harness.process(rows(("a", 4, 0), ("a", 2, 0), ("a", 1, 0), ("b", 2, 0)))
    harness.watermark(10_000)
    assert emitted(harness) == [
        ("a", "timer", 1),
        ("b", "timer", 2),
        ("a", "timer", 3),
        ("a", "timer", 4),
    ]
    harness.end()
    assert emitted(harness)[4:] == [("a", "timer", 100)]


class Clock(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: ProcessContext) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + value.n)
        if value.n > 50:
            timers.delete_processing_time_timer(timers.current_processing_time() + value.n)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> list[Any]:
        return [{"key": ctx.get_current_key(), "what": ctx.time_domain(), "n": timestamp}]


def test_processing_time_timers_fire_by_the_clock_and_from_a_checkpoint() -> None:
    now = [1_000]
    harness = harness_of(Clock(), now=now)
    harness.process(rows(("a", 10, 0), ("b", 20, 0), ("c", 60, 0)))
    harness.processing_time(1_010)
    assert emitted(harness) == [("a", "processing_time", 1_010)]
    again = harness_of(Clock(), restored_from(harness.snapshot()), now=now)
    again.processing_time(2_000)
    assert emitted(again) == [("b", "processing_time", 1_020)]


class Everything(KeyedProcessFunction):
    """A state of each kind."""

    def __init__(self, *, typed: bool) -> None:
        self.typed = typed

    def open(self, runtime_context: FunctionContext) -> None:
        of = (lambda name: name) if self.typed else (lambda name: None)
        get = runtime_context
        self.value = get.get_state(ValueStateDescriptor("value", of("n BIGINT, key STRING")))
        self.numbers = get.get_list_state(ListStateDescriptor("numbers", of("BIGINT")))
        self.by_time = get.get_map_state(MapStateDescriptor("by_time", of("BIGINT"), of("BIGINT")))
        self.most = get.get_reducing_state(ReducingStateDescriptor("most", max, of("BIGINT")))
        self.least = get.get_reducing_state(ReducingStateDescriptor("least", Least(), of("BIGINT")))
        self.mean = get.get_aggregating_state(
            AggregatingStateDescriptor("mean", Mean(), of("total BIGINT, count BIGINT"))
        )
        assert get.get_index_of_this_subtask() < get.get_number_of_parallel_subtasks()
        assert get.get_max_number_of_parallel_subtasks() >= get.get_number_of_parallel_subtasks()
        assert get.get_task_name() in get.get_task_name_with_subtasks()
        assert get.get_attempt_number() >= 0
        assert get.get_job_parameter("no.such.key", "default") == "default"

    def process_element(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        if value.n == 0:
            for state in (self.value, self.numbers, self.by_time, self.most, self.least, self.mean):
                state.clear()
            assert self.value.value() is self.most.get() is self.mean.get() is None
            assert self.numbers.get() == [] and self.by_time.is_empty()
            return
        self.value.update((value.n, value.key))
        self.numbers.add(value.n)
        self.by_time[ctx.timestamp()] = value.n
        self.by_time.put_all({-1: -1})
        assert -1 in self.by_time and list(self.by_time) == list(self.by_time.keys())
        del self.by_time[-1]
        for state in (self.most, self.least, self.mean):
            state.add(value.n)
        yield (
            value.key,
            repr(
                (
                    self.value.value(),
                    list(self.numbers),
                    dict(self.by_time.items()),
                    self.most.get(),
                    self.least.get(),
                )
            ),
            self.mean.get(),
        )


class Least(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return min(value1, value2)


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] // accumulator[1]


@pytest.mark.parametrize("typed", [True, False])
def test_states_of_every_kind_are_restored_with_another_parallelism(
    typed: bool, tmp_path: Path
) -> None:
    keys = [f"k{number}" for number in range(20)]

    def expected(numbers: list[int]) -> tuple[str, int]:
        times = {10 * number: number for number in numbers}
        shown = (numbers[-1], keys[0]), numbers, times, max(numbers), min(numbers)
        return repr(shown), sum(numbers) // len(numbers)

    vertex = Vertex(
        lambda: Process(spec_of(Everything(typed=typed))), ROWS, RESULT, ("key",), tmp_path, CREATE
    )

    def send(number: int) -> None:
        at = datetime.fromtimestamp(number / 100, UTC)
        vertex.process([{"key": key, "n": number, "at": at} for key in keys])

    for number, parallelism in ((7, 3), (3, 2), (9, 1)):
        send(number)
        vertex.restore(vertex.checkpoint(), parallelism)
    send(8)
    last = {row["key"]: (row["what"], row["n"]) for row in vertex.rows()}
    assert last["k0"] == expected([7, 3, 9, 8])
    assert len(last) == len(keys)
    send(0)
    send(5)
    assert {row["n"] for row in vertex.rows()[-len(keys) :]} == {5}


class Seen(KeyedProcessFunction):
    """The numbers of a key that live."""

    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self.ttl = ttl

    def open(self, runtime_context: FunctionContext) -> None:
        described: list[StateDescriptor] = [
            value := ValueStateDescriptor("value", "BIGINT"),
            numbers := ListStateDescriptor("numbers", "BIGINT"),
            by_number := MapStateDescriptor("by_number", "BIGINT", "BIGINT"),
            most := ReducingStateDescriptor("most", max, "BIGINT"),
        ]
        if self.ttl is not None:
            for each in described:
                each.enable_time_to_live(self.ttl)
        self.value = runtime_context.get_state(value)
        self.numbers = runtime_context.get_list_state(numbers)
        self.by_number = runtime_context.get_map_state(by_number)
        self.most = runtime_context.get_reducing_state(most)

    def process_element(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        seen = (
            self.value.value(),
            self.numbers.get(),
            dict(self.by_number.items()),
            self.most.get(),
            self.by_number.is_empty(),
            self.by_number.get(7),
        )
        yield value.key, repr(seen), value.n
        if value.n:
            self.value.update(value.n)
            self.numbers.add(value.n)
            self.by_number.put(value.n, value.n)
            self.most.add(value.n)


NOTHING = repr((None, [], {}, None, True, None))


def ttl(update: str = "OnCreateAndWrite") -> StateTtlConfig:
    update_type = getattr(StateTtlConfig.UpdateType, update)
    builder = StateTtlConfig.new_builder("1 s").set_update_type(update_type)
    return builder.never_return_expired().disable_cleanup_in_background().build()


def test_values_expire_that_are_not_updated() -> None:
    now = [0]
    harness = harness_of(Seen(ttl()), now=now)

    def see(at_ms: int, n: int = 0) -> str:
        now[0] = at_ms
        harness.process(rows(("a", n, 0)))
        return str(harness.rows()[-1]["what"])

    assert see(0, 7) == NOTHING
    assert see(600, 3) == repr((7, [7], {7: 7}, 7, False, 7))
    assert see(1_200) == repr((3, [3], {3: 3}, 7, False, None))
    again = harness_of(Seen(ttl()), restored_from(harness.snapshot()), now=now)
    harness = again
    assert see(1_500) == repr((3, [3], {3: 3}, 7, False, None))
    assert see(1_601) == NOTHING
    assert see(1_700, 5) == NOTHING
    for at_ms in (3_000, 4_000, 5_000):
        harness.processing_time(at_ms)
    keyed = harness.state.keyed
    assert not list(keyed.entries("user.value")) and not list(keyed.entries("user.by_number"))
    assert harness.timers.processing_time.next_timestamp() is None


def test_reading_prolongs_the_life_of_a_value() -> None:
    now = [0]
    harness = harness_of(Seen(ttl("OnReadAndWrite")), now=now)
    harness.process(rows(("a", 7, 0)))
    for now[0] in (900, 1_800, 2_700):
        harness.process(rows(("a", 0, 0)))
        assert harness.rows()[-1]["what"] == repr((7, [7], {7: 7}, 7, False, 7))
    now[0] = 3_701
    harness.process(rows(("a", 0, 0)))
    assert harness.rows()[-1]["what"] == NOTHING


def test_a_time_to_live_comes_and_goes_with_the_program() -> None:
    now = [0]
    first = harness_of(Seen(None), now=now)
    first.process(rows(("a", 7, 0)))
    now[0] = 10_000
    second = harness_of(Seen(ttl()), restored_from(first.snapshot()), now=now)
    second.process(rows(("a", 0, 0)))
    assert second.rows()[-1]["what"] == repr((7, [7], {7: 7}, 7, False, 7))
    without = harness_of(Seen(ttl("Disabled")), restored_from(second.snapshot()), now=now)
    now[0] = 20_000
    expired = harness_of(Seen(None), restored_from(second.snapshot()), now=now)
    for harness, seen in ((without, repr((7, [7], {7: 7}, 7, False, 7))), (expired, NOTHING)):
        harness.process(rows(("a", 0, 0)))
        assert harness.rows()[-1]["what"] == seen


class Opens(KeyedProcessFunction):
    def __init__(self, of: Any) -> None:
        self.of = of

    def open(self, runtime_context: FunctionContext) -> None:
        self.of(runtime_context)


def expiring(descriptor: StateDescriptor) -> Any:
    descriptor.enable_time_to_live(ttl())
    return descriptor


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (
            lambda c: c.get_state(ListStateDescriptor("n")),
            r"get_state\(\) takes a name or a ValueStateDescriptor, not a ListStateDescriptor",
        ),
        (
            lambda c: c.get_aggregating_state("n"),
            r"get_aggregating_state\(\) takes an AggregatingStateDescriptor, not a str",
        ),
        (
            lambda c: c.get_state(ValueStateDescriptor("n", "BIGINT"), "INT"),
            "the type of the state 'n' is part of its ValueStateDescriptor; leave out the schema",
        ),
        (
            lambda c: c.get_state(expiring(ValueStateDescriptor("n"))),
            r"state 'n': a state with a time to live needs a type, such as ValueStateDescriptor\('n',",
        ),
        (
            lambda c: (
                c.get_state(ValueStateDescriptor("n", "INT")),
                c.get_state(expiring(ValueStateDescriptor("n", "INT"))),
            ),
            "'n' is used with different schemas or times to live",
        ),
        (lambda c: c.get_map_state(MapStateDescriptor("m", "INT")), "schema of its keys only"),
    ],
)
def test_wrong_descriptors_are_found_before_data_flows(of: Any, words: str) -> None:
    with pytest.raises(FiresteelError, match=rf"^name: Opens\.open failed: .*{words}"):
        check_function(Opens(of), "name")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: StateTtlConfig.new_builder("soon"), "ttl of StateTtlConfig is 'soon'"),
        (lambda: StateTtlConfig("10 us"), "must be at least 1 ms"),
        (lambda: ValueStateDescriptor("n").enable_time_to_live("1 s"), "takes a StateTtlConfig"),
        (lambda: ReducingStateDescriptor("n", "max"), "takes a function of two values or a Reduce"),
        (lambda: AggregatingStateDescriptor("n", max), "takes an AggregateFunction, not builtin"),
    ],
)
def test_wrong_descriptors_are_refused(make: Any, words: str) -> None:
    with pytest.raises(InvalidProgram, match=words):
        make()


class Broken(KeyedProcessFunction):
    def __init__(self, how: Any) -> None:
        self.how = how

    def process_element(self, value: Row, ctx: ProcessContext) -> Any:
        return self.how(value, ctx)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Any:
        raise ValueError(timestamp)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda value, ctx: 1 / 0, r"process_element failed for key \('a',\): ZeroDivisionError"),
        (lambda value, ctx: value, "returned Row; it must return an iterator or None"),
        (lambda value, ctx: {"key": "a"}, "returned dict; it must return an iterator or None"),
        (
            lambda value, ctx: [{"key": "a", "what": "b"}],
            r"process_element for key \('a',\) yielded another schema .*got key str, what str",
        ),
        (
            lambda value, ctx: ctx.output("odd", ("a", 1)),
            r"for key \('a',\) called ctx.output\('odd', ...\) with a row of 2 values; expected",
        ),
        (
            lambda value, ctx: ctx.output("odd", {"key": 1, "n": "x", "at": None}),
            r"called ctx.output\('odd', ...\) with a row that does not fit .* got key int, n str",
        ),
        (
            lambda value, ctx: ctx.output("odd", 5),
            r"called ctx.output\('odd', ...\) with a int; it must be a Row\(key, n, at\), a dict",
        ),
        (
            lambda value, ctx: ctx.output(["odd"], value),
            r"ctx.output\(\['odd'\], ...\): there is no side output \['odd'\]; declared: odd",
        ),
        (
            lambda value, ctx: ctx.timer_service().register_event_time_timer(1.5),
            r"register_event_time_timer\(1.5\): times are whole milliseconds",
        ),
        (
            lambda value, ctx: ctx.timer_service().delete_processing_time_timer("1"),
            r"delete_processing_time_timer\('1'\): times are whole milliseconds",
        ),
    ],
)
def test_what_goes_wrong_names_the_call_and_the_key(how: Any, words: str) -> None:
    harness = harness_of(Broken(how))
    with pytest.raises(FiresteelError, match=f"^Process: .*{words}"):
        harness.process(rows(("a", 1, 0)))
    harness.close()


@pytest.mark.parametrize(
    "how",
    [
        lambda value, ctx: 1 / 0,
        lambda value, ctx: [("a",)],
        lambda value, ctx: ctx.output("odd", ("a",)),
        lambda value, ctx: ctx.timer_service().register_event_time_timer(ctx.timestamp()),
    ],
    ids=["failed", "yielded", "side output", "timer"],
)
def test_errors_name_a_key_as_the_program_gets_it(how: Any) -> None:
    """A TIMESTAMP key is in the zone of the session."""
    spec = ProcessSpec(
        function=Broken(how),
        key_columns=("at",),
        schema=RESULT,
        side_outputs={"odd": None},
        time=RowTimeSpec(column="at"),
    )
    harness = OperatorHarness(
        Process(spec, lambda: 0),
        [ROWS],
        output_schema=RESULT,
        side_output_tags=("odd",),
        config={"spark.sql.session.timeZone": "America/New_York"},
    ).open()

    def run() -> None:
        harness.process(rows(("a", 1, 0)))
        harness.watermark(1)

    with pytest.raises(FiresteelError, match=r"1969, 12, 31, 19, 0, tzinfo=.*America/New_York"):
        run()


def test_the_time_of_rows() -> None:
    def tell(value: Row, ctx: ProcessContext) -> Any:
        yield value.key, "time", ctx.timestamp()

    shifted = harness_of(Broken(tell), time=RowTimeSpec(column="AT", shift_us=-1))
    shifted.process(rows(("a", 1, 5), ("a", 1, -5)))
    assert [row["n"] for row in shifted.rows()] == [4, -6]
    none = harness_of(Broken(tell), time=None)
    none.process(rows(("a", 1, 5)))
    assert none.rows()[0]["n"] is None
    dropped = harness_of(Broken(tell), time=RowTimeSpec(column="time"))
    with pytest.raises(
        FiresteelError, match=r"ctx.timestamp\(\): it is the time in 'time', the co"
    ):
        dropped.process(rows(("a", 1, 5)))
    null = rows(("a", 1, 5), ("a", 1, 6)).set_column(
        2, ROWS.field("at"), pa.array([None, 6_000], ROWS.field("at").type)
    )
    harness = harness_of(Broken(tell))
    harness.process(null)
    assert [row["n"] for row in harness.rows()] == [None, 6]


class Many(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        for n in range(value.n):
            if n % 2:
                ctx.output("odd", (value.key, n, value.at))
            yield value.key, "many", n


def test_one_row_becomes_many_batches() -> None:
    harness = harness_of(Many())
    harness.process(rows(("a", 200_000, 0), ("b", 3, 0)))
    assert [row["n"] for row in harness.rows()] == [*range(200_000), 0, 1, 2]
    assert sum(batch.num_rows for batch in harness.side("odd")) == 100_001
    assert max(batch.num_rows for batch in harness.side("odd")) <= 65_536


class Unkeyed(ProcessFunction):
    def __init__(self, how: Any) -> None:
        self.how = how

    def open(self, runtime_context: FunctionContext) -> None:
        if self.how == "state":
            runtime_context.get_state("n")

    def process_element(self, value: Row, ctx: ProcessContext) -> Any:
        if self.how == "timer":
            ctx.timer_service().register_event_time_timer(1)
        if self.how == "key":
            ctx.get_current_key()
        if value.n < 0:
            ctx.output("odd", value)
        yield {"n": value.n * 2, "what": str(ctx.timestamp()), "key": value.key}


def test_a_process_function_has_no_keys() -> None:
    harness = harness_of(Unkeyed(""), keyed=False)
    harness.process(rows(("b", 1, 5), ("a", -2, 6), ("b", 3, 7)))
    assert emitted(harness) == [("b", "5", 2), ("a", "6", -4), ("b", "7", 6)]
    assert [batch.num_rows for batch in harness.side("odd")] == [1]
    hint = r"derive it from KeyedProcessFunction, and call key_by\(...\) before process\(...\)"
    for how, what in (("timer", "a timer"), ("key", r"get_current_key\(\)")):
        harness = harness_of(Unkeyed(how), keyed=False)
        with pytest.raises(FiresteelError, match=f"{what} belongs to a key, and this .*{hint}"):
            harness.process(rows(("b", 1, 5)))
    with pytest.raises(FiresteelError, match=f"Unkeyed.open failed: .*a state belongs .*{hint}"):
        check_function(Unkeyed("state"), "name", keyed=False)


# -- PyFlink's examples (pyflink/examples/datastream), with its rows


class Sum(KeyedProcessFunction):
    """state_access.py and event_time_timer.py."""

    def __init__(self, *, timers: bool) -> None:
        self.state: Any = None
        self.timers = timers

    def open(self, runtime_context: FunctionContext) -> None:
        state_descriptor = ValueStateDescriptor("state", "DOUBLE")
        state_ttl_config = (
            StateTtlConfig.new_builder("1 s")
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .disable_cleanup_in_background()
            .build()
        )
        state_descriptor.enable_time_to_live(state_ttl_config)
        self.state = runtime_context.get_state(state_descriptor)

    def process_element(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        # retrieve the current count
        current = self.state.value()
        if current is None:
            current = 0

        # update the state's count
        current += value[1]
        self.state.update(current)
        if self.timers:
            # register an event time timer 2 seconds later
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 2000)  # type: ignore[operator]
        else:
            yield value[0], current

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[Any]:
        yield ctx.get_current_key(), self.state.value()


AMOUNTS = pa.schema([("name", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us"))])
SUMS = pa.schema([("name", pa.string()), ("sum", pa.float64())])


def sums_of(function: KeyedProcessFunction) -> OperatorHarness:
    spec = ProcessSpec(
        function=function, key_columns=("name",), schema=SUMS, time=RowTimeSpec(column="at")
    )
    return OperatorHarness(Process(spec, lambda: 0), [AMOUNTS], output_schema=SUMS).open()


def test_pyflinks_state_access() -> None:
    harness = sums_of(Sum(timers=False))
    given = [("Alice", 110.1), ("Bob", 30.2), ("Alice", 20.0), ("Bob", 53.1)]
    given += [("Alice", 13.1), ("Bob", 3.1), ("Bob", 16.1), ("Alice", 20.1)]
    for name, amount in given:
        harness.process(
            pa.record_batch([[name], [amount], pa.array([0])], names=AMOUNTS.names).cast(AMOUNTS)
        )
    found: dict[str, list[float]] = {"Alice": [], "Bob": []}
    for row in harness.rows():
        found[row["name"]].append(round(row["sum"], 1))
    assert found == {"Alice": [110.1, 130.1, 143.2, 163.3], "Bob": [30.2, 83.3, 86.4, 102.5]}


def test_pyflinks_event_time_timer() -> None:
    """Watermarks lag by two seconds, and the last one is the end of event time."""
    harness = sums_of(Sum(timers=True))
    given = [(1000, "Alice", 110.1), (4000, "Bob", 30.2), (3000, "Alice", 20.0)]
    given += [(2000, "Bob", 53.1), (5000, "Alice", 13.1), (3000, "Bob", 3.1)]
    given += [(7000, "Bob", 16.1), (10000, "Alice", 20.1)]
    latest = 0
    for at, name, amount in given:
        batch = pa.record_batch([[name], [amount], pa.array([at * 1000])], names=AMOUNTS.names)
        harness.process(batch.cast(AMOUNTS))
        latest = max(latest, at)
        harness.watermark((latest - 2001) * 1000)
    harness.end()
    found = [(row["name"], round(row["sum"], 1)) for row in harness.rows()]
    assert found == [
        ("Alice", 143.2),
        ("Bob", 102.5),
        ("Alice", 163.3),
        ("Bob", 102.5),
        ("Bob", 102.5),
        ("Alice", 163.3),
        ("Bob", 102.5),
        ("Alice", 163.3),
    ]


class UpdateTel(ProcessFunction):
    """process_json_data.py, with those of other countries in a side output."""

    def process_element(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        json_data = json.loads(value[1])
        json_data["tel"] += 1
        if "China" in json_data["addr"]["country"]:
            yield value[0], json_data["name"], json_data["tel"]
        else:
            ctx.output("elsewhere", value)


def test_pyflinks_process_json_data() -> None:
    given = pa.schema([("id", pa.int64()), ("data", pa.string())])
    result = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tel", pa.int64())])
    spec = ProcessSpec(
        function=UpdateTel(), key_columns=None, schema=result, side_outputs={"elsewhere": None}
    )
    harness = OperatorHarness(
        Process(spec), [given], output_schema=result, side_output_tags=("elsewhere",)
    ).open()
    data = [
        '{"name": "Flink", "tel": 123, "addr": {"country": "Germany", "city": "Berlin"}}',
        '{"name": "hello", "tel": 135, "addr": {"country": "China", "city": "Shanghai"}}',
        '{"name": "world", "tel": 124, "addr": {"country": "USA", "city": "NewYork"}}',
        '{"name": "PyFlink", "tel": 32, "addr": {"country": "China", "city": "Hangzhou"}}',
    ]
    harness.process(pa.record_batch([pa.array([1, 2, 3, 4]), data], schema=given))
    assert emitted(harness) == [(2, "hello", 136), (4, "PyFlink", 33)]
    elsewhere = pa.Table.from_batches(harness.side("elsewhere"))
    assert elsewhere["id"].to_pylist() == [1, 3]

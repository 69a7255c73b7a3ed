"""State variables: accepted and returned values, expiry, and invalid declarations."""

from __future__ import annotations

import datetime
import decimal
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.error_report import error_info
from firesteel.common.ids import OperatorId
from firesteel.errors import FiresteelError
from firesteel.operators import TransformWithStateSpec
from firesteel.testing import OperatorHarness, restored_from
from taskexecutor.executor.operators.transform_with_state import TransformWithState
from taskexecutor.executor.operators.transform_with_state.analysis import check_processor
from taskexecutor.executor.state import CreateKeyedState
from taskexecutor.executor.state.files import read_snapshot, write_snapshot
from taskexecutor.executor.state.keyed import SnapshotTarget
from taskexecutor.executor.state.rocksdb import RocksDbKeyedStateBackend
from tests.backends import BACKENDS, creator, databases
from tests.long import fewer

IN = pa.schema([("key", pa.int64()), ("n", pa.int64())])
OUT = pa.schema([("seen", pa.string())])
AT = datetime.datetime(2024, 7, 1, 12, 30, 0, 5, tzinfo=datetime.UTC)
Named = namedtuple("Named", "b a")
LOCAL = AT.astimezone().replace(tzinfo=None)  # as PySpark hands timestamps out


@pytest.fixture(scope="module", params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    with databases() as folder:
        Story.create_keyed_state = staticmethod(creator(request.param, folder))
        yield


class Scripted(StatefulProcessor):
    """`declare(handle)` gives the states; `handle_rows(states, handle, key, rows)` what is seen."""

    def __init__(
        self, declare: Any, handle_rows: Any = lambda *args: (), expired: Any = lambda *args: ()
    ) -> None:
        self.declare, self.handle_rows, self.expired = declare, handle_rows, expired

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.states = self.declare(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for seen in self.handle_rows(self.states, self.handle, key, [row.n for row in rows]):
            yield Row(seen=repr(seen))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        for seen in self.expired(
            self.states, self.handle, key, expiredTimerInfo.getExpiryTimeInMs()
        ):
            yield Row(seen=repr(seen))


class Story:
    """An operator with a clock; `says(key, n, ...)` is what the processor sees."""

    create_keyed_state: CreateKeyedState

    def __init__(self, processor: Scripted, time_mode: str = "none", restored: Any = None) -> None:
        self.now_ms = 0
        spec = TransformWithStateSpec(
            processor=processor, key_columns=("key",), output_schema=OUT, time_mode=time_mode
        )
        operator = TransformWithState(spec, lambda: self.now_ms)
        self.harness = OperatorHarness(
            operator,
            [IN],
            output_schema=OUT,
            name="scripted",
            restored=restored,
            create_keyed_state=self.create_keyed_state,
        ).open()

    def says(self, key: int, *numbers: int) -> list[Any]:
        return self._new(
            lambda: self.harness.process(
                pa.RecordBatch.from_pylist([{"key": key, "n": n} for n in numbers], schema=IN)
            )
        )

    def at(self, now_ms: int) -> list[Any]:
        self.now_ms = now_ms
        return self._new(lambda: self.harness.processing_time(now_ms))

    def watermark(self, time_ms: int) -> list[Any]:
        return self._new(lambda: self.harness.watermark(time_ms * 1000))

    def _new(self, action: Any) -> list[Any]:
        before = len(self.harness.rows())
        action()
        self.harness.flush()
        return [eval(row["seen"], {"datetime": datetime}) for row in self.harness.rows()[before:]]

    @property
    def entries(self) -> int:
        return sum(
            len(entries)
            for _, entries in self.harness.state.snapshot().keyed.entries_by_key_group()
        )


# -- values


def keeper(schema: Any, value: Any) -> list[Any]:
    """Puts the value, and yields what comes back."""

    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        states.update(value)
        kept.append(states.get())
        yield None

    kept: list[Any] = []
    Story(Scripted(lambda handle: handle.getValueState("s", schema), handle)).says(1, 1)
    return kept


@pytest.mark.parametrize(
    ("schema", "value", "kept"),
    [
        ("a INT, b STRING", (1, "x"), (1, "x")),
        ("a INT, b STRING", [None, None], (None, None)),
        ("a INT, b STRING", Row(z=1, y="x"), (1, "x")),
        ("a BIGINT", (np.int64(3),), (3,)),
        ("a BIGINT", (3.0,), (3,)),
        ("a DOUBLE", (3,), (3.0,)),
        ("a DECIMAL(10,2)", (3,), (decimal.Decimal(3),)),
        ("a TIMESTAMP", (np.datetime64("2024-01-01T00:00:00"),), (datetime.datetime(2024, 1, 1),)),
        ("a DATE", (datetime.datetime(2024, 1, 2, 3),), (datetime.date(2024, 1, 2),)),
        ("a BINARY", (bytearray(b"x"),), (b"x",)),
        ("a BOOLEAN", (np.bool_(True),), (True,)),
        ("a ARRAY<INT>, m MAP<STRING, INT>", ([1, 2], {"x": 1}), ([1, 2], {"x": 1})),
        ("a STRUCT<x: INT, y: ARRAY<STRING>>", ((1, ["u"]),), (Row(x=1, y=["u"]),)),
        ("a STRUCT<x: INT, y: STRING>", ({"y": "u", "x": np.int32(1)},), (Row(x=1, y="u"),)),
        ("a STRUCT<x: INT, y: STRING>", (Row(y="u", x=1),), (Row(x=1, y="u"),)),
        ("a INT, b STRING", {"b": "u", "a": 1}, (1, "u")),
        ("a INT, b STRING", Row(b="u", a=1), (1, "u")),
        ("a INT, b STRING", Named(b="u", a=1), (1, "u")),
        ("a INT, b STRING", Row(x=1, y="u"), (1, "u")),  # by position, as in PySpark
        ("a TIMESTAMP", (AT.astimezone(datetime.timezone(datetime.timedelta(hours=5))),), (LOCAL,)),
        ("a TIMESTAMP, n TIMESTAMP_NTZ", (LOCAL, LOCAL), (LOCAL, LOCAL)),
        ("a ARRAY<TIMESTAMP>", ([AT, None],), ([LOCAL, None],)),
    ],
)
def test_values_come_back_as_plain_tuples(schema: str, value: Any, kept: Any) -> None:
    (given,) = keeper(schema, value)
    assert given == kept
    assert type(given) is tuple
    assert [type(element) for element in given] == [type(element) for element in kept]


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (
            "a INT",
            (1, 2),
            r"state 's': update\(\) takes a tuple of 1 or a dictionary \(a int\), and got 2 values",
        ),
        ("a INT", 5, r"takes a tuple of 1 or a dictionary \(a int\), and got int 5"),
        ("a INT, b INT", {"a": 1}, r"the names of its schema \(a int, b int\), and got 'a'"),
        ("a INT", {"a": 1, "B": 2}, r"the names of its schema \(a int\), and got 'a', 'B'"),
        ("a INT", {"a": "x"}, r"'a' is int and cannot hold str 'x'"),
        ("a INT", None, "got NoneType None"),
        ("a INT", ("x",), r"'a' is int and cannot hold str 'x'"),
        ("a INT", (1.5,), r"'a' is int and cannot hold float 1\.5"),
        ("a STRING", (1,), r"'a' is string and cannot hold int 1"),
        ("a BIGINT", (True,), r"'a' is bigint and cannot hold bool True"),
        ("a STRUCT<x: INT>", (("u",),), r"'a\.x' is int and cannot hold str 'u'"),
        ("a ARRAY<INT>", ({},), r"'a' is array<int> and cannot hold dict {}"),
    ],
)
def test_values_that_do_not_fit_are_refused(schema: str, value: Any, message: str) -> None:
    with pytest.raises(FiresteelError, match=message) as raised:
        keeper(schema, value)
    assert "handleInputRows failed for key (1,)" in str(raised.value)


def test_changing_what_was_put_or_given_changes_no_state() -> None:
    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        values, lists, maps = states
        mine = [1]
        values.update((mine,))
        lists.put([(mine,)])
        maps.updateValue(("k",), (mine,))
        mine.append(2)
        values.get()[0].append(3)
        next(lists.get())[0].append(3)
        maps.getValue(("k",))[0].append(3)
        next(maps.values())[0].append(3)
        next(maps.iterator())[1][0].append(3)
        yield (values.get(), list(lists.get()), maps.getValue(("k",)))

    def declare(handle: Any) -> Any:
        array = "a ARRAY<INT>"
        return (
            handle.getValueState("v", array),
            handle.getListState("l", array),
            handle.getMapState("m", "k STRING", array),
        )

    assert Story(Scripted(declare, handle)).says(1, 1) == [(([1],), [([1],)], ([1],))]


def test_iterating_while_appending_ends() -> None:
    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        states.put([(1,), (2,)])
        for (value,) in states.get():
            states.appendValue((value * 10,))
        yield [value for (value,) in states.get()]

    assert Story(Scripted(lambda handle: handle.getListState("l", "v INT"), handle)).says(1, 1) == [
        [1, 2, 10, 20]
    ]


# -- TTL


@pytest.mark.parametrize("restart", [False, True])
@settings(max_examples=fewer(50))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 700)), max_size=30))
def test_what_is_older_than_its_ttl_is_gone(
    restart: bool, steps: list[tuple[int, int, int]]
) -> None:
    """Values, list elements and map entries live 1,000 ms from their last update; nothing of them
    is left behind.
    """

    def declare(handle: Any) -> Any:
        return (
            handle.getValueState("v", "n INT", 1_000),
            handle.getListState("l", "n INT", ttlDurationMs=1_000),
            handle.getMapState("m", "k INT", "n INT", 1_000),
        )

    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        value, values, entries = states
        yield (
            value.exists(),
            value.get(),
            list(values.get()),
            sorted(entries.iterator()),
            entries.containsKey((numbers[0],)),
        )
        for n in numbers:
            value.update((n,))
            values.appendValue((n,))
            entries.updateValue((n,), (n,))

    story = Story(Scripted(declare, handle), "processing_time")
    now_ms, seen = 0, {}
    for key, n, later_ms in steps:
        now_ms += later_ms
        story.at(now_ms)
        history = [(at, m) for at, m in seen.setdefault(key, []) if at + 1_000 > now_ms]
        last = {m: m for _, m in history}
        value = (history[-1][1],) if history else None
        assert story.says(key, n) == [
            (
                value is not None,
                value,
                [(m,) for _, m in history],
                sorted(((m,), (m,)) for m in last),
                n in last,
            )
        ]
        seen[key] = [*history, (now_ms, n)]
        if restart:
            restored = restored_from(story.harness.state.snapshot())
            story = Story(Scripted(declare, handle), "processing_time", restored)
            story.now_ms = now_ms
    for later_ms in range(0, 10_000, 500):  # no further row arrives
        story.at(now_ms + later_ms)
    assert story.entries == 0


def test_a_text_is_a_map_key_of_one_text() -> None:
    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        states.updateValue("k", (numbers[0],))
        yield states.containsKey("k"), states.getValue("k"), list(states.keys())

    assert Story(
        Scripted(lambda handle: handle.getMapState("m", "k STRING", "n INT"), handle)
    ).says(1, 5) == [(True, (5,), [("k",)])]


def test_a_ttl_needs_processing_time_and_a_positive_duration() -> None:
    for time_mode in ("none", "event_time"):
        with pytest.raises(
            FiresteelError, match=r"state 's' has a TTL.*use time_mode=\"processing_time\""
        ):
            Story(Scripted(lambda handle: handle.getValueState("s", "n INT", 5)), time_mode)
    with pytest.raises(FiresteelError, match="ttlDurationMs is 0; it must be positive"):
        Story(Scripted(lambda handle: handle.getValueState("s", "n INT", 0)), "processing_time")


# -- timers


def test_timers_are_listed_deleted_and_fire_once() -> None:
    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        for n in numbers:
            handle.deleteTimer(-n) if n < 0 else handle.registerTimer(n)
        yield list(handle.listTimers())

    def expired(states: Any, handle: Any, key: Any, at_ms: int) -> Iterator[Any]:
        yield key[0], at_ms, list(handle.listTimers())

    story = Story(Scripted(lambda handle: None, handle, expired), "event_time")
    assert story.says(1, 300, 100, 200, 100, -200) == [[100, 300]]
    assert story.says(2, 150) == [[150]]
    assert story.watermark(99) == []
    assert story.watermark(150) == [
        (1, 100, [100, 300]),
        (2, 150, [150]),
    ]  # as in PySpark, still listed while it fires
    assert story.watermark(1_000) == [(1, 300, [300])]
    assert story.entries == 0


def test_event_time_timers_for_the_past_fire_after_the_batch() -> None:
    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        for n in numbers:
            handle.registerTimer(n)
        yield "rows"

    story = Story(
        Scripted(lambda handle: None, handle, lambda s, h, key, at_ms: [at_ms]), "event_time"
    )
    story.watermark(1_000)
    assert story.says(1, 900, 800, 1_100) == ["rows", 800, 900]
    assert story.watermark(1_100) == [1_100]


def test_a_timer_that_always_registers_another_ends_with_event_time() -> None:
    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        handle.registerTimer(numbers[0])
        return iter(())

    def expired(states: Any, handle: Any, key: Any, at_ms: int) -> Iterator[Any]:
        handle.registerTimer(at_ms + 10)
        yield at_ms

    story = Story(Scripted(lambda handle: None, handle, expired), "event_time")
    story.says(1, 10)
    assert story.watermark(35) == [10, 20, 30]
    story.harness.finish()
    assert [row["seen"] for row in story.harness.rows()] == ["10", "20", "30", "40"]
    story.harness.close()


def test_a_timer_that_reregisters_itself_for_the_same_time_does_not_block() -> None:
    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        handle.registerTimer(numbers[0])
        return iter(())

    def expired(states: Any, handle: Any, key: Any, at_ms: int) -> Iterator[Any]:
        handle.registerTimer(at_ms - 1)
        yield at_ms

    story = Story(Scripted(lambda handle: None, handle, expired), "event_time")
    story.says(1, 10)
    assert story.watermark(10) == [10]
    assert story.watermark(11) == [9]
    assert story.says(2, 11) == [8, 11]


def test_there_are_no_timers_without_time() -> None:
    from pyspark.errors import PySparkValueError

    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        with pytest.raises(PySparkValueError, match=r"TimeMode\.None"):
            handle.registerTimer(5)
        with pytest.raises(PySparkValueError, match=r"TimeMode\.None"):
            handle.listTimers()
        yield "refused"

    assert Story(Scripted(lambda handle: None, handle)).says(1, 1) == ["refused"]


@pytest.mark.parametrize("where", ["handleInputRows", "handleExpiredTimer"])
def test_what_the_processor_raises_is_blamed_on_it(where: str) -> None:
    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        handle.registerTimer(10)
        yield "fine"
        if where == "handleInputRows":
            raise KeyError("missing")

    def expired(states: Any, handle: Any, key: Any, at_ms: int) -> Iterator[Any]:
        raise KeyError("missing")

    story = Story(Scripted(lambda handle: None, handle, expired), "event_time")

    def goes_on() -> None:
        story.says(7, 1)
        story.watermark(10)

    with pytest.raises(FiresteelError) as raised:
        goes_on()
    error = error_info(raised.value)
    assert error.summary == f"scripted: {where} failed for key (7,): KeyError: 'missing'"
    assert error.user_traceback.startswith("Traceback")
    assert error.user_traceback.endswith("KeyError: 'missing'")
    assert __file__ in error.user_traceback
    assert "taskexecutor" not in error.user_traceback
    story.harness.close()


def test_what_close_raises_is_blamed_on_it() -> None:
    class Closing(Scripted):
        def close(self) -> None:
            raise OSError("still in use")

    story = Story(Closing(lambda handle: None, lambda *args: ["seen"]))
    assert story.says(1, 1) == ["seen"]
    with pytest.raises(
        FiresteelError, match=r"^scripted: Closing\.close failed: OSError: still in use"
    ) as raised:
        story.harness.close()
    assert error_info(raised.value).user_traceback.endswith("OSError: still in use")


def test_what_fails_further_down_is_not_blamed_on_the_processor() -> None:
    story = Story(Scripted(lambda handle: None, lambda *args: ["seen"]))

    def fail(batch: pa.RecordBatch) -> None:
        raise OSError("the disk is full")

    story.harness._main.batch = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the disk is full"):
        story.says(1, 1)


def test_few_timers_look_after_expiring_state() -> None:
    """The number of timers does not grow with the number of updates or with time."""

    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        states.update((numbers[0],))
        return iter(())

    story = Story(
        Scripted(lambda handle: handle.getValueState("s", "n INT", 700), handle), "processing_time"
    )
    operator, sweeps = story.harness.operator, []
    assert isinstance(operator, TransformWithState)
    fired = operator._sweeps.fired
    operator._sweeps.fired = lambda *timer: (sweeps.append(timer), fired(*timer))[1]  # type: ignore[method-assign, func-returns-value]
    for now_ms in range(0, 60_000, 300):
        story.at(now_ms)
        story.says(now_ms // 300 % 2, 1)
        assert len(sweeps) <= 1 + now_ms // 1_000
    story.at(62_000)
    assert story.entries == 0
    assert story.harness.timers.processing_time.next_timestamp() is None


def test_timers_and_expiries_are_restored_with_every_backend(
    tmp_path: Path,
) -> None:
    """Timers of a database are restored without reading each key."""

    def declare(handle: Any) -> Any:
        return handle.getValueState("s", "n INT", 1_000), handle.getListState("l", "n INT", 4_000)

    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        value, elements = states
        value.update((numbers[0],))
        elements.appendValue((numbers[0],))
        handle.registerTimer(2_000 + numbers[0])
        return iter(())

    def expired(states: Any, handle: Any, key: Any, at_ms: int) -> Iterator[Any]:
        yield key, at_ms, states[0].exists(), [n for (n,) in states[1].get()]

    storage = CheckpointStorage(str(tmp_path))
    restored = None
    for attempt, now_ms in enumerate((0, 500)):
        story = Story(Scripted(declare, handle, expired), "processing_time", restored)
        backend = story.harness.state.keyed
        if attempt and isinstance(backend, RocksDbKeyedStateBackend):
            assert not any(backend._layers)
        story.at(now_ms)
        for key in range(attempt, 3):
            story.says(key, now_ms + key)
        snapshot = story.harness.snapshot()
        target = SnapshotTarget(
            storage=storage, checkpoint_id=1, name=f"task-{attempt}", base=None, written=[]
        )
        written = write_snapshot(
            storage, f"chk-1/{attempt}", OperatorId("0" * 32), snapshot, target
        )
        snapshot.keyed.release()
        assert bool(written.databases) == isinstance(backend, RocksDbKeyedStateBackend)
        restored = read_snapshot(storage, written)
        story.harness.close()
    story = Story(Scripted(declare, handle, expired), "processing_time", restored)
    story.at(1_000)
    assert story.at(2_001) == [((0,), 2_000, False, [0]), ((1,), 2_001, False, [1, 501])]
    assert story.at(3_000) == [
        ((2,), 2_002, False, [2, 502]),
        ((1,), 2_501, False, [1, 501]),
        ((2,), 2_502, False, [2, 502]),
    ]
    story.says(7, 7)
    for now_ms in range(3_000, 15_000, 1_000):
        story.at(now_ms)
    assert story.entries == 0
    assert story.harness.timers.processing_time.next_timestamp() is None


# -- the handle


def test_states_are_declared_in_init_and_once() -> None:
    def twice(handle: Any) -> Any:
        assert handle.getValueState("s", "n INT") is handle.getValueState("s", "n INT")
        return handle.getListState("s", "n INT")

    with pytest.raises(
        FiresteelError, match=r"scripted: Scripted\.init failed: state 's' is declared twice"
    ):
        Story(Scripted(twice))

    def late(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        yield handle.getValueState("s", "n INT")

    with pytest.raises(
        FiresteelError, match=r"state 's': state variables can only be declared in init\(\)"
    ):
        Story(Scripted(lambda handle: None, late)).says(1, 1)


def test_state_belongs_to_a_key() -> None:
    with pytest.raises(
        FiresteelError,
        match=r"init failed: state 's' belongs to a key, and no key is being processed here",
    ):
        Story(Scripted(lambda handle: handle.getValueState("s", "n INT").get()))


def test_delete_if_exists_forgets_every_key() -> None:
    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        yield states.get()
        states.update((numbers[0],))

    first = Story(Scripted(lambda handle: handle.getValueState("old", "n INT"), handle))
    assert first.says(1, 5) + first.says(2, 6) + first.says(1, 7) == [None, None, (5,)]

    def declare(handle: Any) -> Any:
        handle.deleteIfExists("old")
        handle.deleteIfExists("never there")
        return handle.getValueState("old", "n INT")

    second = Story(
        Scripted(declare, handle), restored=restored_from(first.harness.state.snapshot())
    )
    assert second.says(1, 1) + second.says(2, 1) == [None, None]


@pytest.mark.parametrize("ttl", [None, 1_000])
def test_a_deleted_state_is_gone_until_it_is_declared_again(ttl: int | None) -> None:
    def declare(handle: Any) -> Any:
        states = [
            handle.getValueState("value", "n INT", ttl),
            handle.getListState("list", "n INT", ttl),
            handle.getMapState("map", "k INT", "n INT", ttl),
        ]
        for name in ("value", "list", "map"):
            handle.deleteIfExists(name)
        return states, handle.getValueState("value", "n INT")

    def handle(states: Any, handle: Any, key: Any, numbers: list[int]) -> Iterator[Any]:
        deleted, again = states
        for state in deleted:
            with pytest.raises(
                PySparkRuntimeError,
                match="Error checking value state exists: state '.*' is deleted",
            ):
                state.exists()
        again.update((numbers[0],))
        yield again.get()

    assert Story(Scripted(declare, handle), time_mode="processing_time").says(1, 5) == [(5,)]


def test_init_is_tried_before_data_flows() -> None:
    calls = []

    class Tried(Scripted):
        def close(self) -> None:
            calls.append("close")

    processor = Tried(lambda handle: calls.append("init"))
    check_processor(
        TransformWithStateSpec(processor=processor, key_columns=("key",), output_schema=OUT), "name"
    )
    assert calls == ["init", "close"]

    def fail(handle: Any) -> None:
        raise OSError("no model file")

    with pytest.raises(
        FiresteelError, match=r"name: Scripted\.init failed: OSError: no model file"
    ) as raised:
        check_processor(
            TransformWithStateSpec(
                processor=Scripted(fail), key_columns=("key",), output_schema=OUT
            ),
            "name",
        )
    assert isinstance(raised.value.__cause__, OSError)

"""Joins in programs: what is wrong is said where it is written, and which keep too much."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource

from firesteel import Environment, Session, Tumbling, Watermarks
from firesteel.client.execution_context import ExecutionContext, StopProgram, active
from firesteel.connectors import DiscardSink, FileSource, PythonSource, SequenceSource, Source
from firesteel.datastream import DataStream
from firesteel.errors import InvalidProgram
from firesteel.operators import AsOfSpec, EventTimes, IntervalSpec, JoinSpec, TimeToLiveSpec
from firesteel.plan.event_time import growing_states


def streams(**settings: Any) -> tuple[DataStream, DataStream]:
    env = Environment()
    return tuple(  # type: ignore[return-value]
        env.from_source(
            FileSource(f"/{at}", format="csv", schema=f"id LONG, {at} TIMESTAMP", **settings),
            watermarks=Watermarks.bounded(at),
        )
        for at in ("at", "time")
    )


def spec_of(stream: DataStream) -> JoinSpec:
    spec = stream._operator().spec
    assert isinstance(spec, JoinSpec)
    return spec


@pytest.mark.parametrize(
    ("on", "left", "right"),
    [
        ("id", ("id",), ("id",)),
        (["id", "day"], ("id", "day"), ("id", "day")),
        ({"seller": "id", "day": "day"}, ("seller", "day"), ("id", "day")),
    ],
)
def test_what_is_equal(on: Any, left: tuple[str, ...], right: tuple[str, ...]) -> None:
    one, other = streams()
    spec = spec_of(one.join(other, on=on))
    assert (spec.left_keys, spec.right_keys) == (left, right)


def test_pysparks_names_of_joins() -> None:
    one, other = streams()
    for how in ("left", "left_outer", "leftouter", "LEFT"):
        assert spec_of(one.join(other, "id", how)).how == "left"
    for how in ("outer", "full", "fullouter", "full_outer"):
        assert spec_of(one.join(other, "id", how)).how == "full"
    assert spec_of(one.join(other, "id", "right_outer")).how == "right"
    assert spec_of(one.join(other, "id")).how == "inner"


def test_a_joins_times() -> None:
    one, other = streams()
    joined = one.interval_join(other, "id", between=("-1 min", "0 s"))
    within = spec_of(joined).within
    assert isinstance(within, IntervalSpec)
    assert (within.lower_us, within.upper_us) == (-60_000_000, 0)
    assert within.times.columns == ("at", "time")
    assert joined._time_columns == {"at"}
    later = one.interval_join(other, "id", between=("0 s", "1 s"))
    assert later._time_columns == {"time"}
    assert not one.interval_join(other, "id", between=("-1 s", "1 s"))._time_columns
    for how, columns in (("left", {"at"}), ("right_outer", {"time"}), ("outer", set())):
        kept = one.interval_join(other, "id", how, between=("-1 s", "1 s"))
        assert kept._time_columns == columns
    hours = one.window_join(other, "id", Tumbling("1 h"), times=("a", "b"))
    assert hours._time_columns == {"window_end"}
    full = spec_of(one.window_join(other, "id", Tumbling("1 h"), "full"))
    assert full == dataclasses.replace(
        spec_of(one.window_join(other, "id", Tumbling("1 h"))), how="full"
    )
    as_of = one.as_of_join(other, {"id": "ID"}, "left_outer", tolerance="1 ms")
    assert as_of._time_columns == {"at"}
    within = AsOfSpec(times=EventTimes(columns=("at", "time")), tolerance_us=1000)
    assert spec_of(as_of) == JoinSpec(
        left_keys=("id",), right_keys=("ID",), how="left", within=within
    )
    assert not one.as_of_join(other, "id", times=("a", "b"))._time_columns
    assert spec_of(one.join(other, "id", ttl="1500 us")).within == TimeToLiveSpec(ttl_ms=2)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda a, b: a.join(b, on=[]), "name the columns to compare"),
        (lambda a, b: a.join(b, on={"id": 1}), "name the columns to compare"),
        (lambda a, b: a.join(b, "id", "left_semi"), 'allowed: "inner", "left", "right", "full"'),
        (lambda a, b: a.join(b, "id", ttl="0 s"), "ttl of join() is '0 s'; it must be positive"),
        (lambda a, b: a.join("b", "id"), "join() takes a DataStream, not str"),
        (lambda a, b: a.key_by("id").join(b, "id"), "without key_by(...): join(other, on="),
        (lambda a, b: a.join(b.key_by("id"), "id"), "without key_by(...): join(other, on="),
        (lambda a, b: a.join(streams()[1], "id"), "belong to different environments"),
        (
            lambda a, b: a.interval_join(b, "id", between="1 s"),
            "specify the minimum and maximum time from a row",
        ),
        (lambda a, b: a.interval_join(b, "id", between=("1 s", "0 s")), "swap the two"),
        (
            lambda a, b: a.interval_join(b, "id", between=("x", "0 s")),
            "between of interval_join() is 'x'; specify a duration",
        ),
        (
            lambda a, b: a.union(b).interval_join(b, "id", between=("0 s", "0 s")),
            "the left stream of interval_join() needs one event-time column, but its sources have",
        ),
        (
            lambda a, b: a.interval_join(b, "id", between=("0 s", "0 s"), times="at"),
            "name the event-time columns of this and of the other",
        ),
        (lambda a, b: a.as_of_join(b, "id", "full"), 'allowed: "inner", "left"; a version'),
        (lambda a, b: a.as_of_join(b, "id", tolerance="0 s"), "tolerance of as_of_join() is '0 s'"),
        (
            lambda a, b: a.key_by("id").as_of_join(b, "id"),
            "as_of_join() takes the columns to compare",
        ),
        (
            lambda a, b: a.as_of_join(b.union(a), "id"),
            "the right stream of as_of_join() needs one event-time column, but its sources have",
        ),
        (
            lambda a, b: a.interval_join(b, "id", "semi", between=("0 s", "1 s")),
            "interval_join(how='semi'): allowed",
        ),
        (
            lambda a, b: a.window_join(b, "id", Tumbling("1 s"), "cross"),
            "window_join(how='cross'): allowed",
        ),
        (lambda a, b: a.window_join(b, "id", Session("1 s")), "takes a Tumbling window in event"),
        (
            lambda a, b: a.window_join(b, "id", Tumbling("1 s", processing_time=True)),
            "takes a Tumbling window in event time",
        ),
    ],
)
def test_what_is_wrong_is_said_where_it_is_written(
    program: Callable[[DataStream, DataStream], Any], message: str
) -> None:
    with pytest.raises(InvalidProgram, match=re.escape(message)):
        program(*streams())


def test_a_join_that_keeps_an_endless_stream_is_warned_of() -> None:
    def said(one: DataStream, other: DataStream, **settings: Any) -> list[str]:
        one.join(other, "id", name="Pairs", **settings).sink_to(DiscardSink())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return list(growing_states(one._program.graph))

    assert said(*streams()) == []
    assert said(*streams(watch="1 s"), ttl="1 day") == []
    (text,) = said(*streams(watch="1 s"))
    assert re.match(
        r"'Pairs' \(.*\) keeps all rows of its streams forever, and 'Source: .*ttl", text
    )


class Events(DataSource):
    def schema(self) -> str:
        return "id LONG, at TIMESTAMP"

    def simpleStreamReader(self, schema: Any) -> Any: ...


class Endless(Source):
    bounded = False

    def splits(self, parallelism: int) -> list[dict[str, int]]:
        return [{"topic": 0}]


def rows(kind: str, env: Environment, time: str, watermarks: Watermarks | None) -> DataStream:
    schema = f"id LONG, {time} TIMESTAMP"
    sources = {
        "python": PythonSource(Events),
        "own": Endless(),
        "watched": FileSource(f"/{time}", format="csv", schema=schema, watch="1 s"),
        "ends": FileSource(f"/{time}", format="csv", schema=schema),
    }
    return env.from_source(sources[kind], name=kind, watermarks=watermarks)


TIMED: dict[str, Callable[[DataStream, DataStream], DataStream]] = {
    "inner": lambda a, b: a.interval_join(
        b, "id", between=("0 s", "1 s"), times=("at", "time"), name="Pairs"
    ),
    "left": lambda a, b: a.interval_join(
        b, "id", "left", between=("0 s", "1 s"), times=("at", "time"), name="Pairs"
    ),
    "window": lambda a, b: a.window_join(
        b, "id", Tumbling("1 s"), times=("at", "time"), name="Pairs"
    ),
    "full window": lambda a, b: a.window_join(
        b, "id", Tumbling("1 s"), "full", times=("at", "time"), name="Pairs"
    ),
    "as of": lambda a, b: a.as_of_join(b, "id", times=("at", "time"), name="Pairs"),
    "any time": lambda a, b: a.join(b, "id", name="Pairs"),
}
OUTER = ("left", "full window", "as of")  # rows of these come with the watermarks


@pytest.mark.parametrize("how", TIMED)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("ends", "ends"),
        ("python", "ends"),
        ("ends", "own"),
        ("watched", "ends"),
        ("watched timed", "watched"),
        ("watched timed", "python timed"),
        ("watched timed", "ends"),
        ("own timed", "own assigned"),
    ],
)
def test_a_join_that_waits_for_watermarks_gets_some(how: str, left: str, right: str) -> None:
    env = Environment()
    streams = []
    for text, time in ((left, "at"), (right, "time")):
        kind, _, timed = text.partition(" ")
        bounded = Watermarks.bounded(time)
        stream = rows(kind, env, time, bounded if timed == "timed" else None)
        if timed == "assigned":
            stream = stream.filter("id > 0").assign_timestamps_and_watermarks(bounded)
        streams.append(stream)
    TIMED[how](*streams).sink_to(DiscardSink())
    endless = [text for text in (left, right) if not text.startswith("ends")]
    without = [text for text in endless if " " not in text]
    blind = endless if how == "any time" else without
    said = list(growing_states(env._program.graph))
    assert len(said) == (1 if blind else 0)
    if blind:
        ends = "never ends unless its reader" if blind == ["python"] else "never ends"
        assert re.match(rf"'Pairs' .* keeps .*'Source: {blind[0].split()[0]}'.*{ends}", said[0])
    # A watched folder is idle at times, and a Python data source may end.
    waits_for_ever = without == ["own"] or (without == ["watched"] and without == endless)
    if how in OUTER and waits_for_ever:
        with pytest.raises(
            InvalidProgram, match="'Pairs' .* has none, so they would never be emitted; a"
        ):
            env.job_graph()
    else:
        env.job_graph()


@pytest.mark.parametrize("collected", [False, True])
def test_a_stream_is_warned_of_and_a_batch_is_not(collected: bool) -> None:
    for mode in ("streaming", "batch"):
        env = Environment(mode=mode)
        joined = TIMED["any time"](rows("python", env, "at", None), rows("ends", env, "time", None))
        if not collected:
            joined.sink_to(DiscardSink())
        run = joined.execute_and_collect if collected else env.execute
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with active(ExecutionContext(mode="plan-only")), pytest.raises(StopProgram):
                run("job")
        said = [str(one.message) for one in caught]
        assert [text for text in said if "keeps all rows" in text] == said
        assert len(said) == (mode == "streaming")


def test_rows_with_those_around_them_grow_too() -> None:
    env = Environment()
    endless = env.from_source(SequenceSource(0, column="id"))
    around = endless.key_by("id").rows_between(-1, 0, by="id").aggregate("count(*) AS n")
    around.sink_to(DiscardSink())
    (text,) = growing_states(env._program.graph)
    assert re.match(r"'RowsBetween\(-1, 0 by id\)' .*keeps all rows .* windows: key_by", text)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda s: s.rows_between(1, 2, by="id"), "the row itself must be included"),
        (lambda s: s.rows_between(-2, -1, by="id"), "the row itself must be included"),
        (
            lambda s: s.rows_between("a", 0, by="id"),
            "rows_between('a', 0): specify numbers of rows",
        ),
        (lambda s: s.rows_between(-1, 0, by=[]), "rows_between(by=[]): name at least one column"),
        (
            lambda s: s.rows_between(-1, 0, by="id").aggregate("count(*) AS row_kind"),
            "'row_kind' is a column of the result",
        ),
        (lambda s: s.rows_between(-1, 0, by="id").aggregate("median(id)"), "without a window"),
    ],
)
def test_wrong_rows_between(program: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(InvalidProgram, match=re.escape(message)):
        program(Environment().from_sequence(0, 3, column="id").key_by("id"))


def test_rows_between_have_no_first_and_last_by_event_time() -> None:
    rows = Environment().from_collection(
        [(1, datetime(2026, 1, 1, tzinfo=UTC))], "id INT, t TIMESTAMP"
    )
    timed = rows.assign_timestamps_and_watermarks(Watermarks.bounded("t"))
    message = "last() is by event time, not in the order of the rows; use max_by(value, id)"
    with pytest.raises(InvalidProgram, match=re.escape(message)):
        timed.key_by("id").rows_between(-1, 0, by="id").aggregate("1 + last(t) AS n")


def test_an_endless_stream_of_one_side_is_enough() -> None:
    env = Environment()
    endless = env.from_source(SequenceSource(0, column="id"))
    endless.join(env.from_sequence(0, 3, column="id"), "id").sink_to(DiscardSink())
    assert len(list(growing_states(env._program.graph))) == 1

"""Windows and aggregates in a program, and the errors of invalid ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from firesteel import DataStream, Environment, Global, Session, Sliding, Tumbling, Watermarks
from firesteel.connectors import FileSource
from firesteel.datastream import KeyedStream
from firesteel.errors import InvalidProgram
from firesteel.operators import PartialWindowAggregateSpec, RunningAggregateSpec, WindowApplySpec
from firesteel.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    NeverTrigger,
    PurgingTrigger,
)


class Apart(NeverTrigger):
    def can_merge(self) -> bool:
        return False


def keyed() -> KeyedStream:
    source = FileSource("in/*.csv", format="csv", schema="at TIMESTAMP, k STRING, x INT")
    return Environment().from_source(source, watermarks=Watermarks.bounded("at")).key_by("k")


def specs(stream: DataStream) -> list[Any]:
    return [node.spec for node in stream._program.graph.nodes]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            lambda s: s.window(Sliding("1 hour", "0 s")),
            "the slide of a Sliding window is '0 s'; it must be positive",
        ),
        (lambda s: s.window(Sliding("1 day", "7 ms")), "make the size a multiple of the slide"),
        (
            lambda s: s.window(Session("soon")),
            "the gap of a Session window is 'soon'; specify a duration",
        ),
        (
            lambda s: s.window("1 hour"),
            "takes a Tumbling, Sliding, Session or Global window, not str",
        ),
        (lambda s: s.count_window(0), "count_window(size=0): it takes a number of records"),
        (lambda s: s.count_window(2, 0.5), "count_window(slide=0.5): it takes a number of records"),
        (lambda s: s.count_window_all(2), "use count_window(...) after key_by(...)"),
        (
            lambda s: s.count_window(2).trigger(CountTrigger.of(1)),
            "for another trigger, use window(Global()).trigger(...)",
        ),
        (lambda s: s.count_window(2).side_output_late("late"), "nothing is ever late"),
        (lambda s: s.count_window(2).top_n(1, by="x"), "use apply(...) with a window function"),
        (
            lambda s: s.count_window(2).aggregate("count(*) AS window_id"),
            "'window_id' is a",
        ),
        (
            lambda s: s.window(Global()).aggregate("count(*) AS n"),
            "a Global window never ends; set when it emits results",
        ),
        (
            lambda s: s.window(Global(), allowed_lateness="1 s"),
            "allowed_lateness has no meaning for Global windows",
        ),
        (lambda s: s.window(Global()).trigger("10 s"), "trigger() takes a Trigger, such as"),
        (
            lambda s: s.window(Tumbling("1 h"), allowed_lateness="1 s").trigger(CountTrigger.of(1)),
            "trigger() cannot be combined with allowed_lateness",
        ),
        (
            lambda s: s.window(Session("1 h")).trigger(PurgingTrigger.of(Apart())),
            "PurgingTrigger cannot be the trigger of sessions, which merge",
        ),
        (
            lambda s: s.window(Tumbling("1 h", processing_time=True)).trigger(
                ContinuousEventTimeTrigger.of("1 s")
            ),
            "ContinuousEventTimeTrigger needs event time",
        ),
        (lambda s: CountTrigger.of(0), "CountTrigger.of(0): it takes a number of records"),
        (
            lambda s: ContinuousProcessingTimeTrigger.of("10 us"),
            "ContinuousProcessingTimeTrigger.of('10 us'): it must be at least 1 ms",
        ),
        (lambda s: PurgingTrigger.of("1 s"), "PurgingTrigger.of() takes a trigger, not str '1 s'"),
        (
            lambda s: s.window(Session.with_dynamic_gap(5)),
            "Session.with_dynamic_gap() takes a Spark SQL expression",
        ),
        (
            lambda s: s.window(Tumbling("1 h", on="at", processing_time=True)),
            "processing time is a clock, not a column",
        ),
        (
            lambda s: s.window(Tumbling("1 h"), allowed_lateness=timedelta(seconds=-1)),
            "it cannot be negative",
        ),
        (
            lambda s: s.window(Session("1 h", processing_time=True), allowed_lateness="1 s"),
            "nothing is ever late",
        ),
        (
            lambda s: s.window(Session("1 h", processing_time=True)).side_output_late("late"),
            "nothing is ever late",
        ),
        (
            lambda s: s.window(Tumbling("1 h")).side_output_late(""),
            "takes the name of a side output, not ''",
        ),
        (
            lambda s: (
                s.window(Tumbling("1 h"))
                .aggregate("sum(x) AS x")
                .key_by("window_start")
                .window(Tumbling("1 d"))
            ),
            'key_by(F.col("window_start").alias("earlier"))',
        ),
        (
            lambda s: s.window(Tumbling("1 h")).aggregate("max(k) AS k"),
            "'k' is a key column, which the results also have; choose another name",
        ),
        (
            lambda s: s.window(Session("1 h"), allowed_lateness="1 h").aggregate(
                "max(x) AS row_kind"
            ),
            "'row_kind' is reserved for results that may be retracted",
        ),
        (lambda s: s.aggregate("max(k) AS k"), "'k' is a key column"),
        (lambda s: s.window(Tumbling("1 h")).top_n(0, by="x"), "top_n(0): it takes a number of"),
        (lambda s: s.window(Tumbling("1 h")).top_n(1, by=[]), "name at least one column to order"),
        (
            lambda s: s.window(Tumbling("1 h")).top_n(1, by="x", ascending=[True, False]),
            "specify one direction, or one per column",
        ),
        (lambda s: s.top_n(0, by="x"), "top_n(0): it takes a number of"),
        (
            lambda s: s.filter("x > 1").drop_duplicates("x", within="1 h", keep="last"),
            "a kept record can be replaced whenever a later one arrives; omit within",
        ),
        (
            lambda s: s.filter("x > 1").drop_duplicates("x", keep="none"),
            'drop_duplicates(keep=\'none\'): allowed: "first", "last"',
        ),
        (lambda s: s.window_all(Tumbling("1 h")), "use window(...) after key_by(...), or leave"),
        (
            lambda s: s.drop_duplicates("x", within="1 h"),
            "without key_by(...): drop_duplicates('k', 'x')",
        ),
        (
            lambda s: (
                s.filter("x > 1").window_all(Tumbling("1 h")).top_n(1, by="x").set_parallelism(2)
            ),
            "one subtask processes all of its records, and set_parallelism(2) would divide them",
        ),
        (lambda s: s.filter("x > 1").drop_duplicates(), "name the columns that identify"),
        (
            lambda s: s.filter("x > 1").drop_duplicates("x", on="at"),
            "event time is not used without within=...",
        ),
        (
            lambda s: Environment().from_sequence(0, 9).drop_duplicates("value", within="1 s"),
            "drop_duplicates(within=...) needs one event-time column, but its sources have no",
        ),
        (lambda s: s.window(Tumbling("1 h")).apply("sum(x)"), "apply() takes a function, not str"),
        (lambda s: s.window(Tumbling("1 h")).aggregate("medain(x) AS m"), "did you mean median?"),
        (
            lambda s: s.aggregate("median(x) AS m"),
            "without a window this would keep all rows of each key forever",
        ),
        (
            lambda s: s.window(Tumbling("1 h", processing_time=True)).aggregate("first(x) AS f"),
            "first() uses event time, which the stream does not have; use min_by(value, column)",
        ),
        (
            lambda s: (
                s.window(Session("1 h", processing_time=True))
                .aggregate("sum(x) AS s")
                .key_by("k")
                .window(Tumbling("1 d"))
            ),
            "the window needs one event-time column",
        ),
    ],
)
def test_what_is_wrong_is_said_where_it_is_written(
    program: Callable[[KeyedStream], Any], message: str
) -> None:
    with pytest.raises(InvalidProgram, match=re.escape(message)):
        program(keyed())


def test_windows_of_everything_have_one_subtask() -> None:
    stream = keyed().filter("x > 1")
    for result in (
        stream.window_all(Tumbling("1 hour")).aggregate("sum(x) AS x"),
        stream.window_all(Tumbling("1 hour")).aggregate("median(x) AS x"),
        stream.window_all(Session("1 hour")).apply(lambda df: df.orderBy("x")),
    ):
        result.print()
    graph = stream._program.job_graph("whole", overrides={"parallelism.default": "3"})
    heads = {v.operators[0].kind: v.parallelism for v in graph.vertices}
    assert (heads["WindowAggregate"], heads["WindowApply"], heads["Sink"]) == (1, 1, 3)


def test_windows_of_windows_go_by_the_last_microsecond() -> None:
    hourly = keyed().window(Tumbling("1 hour")).aggregate("sum(x) AS x")
    daily = hourly.key_by("k").window(Tumbling("1 day")).aggregate("sum(x) AS x")
    partials = [spec for spec in specs(daily) if isinstance(spec, PartialWindowAggregateSpec)]
    assert [(spec.time_column, spec.time_shift_us) for spec in partials] == [
        ("at", 0),
        ("window_end", -1),
    ]


def test_rows_are_kept_where_partials_do_not_do() -> None:
    for result in (
        keyed().window(Tumbling("1 hour")).aggregate("sum(x) AS x", "median(x) AS m"),
        keyed().window(Tumbling("1 hour")).side_output_late("late").aggregate("sum(x) AS x"),
        keyed().window(Session("1 hour")).apply(lambda df: df),
    ):
        assert isinstance(specs(result)[-1], WindowApplySpec)
        assert not any(isinstance(spec, PartialWindowAggregateSpec) for spec in specs(result))


def test_a_running_aggregate_has_two_halves_too() -> None:
    _, partial, running = specs(keyed().aggregate("sum(x) AS s", "last(x) AS newest"))
    assert isinstance(partial, PartialWindowAggregateSpec)
    assert partial.window is None
    assert "max_by(x, `at`)" in partial.aggregates[1].partial.values()
    assert isinstance(running, RunningAggregateSpec)

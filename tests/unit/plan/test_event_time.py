"""Watermarks of joins are held back as far as downstream operators require."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from firesteel import CoProcessFunction, Environment, Sliding, Tumbling, Watermarks
from firesteel.connectors import DiscardSink, FileSource
from firesteel.connectors.kafka import Json, KafkaSource
from firesteel.datastream import DataStream
from firesteel.operators import JoinSpec
from firesteel.plan.event_time import late_between_partitions


def streams(mode: str = "streaming") -> tuple[DataStream, DataStream]:
    env = Environment(mode=mode)
    return tuple(  # type: ignore[return-value]
        env.from_source(
            FileSource(f"/{at}", format="csv", schema=f"id LONG, {at} TIMESTAMP"),
            watermarks=Watermarks.bounded(at),
        )
        for at in ("at", "time")
    )


def held_s(stream: DataStream) -> list[int]:
    """Returns by how many seconds each join of the job holds its watermark back, in order."""
    stream.sink_to(DiscardSink())
    specs = [
        cloudpickle.loads(operator.spec)
        for vertex in stream._program.job_graph("job").vertices
        for operator in vertex.operators
        if operator.kind == "Join"
    ]
    assert all(isinstance(spec, JoinSpec) for spec in specs)
    return [spec.held_us // 1_000_000 for spec in specs]


class Timeout(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at)

    process_element2 = process_element1

    def on_timer(self, timestamp_ms: int, ctx: Any) -> None: ...


class Clock(Timeout):
    def process_element1(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(value.n)

    process_element2 = process_element1


def window(stream: DataStream, on: str | None = None) -> DataStream:
    return stream.key_by("id").window(Tumbling("1 s", on=on)).aggregate("count(*) AS n")


def paid(a: DataStream, b: DataStream, how: str = "inner") -> DataStream:
    """Within a minute after it."""
    return a.interval_join(b, "id", how, between=("0 s", "1 min"))


def near(a: DataStream, b: DataStream) -> DataStream:
    return a.interval_join(b, "id", between=("-90 s", "1 min"))


def together(a: DataStream, b: DataStream) -> DataStream:
    return a.window_join(b, "id", Tumbling("1 h"))


@pytest.mark.parametrize(
    ("program", "held"),
    [
        (paid, [0]),
        (lambda a, b: window(paid(a, b)), [0]),
        (lambda a, b: window(paid(a, b), on="time"), [0]),
        (lambda a, b: window(paid(a, b), on="at"), [60]),
        (lambda a, b: window(paid(a, b, "left")), [0]),
        (lambda a, b: window(paid(a, b, "left"), on="time"), [60]),
        (lambda a, b: window(near(a, b), on="time"), [90]),
        (lambda a, b: window(near(a, b).with_column("first", "least(at, time)"), "first"), [90]),
        (
            lambda a, b: near(a, b).window_all(Sliding("2 s", "1 s", on="at")).top_n(1, by="id"),
            [90],
        ),
        (lambda a, b: near(a, b).drop_duplicates("id", within="1 s", on="at"), [90]),
        (lambda a, b: near(a, b).drop_duplicates("id"), [0]),
        (lambda a, b: near(a, b).union(b).drop_duplicates("id", within="1 s"), [90]),
        (lambda a, b: window(together(a, b)), [0]),
        (lambda a, b: window(together(a, b), on="at"), [3600]),
        (lambda a, b: window(window(together(a, b)), on="n"), [0]),
        (
            lambda a, b: (
                near(a, b)
                .with_column_renamed("at", "first")
                .as_of_join(b.with_column_renamed("time", "since"), "id", times=("first", "since"))
            ),
            [90, 0],
        ),
        (
            lambda a, b: window(
                near(a, b).assign_timestamps_and_watermarks(Watermarks.bounded("at")), on="at"
            ),
            [0],
        ),
        (
            lambda a, b: near(a, b).connect(b).key_by("id", "id").co_process(Timeout(), "n LONG"),
            [90],
        ),
        (
            lambda a, b: paid(a, b).connect(b).key_by("id", "id").co_process(Timeout(), "n LONG"),
            [0],
        ),
        (
            lambda a, b: near(a, b).connect(b).key_by("id", "id").co_process(Clock(), "n LONG"),
            [0],
        ),
    ],
)
def test_a_watermark_is_as_far_behind_as_the_earlier_times_of_pairs(
    program: Callable[[DataStream, DataStream], DataStream], held: list[int]
) -> None:
    assert held_s(program(*streams())) == held


def test_event_time_of_a_batch_only_ends() -> None:
    assert held_s(window(near(*streams("batch")), on="at")) == [0]


def test_watermarks_after_a_source_with_partitions_cause_a_warning() -> None:
    def orders(watermarks: Watermarks | None = None) -> DataStream:
        source = KafkaSource("orders", bootstrap_servers="here:1", format=Json("at TIMESTAMP"))
        stream = Environment().from_source(source, watermarks=watermarks, uid="orders")
        return stream.transform(lambda df: df.where("at IS NOT NULL"))

    def warnings(stream: DataStream) -> list[str]:
        return list(late_between_partitions(stream._program.graph))

    at = Watermarks.bounded("at")
    (warning,) = warnings(orders().assign_timestamps_and_watermarks(at, name="Times"))
    assert "sees the rows of all partitions of 'Source: orders'" in warning
    assert not warnings(orders(at))
    assert not warnings(orders(at).assign_timestamps_and_watermarks(at))
    assert not warnings(streams()[0].assign_timestamps_and_watermarks(at))

"""Side outputs and Python operators end to end, each against the same computation in plain Python."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from firesteel import (
    AsyncFunction,
    CoProcessFunction,
    Environment,
    KeyedProcessFunction,
    ProcessFunction,
    Tumbling,
    ValueStateDescriptor,
    Watermarks,
)
from firesteel.async_functions import AsyncContext
from firesteel.connectors import MALFORMED_TAG, CollectSink, FileSource
from firesteel.datastream import DataStream
from firesteel.errors import JobFailed
from firesteel.functions import FunctionContext, ProcessContext
from firesteel.operator import StreamOperator

from .conftest import Session, firesteel


def collected(session: Session, *streams: DataStream) -> list[pa.Table]:
    """Runs the streams' program once and returns the rows of each stream."""
    sinks = [
        stream.sink_to(CollectSink(), uid=f"collect-{number}")
        for number, stream in enumerate(streams)
    ]
    graph = sinks[0]._program.job_graph("collected")
    job_id = session.client.submit(graph)
    session.client.wait(job_id)
    found = {o.uid: o.operator_id for v in graph.vertices for o in v.operators}
    return [
        session.client.fetch_table(job_id, found[f"collect-{number}"])
        for number in range(len(streams))
    ]


class Split(StreamOperator):
    """Odd numbers to the side."""

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        odd = pc.equal(pc.bit_wise_and(batch["value"], 1), 1)
        self.output.emit_side("odd", batch.filter(odd))
        self.output.emit(batch.filter(pc.invert(odd)))


def test_side_outputs_continue_like_any_stream(session: Session) -> None:
    env = Environment(parallelism=2)
    split = env.from_sequence(0, 1_000).operator("Split", Split, side_outputs={"odd": None})
    odd = (
        split.side_output("odd")
        .key_by("value")
        .transform(lambda df: df.selectExpr("value * 10 AS tens"))
    )
    even, tens = collected(session, split, odd)
    assert sorted(even["value"].to_pylist()) == list(range(0, 1_000, 2))
    assert sorted(tens["tens"].to_pylist()) == [10 * n for n in range(1, 1_000, 2)]


def test_static_data_and_single_bundles_in_a_transform(session: Session, tmp_path: Path) -> None:
    for shop in range(4):
        (tmp_path / f"{shop}.csv").write_text(f"{shop}\n" * 10)
    (tmp_path / "names.json").write_text('{"shop": 1, "name": "one"}\n{"shop": 1, "name": "1"}\n')
    names = f"{tmp_path}/names.json"

    def named(df: Any) -> Any:
        read = df.sparkSession.read.schema("shop INT, name STRING").json(names)
        first = read.groupBy("shop").agg({"name": "max"}).toDF("shop", "name")
        return df.selectExpr("*", "input_file_name() AS file").join(first, "shop", "left")

    env = Environment(parallelism=2)
    source = env.from_source(FileSource(f"{tmp_path}/*.csv", format="csv", schema="shop INT"))
    joined = source.transform(named)
    one_each = env.from_source(
        FileSource(f"{tmp_path}/*.csv", format="csv", schema="shop INT")
    ).transform(lambda df: df.distinct(), per_bundle=True)  # each file is a bundle

    def articles(spark: Any) -> Any:
        with (tmp_path / "reads").open("a") as reads:
            reads.write(".")
        return spark.read.schema("shop INT, name STRING").json(names)

    table = env.static(articles, refresh="1 hour")
    by_bundle = (
        env.from_sequence(0, 100, column="shop")
        .map_in_arrow(lambda batches: (b.slice(n, 1) for b in batches for n in range(100)))
        .transform(lambda df: df.join(table.dataframe(), "shop"))
    )
    all_rows, firsts, twice = collected(session, joined, one_each, by_bundle)
    assert sorted(twice["name"].to_pylist()) == ["1", "one"]
    assert len((tmp_path / "reads").read_text()) <= 3  # in the analysis, and in two slots
    assert all_rows.num_rows == 40
    for row in all_rows.to_pylist():
        assert row["name"] == ("one" if row["shop"] == 1 else None)
        assert row["file"].endswith(f"/{row['shop']}.csv")
    assert sorted(firsts["shop"].to_pylist()) == [0, 1, 2, 3]


def test_malformed_rows_can_be_read_while_the_source_stays_in_its_plan(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("1\n2\nx\n4\n")
    env = Environment(parallelism=1)
    source = env.from_source(
        FileSource(str(tmp_path / "a.csv"), format="csv", schema="n INT", malformed="side_output")
    )
    good, bad = collected(
        session, source.transform(lambda df: df.where("n > 1")), source.side_output(MALFORMED_TAG)
    )
    assert sorted(good["n"].to_pylist()) == [2, 4]
    assert bad["_corrupt_record"].to_pylist() == ["x"]


def test_an_unknown_column_of_a_side_output_is_found_before_data_flows(session: Session) -> None:
    env = Environment()
    split = env.from_sequence(0, 10).operator("Split", Split, side_outputs={"odd": "value LONG"})
    split.side_output("odd").key_by("valu").print()
    with pytest.raises(JobFailed, match="did you mean 'value'"):
        session.client.wait(session.submit(env))


def test_filters_and_pandas_functions_beside_spark(session: Session) -> None:
    def halved(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.DataFrame(
                {"half": frame["value"] / 2, "at": pd.Timestamp("2024-03-01", tz="UTC")}
            )

    env = Environment(parallelism=2)
    stream = (
        env.from_sequence(0, 1_000)
        .filter("value % 2 = 0")
        .filter(lambda batch: pc.less(batch["value"], 100))
        .map_in_pandas(halved, "half DOUBLE, at TIMESTAMP")
    )
    (table,) = collected(session, stream)
    assert sorted(table["half"].to_pylist()) == [float(n) for n in range(50)]
    assert str(table["at"].type) == "timestamp[us, tz=UTC]"


class Asked(AsyncFunction):
    """Answers later numbers earlier, and some numbers never."""

    async def open(self, context: AsyncContext) -> None:
        self.turn = asyncio.Semaphore(20)

    async def async_invoke(self, value: Row) -> Any:
        async with self.turn:
            await asyncio.sleep(60 if value.value % 500 == 7 else value.value % 5 / 1000)
        return [{"value": value.value, "at": value.at, "shard": value.value % 3}]

    def timeout(self, value: Row) -> Any:
        return value.value, value.at, -1


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_calls_of_another_system(session: Session, mode: str) -> None:
    env = Environment(parallelism=2, mode=mode)
    numbers = (
        env.from_sequence(0, 2_000)
        .transform(lambda df: df.selectExpr("value", "timestamp_seconds(value) AS at"))
        .assign_timestamps_and_watermarks(Watermarks.bounded("at"))
    )
    asked = numbers.map_async(
        Asked(),
        "value BIGINT, at TIMESTAMP, shard INT",
        capacity=50,
        timeout="2 s",
        ordered=False,
    )
    windows = asked.key_by("shard").window(Tumbling("100 s")).aggregate("count(*) AS n")
    rows, counts = collected(session, asked, windows)
    expected = [(n, -1 if n % 500 == 7 else n % 3) for n in range(2_000)]
    assert (
        sorted(zip(rows["value"].to_pylist(), rows["shard"].to_pylist(), strict=True)) == expected
    )
    assert pc.sum(counts["n"]).as_py() == 2_000, "no row is late"


def test_changes_keep_their_order_through_calls(session: Session) -> None:
    async def same(row: Row) -> Row:
        return row

    env = Environment(parallelism=2)
    totals = env.from_sequence(0, 10).key_by("value").aggregate("count(*) AS n", changes=True)
    totals.map_async(same, ordered=False).sink_to(CollectSink())
    with pytest.raises(JobFailed, match=r"MapAsync\(same\): ordered=False would let the rows of"):
        session.client.wait(session.submit(env))


class Pairs(CoProcessFunction):
    """Emits numbers that are in both streams as soon as both have arrived, and the remaining numbers
    at the end.
    """

    def open(self, context: FunctionContext) -> None:
        self.seen = context.get_map_state("seen")

    def process_element1(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        yield from self.one("left", ctx)

    def process_element2(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        yield from self.one("right", ctx)

    def one(self, side: str, ctx: ProcessContext) -> Iterator[Any]:
        self.seen.put(side, True)
        if len(list(self.seen.keys())) == 2:
            yield Row(both=ctx.get_current_key())
        else:
            ctx.timer_service().register_event_time_timer(1_000_000)

    def on_timer(self, timestamp_ms: int, ctx: ProcessContext) -> None:
        sides = list(self.seen.keys())
        if len(sides) == 1:
            ctx.output(sides[0], (ctx.get_current_key(),))


def test_two_keyed_streams_in_one_function(session: Session) -> None:
    env = Environment(parallelism=2)
    left = env.from_sequence(0, 300)
    right = env.from_sequence(200, 500).map_in_arrow(
        lambda batches: (pa.record_batch([b["value"]], names=["number"]) for b in batches),
        "number LONG",
    )
    sides = {"left": None, "right": "number LONG"}
    pairs = (
        left.connect(right)
        .key_by("value", "number")
        .co_process(Pairs(), "both LONG", side_outputs=sides)
    )
    both, only_left, only_right = collected(
        session, pairs, pairs.side_output("left"), pairs.side_output("right")
    )
    assert sorted(both["both"].to_pylist()) == list(range(200, 300))
    assert sorted(only_left["value"].to_pylist()) == list(range(200))
    assert sorted(only_right["number"].to_pylist()) == list(range(300, 500))


class Halves(ProcessFunction):
    """Every second number; the others go to a side output."""

    def process_element(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        if value.value % 2:
            ctx.output("odd", {"odd": value.value})
        else:
            yield {"at": value.at, "half": value.value // 2}


class Gaps(KeyedProcessFunction):
    """Per key, how many numbers came before 10 s of event time without one."""

    def open(self, runtime_context: FunctionContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "BIGINT"))
        self.due = runtime_context.get_state(ValueStateDescriptor("due"))

    def process_element(self, value: Row, ctx: ProcessContext) -> None:
        timers, due = ctx.timer_service(), self.due.value()
        if due is not None:
            timers.delete_event_time_timer(due)
        due = max(due or 0, (ctx.timestamp() or 0) + 10_000)
        timers.register_event_time_timer(due)
        self.due.update(due)
        self.count.update((self.count.value() or 0) + 1)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[Any]:
        yield ctx.get_current_key(), self.count.value(), timestamp
        self.count.clear()
        self.due.clear()


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_functions_of_one_stream(session: Session, mode: str) -> None:
    env = Environment(parallelism=2, mode=mode)
    numbers = env.from_sequence(0, 2_000).transform(
        lambda df: df.selectExpr("value", "timestamp_seconds(value) AS at")
    )
    halves = numbers.process(Halves(), "half LONG, at TIMESTAMP", side_outputs={"odd": "odd LONG"})
    timed = halves.assign_timestamps_and_watermarks(
        Watermarks.bounded("at", max_out_of_orderness="200 s")
    )
    gaps = timed.key_by(F.expr("half % 8").alias("key")).process(
        Gaps(), "key LONG, n LONG, at_ms LONG"
    )
    late = (
        pytest.warns(UserWarning, match="may set timers in event time: in a batch, they are due")
        if mode == "batch"
        else contextlib.nullcontext()
    )
    with late:
        odd, found = collected(session, halves.side_output("odd"), gaps)
    assert sorted(odd["odd"].to_pylist()) == list(range(1, 2_000, 2))
    rows = sorted(tuple(row.values()) for row in found.to_pylist())
    if mode == "batch":  # each key has one timer in the end
        assert rows == [(key, 125, (1_984 + 2 * key) * 1000 + 10_000) for key in range(8)]
    else:  # the numbers of a key are 16 s apart: a timer is due before its next number, or not
        assert sum(n for _, n, _ in rows) == 1_000
        assert {(key, ms) for key, _, ms in rows} >= {
            (key, (1_984 + 2 * key) * 1000 + 10_000) for key in range(8)
        }


def test_watermarks_of_a_column_that_a_transform_has_made(session: Session) -> None:
    env = Environment(parallelism=2)
    timed = env.from_sequence(0, 2_000).transform(
        lambda df: df.selectExpr("value % 3 AS k", "timestamp_seconds(value) AS at")
    )
    windows = (
        timed.assign_timestamps_and_watermarks(
            Watermarks.bounded("at", max_out_of_orderness="1 hour")
        )
        .key_by("k")
        .window(Tumbling("10 min"))
        .aggregate("count(*) AS n")
    )
    (table,) = collected(session, windows)
    found = sorted(
        (row["k"], int(row["window_start"].timestamp()), row["n"]) for row in table.to_pylist()
    )
    expected = pd.DataFrame({"value": range(2_000)})
    counts = expected.groupby([expected["value"] % 3, expected["value"] // 600 * 600])[
        "value"
    ].count()
    assert found == [(k, start, n) for (k, start), n in counts.items()]


def test_custom_watermarks_of_a_source(session: Session, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "".join(f"2024-03-01 00:00:{second:02d},{second}\n" for second in (1, 5, 12, 3, 25))
    )
    env = Environment(parallelism=1)
    source = env.from_source(
        FileSource(str(tmp_path / "a.csv"), format="csv", schema="at TIMESTAMP, n INT"),
        watermarks=Watermarks.custom(lambda batch: pc.max(batch["at"]), column="at").with_idleness(
            "1 min"
        ),
        uid="timed",
    )
    windows = source.key_by("n").window(Tumbling("10 s")).aggregate("count(*) AS rows")
    (table,) = collected(session, windows)
    assert sorted(table["n"].to_pylist()) == [1, 3, 5, 12, 25]
    assert [o.name for o in env.job_graph().vertices[0].operators][:2] == [
        "Source: timed",
        "Watermarks",
    ]


ODD = pa.schema(
    [
        ("key", pa.dictionary(pa.int32(), pa.string())),
        ("price", pa.decimal128(12, 3)),
        ("at", pa.timestamp("us", "UTC")),
        ("parts", pa.list_(pa.struct([("name", pa.string()), ("sizes", pa.list_(pa.int64()))]))),
        ("tags", pa.map_(pa.string(), pa.float64())),
        ("raw", pa.binary()),
        ("nothing", pa.string()),
    ]
)


def odd_rows(numbers: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "key": None if n % 7 == 0 else f"k{n % 5}",
            "price": Decimal(n).scaleb(-3),
            "at": None
            if n % 11 == 0
            else datetime(2024, 3, 31, tzinfo=UTC) + timedelta(hours=n, microseconds=n),
            "parts": None
            if n % 3 == 0
            else [{"name": str(n), "sizes": [n, None]}, {"name": None, "sizes": []}][: n % 3],
            "tags": [("a", n / 4), ("b", None)][: n % 4],
            "raw": bytes([n % 256]),
            "nothing": None,
        }
        for n in numbers
    ]


def test_odd_columns_by_every_way(session: Session) -> None:
    def odd(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pylist(odd_rows(batch["value"].to_pylist()), schema=ODD)
            yield pa.RecordBatch.from_pylist([], schema=ODD)

    env = Environment(parallelism=2)
    made = env.from_sequence(0, 400).map_in_arrow(odd, ODD)
    stream = (
        made.rebalance()
        .transform(lambda df: df.where("price < 0.3"))
        .key_by("key", "price")
        .map_in_arrow(lambda batches: batches)
        .rescale()
        .map_in_pandas(lambda frames: frames)
        .union(
            made.broadcast().filter("price >= 0.3").filter(lambda batch: [True] * batch.num_rows)
        )
        .key_by("at")
        .transform(lambda df: df.withColumn("nothing", df.nothing))
    )
    (table,) = collected(session, stream)
    assert table.schema.field("key").type == pa.string()
    assert table.schema.field("parts").type == ODD.field("parts").type
    expected = pa.Table.from_pylist(
        odd_rows([*range(300), *range(300, 400), *range(300, 400)]), schema=table.schema
    )
    assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, expected.to_pylist()))


def test_a_kind_of_operator_from_outside_of_firesteel(session: Session) -> None:
    """The package next to the program is shipped with it."""
    run = firesteel("run", "-m", session.address, "tests/outside/number.py")
    assert run.returncode == 0, run.stderr
    assert "[('a', 1), ('a', 2), ('a', 3), ('b', 1), ('b', 2)]" in run.stdout


def test_show_lists_what_was_fused_and_what_ran(session: Session) -> None:
    env = Environment(parallelism=1)
    source = env.from_sequence(0, 16).map_in_arrow(lambda batches: batches, name="Mine")
    filtered = source.filter("value % 3 = 0", name="Thirds").transform(
        lambda df: df.selectExpr("value * 7 AS sevens"), name="Sevens"
    )
    filtered.print()
    job_id = session.submit(env, "fused")
    session.client.wait(job_id)
    (vertex,) = session.client.job_details(job_id).vertices
    groups = {o.name: o.group for o in vertex.operators}
    assert groups["Thirds"] == groups["Sevens"]
    assert len(set(groups.values())) == len(groups) - 1
    assert vertex.metrics.bundles == 1
    assert vertex.metrics.bundle_records == 16
    assert vertex.metrics.spark_ms > 0
    assert vertex.metrics.python_ms > 0
    (plan,) = (o.plan for o in vertex.operators if o.name == "Sevens")
    assert "* 7" in plan
    assert "% 3" in plan
    assert "Bundle" not in plan, "the last plan that ran, not that of the analysis"
    shown = firesteel("show", "--full", "-m", session.address, job_id).stdout
    assert "one plan on Spark of 2 operators" in shown
    assert re.search(r"\s1 +16 +16\s", shown), "one bundle: its size is the last and the mean one"


def test_keys_that_could_never_meet_are_found_before_data_flows(session: Session) -> None:
    env = Environment()
    words = env.from_sequence(0, 10).transform(
        lambda df: df.selectExpr("cast(value AS STRING) AS word")
    )
    pairs = (
        words.connect(env.from_sequence(0, 10))
        .key_by("word", "value")
        .co_process(Pairs(), "both LONG")
    )
    pairs.print()
    with pytest.raises(
        JobFailed,
        match="the key 'word' of the first stream is string and the key 'value' of the second is int64",
    ):
        session.client.wait(session.submit(env))

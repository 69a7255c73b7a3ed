"""Operators and partitionings end to end, each against the same computation in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from firesteel import CoProcessFunction, Environment, Tumbling, Watermarks
from firesteel.connectors import CollectSink, FileSource, PythonSource, SequenceSource
from firesteel.datastream import DataStream

from .conftest import Session

pytestmark = pytest.mark.usefixtures("shipped_module")


def collected(session: Session, stream: DataStream) -> pa.Table:
    sink = stream.sink_to(CollectSink())
    graph = sink._program.job_graph("collected")
    job_id = session.client.submit(graph)
    session.client.wait(job_id)
    (operator_id,) = [
        o.operator_id
        for v in graph.vertices
        for o in v.operators
        if o.coordinator_kind == "collect"
    ]
    return session.client.fetch_table(job_id, operator_id)


def values(table: pa.Table, column: str = "value") -> list[object]:
    return sorted(table[column].to_pylist())


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"value": pc.multiply(batch["value"], 2)})


def test_python_and_spark_operators_in_one_chain(session: Session) -> None:
    env = Environment(parallelism=2)
    stream = (
        env.from_sequence(0, 5_000)
        .transform(lambda df: df.where("value % 5 = 0"))
        .transform(lambda df: df.selectExpr("value + 1 AS value"))
        .map_in_arrow(doubled)
    )
    assert values(collected(session, stream)) == [2 * (n + 1) for n in range(0, 5_000, 5)]


def test_processes_that_a_function_forks_start_whatever_runs_beside_it(session: Session) -> None:
    def fork(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import subprocess

        for _ in batches:
            codes = [
                # With a preexec_fn, gRPC's handlers run in the child.
                subprocess.Popen(["/bin/true"], preexec_fn=lambda: None).wait()
                for _ in range(500)
            ]
            yield pa.RecordBatch.from_pydict({"value": codes})

    forked = Environment(parallelism=1).from_sequence(0, 1).map_in_arrow(fork, "value LONG")
    assert values(collected(session, forked)) == [0] * 500


@pytest.mark.parametrize("partitioning", ["rebalance", "rescale", "forward", "key_by"])
def test_every_partitioning_moves_each_record_once(session: Session, partitioning: str) -> None:
    env = Environment(parallelism=2)
    stream = env.from_sequence(0, 10_000)
    moved = stream.key_by("value") if partitioning == "key_by" else getattr(stream, partitioning)()
    result = moved.map_in_arrow(doubled).start_new_chain()
    assert values(collected(session, result)) == [2 * n for n in range(10_000)]


def test_broadcast_moves_each_record_to_every_subtask(session: Session) -> None:
    env = Environment(parallelism=2)
    stream = env.from_sequence(0, 1_000).broadcast().map_in_arrow(doubled)
    assert values(collected(session, stream)) == sorted([2 * n for n in range(1_000)] * 2)


def test_parallelism_may_change_between_operators(session: Session) -> None:
    env = Environment(parallelism=1)
    stream = (
        env.from_sequence(0, 3_000)
        .set_parallelism(3)
        .rescale()
        .map_in_arrow(doubled)
        .set_parallelism(2)
    )
    assert values(collected(session, stream.map_in_arrow(doubled))) == [4 * n for n in range(3_000)]


def test_equal_keys_meet_in_one_subtask(session: Session) -> None:
    def count_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import threading

        for batch in batches:
            task = pa.array([threading.current_thread().name] * batch.num_rows)
            yield pa.RecordBatch.from_arrays(
                [pc.cast(batch["key"], pa.int64()), task], names=["key", "task"]
            )

    env = Environment(parallelism=2)
    stream = (
        env.from_sequence(0, 20_000)
        .transform(lambda df: df.selectExpr("value % 97 AS key"))
        .key_by("key")
        .map_in_arrow(count_keys, "key long, task string")
    )
    rows = collected(session, stream).to_pandas()
    assert len(rows) == 20_000
    assert (rows.groupby("key")["task"].nunique() == 1).all()
    assert rows["task"].nunique() == 2, "both subtasks have keys"


def test_union_and_connect(session: Session) -> None:
    env = Environment(parallelism=2)
    low, high = env.from_sequence(0, 1_000), env.from_sequence(1_000, 1_500)
    both = low.union(high).map_in_arrow(doubled)
    negated = lambda batches: (  # noqa: E731
        pa.RecordBatch.from_pydict({"value": pc.negate(b["value"])}) for b in batches
    )
    stream = (
        both.connect(env.from_sequence(0, 100))
        .key_by("value", "value")
        .map_in_arrow(doubled, negated, "value long")
    )
    expected = [4 * n for n in range(1_500)] + [-n for n in range(100)]
    assert values(collected(session, stream)) == sorted(expected)


def test_a_two_input_operator_in_the_middle_of_a_chain(session: Session) -> None:
    env = Environment(parallelism=2)
    source = env.from_sequence(0, 2_000)
    even = source.map_in_arrow(
        lambda bs: (b.filter(pc.equal(pc.bit_wise_and(b["value"], 1), 0)) for b in bs), name="even"
    )
    odd = source.map_in_arrow(
        lambda bs: (b.filter(pc.equal(pc.bit_wise_and(b["value"], 1), 1)) for b in bs), name="odd"
    )
    joined = (
        even.connect(odd)
        .map_in_arrow(doubled, lambda batches: batches, "value long")
        .map_in_arrow(lambda batches: batches)
    )
    table = collected(session, joined)
    assert len(env.job_graph().vertices) == 1, "the whole diamond, with its sink, is one chain"
    assert values(table) == sorted(n if n % 2 else 2 * n for n in range(2_000))


class Reminders(CoProcessFunction):
    """Tells of a first stream's rows when a little time has passed, with how many rows of the
    second there were by then.
    """

    def open(self, context: Any) -> None:
        self.others = context.get_state("others")

    def process_element1(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 50)

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.others.update((self.others.value() or 0) + 1)

    def on_timer(self, timestamp_ms: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), self.others.value() or 0


def test_timers_in_processing_time_fire_while_nothing_comes(
    session: Session, in_session: None
) -> None:
    env = Environment(parallelism=2)
    few = env.from_source(SequenceSource(0, 5)).union(silent(env))  # so that it does not end
    stream = (
        few.connect(env.from_sequence(0, 10))
        .key_by("value", "value")
        .co_process(Reminders(), "key long, others long")
    )
    rows: list[Any] = []
    with stream.execute_and_collect("reminders", iterate="arrow") as batches:
        while len(rows) < 5:
            rows += next(batches).to_pylist()
    assert sorted(row["key"] for row in rows) == [0, 1, 2, 3, 4]
    assert {row["others"] for row in rows} <= {0, 1}


class Silent(DataSource):
    """Never has anything, and never ends."""

    def schema(self) -> str:
        return "value LONG"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return SilentReader()


class SilentReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        return iter(()), start


def silent(env: Environment) -> DataStream:
    return env.from_source(PythonSource(Silent))


def test_windows_equal_pandas_whatever_the_files_look_like(
    session: Session, tmp_path: Path
) -> None:
    hours = pd.date_range("2024-03-01", periods=500, freq="37min", tz="UTC")
    rows = pd.DataFrame(
        {
            "at": hours,
            "key": [f"k{i % 7}" for i in range(500)],
            "n": [(i * 31) % 101 for i in range(500)],
        }
    )
    rows.loc[rows.index % 11 == 0, "n"] = None
    for part in range(5):
        rows.iloc[part * 100 : (part + 1) * 100].to_csv(tmp_path / f"part-{part}.csv", index=False)
    env = Environment(parallelism=2)
    stream = (
        env.from_source(
            FileSource(f"{tmp_path}/*.csv", format="csv", header=True),
            watermarks=Watermarks.bounded("at", max_out_of_orderness="4 days"),
        )
        .key_by("key")
        .window(Tumbling("6 hours"))
        .aggregate(
            "count(*) AS all_rows",
            "count(n) AS filled",
            "sum(n) AS total",
            "min(n) AS low",
            "max(n) AS high",
            "avg(n) AS mean",
        )
    )
    ours = (
        collected(session, stream)
        .to_pandas()
        .sort_values(["key", "window_start"], ignore_index=True)
    )
    groups = rows.groupby(["key", rows["at"].dt.floor("6h").rename("window_start")])["n"]
    expected = groups.agg(
        all_rows="size",
        filled="count",
        total=lambda s: s.sum(min_count=1),
        low="min",
        high="max",
        mean="mean",
    )
    expected = expected.reset_index().sort_values(["key", "window_start"], ignore_index=True)
    assert ours["key"].tolist() == expected["key"].tolist()
    assert (ours["window_start"] == expected["window_start"]).all()
    for column in ("all_rows", "filled", "total", "low", "high", "mean"):
        pd.testing.assert_series_equal(ours[column], expected[column], check_dtype=False)

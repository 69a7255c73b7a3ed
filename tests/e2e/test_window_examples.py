"""PyFlink's own examples of windows (flink-python/pyflink/examples/datastream/windowing), ported."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from firesteel import DataStream, Environment, Global, Session, Sliding, Tumbling, Watermarks
from firesteel.connectors import FileSource
from firesteel.triggers import ContinuousEventTimeTrigger, CountTrigger, PurgingTrigger

from .conftest import Session as Cluster
from .test_operators import collected as collected_all


def words(env: Environment, folder: Path, *times: int) -> DataStream:
    """The word "hi" at these milliseconds."""
    path = folder / f"{'-'.join(map(str, times))}.csv"
    path.write_text("".join(f"hi,{at},1970-01-01 00:00:00.{at:03}\n" for at in times))
    source = FileSource(str(path), format="csv", schema="word STRING, n INT, at TIMESTAMP")
    return env.from_source(source, watermarks=Watermarks.bounded("at"))


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy("word", "window_start", "window_end").agg(F.count("*").alias("n"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_pyflinks_examples_of_windows(session: Cluster, tmp_path: Path, mode: str) -> None:
    env = Environment(mode=mode, parallelism=1)
    example = words(env, tmp_path, 1, 2, 3, 4, 5, 8, 9, 15)
    keyed = example.key_by("word")
    by_count = words(env, tmp_path, 1, 2, 3, 4, 5, 6, 7).select_expr(
        "IF(n % 2 = 1, 'hi', 'hello') AS word", "LEAST(n, 6) AS n"
    )
    pairs = by_count.key_by("word")
    of_count, summed, slides, by_trigger, tumbling, sliding, gap, dynamic, continuous = (
        table.to_pylist()
        for table in collected_all(
            session,
            pairs.count_window(3).apply(lambda df: df.groupBy("word").agg(F.sum("n").alias("n"))),
            pairs.count_window(3).aggregate("sum(n) AS n"),
            pairs.count_window(2, 1).aggregate("collect_list(n) AS n"),
            pairs.window(Global())
            .trigger(PurgingTrigger.of(CountTrigger.of(3)))
            .aggregate("sum(n) AS n"),
            keyed.window(Tumbling("5 ms")).apply(counted),
            keyed.window(Sliding("5 ms", "2 ms")).apply(counted),
            words(env, tmp_path, 1, 2, 3, 4, 8, 9, 15)
            .key_by("word")
            .window(Session("5 ms"))
            .apply(counted),
            words(env, tmp_path, 1, 2, 3, 4, 9, 9, 15)
            .key_by("word")
            .window(Session.with_dynamic_gap("make_dt_interval(0, 0, 0, n / 1000)"))
            .apply(counted),
            keyed.window(Tumbling("10 ms"))
            .trigger(ContinuousEventTimeTrigger.of("5 ms"))
            .apply(counted),
        )
    )
    sums = [("hello", 12), ("hi", 9)]
    assert sorted((row["word"], row["n"]) for row in of_count) == sums
    for found in (summed, by_trigger):
        assert sorted((row["word"], row["n"]) for row in found) == sums
        assert {row["window_id"] for row in found} == {0}
    assert sorted((row["word"], row["window_id"], row["n"]) for row in slides) == [
        ("hello", 0, [2, 4]),
        ("hello", 1, [4, 6]),
        ("hi", 0, [1, 3]),
        ("hi", 1, [3, 5]),
        ("hi", 2, [5, 6]),
    ]

    def windows(found: list[dict[str, object]]) -> list[tuple[int, int, object]]:
        times = ("window_start", "window_end")
        return sorted(
            (*(round(row[name].timestamp() * 1e3) for name in times), row["n"])  # type: ignore[attr-defined]
            for row in found
        )

    assert windows(tumbling) == [(0, 5, 4), (5, 10, 3), (15, 20, 1)]
    times = (1, 2, 3, 4, 5, 8, 9, 15)
    expected = [(at, at + 5, sum(at <= n < at + 5 for n in times)) for at in range(-4, 16, 2)]
    assert windows(sliding) == [window for window in expected if window[2]]
    assert windows(gap) == [(1, 14, 6), (15, 20, 1)]
    assert windows(dynamic) == [(1, 8, 4), (9, 30, 3)]
    assert set(windows(continuous)) == {(0, 10, 7), (10, 20, 1)}

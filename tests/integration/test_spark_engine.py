"""A real SparkEngine: schemas that survive the round trip, sources, bundles, cancellation,
analysis, the JVM's death.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import psutil
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions

from firesteel import Environment, Tumbling, Watermarks
from firesteel.common.error_report import summary_of
from firesteel.common.operator_messages import SplitAssigned, SplitsExhausted
from firesteel.common.units import MIB
from firesteel.connectors import FileSink, FileSource
from firesteel.errors import FiresteelError
from firesteel.operator import TaskCancelled
from firesteel.operators import TransformSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.analyze import analyze
from taskexecutor.executor.cleaning import JobSurroundings
from taskexecutor.executor.columnar.jvm import heartbeat
from taskexecutor.executor.columnar.jvm.engine import SparkEngine, SparkLost
from taskexecutor.executor.columnar.jvm.session import PYTHON_DAEMON
from taskexecutor.executor.columnar.jvm.transfer import LOCAL_ROWS, BundleLoader, collect
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import create_operator
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock
from tests.integration.file_splits import read_split, split_of
from tests.waiting import eventually

RICH = pa.schema(
    [
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("number", pa.int64()),
        ("ratio", pa.float64()),
        ("price", pa.decimal128(12, 3)),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("list", pa.list_(pa.int64())),
        ("record", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        ("map", pa.map_(pa.string(), pa.float64())),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "flag": True,
        "small": 3,
        "number": 2**60,
        "ratio": 0.1,
        "price": Decimal("12.345"),
        "text": "ü",
        "raw": b"\x00\xff",
        "day": date(2013, 1, 1),
        "at": datetime(2013, 1, 1, 5, 0, 0, 123456, tzinfo=UTC),
        "local": datetime(2013, 3, 10, 2, 30),
        "list": [1, None],
        "record": {"a": None, "b": ["x", None]},
        "map": [("k", 1.0), ("l", None)],
    },
    dict.fromkeys(RICH.names),
]


def stage(
    engine: SparkEngine, function: Any, schema: pa.Schema, output: pa.Schema | None = None
) -> OperatorHarness:
    operator = SparkTransformStage([TransformSpec(function=function)], output or schema)
    return OperatorHarness(
        operator, [schema], output_schema=output or schema, spark=engine.session
    ).open()


@pytest.mark.parametrize("copies", [1, LOCAL_ROWS])
def test_schemas_and_values_survive_the_round_trip(engine: SparkEngine, copies: int) -> None:
    table = pa.Table.from_pylist(ROWS * copies, schema=RICH)
    way = BundleLoader(engine.session, engine.bundles, RICH)
    with way.dataframe(table.to_batches()) as frame:
        batches = list(collect(frame, to_arrow(frame.schema), PlanMeter(TaskClock())))
    assert to_arrow(to_spark(RICH)).equals(RICH)
    assert all(batch.schema.equals(RICH) for batch in batches)
    assert pa.Table.from_batches(batches).to_pylist() == table.to_pylist()
    assert list(engine.bundles.folder.glob("*.parquet")) == []


def test_making_a_plan_makes_no_other_calls(engine: SparkEngine, asked: list[str]) -> None:
    from pyspark.sql import functions as sql

    column = sql.col("a") + sql.col("b")
    assert column is not None
    assert len(asked) <= 8, asked


def test_batches_wait_for_a_flush_and_go_before_their_watermark(engine: SparkEngine) -> None:
    schema = pa.schema([("x", pa.int64())])
    harness = stage(engine, lambda df: df.where("x > 1").selectExpr("x * 2 AS x"), schema)
    for x in range(4):
        harness.process(pa.record_batch([[x]], schema=schema))
    assert harness.batches == []
    harness.watermark(7)
    assert [row["x"] for row in harness.rows()] == [4, 6]
    assert harness.elements.index(harness.batches[0]) < len(harness.elements) - 1
    harness.process(pa.record_batch([[5]], schema=schema))
    harness.end()
    assert [row["x"] for row in harness.rows()] == [4, 6, 10]


def test_a_transform_that_changes_its_columns_fails(engine: SparkEngine) -> None:
    schema = pa.schema([("x", pa.int64())])
    harness = stage(engine, lambda df: df.withColumnRenamed("x", "y"), schema)
    harness.process(pa.record_batch([[1]], schema=schema))
    with pytest.raises(FiresteelError, match="expected x int64; got y int64"):
        harness.flush()
    harness.close()


def test_a_transform_whose_types_depend_on_the_data_fails(engine: SparkEngine) -> None:
    schema = pa.schema([("x", pa.int64())])
    harness = stage(
        engine, lambda df: df if df.count() < 2 else df.selectExpr("cast(x AS string) AS x"), schema
    )
    harness.process(pa.record_batch([[1]], schema=schema))
    harness.flush()
    harness.process(pa.record_batch([[1, 2]], schema=schema))
    with pytest.raises(
        FiresteelError, match="changed between bundles: expected x int64; got x string"
    ):
        harness.flush()
    harness.close()
    assert (
        harness.metrics.bundles,
        harness.metrics.bundle_records,
        harness.metrics.last_bundle_records,
    ) == (2, 3, 2)


@pytest.mark.parametrize("more", ["true", "rand() >= 0"], ids=["by the cached plan", "by a job"])
def test_cancellation_ends_what_spark_is_doing(engine: SparkEngine, more: str) -> None:
    schema = pa.schema([("x", pa.int64())])
    # Some 500 µs per row.
    slow = "aggregate(sequence(x, x + 20000), 0D, (a, v) -> a + sqrt(v) * sin(v)) > x"
    harness = stage(engine, lambda df: df.where(slow).where(more), schema)
    harness.process(pa.record_batch([list(range(20 * LOCAL_ROWS))], schema=schema))
    timer = threading.Timer(1.0, harness.cancel)
    timer.start()
    with pytest.raises(Exception, match="(?i)cancel") as raised:
        harness.flush()
    timer.join()
    harness.close()
    assert not isinstance(raised.value, TaskCancelled)  # which would be raised once all is computed
    assert engine.session.range(3).count() == 3


# -- the daily delays' shape, on a few rows


def write_days(folder: Path) -> None:
    folder.mkdir()
    for month in (1, 2):
        lines = [
            f"2013-{month:02d}-{day:02d}T{hour:02d}:00:00Z,{origin},{delay}"
            for day in (1, 2)
            for hour, origin, delay in HOURS
        ]
        (folder / f"{month}.csv").write_text("\n".join(["time_hour,origin,dep_delay", *lines, ""]))


HOURS = [(5, "EWR", "1.0"), (23, "EWR", "3.0"), (6, "JFK", ""), (7, "JFK", "8.0")]


def program(
    folder: Path,
    key: str = "origin",
    column: str = "time_hour",
    aggregate: str = "avg(dep_delay) AS a",
    **source: Any,
) -> Any:
    env = Environment()
    stream = env.from_source(
        FileSource(f"{folder}/*.csv", format=source.pop("format", "csv"), header=True, **source),
        watermarks=Watermarks.bounded(column, max_out_of_orderness="1 h"),
    )
    (
        stream.transform(lambda df: df.where("dep_delay IS NOT NULL"))
        .key_by(key)
        .window(Tumbling("1 day"))
        .aggregate("count(*) AS flights", aggregate)
        .sink_to(FileSink(str(folder.parent / "out")))
    )
    return env.job_graph("daily")


def opened(graph: Any, engine: SparkEngine) -> list[OpenedOperator]:
    found = {s.operator_id: s.schema for s in analyze(graph, engine)}
    return [
        OpenedOperator(o, cloudpickle.loads(o.spec), found[o.operator_id])
        for vertex in graph.vertices
        for o in vertex.operators
    ]


def test_files_to_windows(engine: SparkEngine, tmp_path: Path) -> None:
    write_days(tmp_path / "in")
    source, transform, partial, window, _ = opened(program(tmp_path / "in"), engine)
    reader = OperatorHarness(
        create_operator([source, transform, partial]),
        [],
        spark=engine.session,
        output_schema=partial.output_schema,
    ).open()
    assert reader.poll() and reader.operator.waiting  # type: ignore[attr-defined]
    for month in (1, 2):
        read_split(reader, month - 1, split_of(tmp_path / "in" / f"{month}.csv"))
        assert len(reader.sent) == month + 1  # it requests the next split before it reads this one
    reader.deliver(SplitsExhausted())
    assert not reader.poll()
    latest = int(datetime(2013, 2, 2, 23, tzinfo=UTC).timestamp()) * 1_000_000
    assert reader.watermarks_us[-1] == latest - 3_600_000_000 - 1
    merged = OperatorHarness(
        create_operator([window]), [partial.output_schema], output_schema=window.output_schema
    ).open()
    for element in reader.elements:
        if isinstance(element, pa.RecordBatch):
            merged.process(element)
        else:
            merged.watermark(element.timestamp_us)  # type: ignore[union-attr]
    merged.end()
    assert [
        (r["origin"], r["window_start"].strftime("%m-%d"), r["flights"], r["a"])
        for r in merged.rows()
    ] == [
        (origin, f"{month}-{day}", flights, average)
        for month in ("01", "02")
        for day in ("01", "02")
        for origin, flights, average in (("EWR", 2, 2.0), ("JFK", 1, 8.0))
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"key": "orign"},
            r'key_by\("orign"\): no such column; the stream has: time_hour, origin, dep_delay; '
            r"did you mean 'origin'",
        ),
        ({"column": "when"}, "column 'when': no such column"),
        (
            {"column": "origin"},
            "is string, but event time must be a timestamp; read it as TIMESTAMP",
        ),
        (
            {"column": "time_hour", "schema": "time_hour DATE, origin STRING, dep_delay DOUBLE"},
            "is date, but event time must be",
        ),
        ({"aggregate": "sum(dep_dely) AS s"}, r"aggregate\('sum\(dep_dely\) AS s'\).*dep_dely"),
        ({"format": "xslx"}, "xslx"),
        ({"schema": "a b c"}, "does not parse"),
        ({"schema": "int"}, "does not parse|names no columns"),
    ],
)
def test_what_is_wrong_is_found_before_data_flows(
    engine: SparkEngine, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    write_days(tmp_path / "in")
    with pytest.raises(FiresteelError, match=message):
        analyze(program(tmp_path / "in", **change), engine)


def test_a_transform_may_use_mllibs_functions(engine: SparkEngine) -> None:
    """They are registered by the import, not with the session."""

    def features(df: Any) -> Any:
        from pyspark.ml.functions import array_to_vector, vector_to_array

        return df.select(vector_to_array(array_to_vector("x")).alias("x"))

    schema = pa.schema([("x", pa.list_(pa.float64()))])
    harness = stage(engine, features, schema)
    harness.process(pa.record_batch([[[1.0, 2.0]]], schema=schema))
    harness.end()
    assert harness.rows() == [{"x": [1.0, 2.0]}]


def vm_options(engine: SparkEngine, *names: str) -> list[int]:
    jvm: Any = engine.session._jvm
    bean = jvm.java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean")
    options = jvm.java.lang.management.ManagementFactory.getPlatformMXBean(bean)
    return [int(options.getVMOption(name).getValue()) for name in names]


def test_the_optimising_compiler_waits_for_code_that_lasts(engine: SparkEngine) -> None:
    names = ("Tier4InvocationThreshold", "Tier4CompileThreshold", "Tier4BackEdgeThreshold")
    # The JVM's own are 5,000, 15,000 and 40,000.
    assert vm_options(engine, *names) == [20_000, 60_000, 4_000_000]


def test_the_heap_of_an_idle_jvm_is_what_it_holds(engine: SparkEngine) -> None:
    jvm: Any = engine.session._jvm
    runtime = jvm.java.lang.Runtime.getRuntime()

    def held_bytes() -> int:
        engine.collect_garbage()
        return int(runtime.totalMemory()) - int(runtime.freeMemory())

    before = held_bytes()
    # Threads of Spark's release the garbage of earlier tests at any time.
    buffer = jvm.java.nio.ByteBuffer.allocate(200 * MIB)
    assert held_bytes() > before + 150 * MIB
    assert int(runtime.totalMemory()) > before + 150 * MIB
    del buffer
    for _ in range(20):
        held, total = held_bytes(), int(runtime.totalMemory())
        # The young generation is a quarter of the old one.
        if total < max(64 * MIB, held * 1.4):
            break
    else:
        pytest.fail(f"{total} bytes of heap for {held} bytes held")


def test_the_heap_grows_in_larger_steps_while_some_task_fills_it(engine: SparkEngine) -> None:
    names = ("MinHeapFreeRatio", "MaxHeapFreeRatio")
    before = vm_options(engine, *names)
    with engine.in_larger_steps():
        during = vm_options(engine, *names)
        assert during == [75, 90]
        with pytest.raises(KeyError), engine.in_larger_steps():
            raise KeyError
        engine.collect_garbage()
        assert vm_options(engine, *names) == during
    assert vm_options(engine, *names) == before


def test_missing_files_are_named(engine: SparkEngine, tmp_path: Path) -> None:
    with pytest.raises(FiresteelError, match=r"no such file: .*/nowhere/\*.csv"):
        analyze(program(tmp_path / "nowhere"), engine)


def test_analysis_makes_few_calls_and_shows_the_plan(
    engine: SparkEngine, asked: list[str], tmp_path: Path
) -> None:
    write_days(tmp_path / "in")
    graph = program(tmp_path / "in", schema="time_hour TIMESTAMP, origin STRING, dep_delay DOUBLE")
    scheduler = engine.session._jsc.sc().dagScheduler()
    jobs_before = scheduler.numTotalJobs()
    asked.clear()
    schemas = analyze(graph, engine)
    assert len(asked) < 130, asked
    assert scheduler.numTotalJobs() == jobs_before
    plans = [schema.plan for schema in schemas if schema.plan]
    assert len(plans) == 1
    assert "Read csv" in plans[0] and "isnotnull(dep_delay)" in plans[0]


def test_null_event_time_is_an_error(engine: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("time_hour,origin,dep_delay\n,EWR,1.0\n")
    graph = program(tmp_path / "in", schema="time_hour TIMESTAMP, origin STRING, dep_delay DOUBLE")
    source, transform, partial, *_ = opened(graph, engine)
    reader = OperatorHarness(
        create_operator([source, transform, partial]),
        [],
        spark=engine.session,
        output_schema=partial.output_schema,
    ).open()
    reader.deliver(SplitAssigned(number=0, split_json=split_of(tmp_path / "in" / "1.csv")))
    with pytest.raises(FiresteelError, match="'time_hour' is null"):
        reader.poll()
    reader.close()


def test_rows_read_are_counted_without_watermarks_too(engine: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(100)))
    env = Environment()
    numbers = env.from_source(
        FileSource(str(tmp_path / "*.csv"), format="csv", header=True, schema="n LONG")
    )
    numbers.transform(lambda df: df.groupBy().sum("n"), per_bundle=True).print()
    source, transform, *_ = opened(env.job_graph("sum"), engine)
    reader = OperatorHarness(
        create_operator([source, transform]),
        [],
        spark=engine.session,
        output_schema=transform.output_schema,
    ).open()
    assert reader.poll()
    read_split(reader, 0, split_of(tmp_path / "a b.csv"))
    assert reader.rows() == [{"sum(n)": 4950}]
    assert reader.metrics.records_taken == 100
    reader.close()


def test_what_a_udf_raises_and_prints_need_not_be_utf_8(engine: SparkEngine) -> None:
    @functions.udf("string")
    def raises(value):  # type: ignore[no-untyped-def]  # hints make Spark warn
        print("\ud83d")
        raise ValueError("\ud83d")

    with pytest.raises(PythonException) as caught:
        engine.session.range(1).select(raises("id")).collect()
    assert summary_of(caught.value) == r"ValueError: \ud83d"


def test_nothing_of_a_job_is_left_in_the_session(engine: SparkEngine, tmp_path: Path) -> None:
    session = engine.session
    values = dict(session.conf.getAll)
    surroundings = JobSurroundings(session, engine.jvm_pid, str(tmp_path), [])
    surroundings.configure({"spark.sql.shuffle.partitions": "7", "parallelism.default": "2"})
    assert session.conf.get("spark.sql.shuffle.partitions") == "7"
    # A function changes the session that it finds in its DataFrame.
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    session.range(3).createTempView("numbers")
    session.udf.register("twice", lambda x: 2 * x, "long")
    assert [row[0] for row in session.sql("SELECT twice(id) FROM numbers").collect()] == [0, 2, 4]
    daemons = [p for p in psutil.Process(engine.jvm_pid).children() if PYTHON_DAEMON in p.cmdline()]
    workers = [worker for daemon in daemons for worker in daemon.children()]
    assert workers

    surroundings.leave()
    assert dict(session.conf.getAll) == values
    for left in ("SELECT * FROM numbers", "SELECT twice(1)"):
        with pytest.raises(AnalysisException):
            session.sql(left)
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
    session.udf.register("thrice", lambda x: 3 * x, "long")
    assert session.sql("SELECT thrice(2)").first()[0] == 6, "Spark starts new Python workers"


def test_a_busy_jvm_answers_and_a_stopped_one_is_silent(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm = psutil.Process(engine.jvm_pid)
    context = engine.session.sparkContext
    answered = threading.Semaphore(0)
    enough = threading.Event()

    def pause(seconds: float) -> None:
        """As await_silence pauses after each answer."""
        answered.release()
        if enough.is_set():
            raise ConnectionError  # the end of the watch
        time.sleep(seconds)

    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(sleep=pause))

    def busy() -> None:
        with engine.job_group("busy", "longer than all of this", enough.is_set):
            engine.session.range(10**15).selectExpr("sum(hash(id))").collect()

    with ThreadPoolExecutor() as pool:
        working = pool.submit(busy)
        eventually(context.statusTracker().getActiveJobsIds, "a job of Spark's runs")
        watching = pool.submit(
            heartbeat.await_silence, context._gateway, interval_s=0.1, timeout_s=60.0
        )
        try:
            for _ in range(5):
                engine.collect_garbage()
                assert answered.acquire(timeout=60)
            assert not watching.done() and not working.done()
        finally:
            enough.set()
        assert "cancel" in str(working.exception(timeout=60)).lower()
        assert not watching.result(timeout=60)

    jvm.suspend()
    begin = time.monotonic()
    try:
        assert heartbeat.await_silence(context._gateway, interval_s=0.5, timeout_s=2.0)
    finally:
        jvm.resume()
    assert time.monotonic() - begin >= 1.5
    assert engine.session.range(3).count() == 3


def test_the_end_of_the_jvm_is_reported(engine: SparkEngine) -> None:
    """Last: the engine is gone afterwards."""
    schema = pa.schema([("x", pa.int64())])
    harness = stage(engine, lambda df: df, schema)
    harness.process(pa.record_batch([[1]], schema=schema))
    psutil.Process(engine.jvm_pid).kill()
    with pytest.raises(SparkLost, match=r"killed by signal 9"):
        harness.flush()
    assert not engine.is_alive()
    harness.close()

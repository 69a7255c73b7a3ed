"""Functions get the times that PySpark's functions get, and the times that they yield are the same
moments: as Arrow, pandas and Rows, in zones on either side of UTC, also while clocks change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from firesteel.client.collected import _pandas
from firesteel.connectors import EndOfSplit, ForeachBatchSink, PrintSink, PythonSink, PythonSource
from firesteel.connectors.table_source import TableSource
from firesteel.errors import FiresteelError
from firesteel.functions import CoProcessFunction, KeyedProcessFunction
from firesteel.operator import StreamOperator
from firesteel.operators import (
    CoMapInArrowSpec,
    CoProcessSpec,
    DynamicSessionSpec,
    FilterSpec,
    MapAsyncSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    MapRowsSpec,
    ProcessSpec,
    RowTimeSpec,
    TransformWithStateSpec,
    TumblingSpec,
    WindowApplySpec,
)
from firesteel.plan.frame_methods import with_session_gap
from firesteel.plan.local_rows import (
    LocalTable,
    table_of_arrow,
    table_of_frame,
    table_of_rows,
    written,
)
from firesteel.state import MapStateDescriptor
from firesteel.testing import OperatorHarness
from firesteel.triggers import Trigger, TriggerResult
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import conform, from_ddl, to_arrow
from taskexecutor.executor.connectors.python.data_source import check_sink
from taskexecutor.executor.connectors.runtime import sink_runtime, source_runtime
from taskexecutor.executor.operators.map.batches import (
    CoMapInArrow,
    Filter,
    MapInArrow,
    MapInPandas,
)
from taskexecutor.executor.operators.map.rows import MapRows
from taskexecutor.executor.operators.map_async.map_async import MapAsync
from taskexecutor.executor.operators.process.process import CoProcess, Process
from taskexecutor.executor.operators.transform_with_state import TransformWithState
from taskexecutor.executor.operators.windows import window_operator
from tests.integration.conftest import session_conf
from tests.long import long_after
from tests.unit.checkpoints.savepoints import Written

OPERATORS: dict[type, Any] = {
    CoMapInArrowSpec: CoMapInArrow,
    CoProcessSpec: CoProcess,
    MapInArrowSpec: MapInArrow,
    MapInPandasSpec: MapInPandas,
    MapRowsSpec: MapRows,
    TransformWithStateSpec: TransformWithState,
}
ZONE = "spark.sql.session.timeZone"
MACHINE = "Europe/Berlin"  # the zone of this process; no session has it
ZONES = ("America/New_York", "-03:30", "UTC", "Asia/Tokyo", "Australia/Lord_Howe")
MOMENTS = (
    "1969-07-20T20:17:40Z",
    "2024-07-01T12:00:00.000001Z",
    "2024-03-10T06:59:59Z",  # the clocks of New York are set forward a second later
    "2024-03-10T07:00:00Z",
    "2024-11-03T05:30:00Z",  # and twice show 01:30
    "2024-11-03T06:30:00Z",
    "2024-04-06T14:45:00Z",  # those of Lord Howe are set back by half an hour
    "2024-04-06T15:15:00Z",
    "2024-10-05T15:30:00Z",
)
NOWHERE_TWICE = (0, 1, 2, 3, 8)  # the moments that no zone shows twice
# The same moments and clocks in columns, and at any depth.
COLUMNS = (
    "k",
    "timestamp_micros(us) AS t",
    "to_timestamp_ntz(text) AS n",
    "array(timestamp_micros(us), NULL) AS a",
    "named_struct('t', timestamp_micros(us), 'n', to_timestamp_ntz(text)) AS s",
    "map('k', timestamp_micros(us)) AS m",
    "IF(k % 2 = 0, array(named_struct('t', timestamp_micros(us))), NULL) AS d",
    "IF(k % 2 = 0, timestamp_micros(us), NULL) AS o",
)
SEEN = "x STRING"
# All but `k` and `o`, as microseconds.
MICROS = (
    "unix_micros(t) AS t",
    "CAST(n AS STRING) AS n",
    "unix_micros(a[0]) AS a",
    "unix_micros(s.t) AS s",
    "unix_micros(m['k']) AS m",
    "unix_micros(d[0].t) AS d",
)


@pytest.fixture(scope="module")
def machine() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = MACHINE
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.fixture(params=long_after(2, ZONES))
def zone(engine: SparkEngine, machine: None, request: pytest.FixtureRequest) -> Iterator[str]:
    with session_conf(engine, {ZONE: request.param}):
        yield request.param


def moments(engine: SparkEngine, which: tuple[int, ...] | None = None) -> DataFrame:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = [datetime.fromisoformat(text) for text in MOMENTS]
    rows = [
        (k, (times[k] - epoch) // timedelta(microseconds=1), MOMENTS[k][:-1])
        for k in which or range(len(times))
    ]
    frame = engine.session.createDataFrame(rows, "k INT, us BIGINT, text STRING").coalesce(1)
    return frame.selectExpr(*COLUMNS)


def batch_of(frame: DataFrame) -> pa.RecordBatch:
    """As tasks exchange it."""
    (batch,) = frame.toArrow().combine_chunks().to_batches()
    return conform(batch, to_arrow(frame.schema))


def harness(
    engine: SparkEngine,
    operator: StreamOperator,
    schema: pa.Schema,
    output: str | None,
    **more: Any,
) -> OperatorHarness:
    """Opens an operator of a job that leaves the zone to its cluster."""
    schemas = [schema] * operator.inputs
    output_schema = more.pop(
        "output_schema", None if output is None else to_arrow(from_ddl(output))
    )
    return OperatorHarness(
        operator, schemas, spark=engine.session, output_schema=output_schema, **more
    ).open()


def seen(engine: SparkEngine, spec: Any, frame: DataFrame, **more: Any) -> list[str]:
    """Returns what a function says that it saw."""
    batch = batch_of(frame)
    found = harness(engine, OPERATORS[type(spec)](spec), batch.schema, SEEN, **more)
    found.process(batch)
    found.flush()
    return [row["x"] for row in found.rows()]


def as_micros(engine: SparkEngine, spec: Any, frame: DataFrame) -> list[Any]:
    """Returns what a function yields, in microseconds."""
    batch = batch_of(frame)
    found = harness(
        engine, OPERATORS[type(spec)](spec), batch.schema, None, output_schema=batch.schema
    )
    found.process(batch)
    table = pa.Table.from_batches(found.batches)
    return engine.session.createDataFrame(table).selectExpr(*MICROS).collect()


def unchanged(parts: Any) -> Any:
    yield from parts


def of_arrow() -> Any:
    def told(batches: Any) -> Any:
        for batch in batches:
            kinds = [str(kind).replace(" not null", "") for kind in batch.schema.types]
            yield pa.record_batch({"x": [*map(repr, batch.to_pylist()), repr(kinds)]})

    return told


def of_pandas() -> Any:
    import pandas as pd

    def told(frames: Any) -> Any:
        for frame in frames:
            said = [repr(row) for row in frame.astype(object).to_dict("records")]
            yield pd.DataFrame({"x": [*said, repr(list(frame.dtypes))]})

    return told


def test_arrow_batches(engine: SparkEngine, zone: str) -> None:
    frame, told = moments(engine), of_arrow()
    expected = [row.x for row in frame.mapInArrow(told, SEEN).collect()]
    assert seen(engine, MapInArrowSpec(function=told, schema=SEEN), frame) == expected
    both = CoMapInArrowSpec(first=told, second=told, schema=SEEN)
    assert seen(engine, both, frame) == expected
    spec = MapInArrowSpec(function=unchanged, schema=None)
    assert as_micros(engine, spec, frame) == frame.selectExpr(*MICROS).collect()

    hours: list[Any] = []

    def of_this_hour(batch: pa.RecordBatch) -> list[bool]:
        hours.extend(value.as_py().hour for value in batch["t"])
        return [True] * batch.num_rows

    operator = Filter(FilterSpec(function=of_this_hour))
    kept = harness(engine, operator, batch_of(frame).schema, None)
    kept.process(batch_of(frame))
    assert hours == [row[0] for row in frame.selectExpr("hour(t)").collect()]
    assert kept.batches == [batch_of(frame)], "what is emitted is as tasks exchange it"


def test_frames(engine: SparkEngine, zone: str) -> None:
    frame, told = moments(engine), of_pandas()
    expected = [row.x for row in frame.mapInPandas(told, SEEN).collect()]
    assert seen(engine, MapInPandasSpec(function=told, schema=SEEN), frame) == expected


def yields() -> Any:
    """The clocks of all rows, those of a few with a zone, and nested ones that no zone has twice."""
    import pandas as pd

    def yielded(frames: Any) -> Any:
        for frame in frames:
            yield frame
            yield frame.assign(t=frame["t"].dt.tz_localize("Asia/Kathmandu"))
            clock = pd.Timestamp("2024-07-01 12:00")
            yield frame.head(1).assign(s=[{"t": clock, "n": clock}], m=[{"k": clock}])

    return yielded


def test_frames_that_are_yielded(engine: SparkEngine, zone: str) -> None:
    # PySpark refuses nested clocks that a zone shows twice, and takes the later moment of others.
    for which in (NOWHERE_TWICE, None):
        frame, yielded = moments(engine, which), yields()
        if which is None:
            frame, yielded = frame.select("k", "t", "n", "o"), unchanged
        schema = ", ".join(
            f"{field.name} {field.dataType.simpleString()}" for field in frame.schema
        )
        wanted = frame.mapInPandas(yielded, schema)
        batch = batch_of(frame)
        spec = MapInPandasSpec(function=yielded, schema=schema)
        found = harness(
            engine, OPERATORS[type(spec)](spec), batch.schema, None, output_schema=batch.schema
        )
        found.process(batch)
        rows = pa.Table.from_batches(found.batches)
        assert rows.to_pylist() == wanted.toArrow().cast(rows.schema).to_pylist()


def processors() -> tuple[type[StatefulProcessor], type[StatefulProcessor]]:
    import pandas as pd
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class OfRows(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("v", "t TIMESTAMP, n TIMESTAMP_NTZ")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for row in rows:
                self.state.update((row.t, row.n))
                yield Row(x=repr((key, tuple(row), self.state.get())), t=row.t)

        def close(self) -> None:
            pass

    class OfFrames(OfRows):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for frame in rows:
                for row in frame.to_dict("records"):
                    self.state.update((row["t"].to_pydatetime(), row["n"].to_pydatetime()))
                    x = repr((key, row, self.state.get()))
                    yield pd.DataFrame({"x": [x], "t": [row["t"]]})

    return OfRows, OfFrames


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
def test_stateful_processors(engine: SparkEngine, zone: str, pandas: bool) -> None:
    # PySpark takes two moments for one key while clocks of rows show the same.
    frame = moments(engine, None if pandas else NOWHERE_TWICE)
    processor = processors()[pandas]()
    output = f"{SEEN}, t TIMESTAMP"
    grouped = frame.groupBy("t", "n")
    call = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    engine.session.sparkContext.environment["TZ"] = MACHINE
    try:
        expected = call(processor, output, "Append", "None").toArrow()
    finally:
        del engine.session.sparkContext.environment["TZ"]
    spec = TransformWithStateSpec(
        processor=processors()[pandas](),
        key_columns=("t", "n"),
        output_schema=output,
        time_mode="none",
        pandas=pandas,
    )
    batch = batch_of(frame)
    found = harness(engine, OPERATORS[type(spec)](spec), batch.schema, output)
    found.process(batch)
    got = pa.Table.from_batches(found.batches)
    assert sorted(got.to_pylist(), key=repr) == sorted(
        expected.cast(got.schema).to_pylist(), key=repr
    )


def test_functions_of_rows(engine: SparkEngine, zone: str) -> None:
    """As those of StatefulProcessors."""
    frame = moments(engine)
    rows = frame.mapInArrow(_values_of_rows(), SEEN).collect()
    expected = [row.x for row in rows]
    told = MapRowsSpec(function=lambda row: (repr(tuple(row)),), schema=SEEN, flat=False)
    assert seen(engine, told, frame) == expected
    each = MapRowsSpec(function=lambda row: [(repr(tuple(row)),)], schema=SEEN, flat=True)
    assert seen(engine, each, frame) == expected
    same = MapRowsSpec(function=lambda row: row, schema=None, flat=False)
    assert as_micros(engine, same, frame) == frame.selectExpr(*MICROS).collect()

    class Told(CoProcessFunction):
        def process_element1(self, value: Row, ctx: Any) -> Any:
            assert ctx.get_current_key() == value.t
            yield (f"{ctx.get_current_key().hour} {tuple(value)!r}",)

    spec = CoProcessSpec(
        function=Told(), first_key_columns=("t",), second_key_columns=("t",), schema=SEEN
    )
    hours = [row[0] for row in frame.selectExpr("hour(t)").collect()]
    assert seen(engine, spec, frame) == [f"{h} {x}" for h, x in zip(hours, expected, strict=True)]


def _values_of_rows() -> Any:
    def told(batches: Any) -> Any:
        for batch in batches:
            yield pa.record_batch({"x": [repr(tuple(row.values())) for row in batch.to_pylist()]})

    return told


def test_clocks_that_stand_for_no_moment_are_refused(engine: SparkEngine, zone: str) -> None:
    frame = moments(engine, (1,))
    clock = datetime(2024, 7, 1)
    for kind, value in (
        ("TIMESTAMP", clock),
        ("ARRAY<TIMESTAMP>", [clock]),
        ("STRUCT<t: TIMESTAMP>", {"t": clock}),
        ("STRUCT<t: TIMESTAMP>", Row(t=clock)),
        ("MAP<STRING, ARRAY<TIMESTAMP>>", {"k": [clock]}),
    ):
        spec = MapRowsSpec(function=_always(Row(x=value)), schema=f"x {kind}", flat=False)
        with pytest.raises(
            FiresteelError, match="the time has no zone, and TIMESTAMP is an instant"
        ):
            _run(engine, spec, frame, f"x {kind}")
    of_arrow = MapInArrowSpec(
        function=lambda _: iter([pa.record_batch({"x": [[clock]]})]), schema="x ARRAY<TIMESTAMP>"
    )
    with pytest.raises(FiresteelError, match="its times have no zone, and TIMESTAMP is an instant"):
        _run(engine, of_arrow, frame, "x ARRAY<TIMESTAMP>")


def test_clocks_that_are_never_shown(engine: SparkEngine, machine: None) -> None:
    with session_conf(engine, {ZONE: "America/New_York"}):
        clocks = pd.DataFrame({"t": [pd.Timestamp("2024-03-10 02:30")]})
        spec = MapInPandasSpec(function=lambda _: iter([clocks]), schema="t TIMESTAMP")
        with pytest.raises(FiresteelError, match="NonExistentTimeError: 2024-03-10 02:30"):
            _run(engine, spec, moments(engine, (1,)), "t TIMESTAMP")


def test_zones_that_python_does_not_know(engine: SparkEngine, machine: None) -> None:
    with session_conf(engine, {ZONE: "GMT+9"}):
        spec = MapRowsSpec(function=lambda row: row, schema=None, flat=False)
        frame = moments(engine, (1,))
        with pytest.raises(FiresteelError, match=r"is 'GMT\+9', and Python has no such time zone"):
            _run(engine, spec, frame, "k INT")
        _run(engine, spec, frame.select("k", "n"), "k INT, n TIMESTAMP_NTZ")


def _always(row: Row) -> Any:
    return lambda _: row


def _run(engine: SparkEngine, spec: Any, frame: DataFrame, output: str) -> None:
    batch = batch_of(frame)
    harness(engine, OPERATORS[type(spec)](spec), batch.schema, output).process(batch)


def test_collected_frames(engine: SparkEngine, zone: str) -> None:
    frame = moments(engine)
    found = _pandas(batch_of(frame), zone)
    expected: Any = frame.toPandas()
    times = [*"tnasdo"]  # PySpark makes dictionaries of maps
    assert {str(found[flat].dtype) for flat in "tno"} == {"datetime64[us]"}, "for any year"
    assert repr(found[times].to_dict("records")) == repr(expected[times].to_dict("records"))
    assert [dict(m) for m in found["m"]] == list(expected["m"])


def test_what_is_printed(engine: SparkEngine, zone: str, capfd: pytest.CaptureFixture[str]) -> None:
    frame = moments(engine, (1,)).select("t", "n", "a")
    operator = sink_runtime(PrintSink()).operator()
    printing = harness(engine, operator, batch_of(frame).schema, None)
    printing.process(batch_of(frame))
    printing.end()
    shown = frame.mapInArrow(_rows_of_arrow(), SEEN).collect()[0].x
    assert shown in capfd.readouterr().out


def _rows_of_arrow() -> Any:
    def told(batches: Any) -> Any:
        for batch in batches:
            yield pa.record_batch({"x": [str(row) for row in batch.to_pylist()]})

    return told


def test_batches_for_spark(engine: SparkEngine, zone: str) -> None:
    """Spark itself converts the rows of its DataFrames."""
    frame: Any = moments(engine)
    collected: list[Any] = []

    def keep(rows: Any, batch_id: int) -> None:
        collected.extend([rows.collect(), rows.toPandas().to_dict("records")])

    operator = sink_runtime(ForeachBatchSink(function=keep)).operator()
    sink = harness(engine, operator, batch_of(frame).schema, None)
    sink.process(batch_of(frame))
    sink.end()
    expected = [frame.collect(), frame.toPandas().to_dict("records")]
    assert repr(collected) == repr(expected)


DS_SCHEMA = "t TIMESTAMP, n TIMESTAMP_NTZ, a ARRAY<TIMESTAMP>, s STRUCT<t: TIMESTAMP>"
CLOCKS = [
    datetime(2024, 7, 1, 12),
    datetime(2024, 3, 31, 2, 30),  # Berlin's clocks never show it
    datetime(2024, 10, 27, 2, 30),  # and this one twice
    datetime(2024, 10, 27, 2, 30, fold=1),
    datetime(2024, 7, 1, 12, tzinfo=UTC),
]
YIELDED = [(t, t.replace(tzinfo=None), [t], Row(t=t)) for t in CLOCKS]
WRITTEN: list[Any] = []


class Clocks(DataSource):
    def schema(self) -> str:
        return DS_SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return ClocksReader()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return ArrowKeeper() if self.options.get("arrow") else Keeper()


class ClocksReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:
        return {"n": 1}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # type: ignore[override]
        return iter(YIELDED)


class Keeper(DataSourceStreamWriter):
    def write(self, rows: Iterator[Any]) -> WriterCommitMessage:
        WRITTEN.extend(rows)
        return WriterCommitMessage()


class ArrowKeeper(DataSourceStreamArrowWriter):
    def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in batches:
            kinds = [str(kind).replace(" not null", "") for kind in batch.schema.types]
            WRITTEN.extend(kinds + batch.to_pylist())
        return WriterCommitMessage()


def test_rows_of_python_sources(engine: SparkEngine, zone: str) -> None:
    import cloudpickle

    source = PythonSource(Clocks)
    operator = source_runtime(source).operator(())
    schema = to_arrow(from_ddl(DS_SCHEMA))
    reading = OperatorHarness(operator, spark=engine.session, output_schema=schema).open()
    partition = pa.record_batch({"partition": [cloudpickle.dumps(InputPartition(0))]})
    reading.process(partition)
    expected = LocalDataToArrowConversion.convert(YIELDED, from_ddl(DS_SCHEMA), False)
    assert reading.rows() == expected.to_pylist()
    by_spark = engine.session.createDataFrame(YIELDED[:1], DS_SCHEMA).toArrow()
    assert reading.rows()[:1] == by_spark.to_pylist()


def test_rows_for_python_sinks(engine: SparkEngine, zone: str) -> None:
    frame = moments(engine)
    batch = batch_of(frame)
    for options, expected in (
        ({}, frame.collect()),
        ({"arrow": "1"}, frame.mapInArrow(_as_written(), SEEN).collect()),
    ):
        WRITTEN.clear()
        sink = PythonSink(Clocks, options=options)
        operator = sink_runtime(sink).operator()
        output_schema = check_sink(sink, batch.schema)
        writing = harness(engine, operator, batch.schema, None, output_schema=output_schema)
        writing.process(batch)
        writing.end()
        if options:
            assert list(map(str, WRITTEN)) == [row.x for row in expected]
        else:
            assert repr(WRITTEN) == repr(expected)


def _as_written() -> Any:
    def told(batches: Any) -> Any:
        for batch in batches:
            kinds = [str(kind).replace(" not null", "") for kind in batch.schema.types]
            yield pa.record_batch({"x": kinds + [str(row) for row in batch.to_pylist()]})

    return told


def test_calls_in_flight(engine: SparkEngine, zone: str) -> None:
    frame = moments(engine)

    async def told(row: Row) -> Any:
        return (repr(tuple(row)),)

    async def same(row: Row) -> Row:
        return row

    batch = batch_of(frame)
    telling = harness(
        engine, MapAsync(MapAsyncSpec(function=told, schema=SEEN)), batch.schema, SEEN
    )
    passing = harness(
        engine,
        MapAsync(MapAsyncSpec(function=same)),
        batch.schema,
        None,
        output_schema=batch.schema,
    )
    for called in (telling, passing):
        called.process(batch)
        called.finish()
        called.close()
    expected = [row.x for row in frame.mapInArrow(_values_of_rows(), SEEN).collect()]
    assert [row["x"] for row in telling.rows()] == expected
    returned = engine.session.createDataFrame(pa.Table.from_batches(passing.batches))
    assert returned.selectExpr(*MICROS).collect() == frame.selectExpr(*MICROS).collect()


STATE = "t TIMESTAMP, n TIMESTAMP_NTZ, s STRUCT<t: TIMESTAMP, n: TIMESTAMP_NTZ>"
KEPT = f"x STRING, ms BIGINT, {STATE}"
NOTHING = dict.fromkeys(("ms", "t", "n", "s"))


class Keeping(KeyedProcessFunction):
    """Keeps the times of a key, and yields them when its timer is due."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state("last", STATE)
        self.by_time = runtime_context.get_map_state(
            MapStateDescriptor("by time", "TIMESTAMP", "BIGINT")
        )

    def process_element(self, value: Row, ctx: Any) -> Any:
        assert ctx.get_current_key() == (value.t, value.n)
        self.last.update((value.t, value.n, value.s))
        self.by_time.put(value.t, ctx.timestamp())
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1)
        ctx.output("side", value)
        return [{**NOTHING, "x": repr(tuple(value)), "ms": ctx.timestamp()}]

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        t, n, s = self.last.value()
        assert self.by_time.get(t) == timestamp - 1
        key_t, key_n = ctx.get_current_key()
        nested = {"t": s["t"].astimezone(), "n": s["n"]}
        yield {"x": "timer", "ms": timestamp, "t": t.astimezone(), "n": n, "s": nested}
        yield {**NOTHING, "x": "key", "t": key_t, "n": key_n}


def test_keyed_functions(engine: SparkEngine, zone: str, tmp_path: Path) -> None:
    frame = moments(engine)
    batch = batch_of(frame)
    spec = ProcessSpec(
        function=Keeping(),
        key_columns=("t", "n"),
        schema=KEPT,
        side_outputs={"side": None},
        time=RowTimeSpec(column="t"),
    )
    found = harness(engine, Process(spec), batch.schema, KEPT, side_output_tags=("side",))
    found.process(batch)
    written = Written(tmp_path)
    written.add("kept", found)
    found.end()
    rows = found.rows()
    expected = [row.x for row in frame.mapInArrow(_values_of_rows(), SEEN).collect()]
    assert [row["x"] for row in rows[: len(expected)]] == expected
    assert pa.Table.from_batches(found.side("side")).to_pylist() == batch.to_pylist()

    times = frame.selectExpr("unix_millis(t) AS ms", "t", "n", "s").toArrow()
    times = times.cast(pa.schema([times.schema.field(0), *to_arrow(from_ddl(STATE))])).to_pylist()
    assert [row["ms"] for row in rows[: len(times)]] == [row["ms"] for row in times]
    timers = [row for row in rows if row["x"] == "timer"]
    assert timers == [
        {"x": "timer", **row, "ms": row["ms"] + 1} for row in sorted(times, key=lambda r: r["ms"])
    ]
    keys = [(row["t"], row["n"]) for row in rows if row["x"] == "key"]
    assert sorted(keys) == sorted((row["t"], row["n"]) for row in times)

    saved = written.read()["kept"]
    last = saved["last"].to_arrow()
    assert last.schema.types == [*batch.select(["t", "n"]).schema.types, *last.schema.types[2:]]
    values = [tuple(row.values()) for row in last.to_pylist()]
    assert sorted(values, key=repr) == sorted(
        ((row["t"], row["n"], row["t"], row["n"], row["s"]) for row in times), key=repr
    )
    on_spark = saved["last"].to_spark(engine.session).toArrow()
    assert sorted(on_spark.cast(last.schema).to_pylist(), key=repr) == sorted(
        last.to_pylist(), key=repr
    )
    due = [tuple(row.values()) for row in saved["timers"].to_arrow().to_pylist()]
    assert sorted((key_t, key_n, _ms_of(time)) for key_t, key_n, time, _ in due) == sorted(
        (row["t"], row["n"], row["ms"] + 1) for row in times
    )


def _ms_of(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


class Noting(Trigger):
    """Fires with each record, and notes what it has seen of it."""

    def __init__(self) -> None:
        self.elements: list[str] = []

    def on_element(self, element: Row, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        self.elements.append(repr(tuple(element)))
        assert window.start <= timestamp < window.end
        assert timestamp == _ms_of(element.t)
        return TriggerResult.FIRE_AND_PURGE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: Any) -> None:
        pass


def test_custom_triggers(engine: SparkEngine, zone: str) -> None:
    frame, trigger = moments(engine), Noting()
    batch = batch_of(frame)
    output = "k INT, window_start TIMESTAMP, window_end TIMESTAMP, t TIMESTAMP, n TIMESTAMP_NTZ"
    spec = WindowApplySpec(
        key_columns=("k",),
        window=TumblingSpec(size_us=3_600_000_000),
        time_column="t",
        trigger=trigger,
        function=lambda df: df.select("k", "window_start", "window_end", "t", "n"),
    )
    found = harness(engine, window_operator(spec), batch.schema, output)
    found.process(batch)
    found.end()
    expected = frame.mapInArrow(_values_of_rows(), SEEN).collect()
    assert trigger.elements == [row.x for row in expected]
    start = "timestamp_micros(floor(unix_micros(t) / 3600000000) * 3600000000)"
    windows = frame.selectExpr(
        "k", f"{start} AS window_start", f"{start} + INTERVAL 1 HOUR AS window_end", "t", "n"
    ).toArrow()
    windows = windows.cast(to_arrow(from_ddl(output)))
    assert sorted(found.rows(), key=repr) == sorted(windows.to_pylist(), key=repr)


def test_sessions_whose_gap_depends_on_the_clock(engine: SparkEngine, zone: str) -> None:
    """A gap that is longer in the morning of the session's zone."""
    frame = moments(engine)
    gap = "IF(hour(t) < 6, make_interval(0, 0, 0, 0, 1), make_interval(0, 0, 0, 0, 0, day(t)))"
    spec = WindowApplySpec(
        key_columns=(),
        window=DynamicSessionSpec(gap=gap),
        time_column="t",
        function=lambda df: df.groupBy("window_start", "window_end").agg(F.count("*").alias("n")),
    )
    given = batch_of(with_session_gap(gap)(frame))
    output = "window_start TIMESTAMP, window_end TIMESTAMP, n BIGINT"
    found = harness(engine, window_operator(spec), given.schema, output)
    found.process(given)
    found.end()
    expected = (
        frame.groupBy(F.session_window("t", F.expr(gap)).alias("w"))
        .agg(F.count("*").alias("n"))
        .selectExpr("w.start AS window_start", "w.end AS window_end", "n")
        .toArrow()
        .cast(to_arrow(from_ddl(output)))
    )
    assert sorted(found.rows(), key=repr) == sorted(expected.to_pylist(), key=repr)


# Clocks that some zone shows twice, and none skips: the later moment is meant.
LOCAL = [datetime.fromisoformat(text[:-1]) for text in MOMENTS if text[:10] != "2024-03-10"]


def test_rows_of_the_program(engine: SparkEngine, zone: str) -> None:
    frame = pd.DataFrame(
        {
            "local": pd.Series(LOCAL, dtype="datetime64[us]"),
            "moment": pd.Series(LOCAL, dtype="datetime64[us]").dt.tz_localize("Asia/Kathmandu"),
            "seconds": pd.Series(
                [time.replace(microsecond=0) for time in LOCAL], dtype="datetime64[s]"
            ),
        }
    )
    rows = [(time, time.replace(tzinfo=UTC), [time]) for time in LOCAL]
    schema = "local TIMESTAMP, moment TIMESTAMP, a ARRAY<TIMESTAMP>"
    clocks = pa.table({"moment": pa.array(LOCAL, pa.timestamp("ns", "America/Lima"))})
    clocks = clocks.append_column("n", pa.array(LOCAL, pa.timestamp("ms")))
    ntz = "moment TIMESTAMP, n TIMESTAMP_NTZ"
    session: Any = engine.session
    for local, expected in (
        (table_of_rows(rows, schema, prefer_ntz=False), session.createDataFrame(rows, schema)),
        (table_of_frame(frame, None, prefer_ntz=False), session.createDataFrame(frame)),
        (table_of_arrow(clocks, ntz, prefer_ntz=False), session.createDataFrame(clocks, ntz)),
    ):
        table = expected.toArrow().cast(to_arrow(local.schema))
        assert _read(local, zone) == table.to_pylist()


def _read(local: LocalTable, zone: str) -> list[dict[str, Any]]:
    """Returns the rows that a slot reads."""
    written_to = pa.BufferOutputStream()
    batches = written(local.table, written_to)
    source = TableSource(
        schema=local.schema,
        batches=batches,
        content=written_to.getvalue().to_pybytes(),
        localize=local.localize,
        ambiguous=local.ambiguous,
    )
    reader = source.create_reader(SimpleNamespace(config={ZONE: zone}))  # type: ignore[arg-type]
    reader.open()
    found = []
    for split in source.splits(1):
        reader.begin(split)
        while True:
            try:
                found.extend(reader.poll().to_pylist())  # type: ignore[union-attr]
            except EndOfSplit:
                break
    reader.close()
    schema = to_arrow(local.schema)
    return pa.Table.from_pylist(found, schema).to_pylist()

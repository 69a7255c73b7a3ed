"""Functions get the times that PySpark's functions get, and the times that they yield are the same
moments: as Arrow, pandas and Rows, in zones on either side of UTC, also while clocks change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row
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
from firesteel.connectors import ForeachBatchSink, PrintSink, PythonSink, PythonSource
from firesteel.errors import FiresteelError
from firesteel.functions import CoProcessFunction
from firesteel.operator import StreamOperator
from firesteel.plan.specs import (
    CoMapInArrowSpec,
    CoProcessSpec,
    FilterSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    MapRowsSpec,
    TransformWithStateSpec,
)
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.python.data_source import check_sink
from taskexecutor.executor.connectors.runtime import sink_runtime, source_runtime
from taskexecutor.executor.operators.co_process import CoProcess
from taskexecutor.executor.operators.filter import Filter
from taskexecutor.executor.operators.map_in_arrow import CoMapInArrow, MapInArrow
from taskexecutor.executor.operators.map_in_pandas import MapInPandas
from taskexecutor.executor.operators.map_rows import MapRows
from taskexecutor.executor.operators.stateful import TransformWithState
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.schemas import conform, from_ddl, to_arrow

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
ZONES = ("UTC", "Asia/Tokyo", "America/New_York", "Australia/Lord_Howe", "-03:30")
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


@pytest.fixture(params=ZONES)
def zone(engine: SparkEngine, machine: None, request: pytest.FixtureRequest) -> Iterator[str]:
    conf = engine.session.conf
    conf.set(ZONE, request.param)
    yield request.param
    conf.set(ZONE, "UTC")


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
    engine.session.conf.set(ZONE, "America/New_York")
    try:
        clocks = pd.DataFrame({"t": [pd.Timestamp("2024-03-10 02:30")]})
        spec = MapInPandasSpec(function=lambda _: iter([clocks]), schema="t TIMESTAMP")
        with pytest.raises(FiresteelError, match="NonExistentTimeError: 2024-03-10 02:30"):
            _run(engine, spec, moments(engine, (1,)), "t TIMESTAMP")
    finally:
        engine.session.conf.set(ZONE, "UTC")


def test_zones_that_python_does_not_know(engine: SparkEngine, machine: None) -> None:
    engine.session.conf.set(ZONE, "GMT+9")  # Spark knows it
    try:
        spec = MapRowsSpec(function=lambda row: row, schema=None, flat=False)
        frame = moments(engine, (1,))
        with pytest.raises(FiresteelError, match=r"is 'GMT\+9', and Python has no such time zone"):
            _run(engine, spec, frame, "k INT")
        _run(engine, spec, frame.select("k", "n"), "k INT, n TIMESTAMP_NTZ")
    finally:
        engine.session.conf.set(ZONE, "UTC")


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

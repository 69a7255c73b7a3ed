"""FileSource on a real Spark: formats, partition columns, malformed rows, watched directories."""

from __future__ import annotations

import os
import re
import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from firesteel import Environment, Session, Tumbling, Watermarks
from firesteel.common.error_report import summary_of
from firesteel.common.operator_messages import NoSplitYet
from firesteel.connectors import MALFORMED_TAG, FileSink, FileSource
from firesteel.connectors.read_options import check_read_options
from firesteel.elements import StreamStatus
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.testing import OperatorHarness
from firesteel.windows import Window
from jobmaster.paths import PathProblem, list_files
from taskexecutor.executor.analyze import analyze
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import from_ddl, to_arrow
from taskexecutor.executor.connectors.runtime import sink_runtime
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import create_operator
from tests.integration.conftest import session_conf
from tests.integration.file_splits import cut_split, read_split, split_of
from tests.long import fewer

CSV = "a,b\n1,one\nx,bad\n2,two\n3\n4,four,five\n"
JSON = '{"a":1,"b":"one"}\n{"a":"x","b":"bad"}\n{"a":2,"b":"two"}\n{nonsense\n[4]\n'
SCHEMA = "a INT, b STRING"


def reader(
    engine: SparkEngine, source: FileSource, function: Any = None, tags: tuple[str, ...] = ()
) -> OperatorHarness:
    env = Environment(parallelism=1)
    stream = env.from_source(source)
    if function is not None:
        stream = stream.transform(function)
    stream.print()
    return source_of(engine, env, tags)


def source_of(engine: SparkEngine, env: Environment, tags: tuple[str, ...] = ()) -> OperatorHarness:
    graph = env.job_graph("files")
    schemas = [operator.schema for operator in analyze(graph, engine)]
    operators = [o for o in graph.vertices[0].operators if o.runs_on_spark]
    opened = [
        OpenedOperator(o, cloudpickle.loads(o.spec), s)
        for o, s in zip(operators, schemas, strict=False)
    ]
    return OperatorHarness(
        create_operator(opened), [], spark=engine.session, side_output_tags=tags
    ).open()


def paths_of(*paths: str) -> list[str]:
    return [file.path for file in list_files(paths).files]


def read(harness: OperatorHarness, *files: Path | str) -> list[dict[str, Any]]:
    for number, file in enumerate(files):
        read_split(harness, number, split_of(file))
    return harness.rows()


@pytest.fixture
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / f"rows.{request.param}"
    path.write_text(CSV if request.param == "csv" else JSON)
    return path


def source(file: Path, malformed: Any) -> FileSource:
    header = {"header": True} if file.suffix == ".csv" else {}
    return FileSource(
        str(file), format=file.suffix[1:], schema=SCHEMA, malformed=malformed, **header
    )


@pytest.mark.parametrize("file", ["csv", "json"], indirect=True)
def test_malformed_rows_are_dropped_and_counted_whatever_columns_are_used(
    engine: SparkEngine, file: Path
) -> None:
    for columns in (["a"], ["b"], ["a", "b"]):
        harness = reader(
            engine, source(file, "drop"), lambda df, columns=columns: df.select(*columns)
        )
        good = [{"a": 1, "b": "one"}, {"a": 2, "b": "two"}]
        assert read(harness, file) == [{name: row[name] for name in columns} for row in good]
        assert dict(harness.metrics.counters)["numMalformedRecordsDropped"].value == 3
    harness = reader(engine, source(file, "drop"), lambda df: df.where("a > 1"))
    assert read(harness, file) == [{"a": 2, "b": "two"}]
    assert harness.metrics.counters["numMalformedRecordsDropped"].value == 3


@pytest.mark.parametrize("file", ["csv", "json"], indirect=True)
def test_malformed_rows_go_to_the_side_output(engine: SparkEngine, file: Path) -> None:
    harness = reader(
        engine, source(file, "side_output"), lambda df: df.select("b"), (MALFORMED_TAG,)
    )
    assert read(harness, file) == [{"b": "one"}, {"b": "two"}]
    expected = [
        text for text in file.read_text().splitlines() if text in ("x,bad", "3", "4,four,five")
    ]
    expected = expected or ['{"a":"x","b":"bad"}', "{nonsense", "[4]"]
    assert [row for batch in harness.side(MALFORMED_TAG) for row in batch.to_pylist()] == [
        {"_corrupt_record": text, "path": str(file)} for text in expected
    ]


@pytest.mark.parametrize("file", ["csv", "json"], indirect=True)
def test_a_malformed_row_fails_the_task_and_is_named(engine: SparkEngine, file: Path) -> None:
    harness = reader(engine, source(file, "fail"), lambda df: df.select("b"))
    with pytest.raises(Exception, match="malformed row") as raised:
        read(harness, file)
    assert re.search(
        rf"malformed row in {file}: .*x.* \(expected a int, b string\);"
        r" FileSource\(malformed=\"drop\"\)",
        summary_of(raised.value),
    )


@pytest.mark.parametrize("window", [Tumbling("1 hour"), Session("1 hour")], ids=str)
def test_a_malformed_event_time_is_named_with_file_row_and_option(
    engine: SparkEngine, tmp_path: Path, window: Window
) -> None:
    file = tmp_path / "times.csv"
    file.write_text("2024-03-01 09:00:00,a\nnoon,b\n")
    env = Environment(parallelism=1)
    times = env.from_source(
        FileSource(str(file), format="csv", schema="at TIMESTAMP, k STRING", watch="1 s"),
        watermarks=Watermarks.bounded("at"),
    )
    times.key_by("k").window(window).aggregate("count(*) AS n").print()
    harness = source_of(engine, env)
    with pytest.raises(FiresteelError) as raised:
        read(harness, file)
    assert re.search(
        rf"{file}: the row 'noon,b' does not fit the schema.*FileSource\(malformed=\"drop\"\)",
        str(raised.value),
    )


@pytest.mark.parametrize(
    ("format", "instead"),
    [("kafka", "KafkaSource"), ("rate", "SequenceSource"), ("Delta", "export it as parquet")],
)
def test_formats_that_are_no_files_say_what_there_is_instead(format: str, instead: str) -> None:
    with pytest.raises(InvalidProgram, match=f"format='{format}'.*{instead}"):
        FileSource("x", format=format)


GOOD, BAD = (
    st.integers(-99, 99).map(lambda n: f"{n},x"),
    st.sampled_from(["x,x", "1", "1,x,x", "1.5,x", f"{2**40},x", '"', ""]),
)


@settings(max_examples=8)
@given(
    files=st.lists(st.lists(GOOD | BAD, max_size=6), min_size=1, max_size=3),
    columns=st.sampled_from([["a"], ["b"], ["a", "b"]]),
)
def test_whatever_rows_are_malformed_none_of_the_others_is_touched(
    engine: SparkEngine, files: list[list[str]], columns: list[str]
) -> None:
    lines = [line for file in files for line in file]
    good = [
        {"a": int(line.split(",")[0]), "b": "x"}
        for line in lines
        if re.fullmatch(r"-?\d{1,2},x", line)
    ]
    bad = [
        line for line in lines if line and not re.fullmatch(r"-?\d{1,2},x", line)
    ]  # Spark's CSV has no empty lines
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.csv" for number in range(len(files))]
        for path, file in zip(paths, files, strict=True):
            path.write_text("".join(f"{line}\n" for line in file))
        for malformed in ("drop", "side_output"):
            found = FileSource(folder, format="csv", schema=SCHEMA, malformed=malformed)  # type: ignore[arg-type]
            harness = reader(
                engine,
                found,
                lambda df: df.select(*columns),
                (MALFORMED_TAG,) if malformed == "side_output" else (),
            )
            assert read(harness, *paths) == [{name: row[name] for name in columns} for row in good]
            if malformed == "side_output":
                assert [
                    row["_corrupt_record"]
                    for batch in harness.side(MALFORMED_TAG)
                    for row in batch.to_pylist()
                ] == bad
            elif bad:
                assert harness.metrics.counters["numMalformedRecordsDropped"].value == len(bad)


def test_malformed_is_checked_where_the_program_is_written(
    engine: SparkEngine, tmp_path: Path
) -> None:
    with pytest.raises(InvalidProgram, match="allowed: fail, drop, side_output"):
        FileSource("x", format="csv", malformed="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match="is for csv and json"):
        FileSource("x", format="parquet", malformed="drop")
    with pytest.raises(InvalidProgram, match="the option mode exclude each other"):
        FileSource("x", format="csv", malformed="drop", mode="FAILFAST")
    (tmp_path / "x.csv").write_text("1\n")
    with pytest.raises(FiresteelError, match="a column _corrupt_record exclude each other"):
        reader(
            engine,
            FileSource(
                f"{tmp_path}/x.csv",
                format="csv",
                malformed="drop",
                schema="a INT, _corrupt_record STRING",
            ),
        )


@pytest.mark.parametrize("root", ["{}", "{}/*/*.parquet", "{}/day=*"])
def test_folders_of_partitions_are_columns(engine: SparkEngine, tmp_path: Path, root: str) -> None:
    for day in (1, 2):
        folder = tmp_path / f"day={day}"
        folder.mkdir()
        pq.write_table(pa.table({"n": [day * 10]}), folder / "part.parquet")
    if root == "{}":
        paths = [root.format(tmp_path)]
        harness = reader(engine, FileSource(*paths, format="parquet"))
    else:
        paths = [root.format(tmp_path)]
        harness = reader(engine, FileSource(*paths, format="parquet", schema="n LONG, day INT"))
    assert read(harness, *paths_of(*paths)) == [{"n": 10, "day": 1}, {"n": 20, "day": 2}]
    second = reader(
        engine,
        FileSource(*paths, format="parquet", schema="n LONG, day INT"),
        lambda df: df.where("day = 2"),
    )
    read_split(second, 0, split_of(*paths_of(*paths)))
    assert second.rows() == [{"n": 20, "day": 2}], "though the plan was made for day 1"


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize("malformed", [None, "drop"])
@pytest.mark.parametrize("schema", ["day INT, n LONG, word STRING", "n LONG, word STRING"])
def test_the_columns_of_folders_are_where_they_are_declared(
    engine: SparkEngine, tmp_path: Path, format: str, malformed: Any, schema: str
) -> None:
    for day in (1, 2):
        folder = tmp_path / f"day={day}"
        folder.mkdir()
        text = f"{day * 10},a\n" if format == "csv" else f'{{"n": {day * 10}, "word": "a"}}\n'
        (folder / f"part.{format}").write_text(text)
    source = FileSource(str(tmp_path), format=format, schema=schema, malformed=malformed)
    names = [column.split()[0] for column in schema.split(", ")]
    expected = [
        {name: {"n": day * 10, "word": "a", "day": day}[name] for name in names} for day in (1, 2)
    ]
    for function in (None, lambda df: df.where("n > 0")):
        found = read(reader(engine, source, function), *paths_of(str(tmp_path)))
        assert found == expected
        assert list(found[0]) == names


@pytest.mark.parametrize("options", [{}, {"malformed": "drop"}, {"basePath": None}], ids=str)
def test_folders_with_unused_columns_may_be_of_any_type(
    engine: SparkEngine, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Spark takes the first one for an integer, and all together for texts."""
    for number, folder in enumerate(["_k=1", "_k=9999999999", "_k=a%2Fb", "_k=1.5"]):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part.csv").write_text(f"{number}\n")
    if "basePath" in options:
        options = {"basePath": str(tmp_path)}
    source = FileSource(str(tmp_path), format="csv", schema="n LONG", **options)
    for function in (None, lambda df: df.where("rand() < 2")):
        harness = reader(engine, source, function)
        assert sorted(row["n"] for row in read(harness, *paths_of(str(tmp_path)))) == [0, 1, 2, 3]


def test_a_schema_that_would_not_be_read_as_it_is_declared_is_refused(
    engine: SparkEngine, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text("1,1\n")
    days = FileSource(str(tmp_path), format="csv", schema="n LONG, d INTERVAL DAY")
    with pytest.raises(FiresteelError, match=r"'d' is interval day.* read as interval day to sec"):
        reader(engine, days)
    by_number = StructType([StructField("n", LongType(), True, {"parquet.field.id": 1})])
    pq.write_table(pa.table({"n": [1]}), tmp_path / "x.parquet")
    numbered = FileSource(str(tmp_path / "x.parquet"), format="parquet", schema=by_number)
    assert len(read(reader(engine, numbered), tmp_path / "x.parquet")) == 1
    setting = "spark.sql.parquet.fieldId.read.enabled"
    message = f"{setting} is set, but columns are read by"
    with session_conf(engine, {setting: "true"}), pytest.raises(FiresteelError, match=message):
        reader(engine, numbered)


def test_a_hidden_file_is_read_if_it_is_named(engine: SparkEngine, tmp_path: Path) -> None:
    """Spark itself would leave it out without a word."""
    path = tmp_path / "_x.csv"
    path.write_text("1\n2\n")
    for pattern in (str(path), f"{tmp_path}/_*.csv"):
        source = FileSource(pattern, format="csv", schema="n LONG")
        for function in (None, lambda df: df.where("true"), lambda df: df.where("rand() < 2")):
            found = read(reader(engine, source, function), *paths_of(pattern))
            assert [row["n"] for row in found] == [1, 2]


def test_every_row_of_a_csv_file_with_one_column_is_there_to_spark(
    engine: SparkEngine, tmp_path: Path
) -> None:
    """Also nulls, alone in their lines."""
    for number, kind in enumerate(("LONG", "STRING", "DATE", "TIMESTAMP", "DOUBLE")):
        schema = to_arrow(from_ddl(f"a {kind}"))
        path = tmp_path / str(number)
        harness = OperatorHarness(
            sink_runtime(FileSink(str(path), format="csv")).operator(), [schema]
        ).open()
        for values in ([1], [None, 2, None], [3]):
            column = pa.array(values, pa.int32())
            column = column.cast(pa.int64()) if kind.startswith("TIME") else column
            harness.process(pa.record_batch([column.cast(schema.field("a").type)], schema=schema))
        harness.end()
        read = engine.session.read.csv(str(path), header=True, schema=f"a {kind}").toArrow()
        valid = [row["a"] not in (None, "") for row in read.to_pylist()]
        assert valid == [True, False, True, False, True], kind


# The types that each format stores, as Spark itself writes them. `INSIDE` also has nested types.
FLAT = "n INT, wide DECIMAL(20,3), real DOUBLE, word STRING, day DATE, at TIMESTAMP"
INSIDE = (
    "bits BINARY, local TIMESTAMP_NTZ, list ARRAY<INT>, "
    "inner STRUCT<a: STRING, b: ARRAY<DECIMAL(5,2)>>, by MAP<STRING, LONG>"
)
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "parquet": (f"{FLAT}, {INSIDE}", {}),
    "orc": (f"{FLAT}, {INSIDE}", {}),
    "json": (f"{FLAT}, {INSIDE}", {"compression": "gzip"}),
    "csv": (FLAT, {"header": True, "sep": "\t", "nullValue": "-"}),
    "xml": (FLAT, {"rowTag": "row", "nullValue": "-"}),
    "text": ("value STRING", {}),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-(2**31), 2**31 - 1),
    "wide": st.integers(-(10**19), 10**19).map(lambda n: Decimal(n).scaleb(-3)),
    "real": st.floats(-1e9, 1e9).map(lambda x: x + 0.0),
    "word": st.text(
        st.characters(min_codepoint=65, max_codepoint=0x17F, categories=["L"]),
        min_size=1,
        max_size=5,
    ),
    "value": st.text("abc ", min_size=1, max_size=5),
    "day": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    "at": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    "bits": st.binary(max_size=4),
    "local": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),
    "list": st.lists(st.none() | st.integers(-9, 9), max_size=3),
    "inner": st.fixed_dictionaries(
        {
            "a": st.none() | st.text("xyz", max_size=3),
            "b": st.lists(st.integers(0, 99).map(Decimal), max_size=2),
        }
    ),
    "by": st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(), max_size=2).map(
        lambda found: {key: value % 2**40 for key, value in found.items()}
    ),
}


def test_a_range_without_bytes_has_no_rows(engine: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    for function in (lambda df: df.where("true"), lambda df: df.where("rand() < 2")):
        source = FileSource(str(tmp_path / "lines"), format="text", schema="value STRING")
        harness = reader(engine, source, function)
        for number, cuts in enumerate([(0, 0, 4, 4), (0,)]):
            split = cut_split(tmp_path / "lines", *cuts)
            read_split(harness, number, split)
        assert [row["value"] for row in harness.rows()] == ["a", "b", "a", "b"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=5)
@given(data=st.data())
def test_every_format_gives_what_spark_read_gives(
    engine: SparkEngine, name: str, data: st.DataObject
) -> None:
    """Files that Spark writes from any rows: their rows, one file after the other, or range by
    range, are those that Spark reads from all files together.
    """
    schema, options = FORMATS[name]
    fields = {column: VALUES[column] for column in from_ddl(schema).names}
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries({c: st.none() | v for c, v in fields.items()}),
            min_size=1,
            max_size=6,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        written = engine.session.createDataFrame(rows, schema).repartition(
            data.draw(st.integers(1, 3))
        )
        if name == "text":
            written = written.where("value IS NOT NULL")
        written.write.format(name).options(**options).save(f"{folder}/rows")
        read_options = {key: value for key, value in options.items() if key != "compression"}
        expected = (
            engine.session.read.format(name)
            .schema(schema)
            .options(**read_options)
            .load(f"{folder}/rows")
            .toArrow()
        )
        found = FileSource(f"{folder}/rows", format=name, schema=schema, **read_options)
        files = paths_of(f"{folder}/rows") if any(Path(f"{folder}/rows").glob("part-*")) else []
        harness = reader(engine, found, lambda df: df.where("true"))
        for number, file in enumerate(files):
            cuts: list[int] = []
            if found.can_be_cut and not file.endswith(".gz"):
                cuts = sorted(
                    data.draw(st.lists(st.integers(0, os.path.getsize(file)), max_size=3))
                )
            read_split(harness, number, cut_split(file, *cuts))
        assert sorted(map(repr, harness.rows())) == sorted(map(repr, expected.to_pylist()))


WRITTEN_CSV = {
    "header": True,
    "escape": '"',
    "multiLine": True,
    "nanValue": "nan",
    "positiveInf": "inf",
    "negativeInf": "-inf",
}


@pytest.mark.parametrize("name", ["parquet", "csv", "json"])
@settings(max_examples=fewer(15))
@given(data=st.data())
def test_what_a_file_sink_writes_spark_reads(
    engine: SparkEngine, name: str, data: st.DataObject
) -> None:
    schema = from_ddl(FORMATS[name][0])
    values = {
        **VALUES,
        "real": st.floats(),
        "word": st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1),
    }
    if (
        name != "csv"
    ):  # what is Spark's: it takes an empty text for null, and white space around a text away
        values["word"] = st.text("a \t\n\r\"',:\\\0é😀", max_size=5)
    row = st.fixed_dictionaries({column: st.none() | values[column] for column in schema.names})
    batches = [
        pa.RecordBatch.from_pylist(rows, schema=to_arrow(schema))
        for rows in data.draw(st.lists(st.lists(row, max_size=4), max_size=4))
    ]
    with tempfile.TemporaryDirectory() as folder:
        sink = FileSink(folder, format=name, rolling_size=data.draw(st.sampled_from([None, 100])))
        harness = OperatorHarness(sink_runtime(sink).operator(), [to_arrow(schema)]).open()
        for batch in batches:
            harness.process(batch)
        harness.end()
        found = (
            engine.session.read.format(name)
            .schema(schema)
            .options(**WRITTEN_CSV if name == "csv" else {})
            .load(folder)
        )
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert sorted(map(repr, found.toArrow().to_pylist())) == sorted(map(repr, rows))


@pytest.mark.parametrize("malformed", [None, "drop"])
def test_a_name_that_looks_like_a_glob_is_one_file(
    engine: SparkEngine, tmp_path: Path, malformed: Any
) -> None:
    names = [
        "x[1].csv",
        "{a,b}.csv",
        "q?.csv",
        "st*r.csv",
        "100%20.csv",
        "two words.csv",
        "back\\slash.csv",
        "ü.csv",
    ]
    for number, name in enumerate([*names, "x1.csv", "a.csv", "qq.csv", "star.csv"]):
        (tmp_path / name).write_text(f"{number}\n")
    for number, name in enumerate(names):
        path = str(tmp_path / name)
        assert paths_of(path) == [path]
        harness = reader(
            engine, FileSource(path, format="csv", schema="n INT", malformed=malformed)
        )
        read_split(harness, 0, split_of(path))
        assert harness.rows() == [{"n": number}], name
        inferred = reader(engine, FileSource(path, format="csv"))
        read_split(inferred, 0, split_of(path))
        assert inferred.rows() == [{"_c0": number}], name


def test_a_name_that_spark_cannot_open_is_found_before_data_flows(tmp_path: Path) -> None:
    (tmp_path / "12:30.csv").write_text("1\n")
    with pytest.raises(PathProblem, match="Spark cannot open '.*/12:30.csv', because of the colon"):
        list_files([str(tmp_path)])


def test_paths_may_be_uris_and_formats_in_capitals(engine: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1\n")
    for path in (f"file://{tmp_path}", f"file://{tmp_path}/*.csv", f"file://{tmp_path}/x.csv"):
        assert read(reader(engine, FileSource(path, format="CSV")), *paths_of(path)) == [{"_c0": 1}]


def test_a_schema_may_be_of_spark_or_of_arrow(engine: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1\n")
    for schema in (StructType([StructField("n", LongType())]), pa.schema([("n", pa.int64())])):
        assert read(
            reader(engine, FileSource(str(tmp_path), format="csv", schema=schema)),
            tmp_path / "x.csv",
        ) == [{"n": 1}]
    with pytest.raises(
        FiresteelError, match="a DDL string, a StructType or a pyarrow.Schema, not dict"
    ):
        reader(engine, FileSource(str(tmp_path), format="csv", schema={"n": "INT"}))  # type: ignore[arg-type]


def test_what_cannot_be_read_is_named_with_its_file(engine: SparkEngine, tmp_path: Path) -> None:
    good, bad, other = tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "c.parquet"
    pq.write_table(pa.table({"n": [1]}), good)
    bad.write_text("nonsense")
    pq.write_table(pa.table({"n": ["one"]}), other)
    for file, reason in (
        (bad, f"file:{bad} is not a Parquet file"),
        (other, "Expected Spark type bigint, actual Parquet type"),
    ):
        harness = reader(
            engine, FileSource(str(good), str(file), format="parquet", schema="n LONG")
        )
        with pytest.raises(Exception, match=r"\S") as raised:
            read(harness, file)
        assert str(file) in summary_of(raised.value)
        assert reason in summary_of(raised.value)
    for name, reason in (
        ("avro", "external data source module"),
        ("nonsense", "Failed to find the data source: nonsense"),
    ):
        with pytest.raises(FiresteelError, match=reason):
            reader(engine, FileSource(str(good), format=name))


def test_schemas_that_cannot_be_inferred_name_the_column_and_what_to_do(
    engine: SparkEngine, tmp_path: Path
) -> None:
    one, other, times = tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "c.parquet"
    pq.write_table(pa.table({"n": pa.array([1], pa.int32())}), one)
    pq.write_table(pa.table({"n": pa.array([2], pa.int64())}), other)
    pq.write_table(pa.table({"n": [3], "t": pa.array([1], pa.timestamp("ns"))}), times)
    both = f"{tmp_path}/{{a,b}}.parquet"
    with pytest.raises(FiresteelError) as raised:
        reader(engine, FileSource(both, format="parquet", mergeSchema=True))
    assert '"STRUCT<n: BIGINT>"' in str(raised.value)
    assert f"Column 'n' is int32 in {one} and int64 in {other}" in str(raised.value)
    harness = reader(engine, FileSource(both, format="parquet", schema="n BIGINT"))
    assert read(harness, one, other) == [{"n": 1}, {"n": 2}], "as the advice says"
    with pytest.raises(FiresteelError, match=r"Column 't' of .*c.parquet is timestamp\[ns\]"):
        reader(engine, FileSource(str(times), format="parquet"))
    harness = reader(engine, FileSource(str(times), format="parquet", schema="n LONG, t LONG"))
    assert read(harness, times) == [{"n": 3, "t": 1}]
    pq.write_table(pa.table({"t": pa.array([1], pa.time64("us"))}), tmp_path / "d.parquet")
    with pytest.raises(FiresteelError, match="column 't' is TIME"):
        reader(engine, FileSource(str(tmp_path / "d.parquet"), format="parquet"))


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_files_without_bytes_have_no_rows(engine: SparkEngine, tmp_path: Path, format: str) -> None:
    """As for Spark; a named pipe beside them is not opened."""
    write = pq.write_table if format == "parquet" else pa_orc.write_table
    paths = [tmp_path / f"{name}.{format}" for name in "abc"]
    paths[0].touch()
    write(pa.table({"n": [1]}), paths[1])
    paths[2].touch()
    os.mkfifo(tmp_path / f"0.{format}")
    harness = reader(engine, FileSource(str(tmp_path), format=format))
    read_split(harness, 0, split_of(*paths))
    assert harness.rows() == [{"n": 1}]


@pytest.mark.parametrize("format", ["csv", "json", "text", "xml"])
def test_special_files_are_not_opened_when_a_schema_is_inferred(
    engine: SparkEngine, tmp_path: Path, format: str
) -> None:
    os.mkfifo(tmp_path / "a")
    texts = {"xml": "<r><n>1</n></r>\n", "json": '{"n": 1}\n'}
    (tmp_path / "b").write_text(texts.get(format, "1\n"))
    (tmp_path / "c").symlink_to("/nowhere")
    options = {"rowTag": "r"} if format == "xml" else {}
    harness = reader(engine, FileSource(f"{tmp_path}/*", format=format, **options))
    read_split(harness, 0, split_of(tmp_path / "b"))
    assert len(harness.rows()) == 1
    with pytest.raises(FiresteelError, match="is a named pipe"):
        reader(engine, FileSource(f"{tmp_path}/a", format=format, **options))


def test_the_options_that_spark_knows_are_known(engine: SparkEngine) -> None:
    """Others are refused: Spark would ignore them."""
    jvm: Any = engine.session._jvm
    package = "org.apache.spark.sql"
    for name, kind in {
        "csv": f"{package}.catalyst.csv.CSVOptions",
        "json": f"{package}.catalyst.json.JSONOptions",
        "xml": f"{package}.catalyst.xml.XmlOptions",
        "text": f"{package}.execution.datasources.text.TextOptions",
        "parquet": f"{package}.execution.datasources.parquet.ParquetOptions",
        "orc": f"{package}.execution.datasources.orc.OrcOptions",
    }.items():
        options = jvm.java.lang.Class.forName(f"{kind}$").getField("MODULE$").get(None)
        known = options.getAllOptions().mkString(" ").split()
        check_read_options(name, known)
    with pytest.raises(InvalidProgram, match="csv has no option 'seperator'"):
        FileSource("x.csv", format="CSV", HEADER=True, seperator=";")


def test_other_formats_of_spark_read(engine: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("one\ntwo\n")
    assert read(reader(engine, FileSource(f"{tmp_path}/x.txt", format="text")), tmp_path / "x.txt")[
        1
    ] == {"value": "two"}
    pa_orc.write_table(pa.table({"n": [1]}), tmp_path / "x.orc")
    assert read(
        reader(engine, FileSource(f"{tmp_path}/x.orc", format="orc")), tmp_path / "x.orc"
    ) == [{"n": 1}]
    (tmp_path / "x.xml").write_text("<all><row><n>1</n></row><row><n>2</n></row></all>")
    xml = FileSource(f"{tmp_path}/x.xml", format="xml", rowTag="row", schema="n INT")
    assert read(reader(engine, xml), tmp_path / "x.xml") == [{"n": 1}, {"n": 2}]
    (found,) = read(
        reader(engine, FileSource(f"{tmp_path}/x.txt", format="binaryFile")), tmp_path / "x.txt"
    )
    assert found["content"] == b"one\ntwo\n"


def test_a_watched_source_needs_a_schema_or_files_and_idles_in_between(
    engine: SparkEngine, tmp_path: Path
) -> None:
    with pytest.raises(FiresteelError, match="no files yet to infer the schema from"):
        reader(engine, FileSource(str(tmp_path), format="json", watch="1 s"))
    harness = reader(engine, FileSource(str(tmp_path), format="json", schema=SCHEMA, watch="1 s"))
    assert harness.poll()
    assert harness._main.elements == [], "the enumerator has not answered"
    harness.deliver(NoSplitYet())
    assert harness.poll()
    assert harness._main.elements == [StreamStatus(True)]
    (tmp_path / "x.json").write_text('{"a": 1}\n')
    assert read(harness, tmp_path / "x.json") == [{"a": 1, "b": None}]
    assert harness._main.elements[1] == StreamStatus(False), "before it is read"
    harness.deliver(NoSplitYet())
    assert harness.poll()
    assert harness._main.elements[-1] == StreamStatus(True)
    with pytest.raises(InvalidProgram, match="watch is '0 s'"):
        FileSource(str(tmp_path), format="json", watch="0 s")
    assert os.listdir(tmp_path)

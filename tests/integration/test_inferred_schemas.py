"""The schema of Parquet files without one: what Spark infers, whatever is in the folder, and where
one footer contains it, without a job.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firesteel.common.error_report import summary_of
from firesteel.connectors import FileSource
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers.schema_inference import inferred_schema
from tests.integration.conftest import session_conf

ROWS = pa.table({"n": pa.array([1], pa.int64()), "s": ["a"]})
OTHER = pa.table({"n": pa.array([1], pa.int32()), "z": [1.5]})


def write(path: Path, table: pa.Table = ROWS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def files_that_differ(folder: Path) -> None:
    write(folder / "b.parquet", OTHER)
    write(folder / "a.parquet")
    write(folder / "c.parquet", OTHER)


def all_types(folder: Path) -> None:
    kinds: dict[str, tuple[Any, pa.DataType]] = {
        "b": (1, pa.int8()),
        "u": (1, pa.uint32()),
        "d": ("1.5", pa.decimal128(20, 3)),
        "t": (1, pa.timestamp("us", "UTC")),
        "l": (1, pa.timestamp("us")),
        "ms": (1, pa.timestamp("ms")),
        "x": (b"a", pa.binary()),
        "day": (1, pa.date32()),
        "i": ([[1]], pa.list_(pa.list_(pa.int32()))),
        "m": ([("a", 1)], pa.map_(pa.string(), pa.int16())),
        "p": ({"a": 1, "b": "x"}, pa.struct([("a", pa.int64()), ("b", pa.string())])),
    }
    table = {
        name: pa.array([value], pa.string()).cast(kind)
        if pa.types.is_decimal(kind)
        else pa.array([value], kind)
        for name, (value, kind) in kinds.items()
    }
    write(folder / "a.parquet", pa.table(table))


def no_nulls(folder: Path) -> None:
    schema = pa.schema(
        [
            pa.field("n", pa.int64(), nullable=False),
            pa.field("p", pa.struct([pa.field("a", pa.int32(), nullable=False)]), nullable=False),
            pa.field("i", pa.list_(pa.field("element", pa.int32(), nullable=False))),
        ]
    )
    rows = [{"n": 1, "p": {"a": 1}, "i": [1]}]
    write(folder / "a.parquet", pa.Table.from_pylist(rows, schema))


def folders_of_partitions(folder: Path) -> None:
    write(folder / "day=2024-01-02" / "k=1" / "a.parquet")
    write(folder / "day=2024-01-01" / "k=x" / "b.parquet")


def a_folder_s_column_in_the_files(folder: Path) -> None:
    write(folder / "n=1" / "a.parquet")


def a_summary(folder: Path) -> None:
    write(folder / "a.parquet")
    write(folder / "_metadata", OTHER)


def two_summaries(folder: Path) -> None:
    a_summary(folder)
    write(folder / "_common_metadata", pa.table({"c": [1]}))


def hidden_files(folder: Path) -> None:
    write(folder / "_a.parquet", OTHER)
    write(folder / ".b.parquet", OTHER)
    (folder / "_SUCCESS").touch()
    write(folder / "c.parquet")


def an_empty_file_of_rows(folder: Path) -> None:
    write(folder / "a.parquet", ROWS.schema.empty_table())


def names_that_differ_in_case(folder: Path) -> None:
    write(folder / "a.parquet", pa.table({"n": [1], "N": [2]}))


def no_files(folder: Path) -> None:
    folder.mkdir()


def a_damaged_file(folder: Path) -> None:
    write(folder / "b.parquet")
    (folder / "a.parquet").write_bytes(b"PAR1 nothing PAR1")


def another_format(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.parquet").write_text("text")


def no_columns(folder: Path) -> None:
    write(folder / "a.parquet", pa.table({}))


@pytest.mark.parametrize(
    "written",
    [
        files_that_differ,
        all_types,
        no_nulls,
        folders_of_partitions,
        a_summary,
        two_summaries,
        hidden_files,
        an_empty_file_of_rows,
    ],
)
def test_a_footer_has_the_schema_without_a_job(
    engine: SparkEngine, tmp_path: Path, written: Callable[[Path], None]
) -> None:
    written(tmp_path / "data")
    before = jobs(engine)
    ours = found(engine, tmp_path / "data")
    assert jobs(engine) == before
    assert ours == of_spark(engine, tmp_path / "data")
    assert jobs(engine) > before


@pytest.mark.parametrize(
    "written",
    [
        a_folder_s_column_in_the_files,
        names_that_differ_in_case,
        no_files,
        a_damaged_file,
        another_format,
        no_columns,
    ],
)
def test_what_a_footer_does_not_tell_spark_says(
    engine: SparkEngine, tmp_path: Path, written: Callable[[Path], None]
) -> None:
    written(tmp_path / "data")
    assert found(engine, tmp_path / "data") == of_spark(engine, tmp_path / "data")


def test_what_spark_has_written(engine: SparkEngine, tmp_path: Path) -> None:
    """The footer contains Spark's schema, with comments and types that Parquet does not have."""
    rows = engine.session.sql(
        "SELECT id, named_struct('a', id) AS p, CAST(id AS BYTE) AS b,"
        " CAST('x' AS VARCHAR(5)) AS v, INTERVAL '1' DAY AS i FROM range(3)"
    )
    with_comment = rows.withMetadata("id", {"comment": "the number"})
    with_comment.coalesce(1).write.parquet(str(tmp_path / "data"))
    before = jobs(engine)
    ours = found(engine, tmp_path / "data")
    assert jobs(engine) == before
    assert ours == of_spark(engine, tmp_path / "data")
    assert "the number" in ours


@pytest.mark.parametrize(
    "options",
    [
        {"mergeSchema": "true"},
        {"MERGESCHEMA": "false"},
        {"recursiveFileLookup": "true"},
        {"pathGlobFilter": "b*"},
        {"basePath": ""},
        {"ignoreCorruptFiles": "true"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options(engine: SparkEngine, tmp_path: Path, options: dict[str, str]) -> None:
    folders_of_partitions(tmp_path / "data")
    write(tmp_path / "data" / "day=2024-01-02" / "k=1" / "b.parquet", OTHER)
    assert found(engine, tmp_path / "data", **options) == of_spark(
        engine, tmp_path / "data", **options
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.parquet.binaryAsString", "true"),
        ("spark.sql.parquet.inferTimestampNTZ.enabled", "false"),
        ("spark.sql.parquet.mergeSchema", "true"),
        ("spark.sql.files.ignoreCorruptFiles", "true"),
        ("spark.sql.sources.partitionColumnTypeInference.enabled", "false"),
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.sources.useV1SourceList", ""),
    ],
)
def test_settings(engine: SparkEngine, tmp_path: Path, setting: str, value: str) -> None:
    all_types(tmp_path / "data" / "k=1")
    write(tmp_path / "data" / "k=1" / "c.parquet", pa.table({"n": [1], "N": [2]}))
    (tmp_path / "data" / "k=1" / "0.parquet").write_text("damaged")
    with session_conf(engine, {setting: value}):
        for name in ("data/k=1/0.parquet", "data/k=1/a.parquet", "data/k=1/c.parquet", "data"):
            assert found(engine, tmp_path / name) == of_spark(engine, tmp_path / name)


def found(engine: SparkEngine, path: Path, **options: str) -> str:
    source = FileSource(str(path), format="parquet", **given(path, options))
    return said(lambda: inferred_schema(engine, source, [str(path)]).json())


def of_spark(engine: SparkEngine, path: Path, **options: str) -> str:
    reader = engine.session.read.options(**given(path, options))
    return said(lambda: reader.parquet(str(path)).schema.json())


def given(path: Path, options: dict[str, str]) -> dict[str, str]:
    return {name: value or str(path) for name, value in options.items()}


def said(schema: Callable[[], str]) -> str:
    try:
        return schema()
    except Exception as error:
        return re.sub(r"\d+", "N", summary_of(error))  # of stages and tasks


def jobs(engine: SparkEngine) -> int:
    context: Any = engine.session.sparkContext
    return int(context._jsc.sc().dagScheduler().numTotalJobs())

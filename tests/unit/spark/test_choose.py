"""The choice of readers and computation, from facts alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from firesteel.connectors import FileSource
from taskexecutor.executor.columnar import choose

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.date32())])
SETTINGS = {
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.columnNameOfCorruptRecord": "_corrupt_record",
    "spark.sql.files.ignoreCorruptFiles": "false",
}


@dataclass
class Slot:
    cores: int = 1
    is_local: bool = True
    settings: dict[str, str] = field(default_factory=dict)

    def setting(self, name: str) -> str:
        return {**SETTINGS, **self.settings}[name]


def source(format: str = "csv", **options: str) -> FileSource:
    return FileSource("/data", format=format, schema="n LONG", **options)  # type: ignore[arg-type]


def reason(
    given: FileSource,
    slot: Slot | None = None,
    schema: pa.Schema = SCHEMA,
    folder_columns: tuple[str, ...] = (),
) -> str:
    return choose.arrow_reads(given, schema, folder_columns, slot or Slot())


def test_arrow_reads_plain_csv_and_parquet() -> None:
    assert reason(source(sep="|", header="true", nullValue="-")) == ""
    assert reason(source("parquet", mergeSchema="true")) == ""
    assert reason(source(), folder_columns=("day",)) == ""


@pytest.mark.parametrize(
    ("given", "slot", "schema", "why"),
    [
        (source("json"), Slot(), SCHEMA, "Arrow does not read json"),
        (source(), Slot(cores=2), SCHEMA, "a Spark job uses more cores"),
        (source(), Slot(is_local=False), SCHEMA, "a Spark job uses more cores"),
        (source(), Slot(), pa.schema([("n", "i8"), ("N", "i8")]), "two columns have one name"),
        (source(comment="#"), Slot(), SCHEMA, "the option comment"),
        (
            source("parquet"),
            Slot(),
            pa.schema([("n", "i8"), ("_metadata", pa.struct([("file_path", pa.string())]))]),
            "the column _metadata may be Spark's",
        ),
        (source(mode="FAILFAST"), Slot(), SCHEMA, "the option mode is 'FAILFAST'"),
        (source(), Slot(), pa.schema([("b", pa.binary())]), "column 'b' is binary"),
        (
            source(),
            Slot(settings={"spark.sql.legacy.timeParserPolicy": "legacy"}),
            SCHEMA,
            "spark.sql.legacy.timeParserPolicy is LEGACY",
        ),
        (
            source(),
            Slot(),
            pa.schema([("_corrupt_record", pa.string())]),
            "malformed rows are returned in a column",
        ),
        (
            source("parquet", datetimeRebaseMode="LEGACY"),
            Slot(),
            SCHEMA,
            "the option datetimeRebaseMode",
        ),
        (
            source("parquet"),
            Slot(settings={"spark.sql.files.ignoreCorruptFiles": "true"}),
            SCHEMA,
            "spark.sql.files.ignoreCorruptFiles skips unreadable files",
        ),
    ],
)
def test_spark_reads_what_arrow_may_read_differently(
    given: FileSource, slot: Slot, schema: pa.Schema, why: str
) -> None:
    assert reason(given, slot, schema) == why


def test_folders_may_only_give_plain_columns_of_the_schema() -> None:
    assert reason(source(), folder_columns=("hour",)) == "folders give the column hour"


def test_a_cached_scan_reads_any_file_on_one_core() -> None:
    assert choose.scan_is_cached(source("json"), Slot()) == ""
    assert choose.scan_is_cached(source(), Slot(cores=2)) == "a Spark job uses more cores"
    chosen = source(pathGlobFilter="*.csv")
    assert choose.spark_lists_files(chosen) == ["pathglobfilter"]
    assert "pathglobfilter chooses among files" in choose.scan_is_cached(chosen, Slot())


def test_large_bundles_need_a_job() -> None:
    most = choose.BUNDLE_ROWS
    assert choose.fits_one_task(most + 1, 0, 1, whole=False) == ""
    assert choose.fits_one_task(most, 0, 2, whole=False) == ""
    assert choose.fits_one_task(most + 1, 0, 2, whole=False) == "a Spark job uses more cores"
    assert choose.fits_one_task(1, choose.WHOLE_BYTES + 1, 1, whole=False) == ""
    assert "only a job can spill" in choose.fits_one_task(1, choose.WHOLE_BYTES + 1, 1, whole=True)


def test_rows_pass_as_columns_if_the_jvm_supports_all_types() -> None:
    assert choose.columns_pass(SCHEMA, enter=True) == ""
    assert "from Arrow" in choose.columns_pass(SCHEMA, enter=False)
    assert "to Arrow" in choose.columns_pass(SCHEMA, enter=True, leave=False)
    twice = pa.schema([("n", pa.int64()), ("N", pa.int64())])
    assert choose.columns_pass(twice, enter=True) == "two columns have one name"
    assert choose.source_columns(enter=True) == ""
    assert "name of a row's file" in choose.source_columns(enter=True, asks_for_file=True)


def test_spark_groups_numbers_unless_they_are_columns_of_the_source() -> None:
    assert choose.grouped_outside(numbers=False, leave=True) == ""
    assert choose.grouped_outside(numbers=True, leave=True, unchanged=True) == ""
    assert choose.grouped_outside(numbers=True, leave=True) == "Spark aggregates numbers as fast"
    assert choose.grouped_outside(numbers=False, leave=False)
    assert choose.computed_by(spark=False, grouped=True) == choose.GROUPING
    assert choose.computed_by(spark=False, grouped=False) == choose.SELECTION

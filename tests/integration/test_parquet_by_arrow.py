"""Parquet that Arrow reads: the rows are Spark's, whatever is in the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from firesteel import Environment, Watermarks
from firesteel.common.task_metrics import Choice
from firesteel.connectors import FileSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans.wanted_rows import wanted_rows
from taskexecutor.executor.columnar.columns import distinct
from taskexecutor.executor.columnar.columns.rows import frame as leaf_of
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers import parquet_groups
from taskexecutor.executor.columnar.readers.parquet_groups import ParquetGroups
from taskexecutor.executor.columnar.readers.pieces import Columns, ForSpark, Piece, Rows, Wanted
from taskexecutor.executor.columnar.schemas import from_ddl, to_arrow, to_spark
from taskexecutor.executor.timing import bundle_time
from tests.integration.conftest import session_conf
from tests.integration.file_splits import cut_split, parts_of
from tests.integration.test_csv_by_arrow import by_arrow, by_spark
from tests.integration.test_file_ranges import check
from tests.integration.test_file_source import read, reader, source_of
from tests.long import fewer

DDL = (
    "b BYTE, h SHORT, i INT, n LONG, f FLOAT, d DOUBLE, o BOOLEAN, s STRING, x BINARY, day DATE,"
    " t TIMESTAMP, l TIMESTAMP_NTZ, p DECIMAL(5,2), q DECIMAL(18,3), r DECIMAL(38,10)"
)


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-scale))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "b": _integers(8),
    "h": _integers(16),
    "i": _integers(32),
    "n": _integers(64),
    "f": st.floats(width=32),
    "d": st.floats(),
    "o": st.booleans(),
    "s": st.one_of(st.sampled_from(["", "a", "é\0", "a" * 90]), st.text(max_size=9)),
    "x": st.binary(max_size=9),
    "day": st.dates(),
    "t": st.datetimes(timezones=st.just(UTC)),
    "l": st.datetimes(),
    "p": st.integers(-99999, 99999).map(lambda n: Decimal(n).scaleb(-2)),
    "q": _decimals(18, 3),
    "r": st.integers(-(10**27), 10**27).map(lambda n: Decimal(n).scaleb(-10)),
}


@st.composite
def tables(draw: st.DrawFn, schema: pa.Schema) -> pa.Table:
    """Few different values, so that there are dictionaries, and stretches of nulls."""
    size = draw(st.integers(0, 60))
    columns = []
    for field in schema:
        values = draw(st.lists(VALUES[field.name], min_size=1, max_size=6))
        places = draw(
            st.one_of(
                st.just([None] * size),
                st.just([at % len(values) for at in range(size)]),
                st.lists(
                    st.one_of(st.none(), st.integers(0, len(values) - 1)),
                    min_size=size,
                    max_size=size,
                ),
            )
        )
        columns.append(pa.array([None if p is None else values[p] for p in places], field.type))
    return pa.table(columns, schema=schema)


WRITING = st.fixed_dictionaries(
    {
        "row_group_size": st.integers(1, 80),
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd"]),
        "use_dictionary": st.booleans(),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([10, 2**20]),
        "dictionary_pagesize_limit": st.sampled_from([16, 2**20]),
        "store_schema": st.booleans(),
        "store_decimal_as_integer": st.booleans(),
        "write_page_index": st.booleans(),
    }
)
FUNCTIONS: dict[str, Callable[[Any], Any] | None] = {
    "nothing": None,
    "choosing": lambda df: df.select("s", "n", "t", df.d.alias("e")),
    "conditions": lambda df: df.where("n % 2 = 0 OR s IS NULL").withColumn("m", df.p + 1),
    "texts": lambda df: df.selectExpr("n", "s", "upper(s) AS u", "hex(x) AS h").where("u > 'A'"),
    "none of the columns": lambda df: df.selectExpr("1 AS one"),
}


class Both:
    """Two readers of one source; Spark reads all files of the second one."""

    def __init__(
        self,
        engine: SparkEngine,
        path: Path,
        function: Any = None,
        schema: str = DDL,
        *,
        times: bool = True,
    ) -> None:
        self.path = path
        path.touch()
        self.harnesses = []
        for _ in range(2):
            env = Environment(parallelism=1)
            files = FileSource(str(path), format="parquet", schema=schema)
            watermarks = Watermarks.bounded("t", max_out_of_orderness="1 s")
            timed = times and " t TIME" in schema
            stream = env.from_source(files, watermarks=watermarks if timed else None)
            if function is not None:
                stream = stream.transform(function)
            stream.print()
            self.harnesses.append(source_of(engine, env))
        by_spark(self.harnesses[1])

    def rows(self, *cuts: int, counted: bool = True) -> int:
        """After a check that both read the same of the file: how many rows Arrow has read.
        `counted`: and both have seen as many rows.
        """
        split = cut_split(
            self.path, *sorted({at for at in cuts if at < os.stat(self.path).st_size})
        )
        found, arrow = [], by_arrow(self.harnesses[0])
        for harness in self.harnesses:
            before = len(harness.batches)
            check(harness, split)
            rows = [row for batch in harness.batches[before:] for row in batch.to_pylist()]
            read = harness.metrics.counters["numRecordsIn"].value if counted else 0
            found.append((repr(rows), read, list(harness.watermarks_us)))
        assert found[0] == found[1]
        return by_arrow(self.harnesses[0]) - arrow

    @property
    def reader(self) -> str:
        """Returns the reader as `show --full` names it."""
        choice = self.harnesses[0].metrics.plan_counts.choice
        assert choice is not None
        return choice.reason


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_file_cut_anywhere_is_read_as_by_spark(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    both = Both(engine, tmp_path / "x.parquet", FUNCTIONS[name])
    monkeypatch.setattr(parquet_groups, "_BATCH_ROWS", 7)
    monkeypatch.setattr(bundle_time, "MOST_BYTES", 1000)
    monkeypatch.setattr(parquet_groups, "_READ_BYTES", 64)
    monkeypatch.setattr(distinct, "_LEAST_ROWS", 1)
    kinds = to_arrow(from_ddl(DDL))

    @settings(
        deadline=None,
        max_examples=fewer(25),
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(tables(kinds), WRITING, st.lists(st.integers(1, 9_000), max_size=4))
    def compare(table: pa.Table, writing: dict[str, Any], cuts: list[int]) -> None:
        pq.write_table(table, both.path, **writing)
        assert both.rows(*cuts) == len(table)

    compare()
    plan = both.harnesses[0].operator._column_plans.plan()  # type: ignore[attr-defined]
    assert (plan.computes != choose.SELECTION) == (name not in ("nothing", "choosing"))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_times_in_int96_are_read_as_by_spark(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """Spark's own files have them, and so the version of Spark."""
    schema = "n LONG, t TIMESTAMP"
    both = Both(engine, tmp_path / "x.parquet", lambda df: df.where("n % 2 = 0"), schema)
    monkeypatch.setattr(parquet_groups, "_BATCH_ROWS", 7)
    versions = {"": 0, "3.0.3": 0, "3.1.0": 1, "4.3.0": 1}

    @settings(
        deadline=None,
        max_examples=fewer(25),
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        tables(to_arrow(from_ddl(schema))),
        WRITING,
        st.lists(st.integers(1, 2_000), max_size=3),
        st.sampled_from(list(versions)),
    )
    def compare(table: pa.Table, writing: dict[str, Any], cuts: list[int], version: str) -> None:
        written_by = {"org.apache.spark.version": version} if version else {}
        pq.write_table(
            table.replace_schema_metadata(written_by),
            both.path,
            **{**writing, "store_schema": True, "use_deprecated_int96_timestamps": True},
        )
        assert both.rows(*cuts) == len(table) * versions[version], both.reader

    with session_conf(engine, {"spark.sql.session.timeZone": zone}):
        compare()


def test_files_of_others_are_read_as_by_spark(engine: SparkEngine, tmp_path: Path) -> None:
    """Files by Spark and by pandas; Spark records in a file which calendar its dates use."""
    session = engine.session
    both = Both(engine, tmp_path / "x.parquet", schema="n LONG, s STRING, day DATE, t TIMESTAMP")
    rows = session.range(0, 1_000, 1, 1).selectExpr(
        "id % 7 AS n",
        "CASE WHEN id % 5 > 0 THEN concat('text ', id % 50) END AS s",
        "date_add(DATE'1500-01-01', cast(id AS INT) * 300) AS day",
        "timestamp_seconds(id * 10000000 - 14000000000) AS t",
    )
    dates = "spark.sql.parquet.datetimeRebaseModeInWrite"
    int96 = "spark.sql.parquet.int96RebaseModeInWrite"
    cases = [
        ("TIMESTAMP_MICROS", dates, "LEGACY", "its dates are of another calendar"),
        ("INT96", int96, "LEGACY", "the times of 't' may be of another calendar or time zone"),
        ("TIMESTAMP_MICROS", dates, "CORRECTED", ""),
        ("INT96", int96, "CORRECTED", ""),
    ]
    for kind, option, calendar, reason in cases:
        conf = {dates: "CORRECTED", "spark.sql.parquet.outputTimestampType": kind}
        with session_conf(engine, conf | {option: calendar}):
            rows.write.mode("overwrite").parquet(str(tmp_path / "written"))
        (written,) = (tmp_path / "written").glob("*.parquet")
        written.rename(both.path)
        assert both.rows(600) == (0 if reason else 1_000), (kind, calendar)
        assert reason in both.reader
    frame = pd.DataFrame(
        {
            "n": np.arange(1_000) % 7,
            "s": pd.Series([None if i % 5 == 0 else f"text {i % 50}" for i in range(1_000)]),
            "day": [date(1970, 1, 1) + timedelta(days=i) for i in range(1_000)],
            "t": pd.Series(pd.date_range("2024-01-01", periods=1_000, tz="Asia/Tokyo")),
        }
    )
    for texts in ("object", "category", "large_string"):
        s = frame["s"].astype(pd.ArrowDtype(pa.large_string()) if "large" in texts else texts)
        frame.assign(s=s).to_parquet(both.path, coerce_timestamps="us", row_group_size=300)
        assert both.rows(5_000) == 1_000, texts


def test_what_may_differ_is_read_by_spark(engine: SparkEngine, tmp_path: Path) -> None:
    both = Both(engine, tmp_path / "x.parquet", schema="n LONG, s STRING, t TIMESTAMP_NTZ")
    now = datetime(2024, 1, 1)
    plain = pa.table(
        {
            "n": pa.array([1, None], pa.int64()),
            "s": ["a", None],
            "t": pa.array([now, None], pa.timestamp("us")),
        }
    )

    def other(**columns: pa.Array) -> pa.Table:
        table = plain
        for name, column in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, column)
        return table

    cases: list[tuple[str, pa.Table, dict[str, Any]]] = [
        ("", plain, {}),
        ("", plain.append_column("nested.n", pa.array([[1], [2]])), {}),
        ("", plain.select(["t", "n", "s"]), {"version": "1.0"}),
        ("the column 'n' is int32 in it", other(n=pa.array([1, 2], pa.int32())), {}),
        (
            "the column 's' is binary in it",
            other(s=pa.array([b"a", None])),
            {"store_schema": False},
        ),
        ("the column 's' is not in it", plain.select(["n", "t"]), {}),
        ("the column 's' is not in it", plain.rename_columns(["n", "S", "t"]), {}),
        ("the column 't' is timestamp[ms] in", other(t=plain["t"].cast(pa.timestamp("ms"))), {}),
        ("the column 't' is INT96 in it", plain, {"use_deprecated_int96_timestamps": True}),
        ("compressed by LZ4", plain, {"compression": "lz4"}),
        (
            "its dates are of another calendar",
            plain.replace_schema_metadata({"org.apache.spark.version": "2.4.8"}),
            {},
        ),
    ]
    for reason, table, writing in cases:
        pq.write_table(table, both.path, **writing)
        assert both.rows() == (0 if reason else 2), reason
        assert reason in both.reader
    pq.write_table(plain, both.path)
    content = both.path.read_bytes()
    both.path.write_bytes(content.replace(b"parquet-cpp-arrow", b"parquet-xyz-arrow"))
    assert both.rows() == 0
    assert "it was written by parquet-xyz-arrow version" in both.reader
    options = FileSource(
        str(both.path), format="parquet", schema="n LONG", datetimeRebaseMode="LEGACY"
    )
    harness = reader(engine, options)
    assert len(read(harness, both.path)) == 2
    choice = harness.metrics.plan_counts.choice
    assert choice == Choice(
        choose.SPARK, choose.CACHED_PLAN, "files: the option datetimeRebaseMode"
    )


def test_row_groups_without_wanted_rows_are_left_out(engine: SparkEngine, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    names = [f"{n:03}" for n in range(1_000)]
    times = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in range(1_000)]
    table = pa.table(
        {"n": range(1_000), "s": names, "t": pa.array(times, pa.timestamp("us", "UTC"))}
    )
    pq.write_table(table, path, row_group_size=100)
    source = FileSource(str(path), format="parquet", schema="n LONG, s STRING, t TIMESTAMP")
    for condition, expected in (
        ("n > 900", 100),
        ("900 >= n AND n % 2 = 0 AND s >= '9'", 100),
        ("n IN (7, 555) OR t < TIMESTAMP'2024-01-01 00:02:00Z'", 300),
        ("s LIKE '99%'", 100),
        ("s LIKE '%99'", 1_000),
        ("n > 900 OR n % 2 = 0", 1_000),
        ("n + 1 > 900", 1_000),
        ("n < 0", 0),
    ):
        harness = reader(engine, source, lambda df, condition=condition: df.where(condition))
        by_sql = engine.session.read.parquet(str(path)).where(condition).count()
        assert len(read(harness, path)) == by_sql
        assert by_arrow(harness) == expected, condition
        assert harness.metrics.plan_counts.made == 1, "no plan is made that is not used"


CONDITIONS = (
    "n > 3",
    "b <= 0 AND h IN (-1, 0, 1)",
    "1.10 * i > 1000.555 AND n * 0.001 <= 12345678.9 OR 0.3 * b < 0.9",
    "i <=> 7 OR i >= 100 OR i IN (-1, null)",
    "day BETWEEN DATE'1900-01-01' AND DATE'2030-01-01'",
    "t >= TIMESTAMP'2000-01-01 00:00:00Z' OR l < TIMESTAMP_NTZ'2000-01-01 00:00:00'",
    "p < 1.50 OR q > 0 OR r = 0",
    "s >= 'b' OR s LIKE 'a%' AND n > 0",
    "s = 'é' OR s < ''",
    "o AND s IS NOT NULL",
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_what_statistics_say_loses_no_row(
    engine: SparkEngine, tmp_path: Path, condition: str
) -> None:
    def wanted(df: Any) -> Any:
        return df.where(condition)

    both = Both(engine, tmp_path / "x.parquet", wanted, times=False)
    kinds = to_arrow(from_ddl(DDL))

    @settings(
        deadline=None,
        max_examples=fewer(20),
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(tables(kinds), WRITING)
    def compare(table: pa.Table, writing: dict[str, Any]) -> None:
        # Conditions on decimals that are stored as integers fail in Spark's reader.
        options = writing | {"row_group_size": 3, "store_decimal_as_integer": False}
        pq.write_table(table, both.path, **options)
        both.rows(counted=False)

    compare()


@pytest.mark.parametrize("dictionaries", [False, True])
def test_single_rows_are_left_out(engine: SparkEngine, dictionaries: bool) -> None:
    times = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in range(100)]
    table = pa.table(
        {
            "n": [None if n % 10 == 9 else n for n in range(100)],
            "s": [None if n % 10 == 9 else f"{n:02}" for n in range(100)],
            "t": pa.array(times, pa.timestamp("us", "UTC")),
            "p": pa.array([Decimal(n) / 100 for n in range(100)], pa.decimal128(5, 2)),
        }
    )
    schema = to_spark(table.schema)
    if dictionaries:
        table = table.set_column(1, "s", table["s"].dictionary_encode())
    for condition, left in (
        ("n < 10", 9),
        ("20 > n AND n % 2 = 0", 18),
        ("n IN (3, 5, 9, null) OR s = '08'", 3),
        ("s LIKE '4%'", 9),
        ("s <= '10' AND p >= 0.05", 5),
        ("p = 0.5 OR t < TIMESTAMP'2024-01-01 00:00:02Z'", 3),
        ("n < 76", 69),
        ("0.9 * n < 9 AND 0.9 * n >= 4.5", 4),  # 5 to 8
        ("n * 1.5 > 142.5 OR 4 >= 0.4 * n", 3 + 10),  # from 96 on, and to 10
        ("-0.9 * n > -9", 100),
        ("0.9 * CAST(n AS DECIMAL(19, 0)) < 9", 9),
        ("0.9 * CAST(n AS DECIMAL(18, 0)) < 9", 100),  # a number may not fit, which is an error
        ("0.9 * n < null OR 0.9D * n < 9", 100),
        ("n < 90", 100),  # those that are left out would be too few
        ("n < 10 OR n % 2 = 0", 100),
        ("n + 1 < 10", 100),
    ):
        frame = leaf_of(engine, schema).where(condition)
        wanted = wanted_rows(frame._jdf.queryExecution().executedPlan())
        assert Rows.of(table, wanted).table.num_rows == left, condition


def test_files_are_left_out_by_what_their_folders_give(engine: SparkEngine, tmp_path: Path) -> None:
    files = []
    for day in ("2024-01-01", "2024-01-02", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"day={day}").mkdir()
        files.append(tmp_path / f"day={day}" / "x.parquet")
        pq.write_table(pa.table({"n": [1, 2]}), files[-1])
    source = FileSource(str(tmp_path), format="parquet", schema="n LONG, day DATE")
    for condition, rows, expected in (
        ("day > DATE'2024-01-01'", 2, 2),
        ("day IS NULL OR n > 1", 4, 6),
        ("day = DATE'2024-01-01' AND n = 2", 1, 2),
        ("day = DATE'2024-01-01' AND n = 3", 0, 0),
        ("day <= DATE'2024-01-01' OR n = 3", 2, 2),
    ):
        harness = reader(engine, source, lambda df, condition=condition: df.where(condition))
        assert len(read(harness, *files)) == rows, condition
        assert by_arrow(harness) == expected, condition


def test_statistics_do_not_know_of_nan(engine: SparkEngine, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"d": [1.0, float("nan")]}), path)
    source = FileSource(str(path), format="parquet", schema="d DOUBLE")
    assert len(read(reader(engine, source, lambda df: df.where("d > 2")), path)) == 1


def test_folders_give_columns(engine: SparkEngine, tmp_path: Path) -> None:
    """Columns of the path hide columns of the same name in the file."""
    files = []
    for day in ("2024-01-02", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"day={day}").mkdir()
        files.append(tmp_path / f"day={day}" / "x.parquet")
        pq.write_table(pa.table({"n": [1, 2], "day": ["x", "y"]}), files[-1])
    source = FileSource(str(tmp_path), format="parquet", schema="n LONG, day DATE")
    for columns, count in ((["*"], 4), (["day"], 4), (["input_file_name()", "n"], 0)):
        harnesses = [
            reader(engine, source, lambda df, columns=columns: df.selectExpr(*columns))
            for _ in range(2)
        ]
        harnesses[1].operator._readers._readers = {("day",): None}  # type: ignore[attr-defined]
        found = [read(harness, *files) for harness in harnesses]
        assert found[0] == found[1]
        assert [by_arrow(harness) for harness in harnesses] == [count, 0]


class NoFolders:
    def compressed(self, path: str) -> bool:
        return False

    def values(self, path: str) -> dict[str, pa.Scalar]:
        return {}


def groups(schema: pa.Schema) -> ParquetGroups:
    return ParquetGroups(schema, schema.names, NoFolders(), corrected=True)


LARGE = bundle_time.BundleSize(aggregated=True, chained=False)


def found_in(found: Sequence[Piece]) -> Iterator[pa.Table]:
    for piece in found:
        assert isinstance(piece, Columns)
        yield piece.table


def test_batches_of_long_texts_have_few_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    texts = ["é" * 100_000, "b" * 150_000, None, ""]
    table = pa.table({"s": pa.array([texts[i % 4] for i in range(400)]), "n": range(400)})
    short = pa.table({"s": ["a" * (i % 20) for i in range(100_000)], "n": range(100_000)})
    for rows, most in ((table, 64 * 2**20 // 200_000), (short, 16_384)):
        pq.write_table(rows, path)
        schema = rows.schema
        batches = [
            batch
            for piece in found_in(
                list(groups(schema).pieces(parts_of(path), Wanted(schema.names), LARGE))
            )
            for batch in piece.to_batches()
        ]
        assert pa.Table.from_batches(batches, schema) == rows
        assert max(batch.num_rows for batch in batches) == most


def test_a_file_that_breaks_is_named(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_groups, "_BATCH_ROWS", 100)
    path = tmp_path / "x.parquet"
    table = pa.table({"n": pc.random(1_000).cast(pa.float64())})
    writing: dict[str, Any] = {
        "use_dictionary": False,
        "data_page_size": 400,
        "write_batch_size": 50,
        "store_schema": False,
    }
    pq.write_table(table, path, row_group_size=500, **writing)
    content = path.read_bytes()
    second = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    source = FileSource(str(path), format="parquet", schema="n DOUBLE")
    kinds = table.schema
    for at, rows in ((second, 500), (second + 3_000, 600)):
        path.write_bytes(content[:at] + b"\xff" * 900 + content[at + 900 :])
        found = groups(kinds).pieces(parts_of(path), Wanted(["n"]), LARGE)
        if at == second:  # nothing of the row group has been read
            piece, left = found
            assert isinstance(piece, Columns)
            assert piece.table.num_rows == rows
            assert isinstance(left, ForSpark)
            (part,) = left.parts
            assert second < part.start < len(content)
            assert part.start + part.length == len(content)
        else:
            with pytest.raises(FiresteelError, match=rf"{path}: a row group cannot be read to its"):
                list(found)
    for broken in (content[: second + 7], b"PAR1"):
        path.write_bytes(broken)
        with pytest.raises(Exception, match=r"x\.parquet"):
            read(reader(engine, source), path)

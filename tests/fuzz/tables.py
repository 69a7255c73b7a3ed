"""Random tables and the files that hold them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from firesteel import DataStream, Environment, Watermarks
from firesteel.connectors import FileSource

TEXTS = ["north", "South", "", " ", "é", "a,b", 'say "x"', "null", "NaN", "0", "日本", "z" * 40]
DOUBLES = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.25, 1e300, 5e-324, 3.0]
# Clocks change in New York and on Lord Howe Island within a day of these.
STARTS = [
    datetime(2024, 3, 10, tzinfo=UTC),
    datetime(2024, 4, 6, tzinfo=UTC),
    datetime(1969, 12, 31, tzinfo=UTC),
]

# id is unique, ts is event time; the rest are for keys and values.
COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    "id": ("BIGINT", pa.int64()),
    "ts": ("TIMESTAMP", pa.timestamp("us", "UTC")),
    "k": ("STRING", pa.string()),
    "g": ("INT", pa.int32()),
    "kd": ("DOUBLE", pa.float64()),
    "day": ("DATE", pa.date32()),
    "flag": ("BOOLEAN", pa.bool_()),
    "money": ("DECIMAL(10,2)", pa.decimal128(10, 2)),
    "n": ("INT", pa.int32()),
    "x": ("DOUBLE", pa.float64()),
    "seen": ("TIMESTAMP", pa.timestamp("us", "UTC")),
    "wall": ("TIMESTAMP_NTZ", pa.timestamp("us")),
    "arr": ("ARRAY<DOUBLE>", pa.list_(pa.float64())),
    "st": ("STRUCT<a: INT, b: STRING>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
}
NESTED = {"arr", "st"}
# Texts that the formats of text cannot hold unchanged are not what these tests are about.
TEXT_FORMATS = {"csv": NESTED, "json": set[str]()}


@dataclass(frozen=True, kw_only=True)
class Table:
    rows: pa.Table
    format: str  # parquet, csv or json
    files: int
    row_group_rows: int

    @property
    def columns(self) -> list[str]:
        return list(self.rows.column_names)

    @property
    def schema(self) -> str:
        return ", ".join(f"{name} {COLUMNS[name][0]}" for name in self.columns)

    def __str__(self) -> str:
        return f"{self.rows.num_rows} rows of {', '.join(self.columns)} in {self.files} {self.format} files"

    def write(self, folder: Path) -> None:
        """Writes the rows to files of the table's format, in turn."""
        folder.mkdir()
        for number in range(self.files):
            indices = list(range(number, self.rows.num_rows, self.files))
            part = self.rows.take(pa.array(indices, pa.int64()))
            path = folder / f"{number}.{self.format}"
            if self.format == "parquet":
                pq.write_table(part, path, row_group_size=self.row_group_rows)
            elif self.format == "csv":
                pcsv.write_csv(as_text(part), path, pcsv.WriteOptions(include_header=True))
            else:
                path.write_text("".join(map(json_line, part.to_pylist())))

    def stream(self, env: Environment, folder: Path) -> DataStream:
        options: dict[str, Any] = {"header": True} if self.format == "csv" else {}
        source = FileSource(str(folder), format=self.format, schema=self.schema, **options)
        bounded = Watermarks.bounded("ts", max_out_of_orderness="4000 days")  # nothing is late
        return env.from_source(source, watermarks=bounded)

    def frame(self, spark: SparkSession, folder: Path) -> DataFrame:
        reader = spark.read.schema(self.schema).format(self.format)
        return (reader.option("header", True) if self.format == "csv" else reader).load(str(folder))


def as_text(rows: pa.Table) -> pa.Table:
    """The table with a text or a number in each column, as Spark's CSV reader expects them."""
    texts = {
        name: [csv_value(value) for value in rows[name].to_pylist()] for name in rows.column_names
    }
    return pa.table({name: pa.array(values, pa.string()) for name, values in texts.items()})


def csv_value(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case float():
            return json_double(value)
        case datetime():
            return value.isoformat(sep=" ").replace("+00:00", "Z")
        case _:
            return str(value)


def json_double(value: float) -> str:
    special = {math.inf: "Infinity", -math.inf: "-Infinity"}
    return "NaN" if math.isnan(value) else special.get(value, repr(value))


def json_line(row: dict[str, Any]) -> str:
    import json

    def plain(value: Any) -> Any:
        match value:
            case float() if not math.isfinite(value):
                return json_double(value)
            case datetime():
                return value.isoformat().replace("+00:00", "Z")
            case date() | Decimal():
                return str(value)
            case list():
                return [plain(item) for item in value]
            case dict():
                return {name: plain(item) for name, item in value.items()}
            case _:
                return value

    return json.dumps(plain(row)) + "\n"


def draw(rng: random.Random, *, rows: int | None = None) -> Table:
    format_ = rng.choice(["parquet", "parquet", "csv", "json"])
    n = rng.choice([0, 1, 7, 60, 300, 300, 2000]) if rows is None else rows
    optional = [
        c for c in COLUMNS if c not in ("id", "ts") and c not in TEXT_FORMATS.get(format_, ())
    ]
    chosen = {"id", "ts", "k", "n", "x", *rng.sample(optional, rng.randint(2, len(optional)))}
    names = [name for name in COLUMNS if name in chosen]
    start = rng.choice(STARTS)
    span_s = rng.choice([60, 3600, 2 * 86400])
    null_share = rng.choice([0.0, 0.1, 0.5])
    distinct = rng.choice([1, 3, 12])
    columns = {name: values(rng, name, n, start, span_s, null_share, distinct) for name in names}
    arrays = {name: pa.array(column, COLUMNS[name][1]) for name, column in columns.items()}
    return Table(
        rows=pa.table(arrays),
        format=format_,
        files=rng.choice([1, 2, 5]),
        row_group_rows=rng.choice([10, 1000]),
    )


def values(
    rng: random.Random,
    name: str,
    n: int,
    start: datetime,
    span_s: int,
    null_share: float,
    distinct: int,
) -> list[Any]:
    if name == "id":
        return rng.sample(range(10 * n), n)
    # A second is a tie now and then.
    tick_us = rng.choice([1, 1_000_000])

    def moment() -> datetime:
        ticks = rng.randrange(span_s * 1_000_000 // tick_us)
        return start + timedelta(microseconds=ticks * tick_us)

    if name == "ts":
        return [moment() for _ in range(n)]
    texts = rng.sample(TEXTS, min(distinct, len(TEXTS)))
    doubles = rng.sample(DOUBLES, min(distinct, len(DOUBLES)))
    draws = {
        "k": lambda: rng.choice(texts),
        "g": lambda: rng.randrange(distinct),
        "kd": lambda: rng.choice(doubles),
        "day": lambda: (start + timedelta(days=rng.randrange(distinct))).date(),
        "flag": lambda: rng.random() < 0.5,
        "money": lambda: Decimal(rng.randrange(-100 * distinct, 100 * distinct)).scaleb(-2),
        "n": lambda: rng.randrange(-1000, 1000),
        "x": lambda: rng.choice([rng.uniform(-1e6, 1e6), float(rng.randrange(10))]),
        "seen": moment,
        "wall": lambda: moment().replace(tzinfo=None),
        "arr": lambda: [rng.choice(doubles) for _ in range(rng.randrange(3))],
        "st": lambda: {"a": rng.randrange(distinct), "b": rng.choice([None, *texts])},
    }
    return [None if rng.random() < null_share else draws[name]() for _ in range(n)]

"""The same program on Spark's own engine and on Firesteel: every result is equal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.daily_delays import read_flights
from tests.e2e.conftest import ROOT, Session, firesteel
from tests.e2e.spark_connect.test_drawn_queries import INTERPRETED

PROGRAM = Path(__file__).with_name("queries_program.py")
# The keys of results with one row per key and batch; the last row of a key is valid.
KEYS = {
    "by_hour": ["h"],
    "windows": ["window", "carrier"],
    "days": ["window"],
    "null_keys": ["tailnum"],
    "medians": ["tailnum"],
    "no_flights": [],
    "group_state": ["carrier"],
    "with_state": ["plane"],
}
# The names of results that have all rows in each batch.
COMPLETE = ("no_flight", "top", "all", "having", "planes")
NAMES = (
    *("files", "rows_of_parquet", "stored_metadata"),
    *("rows", "sql", "subqueries", "subqueries_of_one_table", "scalar_subqueries"),
    *("lateral", "union", "pandas"),
    *("tumbling", "times", "sliding", "added_windows", "added_sessions", "sessions", "unique"),
    *("unique_windows", "same_windows", "within_hours", "after_state"),
    *(
        "unique_near",
        "static",
        "join",
        "percentiles",
        "first_rows",
        "left_join",
        "others_at_noon",
        "unknown_planes",
        "join_windows",
        "union_windows",
        "first_values",
        "united_windows",
        "observed",
        "observed_metrics",
        "days_metrics",
        *KEYS,
        *COMPLETE,
    ),
)
FLIGHTS = 30_000
RUN_S = 500.0


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Flights of January 2013 in three files, as the package has them: some delays and tail numbers
    are null, and many flights have the same time.
    """
    frame = read_flights().head(FLIGHTS)
    frame = frame.rename(columns={"time_hour": "time"})
    columns = ["time", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "distance"]
    folder = tmp_path_factory.mktemp("flights")
    for number in range(3):
        part = frame[columns].iloc[number * FLIGHTS // 3 : (number + 1) * FLIGHTS // 3]
        part.to_json(folder / f"{number}.json", orient="records", lines=True)
    return folder


@pytest.fixture(scope="module")
def results(
    shared_cluster: Session, flights: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The results of both engines."""
    spark, ours = (tmp_path_factory.mktemp(name) for name in ("spark", "firesteel"))
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(flights), str(spark)],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": INTERPRETED},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shared_cluster.wait_until_all_slots_are_free()
    run = firesteel(
        *("run", "-m", shared_cluster.address, str(PROGRAM), str(flights), str(ours)),
        timeout_s=RUN_S,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return spark, ours


@pytest.mark.parametrize("name", NAMES)
def test_results_equal_those_of_spark(name: str, results: tuple[Path, Path]) -> None:
    expected, found = (_rows(folder, name) for folder in results)
    assert expected.schema.names == found.schema.names
    assert expected.num_rows > 0
    assert found.to_pylist() == expected.to_pylist()


def _rows(folder: Path, name: str) -> pa.Table:
    """Returns the rows of a query in an order of their values."""
    rows = pq.read_table(folder / name)
    # Spark writes times without a zone.
    rows = rows.cast(pa.schema([field.with_type(_in_utc(field.type)) for field in rows.schema]))
    records = rows.to_pylist()
    if name in KEYS:
        last: dict[str, dict[str, object]] = {}
        for record in sorted(records, key=lambda record: int(str(record["batch"]))):
            last[str([record[key] for key in KEYS[name]])] = record
        records = list(last.values())
    elif name in COMPLETE:
        latest = max(record["batch"] for record in records)
        records = [record for record in records if record["batch"] == latest]
    for record in records:
        record.pop("batch", None)
    records.sort(key=str)
    names = [column for column in rows.schema.names if column != "batch"]
    return pa.Table.from_pylist(records, schema=pa.schema([rows.schema.field(n) for n in names]))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    return kind

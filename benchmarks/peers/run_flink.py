"""`python run_flink.py WORK [tuned]`: Flink SQL in a local cluster of 2 slots; in `.bench-venv`, which has PyFlink alone.

The numbers come from Flink's own NumberSequenceSource, bounded; nothing is Python. tuned: mini-batch and two-phase aggregation.
"""

from __future__ import annotations

import sys

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.table import DataTypes, Schema, StreamTableEnvironment

from benchmarks.peers import work as peers
from benchmarks.peers.work import KEEP_ONE_IN, Work

SLOTS = 2
CHECK_ROWS = 20_000  # each is an update, and Python takes in some thousands of them per second
TUNED = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
}


def tables(tuned: bool) -> StreamTableEnvironment:
    configuration = Configuration()
    configuration.set_string("parallelism.default", str(SLOTS))
    configuration.set_string("taskmanager.numberOfTaskSlots", str(SLOTS))
    configuration.set_string("pipeline.object-reuse", "true")
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    tables = StreamTableEnvironment.create(environment)
    tables.get_config().set("table.local-time-zone", "UTC")
    for key, value in TUNED.items() if tuned else ():
        tables.get_config().set(key, value)
    tables._environment = environment
    return tables


def query(tables: StreamTableEnvironment, work: Work, rows: int) -> str:
    source = NumberSequenceSource(0, rows - 1)
    numbers = tables._environment.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", type_info=Types.LONG())
    schema = Schema.new_builder().column("f0", DataTypes.BIGINT())
    if work.name == "window_aggregate":
        schema = schema.column_by_expression("t", "TO_TIMESTAMP_LTZ(f0 / 1000, 3)").watermark("t", "t")
    view = f"numbers_{rows}"
    tables.create_temporary_view(view, numbers, schema.build())
    if work.name == "filter_project":
        return f"SELECT f0 AS v, f0 * 2 AS d FROM {view} WHERE MOD(f0, {KEEP_ONE_IN}) = 0"
    keyed = f"SELECT MOD(f0, {work.keys}) AS k, f0{', t' if work.name == 'window_aggregate' else ''} FROM {view}"
    if work.name == "window_aggregate":
        tables.create_temporary_view(f"keyed_{rows}", tables.sql_query(keyed))
        window = f"TABLE(TUMBLE(TABLE keyed_{rows}, DESCRIPTOR(t), INTERVAL '1' SECOND))"
        return f"SELECT k, COUNT(*) AS c, SUM(f0) AS s FROM {window} GROUP BY k, window_start, window_end"
    return f"SELECT k, COUNT(*) AS c, SUM(f0) AS s FROM ({keyed}) GROUP BY k"


def checked(tables: StreamTableEnvironment, work: Work) -> None:
    last: dict[int, tuple[int, ...]] = {}
    columns: dict[str, list[int]] = {"d": []} if work.name == "filter_project" else {"k": [], "c": [], "s": []}
    with tables.execute_sql(query(tables, work, CHECK_ROWS)).collect() as rows:
        for row in rows:
            if work.name == "filter_project":
                columns["d"].append(row[1])
            elif work.name == "window_aggregate":
                for name, value in zip("kcs", row, strict=True):
                    columns[name].append(value)
            else:
                last[row[0]] = tuple(row)  # of a stream of updates, the last one of each key stands
    for values in last.values():
        for name, value in zip("kcs", values, strict=True):
            columns[name].append(value)
    peers.check(work, columns, CHECK_ROWS)


def main() -> None:
    work, tuned = peers.WORKS[sys.argv[1]], "tuned" in sys.argv[2:]
    table_environment = tables(tuned)
    checked(table_environment, work)
    names = "v BIGINT, d BIGINT" if work.name == "filter_project" else "k BIGINT, c BIGINT, s BIGINT"
    table_environment.execute_sql(f"CREATE TEMPORARY TABLE discard ({names}) WITH ('connector' = 'blackhole')")
    table_environment.execute_sql(f"INSERT INTO discard {query(table_environment, work, work.check_rows)}").wait()  # warms it up
    statement = f"INSERT INTO discard {query(table_environment, work, work.rows)}"
    peers.begin()
    table_environment.execute_sql(statement).wait()
    peers.end(work.rows)


if __name__ == "__main__":
    main()

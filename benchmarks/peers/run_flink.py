"""Runs Flink SQL in a local cluster of 2 slots, `python run_flink.py WORK [tuned]`, in
`.bench-venv`, which only has PyFlink.

The numbers come from Flink's own NumberSequenceSource, bounded; nothing is Python. tuned:
mini-batch and two-phase aggregation. State is on the heap (Flink's default backend, its fastest).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json
from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.table import DataTypes, Schema, StreamTableEnvironment

from benchmarks.peers import work as peers
from benchmarks.peers.work import KEEP_ONE_IN, Work

SLOTS = 2
NOTHING = "'connector' = 'blackhole'"
SETTINGS = {
    "parallelism.default": str(SLOTS),
    "taskmanager.numberOfTaskSlots": str(SLOTS),
    "pipeline.object-reuse": "true",
    # For window aggregation; a local cluster's default is 128m.
    "taskmanager.memory.managed.size": "512m",
    "taskmanager.memory.network.min": "128m",
    "taskmanager.memory.network.max": "128m",
}
TUNED = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
}


class Flink:
    def __init__(self, work: Work, tuned: bool) -> None:
        configuration = Configuration()
        for key, value in SETTINGS.items():
            configuration.set_string(key, value)
        self._work = work
        self.columns = "vd" if work.name == "filter_project" else "kcs"  # one letter each
        self._streams = StreamExecutionEnvironment.get_execution_environment(configuration)
        self._tables = StreamTableEnvironment.create(self._streams)
        self._tables.get_config().set("table.local-time-zone", "UTC")
        for key, value in TUNED.items() if tuned else ():
            self._tables.get_config().set(key, value)

    def run(self, rows: int, connector: str) -> None:
        """Runs the work on this many numbers into a sink, from the start of the job to its end."""
        self._tables.execute_sql("DROP TEMPORARY TABLE IF EXISTS sink")
        columns = ", ".join(f"{name} BIGINT" for name in self.columns)
        self._tables.execute_sql(f"CREATE TEMPORARY TABLE sink ({columns}) WITH ({connector})")
        self._tables.execute_sql(f"INSERT INTO sink {self._query(rows)}").wait()

    def _query(self, rows: int) -> str:
        source = NumberSequenceSource(0, rows - 1)
        numbers = self._streams.from_source(
            source, WatermarkStrategy.no_watermarks(), "numbers", type_info=Types.LONG()
        )
        windows = self._work.name == "window_aggregate"
        schema = Schema.new_builder().column("f0", DataTypes.BIGINT())
        if windows:
            schema = schema.column_by_expression("t", "TO_TIMESTAMP_LTZ(f0 / 1000, 3)").watermark(
                "t", "t"
            )
        self._replace_view("numbers", self._tables.from_data_stream(numbers, schema.build()))
        if self._work.name == "filter_project":
            return f"SELECT f0 AS v, f0 * 2 AS d FROM numbers WHERE MOD(f0, {KEEP_ONE_IN}) = 0"
        keyed = f"SELECT MOD(f0, {self._work.keys}) AS k, f0{', t' if windows else ''} FROM numbers"
        if windows:
            self._replace_view("keyed", self._tables.sql_query(keyed))
            window = "TABLE(TUMBLE(TABLE keyed, DESCRIPTOR(t), INTERVAL '1' SECOND))"
            aggregates = "k, COUNT(*) AS c, SUM(f0) AS s"
            return f"SELECT {aggregates} FROM {window} GROUP BY k, window_start, window_end"
        return f"SELECT k, COUNT(*) AS c, SUM(f0) AS s FROM ({keyed}) GROUP BY k"

    def _replace_view(self, name: str, table) -> None:  # type: ignore[no-untyped-def]
        self._tables.drop_temporary_view(name)
        self._tables.create_temporary_view(name, table)


def checked(flink: Flink, work: Work) -> None:
    """Runs the same statement into files: through `collect`, Python reads only thousands of rows
    per second.
    """
    with tempfile.TemporaryDirectory(prefix="bench-flink-") as folder:
        # A format for updates; the row before an update is a separate line.
        flink.run(
            work.check_rows,
            f"'connector' = 'filesystem', 'path' = '{folder}', 'format' = 'debezium-json'",
        )
        written = [
            path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size
        ]
        row = pa.struct([(name, pa.int64()) for name in flink.columns])
        # An explicit schema, because "before" is null until a row is updated.
        parsing = json.ParseOptions(
            explicit_schema=pa.schema([("before", row), ("after", row), ("op", pa.string())])
        )
        lines = pa.concat_tables(
            [json.read_json(path, parse_options=parsing) for path in written]
        ).combine_chunks()
    rows = lines.filter(pc.equal(lines["op"], "c"))["after"].combine_chunks()
    columns = {rows.type[i].name: rows.field(i).to_numpy() for i in range(rows.type.num_fields)}
    peers.check(work, columns, work.check_rows)


def main() -> None:
    work, tuned = peers.WORKS[sys.argv[1]], "tuned" in sys.argv[2:]
    flink = Flink(work, tuned)
    checked(flink, work)
    flink.run(work.check_rows, NOTHING)  # warms up for the timed run
    peers.begin()
    flink.run(work.rows, NOTHING)
    peers.end(work.rows)


if __name__ == "__main__":
    main()

"""Runs Firesteel's benchmarks and comparisons with Spark Structured Streaming and Flink; prints
tables and writes out/bench.json.

Each row of the file has `benchmark`, `name`, `ours`, `unit`, `peers`, `ratio`, `goal`, `met` and
`failed`, the list of failures. Comparisons also have `engines`, with all measurements of each
engine. Rows of benchmarks that did not run this time are kept.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.batch import rows as batch
from benchmarks.kafka import copies as kafka_copies
from benchmarks.kafka import counts as kafka_counts
from benchmarks.kafka import latency as kafka_latency
from benchmarks.kafka import partitions as kafka_partitions
from benchmarks.kafka import queries as kafka_queries
from benchmarks.nexmark import data as nexmark_data
from benchmarks.nexmark import rows as nexmark
from benchmarks.nexmark import unmodified as nexmark_pyspark
from benchmarks.peers import rows as peers
from benchmarks.peers.rows import Peers, amount
from benchmarks.progress import Steps

OURS = (
    "execution_graph",
    "deploy",
    "wire",
    "columns",
    "exchange",
    "submit",
    "authentication",
    "demo",
    "small_files",
    "region_restart",
    "async",
    "rest",
    "subtasks_page",
    "kubernetes_pods",
    "kubernetes_leaders",
    "query_start",
    "spark_programs",
)  # modules with `run()`, in the order of execution
MODULES = {
    "async": "async_calls",
    "kubernetes_pods": "kubernetes",
    "spark_programs": "spark_programs.compare",
}  # modules whose names differ from their benchmarks'
# Modules with `run(share)`; `share` is the share of a full run's rows, checkpoints and failures.
CHECKPOINTS = {
    "checkpoint_plan": "plan",
    "checkpoint_small": "small",
    "checkpoint_files": "files",
    "checkpoint_unaligned": "unaligned",
    "state_rocksdb": "state_rocksdb",
    "recovery": "recovery",
    "rescale": "rescale",
    "masters": "masters",
}
KAFKA = {  # the number of steps
    kafka_queries.NAME: kafka_queries.STEPS,
    kafka_copies.NAME: kafka_copies.STEPS,
    kafka_latency.NAME: kafka_latency.STEPS,
    kafka_counts.NAME: kafka_counts.STEPS,
    kafka_partitions.NAME: kafka_partitions.STEPS,
}
GROUPS = {
    "ours": (*OURS, *CHECKPOINTS),
    "checkpoints": tuple(CHECKPOINTS),
    "peers": (nexmark.NAME, nexmark_pyspark.NAME, batch.NAME, *KAFKA, *peers.NAMES),
    "kafka": tuple(KAFKA),
}
NAMES = (*OURS, *CHECKPOINTS, nexmark.NAME, nexmark_pyspark.NAME, batch.NAME, *KAFKA, *peers.NAMES)
OUT = Path("out/bench.json")
WIDTH = 150  # if there is no terminal

Row = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    names, bids = wanted(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    rows: list[Row] = []
    interrupted = False
    total = sum(steps_of(name) for name in names)
    with Steps(console, total) as steps:
        beside = Peers(steps)
        for name in names:
            try:
                rows += run(name, steps, beside, bids)
            except KeyboardInterrupt:
                interrupted = True
                break
            write(rows, OUT)
    for table in tables(rows):
        console.print(table)
    for what, output in failures(rows):
        console.print(f"[red]{escape(what)}[/]")
        console.print(output, markup=False, highlight=False)
    return 130 if interrupted else 1 if any(row["failed"] for row in rows) else 0


def wanted(arguments: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Returns the named benchmarks, in their order, and the number of Nexmark's bids. Exits if a
    name is unknown.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0]
    )
    known = (*GROUPS, *NAMES)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"all, unless some are named: {', '.join(known)}"
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=nexmark_data.BIDS,
        help=f"the bids of {nexmark.NAME} and of Kafka's topic, %(default)s by default; with fewer"
        " bids, benchmarks of"
        f" checkpoints also take fewer checkpoints, and {batch.NAME} has smaller tables",
    )
    parsed = parser.parse_args(arguments)
    named = parsed.names
    if unknown := [name for name in named if name not in known]:
        parser.error(f"there is no benchmark {', '.join(unknown)}; known are {', '.join(known)}")
    chosen = {name for group in named for name in GROUPS.get(group, (group,))}
    return tuple(name for name in NAMES if not named or name in chosen), parsed.rows


def steps_of(name: str) -> int:
    if name == nexmark.NAME:
        return nexmark.STEPS
    if name == nexmark_pyspark.NAME:
        return nexmark_pyspark.STEPS
    if name == batch.NAME:
        return batch.STEPS
    if name in KAFKA:
        return KAFKA[name]
    return len(peers.steps(name)) if name in peers.NAMES else 1


def run(name: str, steps: Steps, beside: Peers, bids: int) -> list[Row]:
    try:
        if name == nexmark.NAME:
            rows = list(nexmark.run(steps, beside.flink, bids))
        elif name == nexmark_pyspark.NAME:
            rows = list(nexmark_pyspark.run(steps, bids))
        elif name == batch.NAME:
            rows = list(batch.run(steps, bids / nexmark_data.BIDS))
        elif name in KAFKA:
            rows = list(run_kafka(name, steps, beside, bids))
        elif name in peers.NAMES:
            rows = beside.run(name)
        else:
            with steps.step(name):
                rows = run_ours(name, bids)
    except Exception as error:  # the others are still measured
        reason = f"failed: {str(error).partition(chr(10))[0] or type(error).__name__}"
        row: Row = {
            "name": name,
            "ours": reason,
            "unit": "",
            "peers": {},
            "ratio": None,
            "goal": None,
            "met": None,
        }
        rows = [row | {"failed": [name], "output": traceback.format_exc()}]
    return [{"benchmark": name, "failed": [], **row} for row in rows]


def run_kafka(name: str, steps: Steps, beside: Peers, bids: int) -> Iterable[Row]:
    if name == kafka_queries.NAME:
        return kafka_queries.run(steps, beside.flink, bids)
    if name == kafka_copies.NAME:
        return kafka_copies.run(steps, beside.flink, bids)
    if name == kafka_latency.NAME:
        return kafka_latency.run(steps, beside.flink)
    if name == kafka_counts.NAME:
        return kafka_counts.run(steps)
    return kafka_partitions.run(steps)


def run_ours(name: str, bids: int) -> list[Row]:
    found: list[Row]
    if name in CHECKPOINTS:
        module = importlib.import_module(f"benchmarks.checkpoints.{CHECKPOINTS[name]}")
        found = module.run(bids / nexmark_data.BIDS)
    else:
        found = importlib.import_module(f"benchmarks.{MODULES.get(name, name)}").run()
    return found


def tables(rows: Iterable[Row]) -> list[Table]:
    ours, beside = Table(title="Benchmarks"), Table(title="Beside other engines")
    for column in ("what", "ours", "peers", "ratio", "goal", "met"):
        ours.add_column(column, justify="right" if column == "ratio" else "left", overflow="fold")
    for column in (
        "what",
        "engine",
        "rows/s",
        "ours to it",
        "rows/s of CPU",
        "ours to it",
        "goal",
        "met",
        "after a kill: all RUNNING",
    ):
        beside.add_column(
            column, justify="left" if column in ("what", "engine") else "right", overflow="fold"
        )
    for row in rows:
        if "engines" in row:
            _add_engines(beside, row)
        else:
            others = ", ".join(f"{peer} {value}" for peer, value in row["peers"].items())
            cells = (
                row["name"],
                f"{row['ours']} {row['unit']}",
                others,
                _times(row["ratio"]),
                row["goal"] or "",
            )
            ours.add_row(*map(escape, cells), _met(row["met"]))
    return [table for table in (ours, beside) if table.row_count]


def _add_engines(table: Table, row: Row) -> None:
    for number, (engine, fields) in enumerate(row["engines"].items()):
        what = "" if number else row["name"]
        recovery = escape(fields.get("recovery", ""))
        if "reason" in fields:
            table.add_row(
                what,
                engine,
                f"[red]{escape(fields['reason'])}[/]",
                "",
                "",
                "",
                _goal(fields),
                "",
                recovery,
            )
        else:
            by_clock, by_cpu = amount(fields["rows_per_s"]), amount(fields["rows_per_cpu_s"])
            ratios = _times(fields["ratio"]), _times(fields["cpu_ratio"])
            table.add_row(
                what,
                engine,
                by_clock,
                ratios[0],
                by_cpu,
                ratios[1],
                _goal(fields),
                _met(fields["met"]),
                recovery,
            )
    table.add_section()


def _goal(fields: Mapping[str, Any]) -> str:
    return "" if fields["goal"] is None else f">= {fields['goal']:g} x"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f} x"


def _met(met: bool | None) -> str:
    return "" if met is None else "[green]yes[/]" if met else "[red]no[/]"


def failures(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Returns failures with their output, once per engine if none of its queries ran."""
    found = []
    for row in rows:
        if "output" in row:
            found.append((f"{row['name']} {row['ours']}", row["output"]))
        for engine, fields in row.get("engines", {}).items():
            if fields.get("output"):
                found.append(
                    (f"{row['benchmark']} on {engine} {fields['reason']}", fields["output"])
                )
    return list(dict.fromkeys(found))


def write(rows: Sequence[Row], out: Path) -> None:
    """Adds the rows to the file, replacing earlier rows of the same benchmarks."""
    measured = {row["benchmark"] for row in rows}
    try:
        kept = [
            row
            for row in json.loads(out.read_text())
            if row["benchmark"] in NAMES and row["benchmark"] not in measured
        ]
    except (OSError, ValueError):
        kept = []
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(kept + list(rows), indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m benchmarks [NAME...]`: runs our own benchmarks, or those named, prints a table and writes out/bench.json.

`peers` runs only when named: it installs apache-flink into an environment of its own and takes long.

Every module or package here with `run() -> list[dict]` is a benchmark; a row has name, ours, unit, peers, ratio, goal and met.
Rows of benchmarks that were not run this time stay in the file.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

OURS = ("execution_graph", "deploy", "exchange", "submit", "demo")  # in the order in which they run
NAMES = (*OURS, "peers")
OUT = Path("out/bench.json")


def main(arguments: list[str]) -> int:
    unknown = [name for name in arguments if name not in NAMES]
    if unknown:
        print(f"benchmarks: there is no benchmark {', '.join(unknown)}; known are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    rows: list[dict[str, Any]] = []
    failed = False
    for name in arguments or OURS:
        began = time.monotonic()
        console.print(f"[dim]{name} ...[/]")
        try:
            rows += [{"benchmark": name, **row} for row in importlib.import_module(f"benchmarks.{name}").run()]
        except Exception:  # the others shall still be measured
            failed = True
            console.print(f"[red]{name} failed[/]\n{traceback.format_exc()}", markup=True)
        console.print(f"[dim]{name}: {time.monotonic() - began:.1f} s[/]")
    console.print(table(rows))
    write(rows)
    return 1 if failed else 0


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="Benchmarks")
    for column in ("what", "ours", "peers", "ratio", "goal", "met"):
        shown.add_column(column, justify="right" if column in ("ratio",) else "left", overflow="fold")
    for row in rows:
        peers = ", ".join(f"{peer} {value}" for peer, value in row["peers"].items())
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        met = "" if row["met"] is None else "[green]yes[/]" if row["met"] else "[red]no[/]"
        shown.add_row(row["name"], f"{row['ours']} {row['unit']}", peers, ratio, row["goal"] or "", met)
    return shown


def write(rows: list[dict[str, Any]]) -> None:
    measured = {row["benchmark"] for row in rows}
    try:
        kept = [row for row in json.loads(OUT.read_text()) if row.get("benchmark") not in measured]
    except (OSError, ValueError):
        kept = []
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(kept + rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

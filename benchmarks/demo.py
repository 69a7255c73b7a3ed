"""`firesteel run -t local examples/daily_delays.py` as `make demo` runs it, from nothing to the
prompt, with its parts.

The monthly files are written again, as on a first run. The command runs in a separate process;
its total CPU time, with that of every process of its cluster, shows how long another machine would
take.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GOAL_S = 30.0
TIMEOUT_S = 300.0
ROOT = Path(__file__).parent.parent
ROWS = "1,098 rows"
# The names in the job's timing, whose last two lines are totals.
PARTS = (
    "starting the cluster's services",
    "waiting for slots and analysing the plan",
    "opening the tasks",
    "running",
    "from submission to the end",
)
_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_PR_SET_CHILD_SUBREAPER = 36


def seconds(text: str) -> float:
    """Parses `1 min 06 s`, `28.9 s` or `894 ms`."""
    return sum(
        float(number) * _UNITS_S[unit]
        for number, unit in re.findall(r"([\d.]+) (ms|s|min|h)\b", text)
    )


def parts_of(output: str) -> dict[str, float]:
    found = {}
    for line in output.splitlines():
        for part in PARTS:
            if match := re.fullmatch(rf"\s*{re.escape(part)}\s{{2,}}(.*)", line):
                found[part] = seconds(match[1])
    return found


def demo(folder: Path) -> tuple[float, float, dict[str, float]]:
    """Returns seconds of wall-clock time, of CPU time, and by part. The process must have no other
    children.
    """
    # Processes that outlive their parents become children of this one, so that their CPU time is
    # counted.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    run = subprocess.run(
        [
            sys.executable, "-m", "firesteel", "run", "-t", "local", "examples/daily_delays.py",
            "--data", str(folder / "flights"), "--output", str(folder / "daily_delays"),
        ],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    took_s = time.monotonic() - began
    if run.returncode != 0 or ROWS not in run.stdout:
        raise RuntimeError(f"the demo ended with code {run.returncode}:\n{run.stdout}")
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, used.ru_utime + used.ru_stime, parts_of(run.stdout)


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="firesteel-demo-") as folder:
        argv = [sys.executable, "-m", "benchmarks.demo", folder]
        numbers = subprocess.run(
            argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.splitlines()[-1]
    took_s, cpu_s, parts = json.loads(numbers)
    shown = ", ".join(f"{part} {part_s:.1f}" for part, part_s in parts.items())
    return [
        {
            "name": "make demo, everything installed",
            "ours": round(took_s, 1),
            "unit": f"s ({cpu_s:.0f} s of CPU; {shown})",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_S:g} s",
            "met": took_s <= GOAL_S,
        }
    ]


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(demo(Path(sys.argv[1]))))
    else:
        for row in run():
            print(row)

"""One engine in processes of its own, measured from outside: the time and the CPU time of its timed run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Measured:
    rows: int
    seconds: float
    cpu_s: float  # of all its processes
    load: float  # of the machine before it: above 1 or so, others were at work

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_cpu_s(self) -> float:
        return self.rows / max(self.cpu_s, 0.01)

    def shown(self) -> str:
        return f"{amount(self.rows_per_s)} rows/s, {amount(self.rows_per_cpu_s)} per s of CPU"


def amount(number: float) -> str:
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.3g}"


def measure(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Measured:
    """Runs it; it prints `begin` and `end ROWS` (see `work`). Raises RuntimeError with what it said if it fails."""
    load = os.getloadavg()[0]
    deadline = time.monotonic() + TIMEOUT_S
    with subprocess.Popen(
        list(argv), cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said: list[str] = []
            began = cpu_began = 0.0
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                if line == "begin\n":
                    cpu_began, began = cpu_s(process.pid), time.monotonic()
                elif line.startswith("end ") and began:
                    seconds = time.monotonic() - began
                    used_s = cpu_s(process.pid) - cpu_began
                    process.wait(max(1.0, deadline - time.monotonic()))
                    return Measured(int(line.split()[1]), seconds, used_s, load)
                if time.monotonic() > deadline:
                    break
            raise RuntimeError(f"{' '.join(argv)} failed:\n{''.join(said[-40:])}")
        finally:
            end_all(process.pid)


def tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(pid: int) -> float:
    """Of a process and all that it has started, those that have ended and were waited for included."""
    total = 0.0
    for process in tree(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def end_all(pid: int) -> None:
    """Whatever is left of it."""
    for process in reversed(tree(pid)):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue

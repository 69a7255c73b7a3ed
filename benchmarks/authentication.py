"""Measures what authentication costs on loopback: two clusters, one with it and one without, do the
same work in turns.

The work of a turn: submitting a job, until all its tasks are RUNNING; the latency of records
through Python functions and a key_by; and the time of jobs that read, aggregate and exchange many
rows. Both clusters are warm, and one is idle while the other works.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks import submit
from benchmarks.peers import latency
from benchmarks.peers.run_firesteel import SLOTS, configuration, program
from benchmarks.peers.work import WORKS
from firesteel import Environment
from firesteel.client.client import Client
from firesteel.client.cluster import LocalCluster
from firesteel.common.config import options
from firesteel.connectors import DiscardSink

SUBMISSIONS = 30
ROUNDS = 7
LATENCIES = 4
ROWS = 100_000_000
JOBS = ("filter_project", "keyed_aggregate_1k", "window_aggregate")
MORE = 0.03  # the goal: at most this much more time with authentication


def in_turns(
    clients: tuple[Client, Client], measure: Callable[[Client], float], rounds: int
) -> tuple[list[float], list[float]]:
    """Measures both clusters `rounds` times after one round that does not count. The order changes
    from round to round.
    """
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for cluster in (0, 1) if turn % 2 else (1, 0):
            value = measure(clients[cluster])
            if turn:
                taken[cluster].append(value)
    return taken


def submitted_ms(client: Client) -> float:
    took_ms, _ = submit.measure(client, 0, SLOTS)
    return took_ms


def late_ms(client: Client) -> float:
    """Returns the 99th percentile of the latencies of one job."""
    return float(np.percentile(latency.latencies_ms(client, "python"), 99))


def ran_s(name: str) -> Callable[[Client], float]:
    def run(client: Client) -> float:
        env = Environment(parallelism=SLOTS)
        program(env, WORKS[name], ROWS).sink_to(DiscardSink())
        began = time.perf_counter()
        client.wait(client.submit(env.job_graph(name)))
        return time.perf_counter() - began

    return run


def run() -> list[dict[str, Any]]:
    off = configuration().with_overrides({options.SECURITY_ENABLED.key: "false"})
    with ExitStack() as stack:
        clients = []
        for conf in (configuration(), off):
            cluster = stack.enter_context(LocalCluster(conf, task_executors=1, slots=SLOTS))
            cluster.wait_for_slots()
            clients.append(cluster.client())
        both = (clients[0], clients[1])
        rows = [row("submit -> RUNNING", "ms", *in_turns(both, submitted_ms, SUBMISSIONS))]
        rows.append(row("latency, p99", "ms", *in_turns(both, late_ms, LATENCIES)))
        rows += [row(name, "s", *in_turns(both, ran_s(name), ROUNDS)) for name in JOBS]
    return rows


def row(what: str, unit: str, on: list[float], off: list[float]) -> dict[str, Any]:
    """Compares by the median of the rounds' ratios: the speed of the machine may change."""
    more = statistics.median(a / b for a, b in zip(on, off, strict=True)) - 1
    without = f"{statistics.median(off):.4g} without ({min(off):.4g} to {max(off):.4g})"
    return {
        "name": f"{what}, with authentication",
        "ours": f"{statistics.median(on):.4g}",
        "unit": f"{unit} (median of {len(on)}: {min(on):.4g} to {max(on):.4g}; {without})",
        "peers": {},
        "ratio": None,
        "goal": f"<= {MORE:.0%} more ({more:+.1%})",
        "met": more <= MORE,
    }

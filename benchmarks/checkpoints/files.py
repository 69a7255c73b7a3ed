"""Checkpoints while Parquet files are read at full speed into a keyed window: Nexmark's bids,
counted by bidder in windows of ten seconds.

The files are read many times, under different names, so that the job lasts. Event time restarts
with each of them; the watermark lags by a day, so no row is late, and all windows end with
the job. Runs with one checkpoint per second and runs without any take turns.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow.parquet as pq

from benchmarks.checkpoints import jobs
from benchmarks.nexmark.data import NEXMARK
from benchmarks.nexmark.programs import SCHEMA
from firesteel import Environment, Tumbling, Watermarks
from firesteel.client.client import Client
from firesteel.client.job_details import CheckpointDetails
from firesteel.connectors import DiscardSink, FileSource

FILES, FILE_BIDS = 4, 500_000
COPIES = 100  # 200 million bids, for some twenty seconds and the same number of checkpoints
WARM_COPIES = 10
RUNS = 3
GOALS_MS = (100, 300)
GOAL_PERCENT = 97


def write(folder: Path, copies: int) -> int:
    """Returns how many bids a job reads."""
    folder.mkdir(parents=True)
    for number in range(FILES):
        first = folder / f"{number}-0.parquet"
        pq.write_table(NEXMARK.bids(number * FILE_BIDS, (number + 1) * FILE_BIDS), first)
        for copy in range(1, copies):
            os.link(first, folder / f"{number}-{copy}.parquet")
    return FILES * FILE_BIDS * copies


def program(data: Path, directory: Path | None) -> Environment:
    settings = {} if directory is None else jobs.settings(directory, "1 s")
    env = Environment(parallelism=2, configuration=settings)
    files = FileSource(f"{data}/*.parquet", format="parquet", schema=SCHEMA)
    bids = env.from_source(
        files, watermarks=Watermarks.bounded("dateTime", max_out_of_orderness="1 day")
    )
    counts = bids.key_by("bidder").window(Tumbling("10 s")).aggregate("count(*) AS bid_count")
    counts.sink_to(DiscardSink())
    return env


def cpu_s() -> float:
    """Returns the CPU time of all descendants of this process."""
    return sum(
        sum(process.cpu_times()) for process in psutil.Process().children(recursive=True)
    )  # children that have ended count with their parents


class Timed(NamedTuple):
    seconds: float
    cpu_s: float
    checkpoints: list[CheckpointDetails]


def timed(client: Client, data: Path, directory: Path | None) -> Timed:
    graph = program(data, directory).job_graph("files")
    before_s, began = cpu_s(), time.perf_counter()
    job_id = client.submit(graph)
    with jobs.Watched(client, job_id) as watched:
        client.wait(job_id)
        took_s = time.perf_counter() - began
    return Timed(took_s, cpu_s() - before_s, watched.complete)


def run(share: float = 1.0) -> list[dict[str, Any]]:
    copies = jobs.scaled(COPIES, share, least=WARM_COPIES)
    runs = jobs.scaled(RUNS, share, least=1)
    without: list[Timed] = []
    with_them: list[Timed] = []
    with jobs.folder() as folder, jobs.cluster() as cluster:
        write(folder / "few", WARM_COPIES)
        rows = write(folder / "bids", copies)
        client = cluster.client()
        timed(client, folder / "few", folder / "warm")
        for number in range(runs):
            without.append(timed(client, folder / "bids", None))
            with_them.append(timed(client, folder / "bids", folder / f"checkpoints-{number}"))
    found = [checkpoint for each in with_them for checkpoint in each.checkpoints]
    if not found:
        raise RuntimeError("no run was long enough for a checkpoint; give it more ROWS")
    plain_s, took_s = (statistics.median(t.seconds for t in each) for each in (without, with_them))
    plain_cpu_s, took_cpu_s = (
        statistics.median(t.cpu_s for t in each) for each in (without, with_them)
    )
    percent = 100 * plain_s / took_s
    return [
        jobs.durations(
            "checkpoint while Parquet files are read into a keyed window, one per second",
            found,
            GOALS_MS,
        ),
        jobs.row(
            "throughput with these checkpoints, of that without",
            f"{percent:.1f}",
            f"% ({rows / took_s / 1e6:.2f} M of {rows / plain_s / 1e6:.2f} M rows/s; per second of"
            f" CPU {100 * plain_cpu_s / took_cpu_s:.1f} %; medians of {runs})",
            f">= {GOAL_PERCENT} %",
            met=percent >= GOAL_PERCENT,
        ),
    ]


if __name__ == "__main__":
    for measured in run():
        print(measured)

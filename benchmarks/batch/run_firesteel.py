"""Runs batch jobs, `python -m benchmarks.batch.run_firesteel DATA RESULTS QUERY...`, on an embedded
cluster of real processes: 2 slots of 1 core and a heap of 2 GB each, in total the same as Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.batch.programs import PROGRAMS, tables
from benchmarks.batch.protocol import run_all
from benchmarks.peers.run_firesteel import SLOTS, configuration
from firesteel import Environment
from firesteel.client.cluster import LocalCluster
from firesteel.common.config import options
from firesteel.connectors import FileSink


def main() -> None:
    conf = configuration().with_overrides({options.SLOT_HEAP.key: "2g"})
    with LocalCluster(conf, task_executors=1, slots=SLOTS) as cluster:
        cluster.wait_for_slots()
        client = cluster.client()

        def run(query: str, data: Path, result: Path) -> None:
            env = Environment(mode="batch", parallelism=SLOTS)
            PROGRAMS[query](tables(env, data)).sink_to(FileSink(str(result), "parquet"))
            client.wait(client.submit(env.job_graph(query)))

        run_all(sys.argv[1:], run)


if __name__ == "__main__":
    main()

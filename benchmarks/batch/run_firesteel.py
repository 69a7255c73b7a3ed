"""`python -m benchmarks.batch.run_firesteel DATA RESULTS QUERY...`: batch jobs on an embedded
cluster of real processes, 2 slots of 1 core each.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.batch.programs import PROGRAMS, tables
from benchmarks.batch.protocol import run_all
from benchmarks.peers.run_firesteel import SLOTS, configuration
from firesteel import Environment
from firesteel.client.cluster import LocalCluster
from firesteel.connectors import FileSink


def main() -> None:
    with LocalCluster(configuration(), task_executors=1, slots=SLOTS) as cluster:
        cluster.wait_for_slots()
        client = cluster.client()

        def run(query: str, data: Path, result: Path) -> None:
            env = Environment(mode="batch", parallelism=SLOTS)
            PROGRAMS[query](tables(env, data)).sink_to(FileSink(str(result), "parquet"))
            client.wait(client.submit(env.job_graph(query)))

        run_all(sys.argv[1:], run)


if __name__ == "__main__":
    main()

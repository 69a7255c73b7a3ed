"""Runs queries on an embedded cluster of real processes, 2 slots of 1 core each: `python -m
benchmarks.nexmark.run_firesteel KIND DATA QUERY...`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from benchmarks.nexmark import protocol
from benchmarks.nexmark.data import CHECK_BIDS, CHECK_NEXMARK, NEXMARK, shared_memory
from benchmarks.nexmark.programs import (
    JOINS,
    QUERIES,
    bids_of_files,
    bids_of_generator,
    events_of_files,
)
from benchmarks.peers.run_firesteel import SLOTS, collected, configuration
from firesteel import Environment
from firesteel.client.cluster import LocalCluster
from firesteel.common.config import options
from firesteel.connectors import DiscardSink, FileSink
from firesteel.datastream import DataStream


def main() -> None:
    kind, data, queries = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]

    def program(query: str, small: bool) -> tuple[Environment, DataStream]:
        # q20 stores ten million bids with all of their texts.
        on_disk = {options.STATE_BACKEND.key: "rocksdb"} if query in protocol.JOINS else {}
        env = Environment(parallelism=SLOTS, configuration=on_disk)
        if kind == protocol.GENERATED:
            nexmark, rows = (
                (CHECK_NEXMARK, CHECK_BIDS) if small else (NEXMARK, protocol.bids_in(data))
            )
            bids = bids_of_generator(env, nexmark, rows)
        else:
            folder = data / (protocol.CHECK if small else protocol.TIMED)
            if query in JOINS:
                return env, JOINS[query](events_of_files(env, folder, kind))
            bids = bids_of_files(env, folder, kind)
        return env, QUERIES[query](bids)

    with LocalCluster(configuration(), task_executors=1, slots=SLOTS) as cluster:
        cluster.wait_for_slots()
        client = cluster.client()

        def collect(query: str) -> pa.Table:
            return collected(client, program(query, small=True)[1])

        def run(query: str) -> None:
            env, result = program(query, small=False)
            output = tempfile.mkdtemp(prefix="bench-nexmark-", dir=shared_memory())
            try:
                writes = protocol.writes_parquet(query, kind)
                result.sink_to(FileSink(output, "parquet") if writes else DiscardSink())
                client.wait(client.submit(env.job_graph(query)))
            finally:
                shutil.rmtree(output)

        protocol.run_all(data, queries, collect, run)


if __name__ == "__main__":
    main()

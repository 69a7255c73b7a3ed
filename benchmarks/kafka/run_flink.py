"""Runs Flink SQL in a local cluster of 2 slots, `python run_flink.py BOOTSTRAP BIDS JARS QUERY...`,
in `.bench-venv`, which only has PyFlink.

Settings as in `benchmarks.nexmark.run_flink`. Watermarks are kept per partition.
"""

from __future__ import annotations

import sys

from benchmarks.kafka.bids import CHECK, right, timed
from benchmarks.kafka.flink_tables import bids, settings
from benchmarks.nexmark.oracle import check
from benchmarks.nexmark.protocol import run_each
from benchmarks.nexmark.run_flink import Flink
from benchmarks.peers.run_flink import NOTHING


def main() -> None:
    bootstrap, count, jars, queries = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    flink, topic = Flink(settings(jars)), timed(count)

    def checked(query: str) -> None:
        bids(flink, bootstrap, CHECK.name)
        found = flink.collect(query, lambda connector: flink.insert(query, connector))
        check(query, found, right(query, last_window=True))

    def run(query: str) -> None:
        bids(flink, bootstrap, topic.name)
        flink.insert(query, NOTHING)

    run_each(queries, checked, run, topic.records)


if __name__ == "__main__":
    main()

"""Runs queries on an embedded cluster of real processes, 2 slots of 1 core each: `python -m
benchmarks.kafka.run_firesteel BOOTSTRAP BIDS QUERY...`.
"""

from __future__ import annotations

import sys

from benchmarks.kafka.bids import CHECK, Topic, right, timed
from benchmarks.nexmark.oracle import check
from benchmarks.nexmark.programs import QUERIES, SCHEMA, WATERMARKS
from benchmarks.nexmark.protocol import run_each
from benchmarks.peers.run_firesteel import SLOTS, collected, configuration
from firesteel import Environment
from firesteel.client.cluster import LocalCluster
from firesteel.connectors import DiscardSink, KafkaSource
from firesteel.connectors.kafka.formats import Json
from firesteel.datastream import DataStream


def bids(env: Environment, bootstrap: str, topic: Topic) -> DataStream:
    source = KafkaSource(topic.name, bootstrap_servers=bootstrap, end="latest", format=Json(SCHEMA))
    return env.from_source(source, watermarks=WATERMARKS, uid="bids")


def main() -> None:
    bootstrap, count, queries = sys.argv[1], int(sys.argv[2]), sys.argv[3:]

    def program(query: str, topic: Topic) -> tuple[Environment, DataStream]:
        env = Environment(parallelism=SLOTS)
        return env, QUERIES[query](bids(env, bootstrap, topic))

    topic = timed(count)
    with LocalCluster(configuration(), task_executors=1, slots=SLOTS) as cluster:
        cluster.wait_for_slots()
        client = cluster.client()

        def checked(query: str) -> None:
            found = collected(client, program(query, CHECK)[1])
            check(query, found, right(query, last_window=True))

        def run(query: str) -> None:
            env, result = program(query, topic)
            result.sink_to(DiscardSink())
            client.wait(client.submit(env.job_graph(query)))

        run_each(queries, checked, run, topic.records)


if __name__ == "__main__":
    main()

"""Runs the work on an embedded cluster of real processes, 2 slots of 1 core each: `python -m
benchmarks.peers.run_firesteel WORK`.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from benchmarks.peers import work as peers
from benchmarks.peers.work import KEEP_ONE_IN, Work
from firesteel import Environment, Tumbling, Watermarks
from firesteel.client.client import Client
from firesteel.client.cluster import LocalCluster
from firesteel.common.config import Configuration, options
from firesteel.connectors import CollectSink, DiscardSink
from firesteel.datastream import DataStream

SLOTS = 2
AGGREGATES = ("count(*) AS c", "sum(value) AS s")


def configuration() -> Configuration:
    return Configuration.load(overrides={options.METRICS_PORT.key: "0"})


def program(env: Environment, work: Work, rows: int) -> DataStream:
    numbers = env.from_sequence(0, rows)
    keys = work.keys
    match work.name:
        case "filter_project":
            return numbers.transform(
                lambda df: df.where(f"value % {KEEP_ONE_IN} = 0").selectExpr(
                    "value AS v", "value * 2 AS d"
                )
            )
        case "keyed_aggregate_1k" | "keyed_aggregate_1m":
            keyed = numbers.transform(
                lambda df: df.selectExpr(f"value % {keys} AS k", "value")
            ).key_by("k")
            return keyed.aggregate(*AGGREGATES)
        case "window_aggregate":
            timed = numbers.transform(
                lambda df: df.selectExpr(
                    f"value % {keys} AS k", "value", "timestamp_micros(value) AS t"
                )
            )
            return timed.key_by("k").window(Tumbling("1 s", on="t")).aggregate(*AGGREGATES)
        case "stateful_processor":
            from benchmarks.peers.processors import CountAndSum, with_key

            mapped = numbers.map_in_arrow(with_key(keys), "k long, value long")
            return mapped.key_by("k").transform_with_state(
                CountAndSum(), "k long, c long, s long", "update"
            )
        case "keyed_process":
            from benchmarks.peers.processors import CountAndSumLater, with_key_and_time

            mapped = numbers.map_in_arrow(
                with_key_and_time(keys), "k long, value long, t timestamp"
            )
            timed = mapped.assign_timestamps_and_watermarks(Watermarks.bounded("t"))
            return timed.key_by("k").process(CountAndSumLater(), "k long, c long, s long")
        case _:
            raise SystemExit(f"unknown: {work.name}")


def collected(client: Client, stream: DataStream) -> pa.Table:
    stream.sink_to(CollectSink())
    graph = stream._program.job_graph("check")
    job_id = client.submit(graph)
    client.wait(job_id)
    (operator_id,) = [
        o.operator_id
        for v in graph.vertices
        for o in v.operators
        if o.coordinator_kind == "collect"
    ]
    return client.fetch_table(job_id, operator_id)


def main() -> None:
    work = peers.WORKS[sys.argv[1]]
    with LocalCluster(configuration(), task_executors=1, slots=SLOTS) as cluster:
        cluster.wait_for_slots()
        client = cluster.client()
        check = collected(client, program(Environment(parallelism=SLOTS), work, work.check_rows))
        peers.check(
            work, {name: check[name].to_numpy() for name in check.column_names}, work.check_rows
        )
        env = Environment(parallelism=SLOTS)
        program(env, work, work.rows).sink_to(DiscardSink())
        graph = env.job_graph(work.name)
        peers.begin()
        client.wait(client.submit(graph))
        peers.end(work.rows)


if __name__ == "__main__":
    main()

"""A topic of 1,000 partitions on two subtasks: the time until all records have been forwarded, and
the memory of the slots, beside those of a topic of one partition.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.checkpoints.jobs import end
from benchmarks.kafka import topics
from benchmarks.kafka.jobs_firesteel import forward
from benchmarks.nexmark.data import shared_memory
from benchmarks.peers.memory import executors, resident_mb, wait_until_idle
from benchmarks.peers.run_firesteel import SLOTS, configuration
from benchmarks.progress import Steps
from firesteel.client.cluster import LocalCluster
from tests.kafka.broker import Kafka
from tests.kafka.records import Record, create_topic, produce

NAME = "kafka_partitions"
PARTITIONS = RECORDS = 1_000
START_GOAL_S, MEMORY_GOAL_MB = 5.0, 200.0
STEPS = 2
_QUIET_CPU_S = 0.3  # in five seconds: each subtask polls 500 partitions
_INTERVAL = "10 s"
_PATIENCE_S = 120.0


class Measured(NamedTuple):
    start_s: float
    memory_mb: float  # of all slots


def run(steps: Steps) -> Iterator[dict[str, Any]]:
    with topics.broker() as kafka:
        with steps.step(f"{NAME}: one partition"):
            one = _measured(kafka, 1)
        with steps.step(f"{NAME}: {PARTITIONS:,} partitions"):
            many = _measured(kafka, PARTITIONS)
    yield _row(
        "from submission until a record of each was forwarded",
        f"{many.start_s:.1f}",
        f"s (one partition: {one.start_s:.1f})",
        f"<= {START_GOAL_S:g} s",
        many.start_s <= START_GOAL_S,
    )
    more_mb = many.memory_mb - one.memory_mb
    yield _row(
        "memory above one partition",
        f"{more_mb:.0f}",
        f"MB (one partition: {one.memory_mb:.0f})",
        f"<= {MEMORY_GOAL_MB:g} MB",
        more_mb <= MEMORY_GOAL_MB,
    )


def _row(what: str, ours: str, unit: str, goal: str, met: bool) -> dict[str, Any]:
    name = f"{PARTITIONS:,} partitions of Kafka on {SLOTS} subtasks: {what}"
    row: dict[str, Any] = {"name": name, "ours": ours, "unit": unit, "goal": goal, "met": met}
    return {**row, "peers": {}, "ratio": None}


def _measured(kafka: Kafka, partitions: int) -> Measured:
    source, to = create_topic(kafka, partitions=partitions), create_topic(kafka)
    produce(
        kafka,
        source,
        (Record(value=b"%d" % number, partition=number % partitions) for number in range(RECORDS)),
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-kafka-", dir=shared_memory()) as folder,
        LocalCluster(configuration(), task_executors=1, slots=SLOTS) as cluster,
    ):
        cluster.wait_for_slots()
        client = cluster.client()
        env = forward(Path(folder), kafka.bootstrap, source, to, "at-least-once", _INTERVAL)
        graph = env.job_graph(NAME)
        began = time.monotonic()
        job_id = client.submit(graph)
        while (count := topics.ends(kafka, to)[0]) < RECORDS:
            if time.monotonic() > began + _PATIENCE_S:
                raise RuntimeError(f"{count:,} records instead of {RECORDS:,} were forwarded")
        took_s = time.monotonic() - began
        found = executors(os.getpid())
        wait_until_idle(found, _QUIET_CPU_S)
        memory_mb = sum(resident_mb(process) for process in found)
        end(client, job_id)
    topics.delete(kafka, source, to)
    return Measured(took_s, memory_mb)

"""Measures how long a PySpark program takes from a record to the updated count of its window, at
1,000 records/s: the same program on Firesteel and on Spark in real-time mode.

A record is counted when an output of its key has seen its number or a later one of the key.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer

from benchmarks.kafka import topics
from benchmarks.kafka.connectors import jars, spark_jars
from benchmarks.kafka.counts_spark import CHECKPOINTS, KEYS
from benchmarks.kafka.latency import (
    PARTITIONS,
    RATE_PER_S,
    Latency,
    check_time,
    consumer_of,
    producer_of,
    until_end,
    wait_for_first,
    warm_broker,
)
from benchmarks.peers.environment import ROOT, NotInstalled
from benchmarks.peers.measure import EngineFailed
from benchmarks.peers.rows import FIRESTEEL, SPARK
from benchmarks.progress import Steps
from tests.kafka.broker import Kafka
from tests.kafka.records import create_topic

NAME = "kafka_counts"
WARM_RECORDS = 30_000  # while JVMs compile
RECORDS = 15_000
GOAL_MS = 20.0
ENGINES = (FIRESTEEL, SPARK)
STEPS = 1 + len(ENGINES)
_PATIENCE_S = 120.0
_PROBE_S = 0.5


def run(steps: Steps) -> Iterator[dict[str, Any]]:
    found: dict[str, Latency | str] = {}
    with warm_broker(steps) as kafka:
        for engine in ENGINES:
            with steps.step(f"{NAME} on {engine}"):
                try:
                    found[engine] = _latency(engine, kafka)
                except (EngineFailed, NotInstalled) as failed:
                    found[engine] = f"failed: {failed}"
    ours, peer = found[FIRESTEEL], found[SPARK]
    yield {
        "name": f"a PySpark program that counts in windows at {RATE_PER_S:,} records/s, update"
        f" mode, a checkpoint every {CHECKPOINTS}: p99",
        "ours": ours if isinstance(ours, str) else round(ours.p99_ms, 1),
        "unit": "" if isinstance(ours, str) else f"ms (median {ours.p50_ms:.1f})",
        "peers": {
            "Spark in real-time mode": peer
            if isinstance(peer, str)
            else f"{peer.p99_ms:.1f} ms (median {peer.p50_ms:.1f})"
        },
        "ratio": None
        if isinstance(ours, str) or isinstance(peer, str)
        else round(peer.p99_ms / ours.p99_ms, 2),
        "goal": f"<= {GOAL_MS:g} ms",
        "met": None if isinstance(ours, str) else ours.p99_ms <= GOAL_MS,
        "failed": [engine for engine, result in found.items() if isinstance(result, str)],
    }


def _latency(engine: str, kafka: Kafka) -> Latency:
    source, to = (create_topic(kafka, partitions=PARTITIONS) for _ in range(2))
    with _running(engine, [kafka.bootstrap, source, to]) as process, consumer_of(kafka, to) as out:
        producer = producer_of(kafka)
        wait_for_first(process, producer, source, out, b"-1", all_come=False)
        produced_ns = np.zeros(WARM_RECORDS + RECORDS, np.int64)
        sender = threading.Thread(target=_send, args=(producer, source, produced_ns), daemon=True)
        sender.start()
        late_ms = _receive(process, out, produced_ns)
        sender.join()
    topics.delete(kafka, source, to)
    measured = late_ms[WARM_RECORDS:]
    return Latency(float(np.median(measured)), float(np.percentile(measured, 99)))


@contextmanager
def _running(engine: str, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "benchmarks.kafka.counts_spark", *arguments]
    if engine == SPARK:
        command.append(",".join(spark_jars(jars())))
    else:
        program = ["benchmarks/kafka/counts_spark.py", *arguments]
        command = [sys.executable, "-m", "firesteel", "run", "-t", "local", "-p", "2", *program]
    with until_end(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)) as process:
        yield process


def _send(producer: Producer, topic: str, produced_ns: np.ndarray) -> None:
    began = time.perf_counter()
    for number in range(len(produced_ns)):
        if (early_s := began + number / RATE_PER_S - time.perf_counter()) > 0:
            time.sleep(early_s)
        produced_ns[number] = time.time_ns()
        producer.produce(topic, b"%d" % number)
        producer.poll(0)
    producer.flush(_PATIENCE_S)


def _receive(
    process: subprocess.Popen[bytes], consumer: Consumer, produced_ns: np.ndarray
) -> np.ndarray:
    """Returns the latency of each record. Raises EngineFailed if one does not come."""
    late_ms = np.full(len(produced_ns), np.nan)
    following = list(range(KEYS))  # by key: the first number that was not seen
    deadline = time.monotonic() + len(produced_ns) / RATE_PER_S + _PATIENCE_S
    left = len(late_ms)
    while left:
        check_time(process, deadline)
        message = consumer.poll(_PROBE_S)
        if message is None or message.error():
            continue
        now_ns = time.time_ns()
        key, _, latest = map(int, (message.value() or b"").split())
        if latest < 0:
            continue
        for number in range(following[key], latest + 1, KEYS):
            late_ms[number] = (now_ns - produced_ns[number]) / 1e6
            left -= 1
        following[key] = max(following[key], latest + KEYS)
    return late_ms

"""Measures the time from a producer through a job to a `read_committed` consumer, at 1,000
records/s.

Each record holds the time at which it was produced. Producer and consumer are here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.kafka import topics
from benchmarks.kafka.connectors import flink_jars, jars
from benchmarks.peers.environment import ROOT, NotInstalled, flink_environ, flink_python
from benchmarks.peers.measure import EngineFailed
from benchmarks.peers.rows import FIRESTEEL, FLINK, FlinkInstallation
from benchmarks.progress import Steps
from tests.kafka.broker import Kafka
from tests.kafka.records import create_topic

NAME = "kafka_latency"
RATE_PER_S = 1_000
WARM_RECORDS = 20_000  # while JVMs compile
RECORDS = 15_000
PARTITIONS = 2
BROKER_RECORDS = 60_000  # while the broker's JVM compiles
_UNDERWAY = 4  # requests at a time
_PROBE_S = 0.5
_PATIENCE_S = 120.0


class Case(NamedTuple):
    delivery: str
    interval: str  # between checkpoints
    goal_ms: float  # p99


CASES = (Case("at-least-once", "1 s", 15.0), Case("exactly-once", "100 ms", 250.0))
STEPS = 1 + 2 * len(CASES)


class Latency(NamedTuple):
    p50_ms: float
    p99_ms: float


def run(steps: Steps, flink: FlinkInstallation) -> Iterator[dict[str, Any]]:
    with warm_broker(steps) as kafka:
        for case in CASES:
            found: dict[str, Latency | str] = {}
            for engine in (FIRESTEEL, FLINK):
                missing = flink.install() if engine == FLINK else None
                with steps.step(f"{NAME}, {case.delivery}, on {engine}"):
                    try:
                        if missing:
                            raise missing
                        found[engine] = _latency(engine, kafka, case)
                    except (EngineFailed, NotInstalled) as failed:
                        found[engine] = f"failed: {failed}"
            yield _row(case, found)


def _row(case: Case, found: dict[str, Latency | str]) -> dict[str, Any]:
    ours, peer = found[FIRESTEEL], found[FLINK]
    return {
        "name": f"Kafka to Kafka at {RATE_PER_S:,} records/s, {case.delivery}, a checkpoint every"
        f" {case.interval}: p99",
        "ours": ours if isinstance(ours, str) else round(ours.p99_ms, 1),
        "unit": "" if isinstance(ours, str) else f"ms (median {ours.p50_ms:.1f})",
        "peers": {
            FLINK: peer
            if isinstance(peer, str)
            else f"{peer.p99_ms:.1f} ms (median {peer.p50_ms:.1f})"
        },
        "ratio": None
        if isinstance(ours, str) or isinstance(peer, str)
        else round(peer.p99_ms / ours.p99_ms, 2),
        "goal": f"<= {case.goal_ms:g} ms",
        "met": None if isinstance(ours, str) else ours.p99_ms <= case.goal_ms,
        "failed": [engine for engine, result in found.items() if isinstance(result, str)],
    }


def _latency(engine: str, kafka: Kafka, case: Case) -> Latency:
    source, to = (create_topic(kafka, partitions=PARTITIONS) for _ in range(2))
    arguments = [kafka.bootstrap, source, to, case.delivery, case.interval]
    with _running(engine, arguments) as process, consumer_of(kafka, to) as consumer:
        producer = producer_of(kafka)
        wait_for_first(process, producer, source, consumer, b"-1 0")
        sender = threading.Thread(target=_send, args=(producer, source), daemon=True)
        sender.start()
        late_ms = _receive(process, consumer)
        sender.join()
    topics.delete(kafka, source, to)
    measured = late_ms[WARM_RECORDS:]
    return Latency(float(np.median(measured)), float(np.percentile(measured, 99)))


@contextmanager
def _running(engine: str, arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the job until the end of the context."""
    command = [sys.executable, "-m", "benchmarks.kafka.jobs_firesteel", "forward", *arguments]
    environ = None
    if engine == FLINK:
        program = [str(flink_python()), "benchmarks/kafka/jobs_flink.py", "forward"]
        command = [*program, ",".join(flink_jars(jars())), *arguments]
        environ = flink_environ()
    started = subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.PIPE)
    with until_end(started) as process:
        yield process


@contextmanager
def until_end(started: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Ends the process, by the end of its standard input, with the context."""
    with started as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def warm_broker(steps: Steps) -> Iterator[Kafka]:
    """Yields a broker that has compiled what it runs for single records: otherwise its compilers
    take half a core from the engine that comes first.
    """
    with topics.broker() as kafka:
        with steps.step("the broker gets warm"):
            topic = create_topic(kafka, partitions=PARTITIONS)
            producer = producer_of(kafka)
            with consumer_of(kafka, topic) as consumer:
                sent = received = 0
                while received < BROKER_RECORDS:
                    if sent < BROKER_RECORDS and len(producer) < _UNDERWAY:
                        producer.produce(topic, b"%d" % sent)
                        sent += 1
                    producer.poll(0)
                    received += len(consumer.consume(_UNDERWAY, 0))
            topics.delete(kafka, topic)
        yield kafka


def producer_of(kafka: Kafka) -> Producer:
    """Returns a producer that does not linger. Like Kafka's own, it has at most five requests
    underway: without this limit, each record is a request of its own, and a busy broker never
    catches up.
    """
    return Producer({**kafka.settings(), "linger.ms": 0, "enable.idempotence": True})


@contextmanager
def consumer_of(kafka: Kafka, topic: str) -> Iterator[Consumer]:
    settings = {"group.id": "latency", "isolation.level": "read_committed"}
    consumer = Consumer({**kafka.settings(), **settings, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        yield consumer
    finally:
        consumer.close()


def wait_for_first(
    process: subprocess.Popen[bytes],
    producer: Producer,
    topic: str,
    consumer: Consumer,
    record: bytes,
    *,
    all_come: bool = True,
) -> None:
    """Sends records until all that were sent have come back; unless `all_come`, until one has."""
    sent = received = 0
    deadline = time.monotonic() + _PATIENCE_S
    while not received or (all_come and received < sent):
        check_time(process, deadline)
        if not received:
            producer.produce(topic, record)
            producer.poll(0)
            sent += 1
        received += sum(not message.error() for message in consumer.consume(1_000, _PROBE_S))


def _send(producer: Producer, topic: str) -> None:
    began = time.perf_counter()
    for number in range(WARM_RECORDS + RECORDS):
        if (early_s := began + number / RATE_PER_S - time.perf_counter()) > 0:
            time.sleep(early_s)
        producer.produce(topic, b"%d %d" % (number, time.time_ns()))
        producer.poll(0)
    producer.flush(_PATIENCE_S)


def _receive(process: subprocess.Popen[bytes], consumer: Consumer) -> np.ndarray:
    """Returns the latency of each record. Raises EngineFailed if one comes twice, or not."""
    late_ms = np.full(WARM_RECORDS + RECORDS, np.nan)
    deadline = time.monotonic() + (WARM_RECORDS + RECORDS) / RATE_PER_S + _PATIENCE_S
    left = len(late_ms)
    while left:
        check_time(process, deadline)
        message = consumer.poll(_PROBE_S)
        if message is None or message.error():
            continue
        number, produced_ns = map(int, (message.value() or b"").split())
        if not np.isnan(late_ms[number]):
            raise EngineFailed(f"record {number} was written twice")
        late_ms[number] = (time.time_ns() - produced_ns) / 1e6
        left -= 1
    return late_ms


def check_time(process: subprocess.Popen[bytes], deadline: float) -> None:
    if process.poll() is not None:
        raise EngineFailed(f"it ended with code {process.returncode}")
    if time.monotonic() > deadline:
        raise EngineFailed(f"records are missing after {_PATIENCE_S:g} s")

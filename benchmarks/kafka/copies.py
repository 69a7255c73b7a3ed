"""Transforms the records of a topic into another topic, exactly once, with a checkpoint every
second. A `read_committed` consumer compares the whole output.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import json

from benchmarks.kafka import topics
from benchmarks.kafka.bids import COPY_COLUMNS, PARTITIONS, Topic, copied, timed
from benchmarks.kafka.connectors import flink_jars, jars
from benchmarks.peers.environment import NotInstalled, flink_environ, flink_python
from benchmarks.peers.measure import EngineFailed, measure
from benchmarks.peers.rows import FIRESTEEL, FLINK, FlinkInstallation, Result, amount, row
from benchmarks.progress import Steps
from tests.kafka.broker import Kafka
from tests.kafka.records import create_topic

NAME = "kafka_copy"
GOALS: dict[str, float | None] = {FLINK: 1.5}
STEPS = 2
_ARROW = {"BIGINT": pa.int64(), "STRING": pa.string()}
_SCHEMA = pa.schema([(name, _ARROW[kind]) for name, (_, _, kind) in COPY_COLUMNS.items()])
_ORDER = [(name, "ascending") for name in COPY_COLUMNS]


def run(steps: Steps, flink: FlinkInstallation, bids: int) -> Iterator[dict[str, Any]]:
    results: dict[str, Result] = {}
    with topics.broker(bids) as kafka:
        for engine in (FIRESTEEL, FLINK):
            missing = flink.install() if engine == FLINK else None
            with steps.step(f"{NAME} on {engine}"):
                results[engine] = missing or _run(engine, kafka, timed(bids))
    title = f"Kafka to Kafka, exactly once, {amount(bids)} bids as JSON"
    yield row(title, results, GOALS)


def _run(engine: str, kafka: Kafka, topic: Topic) -> Result:
    warm_to, to = (create_topic(kafka, partitions=PARTITIONS) for _ in range(2))
    arguments = [kafka.bootstrap, str(topic.bids), warm_to, to]
    try:
        if engine == FIRESTEEL:
            module = "benchmarks.kafka.jobs_firesteel"
            found = measure([sys.executable, "-m", module, "copy", *arguments])
        else:
            program = [str(flink_python()), "benchmarks/kafka/jobs_flink.py", "copy"]
            connectors = ",".join(flink_jars(jars()))
            found = measure([*program, connectors, *arguments], flink_environ())
        _check(topics.read_committed(kafka, to), topic)
    except (EngineFailed, NotInstalled) as failed:
        return failed
    finally:
        topics.delete(kafka, warm_to, to)
    return found


def _check(values: list[bytes], topic: Topic) -> None:
    """Raises EngineFailed unless the records are what the transformation makes of the topic."""
    if len(values) != topic.records:
        raise EngineFailed(f"it wrote {len(values):,} records instead of {topic.records:,}")
    parsing = json.ParseOptions(explicit_schema=_SCHEMA)
    lines = io.BytesIO(b"\n".join(values))
    found = json.read_json(lines, parse_options=parsing).select(_SCHEMA.names)
    if not found.sort_by(_ORDER).equals(copied(topic.all()).cast(_SCHEMA).sort_by(_ORDER)):
        raise EngineFailed("its records differ from the expected ones")

"""Records of Kafka reach files exactly once: through a killed slot, new partitions and rescaling,
and from ranges of one partition.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from firesteel import Environment
from firesteel.connectors import FileSink, KafkaSource
from tests.kafka.broker import Kafka
from tests.kafka.records import Record, create_topic, produce
from tests.long import long_after
from tests.waiting import eventually

from .conftest import Session

pytestmark = pytest.mark.usefixtures("shipped_module")

Arrow = Iterator[pa.RecordBatch]
PART = 500  # records at a time
CHECKPOINTS = {
    "execution.checkpointing.interval": "200 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "2",
    "restart-strategy.fixed-delay.delay": "0 s",
}


def _number(folder: Path) -> Callable[[Arrow], Arrow]:
    """Turns values into numbers. Kills its process once, when there are complete checkpoints."""
    flag = folder / "killed"

    def numbered(batches: Arrow) -> Arrow:
        for batch in batches:
            numbers = pc.cast(pc.cast(batch.column("value"), pa.string()), pa.int64())
            if pc.max(numbers).as_py() >= PART and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield pa.record_batch({"number": numbers})

    return numbered


def _write_and_die(kafka: str, topic: str, folder: Path) -> Callable[[Arrow], Arrow]:
    """Turns values into numbers. Writes more records and kills its process, once."""
    flag = folder / "killed"

    def numbered(batches: Arrow) -> Arrow:
        for batch in batches:
            numbers = pc.cast(pc.cast(batch.column("value"), pa.string()), pa.int64())
            if pc.max(numbers).as_py() >= 3 * PART and not flag.exists():
                flag.touch()
                producer = Producer({"bootstrap.servers": kafka})
                for number in range(4 * PART, 5 * PART):
                    producer.produce(topic, str(number), partition=0)
                producer.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            yield pa.record_batch({"number": numbers})

    return numbered


def _job(kafka: Kafka, topic: str, folder: Path, parallelism: int, **more: str) -> Environment:
    configuration = {
        **CHECKPOINTS,
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        **more,
    }
    env = Environment(parallelism=parallelism, configuration=configuration)
    source = KafkaSource(
        topic,
        bootstrap_servers=kafka.bootstrap,
        group_id=topic,
        partition_discovery_interval="200 ms",
    )
    stream = env.from_source(source, uid="records")
    numbers = stream.map_in_arrow(_number(folder), schema="number BIGINT")
    numbers.sink_to(FileSink(str(folder / "out")), uid="files")
    return env


def _written(folder: Path) -> list[int]:
    files = (folder / "out").glob("part-*")
    return sorted(n for file in files for n in pq.read_table(file)["number"].to_pylist())


def _produce(kafka: Kafka, topic: str, part: int, partitions: int) -> list[int]:
    numbers = range(part * PART, (part + 1) * PART)
    produce(
        kafka,
        topic,
        [Record(value=str(n).encode(), partition=n % partitions) for n in numbers],
    )
    return list(range((part + 1) * PART))


def test_records_reach_files_exactly_once(kafka: Kafka, session: Session, tmp_path: Path) -> None:
    topic = create_topic(kafka, partitions=3)
    expected = _produce(kafka, topic, 0, 3)
    job_id = session.submit(_job(kafka, topic, tmp_path, 2))
    eventually(lambda: _written(tmp_path) == expected, "the first records are committed")
    expected = _produce(kafka, topic, 1, 3)
    eventually(lambda: _written(tmp_path) == expected, "a killed slot changes nothing")
    assert (tmp_path / "killed").exists()

    client = AdminClient(kafka.settings())
    client.create_partitions([NewPartitions(topic, 5)])[topic].result(60)
    expected = _produce(kafka, topic, 2, 5)
    eventually(lambda: _written(tmp_path) == expected, "new partitions are read")

    path = session.client.stop(job_id, str(tmp_path / "savepoints"))
    expected = _produce(kafka, topic, 3, 5)
    restored = {"execution.state-recovery.path": str(path)}
    job_id = session.submit(_job(kafka, topic, tmp_path, 3, **restored))
    eventually(lambda: _written(tmp_path) == expected, "the rescaled job reads the rest")
    session.client.cancel(job_id)


@pytest.mark.parametrize("mode", ["streaming", "batch"])
@pytest.mark.parametrize("min_partitions", long_after(1, [8, 1, 3]))
def test_ranges_of_a_partition_reach_files_exactly_once(
    kafka: Kafka, session: Session, tmp_path: Path, mode: str, min_partitions: int
) -> None:
    """The ends stay those that the job had when it started, also without a checkpoint."""
    topic = create_topic(kafka)
    values = [str(number).encode() for number in range(4 * PART)]
    produce(kafka, topic, values)
    configuration = {**CHECKPOINTS, "execution.checkpointing.dir": str(tmp_path / "checkpoints")}
    if mode == "batch":
        configuration["execution.checkpointing.interval"] = "0 s"
    env = Environment(parallelism=3, mode=mode, configuration=configuration)
    source = KafkaSource(
        topic, bootstrap_servers=kafka.bootstrap, end="latest", min_partitions=min_partitions
    )
    numbers = env.from_source(source, uid="records").map_in_arrow(
        _write_and_die(kafka.bootstrap, topic, tmp_path), schema="number BIGINT"
    )
    numbers.sink_to(FileSink(str(tmp_path / "out")), uid="files")
    details = session.client.wait(session.submit(env))
    assert details.status.name == "FINISHED", details.exceptions
    assert (tmp_path / "killed").exists()
    assert _written(tmp_path) == list(range(4 * PART))

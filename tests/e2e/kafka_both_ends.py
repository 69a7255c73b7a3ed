"""A job from topic to topic, exactly once: a producer writes numbered records, and a consumer reads
what the job has committed. Each record must arrive once, in the order of its partition.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pyarrow as pa
from confluent_kafka import Producer

from firesteel import Environment
from firesteel.common.states import ExecutionState
from firesteel.connectors import KafkaSink, KafkaSource
from firesteel.errors import FiresteelError
from tests.kafka.broker import Kafka
from tests.kafka.committed import SPLITS, CommittedReader, nothing_lingers, rows_of
from tests.kafka.records import create_topic, read
from tests.waiting import PATIENCE_S, eventually

from .conftest import Session

_BATCH_S = 0.05  # between the batches of the producer
_MOST_WAITING = 10_000  # records of the producer that the broker does not have


class Feeder(threading.Thread):
    """Writes batches to each partition until it is stopped."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        super().__init__(name="producer of numbered records")
        self._kafka, self._topic = kafka, topic
        self._over = threading.Event()

    def run(self) -> None:
        settings = {"enable.idempotence": True, "message.timeout.ms": 0}
        producer = Producer({**self._kafka.settings(), **settings})
        number = 0
        while not self._over.wait(_BATCH_S):
            if len(producer) < _MOST_WAITING:  # otherwise the broker is away
                for split in range(SPLITS):
                    for row in rows_of(split, number):
                        producer.produce(self._topic, row.encode(), partition=split)
                number += 1
            producer.poll(0)
        producer.flush()

    def stop(self) -> None:
        self._over.set()
        self.join()


def failing(poison: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Forwards rows. Fails when the file exists, which it removes."""

    def forward(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with contextlib.suppress(FileNotFoundError):
                poison.unlink()
                raise RuntimeError("poisoned")
            yield batch

    return forward


class BothEndsJob:
    """The job in a session: see `chaos.Job`."""

    parts = False

    def __init__(self, session: Session, kafka: Kafka, folder: Path) -> None:
        self._session, self.kafka, self._folder = session, kafka, folder
        self._poison = folder / "poison"
        self._prefix = f"job-{uuid.uuid4().hex[:8]}"
        self._from, self._to = (create_topic(kafka, partitions=SPLITS) for _ in range(2))
        self.job_id = session.submit(self._program())
        self._feeder = Feeder(kafka, self._from)
        self._reader = CommittedReader(kafka, self._to, whole=False)
        self._feeder.start()
        self._reader.start()

    def _program(self) -> Environment:
        env = Environment(
            parallelism=SPLITS,
            configuration={
                "execution.checkpointing.interval": "100 ms",
                "execution.checkpointing.dir": str(self._folder / "checkpoints"),
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "1000",
                "restart-strategy.fixed-delay.delay": "0 s",
            },
        )
        records = env.from_source(
            KafkaSource(self._from, bootstrap_servers=self.kafka.bootstrap, group_id=self._from),
            uid="records",
        )
        forwarded = (
            records.transform(lambda df: df.select("value", "partition"))
            .key_by("partition")
            .map_in_arrow(failing(self._poison), name="Forward")
        )
        forwarded.sink_to(
            KafkaSink(
                self._to,
                bootstrap_servers=self.kafka.bootstrap,
                delivery="exactly-once",
                transactional_id_prefix=self._prefix,
            ),
            uid="committed",
        )
        return env

    @property
    def committed(self) -> int:
        """How many records are visible."""
        return sum(self._reader.rows)

    @property
    def latest_attempt(self) -> int:
        """The highest number of an attempt that runs, or -1."""
        with contextlib.suppress(FiresteelError):  # a Dispatcher that comes back
            details = self._session.client.job_details(self.job_id)
            currents = [s.current for v in details.vertices for s in v.subtasks]
            return max(
                (a.number for a in currents if a and a.state is ExecutionState.RUNNING), default=-1
            )
        return -1

    def progress(self, what: str) -> None:
        """Waits for more records of each partition."""
        before = list(self._reader.rows)
        self._wait(
            lambda: all(n > m for n, m in zip(self._reader.rows, before, strict=True)),
            f"records after {what}",
        )

    def progress_of_attempt(self, number: int, what: str) -> None:
        self._wait(lambda: self.latest_attempt >= number, f"the next attempt after {what}")
        self.progress(what)

    def poison(self) -> None:
        """Fails a task."""
        self._poison.touch()
        eventually(lambda: not self._poison.exists(), "a task has failed")

    def break_broker(self) -> None:
        """Kills the broker, and starts it again."""
        self.kafka.kill()
        self.kafka.restart()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            eventually(lambda: self._problem() or condition(), what, patience_s=3 * PATIENCE_S)
        except AssertionError as error:
            error.add_note(str(self._session.client.job_details(self.job_id)))
            raise
        assert not (problem := self._problem()), problem

    def _problem(self) -> str:
        with contextlib.suppress(FiresteelError):
            details = self._session.client.job_details(self.job_id)
            if details.status.globally_terminal:
                return f"the job is {details.status.name}: {details.exceptions}"
        return self._reader.problem

    def finish(self) -> None:
        """Ends the job after all that was written. Everything is visible, once."""
        self._feeder.stop()
        written = [len(rows) for rows in self._records(self._from)]
        self._wait(lambda: self._reader.rows == written, f"all of {written} records")
        self._session.client.stop(self.job_id, str(self._folder / "savepoints"), drain=True)
        details = self._session.client.wait(self.job_id)
        assert details.status.name == "FINISHED", details.exceptions
        nothing_lingers(self.kafka, self._prefix)
        assert self._records(self._to) == self._records(self._from)
        assert all(written)

    def _records(self, topic: str) -> list[list[bytes | None]]:
        found: list[list[bytes | None]] = [[] for _ in range(SPLITS)]
        for record in read(self.kafka, topic):
            assert record.partition is not None
            found[record.partition].append(record.value)
        return found

    def close(self) -> None:
        self._feeder.stop()
        self._reader.stop()


@contextlib.contextmanager
def both_ends_job(session: Session, kafka: Kafka, folder: Path) -> Iterator[BothEndsJob]:
    """Runs, then ends and is checked."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        job = BothEndsJob(session, kafka, folder)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    try:
        yield job
        job.finish()
    finally:
        job.close()

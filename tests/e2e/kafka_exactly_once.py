"""A job that writes numbered batches to Kafka exactly once, while a consumer reads them."""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa

from firesteel import Environment
from firesteel.connectors import EndOfSplit, KafkaSink, Source, SourceReader
from firesteel.operator import RuntimeContext
from tests.kafka.broker import Kafka
from tests.kafka.committed import (
    BATCH_ROWS,
    SPLITS,
    CommittedReader,
    nothing_lingers,
    rows_of,
)
from tests.kafka.records import create_topic, read
from tests.waiting import PATIENCE_S, eventually

from .conftest import SLOTS, Session


class Batches(Source):
    """Each split has one partition of the topic, and numbered batches until `end` exists."""

    bounded = False

    def __init__(self, end: Path) -> None:
        self.end = end

    def output_schema(self) -> str:
        return "value STRING, partition INT"

    def splits(self, parallelism: int) -> list[dict[str, int]]:
        return [{"split": split} for split in range(SPLITS)]

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        return BatchesReader(self.end)


class BatchesReader(SourceReader):
    def __init__(self, end: Path) -> None:
        self.end = end

    def begin(self, split: dict[str, int]) -> None:  # type: ignore[override]
        self.split, self.next = split["split"], 0

    def poll(self) -> pa.RecordBatch:
        if self.end.exists():
            raise EndOfSplit
        time.sleep(0.02)
        number, self.next = self.next, self.next + 1
        return pa.record_batch(
            {
                "value": rows_of(self.split, number),
                "partition": pa.array([self.split] * BATCH_ROWS, pa.int32()),
            }
        )

    def position(self) -> int:
        return self.next

    def restore(self, position: int) -> None:  # type: ignore[override]
        self.next = position


class KafkaJob:
    def __init__(
        self, session: Session, kafka: Kafka, folder: Path, parallelism: int = SPLITS, **sink: Any
    ) -> None:
        self.session, self.kafka = session, kafka
        self.prefix = f"job-{uuid.uuid4().hex[:8]}"
        self.topic = create_topic(kafka, partitions=SPLITS)
        self._end = folder / "end"
        env = Environment(
            parallelism=parallelism,
            configuration={
                "execution.checkpointing.interval": "100 ms",
                "execution.checkpointing.dir": str(folder / "checkpoints"),
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "1000",
                "restart-strategy.fixed-delay.delay": "0 s",
            },
        )
        env.from_source(Batches(self._end)).sink_to(
            KafkaSink(
                self.topic,
                bootstrap_servers=kafka.bootstrap,
                delivery="exactly-once",
                transactional_id_prefix=self.prefix,
                **sink,
            )
        )
        self.job_id = session.submit(env)
        self.reader = CommittedReader(kafka, self.topic)
        self.reader.start()

    def progress(self, what: str) -> None:
        """Waits for more batches of each split."""
        before = list(self.reader.batches)
        self.wait(
            lambda: all(n > m for n, m in zip(self.reader.batches, before, strict=True)),
            f"batches after {what}",
        )

    def slots_are_warm(self) -> None:
        """Waits until the processes of all slots have started: a job that waits for a slot has open
        transactions.
        """
        self.wait(lambda: self.session.overview().slots_warm == SLOTS, f"{SLOTS} warm slots")

    def wait(self, condition: Any, what: str) -> None:
        try:
            eventually(lambda: self._problem() or condition(), what, patience_s=3 * PATIENCE_S)
        except AssertionError as error:
            error.add_note(str(self.session.client.job_details(self.job_id)))
            raise
        assert not (problem := self._problem()), problem

    def nothing_lingers(self) -> None:
        try:
            nothing_lingers(self.kafka, self.prefix)
        except AssertionError as error:
            error.add_note(str(self.session.client.job_details(self.job_id)))
            raise

    def _problem(self) -> str:
        details = self.session.client.job_details(self.job_id)
        if details.status.globally_terminal:
            return f"the job is {details.status.name}: {details.exceptions}"
        return self.reader.problem

    def finish(self) -> None:
        """Ends the job. Everything is visible, once."""
        self._end.touch()
        details = self.session.client.wait(self.job_id)
        assert details.status.name == "FINISHED", details.exceptions
        self.nothing_lingers()
        rows = Counter(record.partition for record in read(self.kafka, self.topic))
        batches = [rows[split] // BATCH_ROWS for split in range(SPLITS)]
        eventually(
            lambda: self.reader.problem or self.reader.batches == batches,
            f"the reader has seen {batches} complete batches",
        )
        assert not self.reader.problem, self.reader.problem
        assert all(batches)


@contextlib.contextmanager
def kafka_job(session: Session, kafka: Kafka, folder: Path, **options: Any) -> Iterator[KafkaJob]:
    """Runs, then ends and is checked."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        job = KafkaJob(session, kafka, folder, **options)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    try:
        yield job
        job.finish()
    finally:
        job.reader.stop()

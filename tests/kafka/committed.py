"""An independent consumer of committed records, and a check of open transactions."""

from __future__ import annotations

import threading
import time
from collections import Counter

from confluent_kafka import Consumer, TopicPartition

from firesteel.connectors.kafka.connection import connection
from taskexecutor.executor.connectors.kafka.transactions import Transactions
from tests.kafka.broker import Kafka
from tests.waiting import eventually

SPLITS, BATCH_ROWS = 2, 10  # each split has a partition
LINGER_S = 5.0  # in which open transactions of dead processes must end


def rows_of(split: int, number: int) -> list[str]:
    """Returns the values of a batch."""
    return [f"{split} {number} {row}" for row in range(BATCH_ROWS)]


class CommittedReader(threading.Thread):
    """Reads all partitions. A transaction has complete batches, and readers of committed records
    see none of its records before its end. So, whenever all visible records are read, they are
    complete batches, in order. Unless `whole`, transactions end anywhere. A record that the
    consumer reads again, at the same offset, is the same record.
    """

    def __init__(self, kafka: Kafka, topic: str, *, whole: bool = True) -> None:
        super().__init__(name="reader of committed records")
        self._kafka, self._topic, self._whole = kafka, topic, whole
        self._over = threading.Event()
        self.batches = [0] * SPLITS  # complete ones
        self.rows = [0] * SPLITS
        self.problem = ""

    def run(self) -> None:
        consumer = Consumer(
            {
                **self._kafka.settings(),
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 5,  # the end is reported between two transactions
                "error_cb": lambda _: None,  # the broker may be away
            }
        )
        consumer.assign([TopicPartition(self._topic, number, 0) for number in range(SPLITS)])
        rows: list[list[str]] = [[] for _ in range(SPLITS)]
        last = [-1] * SPLITS  # the highest offset that was read
        try:
            while not (self._over.is_set() or self.problem):
                for message in consumer.consume(1_000, 0.1):
                    error, partition = message.error(), message.partition()
                    assert partition is not None
                    if error is None:
                        value, offset = message.value(), message.offset()
                        assert isinstance(value, bytes)
                        assert offset is not None
                        if offset > last[partition]:
                            last[partition] = offset
                            rows[partition].append(value.decode())
                    elif error.name() == "_PARTITION_EOF":  # before the next open transaction
                        self._look(partition, rows[partition])
        finally:
            consumer.close()

    def _look(self, partition: int, rows: list[str]) -> None:
        counted = Counter(rows)
        for row, times in counted.items():
            if times > 1:
                self.problem = f"{row!r} is visible {times} times"
        numbers = range(-(-len(rows) // BATCH_ROWS))
        expected = [row for number in numbers for row in rows_of(partition, number)]
        if not self._whole:
            expected = expected[: len(rows)]
        if rows != expected:
            wrong = next(
                (pair for pair in zip(rows, expected, strict=False) if pair[0] != pair[1]),
                ("an incomplete batch at the end", expected[-1:]),
            )
            self.problem = (
                self.problem or f"partition {partition}: {wrong[0]} instead of {wrong[1]}"
            )
        self.batches[partition] = len(rows) // BATCH_ROWS
        self.rows[partition] = len(rows)

    def stop(self) -> None:
        self._over.set()
        self.join()


def nothing_lingers(kafka: Kafka, prefix: str) -> None:
    """Waits until every open transaction of the prefix is younger than the waiting."""
    now_ms = time.time_ns() // 1_000_000
    transactions = Transactions(connection("test", kafka.bootstrap, {}))

    def young() -> bool:
        found = map(transactions.describe, transactions.open_ids(prefix))
        return all(each is None or not 0 <= each.began_ms < now_ms for each in found)

    try:
        eventually(young, "open transactions end", patience_s=LINGER_S)
    except AssertionError as error:
        for each in transactions.open_ids(prefix):
            error.add_note(f"{each} at {time.time():.3f}: {transactions.describe(each)}")
        raise
    finally:
        transactions.close()

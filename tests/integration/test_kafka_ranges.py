"""Subtasks share the ranges of partitions: each record is read once, at any parallelism, through
failures and rescaling.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from firesteel.common.task_metrics import TopicProgress
from firesteel.connectors import KafkaSource
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.operators import WatermarkSpec
from firesteel.testing import restored_from
from taskexecutor.executor.connectors.kafka import fetcher
from taskexecutor.executor.connectors.kafka.ranges import Plan
from taskexecutor.executor.connectors.kafka.source import KafkaReading
from taskexecutor.executor.connectors.kafka.starting_offsets import check_and_plan
from taskexecutor.executor.state import RestoredOperatorState
from tests.integration.test_kafka_source import Reader
from tests.kafka.broker import Kafka
from tests.kafka.records import Record, create_topic, produce
from tests.waiting import eventually

PATIENCE_S = 120.0
LARGE, SMALL = 900, 40  # records of partitions 0 and 1
EXPECTED = sorted(
    [(0, str(n).encode()) for n in range(LARGE)] + [(1, str(n).encode()) for n in range(SMALL)]
)


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    """Returns a topic whose offsets have gaps: markers of transactions, and aborted records."""
    # The timestamps are old.
    name = create_topic(kafka, partitions=2, config={"retention.ms": "-1"})
    producer = Producer({**kafka.settings(), "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    for start in range(0, LARGE, 100):
        for commits in (False, True):
            producer.begin_transaction()
            for number in range(start, start + 100) if commits else range(7):
                value = str(number) if commits else "aborted"
                producer.produce(name, value, partition=0, timestamp=1_000 * (number + 1))
            producer.flush(PATIENCE_S)
            if commits:
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.abort_transaction(PATIENCE_S)
    small = [
        Record(value=str(n).encode(), partition=1, timestamp_ms=n + 1_000) for n in range(SMALL)
    ]
    produce(kafka, name, small)
    return name


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "MOST_ROWS", 16)


class Readers:
    """All subtasks of a source, in turn, whose ranges are planned once."""

    def __init__(
        self,
        source: KafkaSource,
        parallelism: int,
        restored: list[RestoredOperatorState] | None = None,
        *,
        plan: Plan | None = None,
        **options: Any,
    ) -> None:
        self.plan = plan or check_and_plan(source)
        self.readers: list[Reader] = []
        try:
            for subtask in range(parallelism):
                state = None if restored is None else restored[subtask]
                own = {"subtask": subtask, "parallelism": parallelism, "restored": state}
                self.readers.append(Reader(source, plan=self.plan, **own, **options))
        except BaseException:
            self.close()
            raise

    def read(self, at_least: int | None = None) -> list[tuple[int, bytes]]:
        """Reads this many records or more; None: to the end. Returns them, in order of arrival at
        each subtask. None precedes an earlier one of its partition.
        """
        while any(reader.more for reader in self.readers):
            for reader in self.readers:
                if reader.more:
                    reader.step()
            if at_least is not None and len(self.records) >= at_least:
                break
        for reader in self.readers:
            for partition in (0, 1):
                offsets = [
                    row["offset"] for row in reader.harness.rows() if row["partition"] == partition
                ]
                assert offsets == sorted(set(offsets))
        return self.records

    @property
    def records(self) -> list[tuple[int, bytes]]:
        return [
            (row["partition"], row["value"])
            for reader in self.readers
            for row in reader.harness.rows()
        ]

    def killed(self, parallelism: int) -> list[RestoredOperatorState]:
        """Returns the states of a checkpoint for subtasks of another parallelism. What the subtasks
        read after it is lost with them. Finished ones leave no state.
        """
        parts = [
            restored_from(reader.harness.snapshot(1)) for reader in self.readers if reader.more
        ]
        items = [item for part in parts for item in part.lists["partitions"]]
        for reader in self.readers:
            if reader.more:
                reader.step()
        return [
            RestoredOperatorState(
                lists={"partitions": items[subtask::parallelism]}, broadcasts=parts[0].broadcasts
            )
            for subtask in range(parallelism)
        ]

    def shown(self) -> TopicProgress:
        total = TopicProgress()
        for reader in self.readers:
            topics = reader.harness.metrics.topics
            assert topics is not None
            total += topics()
        return total

    def close(self) -> None:
        for reader in self.readers:
            reader.harness.close()

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _source(kafka: Kafka, topic: str, min_partitions: int | None, **options: Any) -> KafkaSource:
    options = {"end": "latest", "min_partitions": min_partitions, **options}
    return KafkaSource(topic, bootstrap_servers=kafka.bootstrap, **options)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("min_partitions", [1, 3, 8])
def test_each_record_is_read_once(
    kafka: Kafka, topic: str, min_partitions: int, parallelism: int
) -> None:
    source = _source(kafka, topic, min_partitions)
    found: list[tuple[int, bytes]] = []
    restored = None
    at = parallelism
    for part in (150, 300, None):  # killed, killed and rescaled, finished
        with Readers(source, at, restored) as readers:
            assert readers.plan is not None
            assert len(readers.plan.ranges) == max(2, min_partitions)
            assert {key.partition for key in readers.plan.divided} <= {0}
            records = readers.read(part)
            if part is None:
                found += records
                break
            found += records
            at = at % 3 + 1
            restored = readers.killed(at)
    assert sorted(found) == EXPECTED


def test_all_subtasks_have_the_ends_of_the_analysis(kafka: Kafka) -> None:
    name = create_topic(kafka)
    values = [str(number).encode() for number in range(40)]
    produce(kafka, name, values[:20])
    source = _source(kafka, name, 3)
    plan = check_and_plan(source)
    produce(kafka, name, values[20:])
    with Readers(source, 2, plan=plan) as readers:
        assert sorted(readers.read()) == sorted((0, value) for value in values[:20])


def test_several_subtasks_read_a_partition_at_the_same_time(kafka: Kafka, topic: str) -> None:
    with Readers(_source(kafka, topic, 6), 2) as readers:
        readers.read(200)
        assert all(
            any(row["partition"] == 0 for row in reader.harness.rows())
            for reader in readers.readers
        )


def test_without_it_a_partition_is_read_by_one_subtask(kafka: Kafka, topic: str) -> None:
    with Readers(_source(kafka, topic, None), 2) as readers:
        assert sorted(readers.read()) == EXPECTED
        of = [{row["partition"] for row in reader.harness.rows()} for reader in readers.readers]
        assert sorted(map(sorted, of)) == [[0], [1]]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_no_record_is_late(kafka: Kafka, topic: str, parallelism: int) -> None:
    """The ranges of a partition follow each other in a subtask, so event time is that of the
    present one.
    """
    times = WatermarkSpec(column="timestamp", max_out_of_orderness_us=0)
    source = KafkaSource(
        partitions={topic: [0]},
        bootstrap_servers=kafka.bootstrap,
        end="latest",
        min_partitions=6,
    )
    with Readers(source, parallelism, watermarks=times) as readers:
        readers.read()
        for reader in readers.readers:
            reached_us, watermarks = -1, 0
            for element in reader.harness.elements:
                if isinstance(element, Watermark):
                    reached_us, watermarks = element.timestamp_us, watermarks + 1
                elif isinstance(element, pa.RecordBatch):
                    rows_us = element.column("timestamp").cast(pa.int64()).to_pylist()
                    assert min(rows_us) > reached_us
            assert watermarks > 10


def test_the_lag_includes_ranges_that_wait(kafka: Kafka, topic: str) -> None:
    with Readers(_source(kafka, topic, 8), 2) as readers:
        for reader in readers.readers:
            reader.step()
        assert readers.plan is not None
        whole = sum(each.end - each.start for each in readers.plan.ranges)
        shown = readers.shown()
        present = sum(each.lag or 0 for each in shown.partitions)
        unread = LARGE + SMALL - len(readers.records)
        assert 0 < present < unread <= shown.pending_records <= whole
        readers.read()
        assert readers.shown().pending_records == 0


def test_offsets_of_divided_partitions_are_not_committed(kafka: Kafka, topic: str) -> None:
    group = f"ranges-{topic}"
    with Readers(_source(kafka, topic, 4, group_id=group), 2) as readers:
        readers.read()
        for reader in readers.readers:
            reader.harness.snapshot(1)
            reader.harness.complete(1)
    member = Consumer({**kafka.settings(), "group.id": group})
    whole, divided = member.committed([TopicPartition(topic, 1), TopicPartition(topic, 0)])
    member.close()
    assert whole.offset == SMALL and divided.offset < 0


def test_the_end_of_the_log_does_not_end_the_next_range(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads ahead to the end of the log while the first range is read."""
    monkeypatch.setattr(fetcher, "MOST_ROWS", 1_000)
    name = create_topic(kafka)
    values = [str(number).encode() for number in range(40)]
    produce(kafka, name, values)
    with Readers(_source(kafka, name, 8), 2) as readers:
        for reader in readers.readers:
            operator = reader.harness.operator
            assert isinstance(operator, KafkaReading) and operator._fetcher is not None
            ready = operator._fetcher._ready
            eventually(
                lambda ready=ready: any(fetched.ends for fetched in tuple(ready)), "the end is read"
            )
        assert sorted(readers.read()) == sorted((0, value) for value in values)


def test_a_later_end_belongs_to_the_last_range(kafka: Kafka) -> None:
    name = create_topic(kafka)
    values = [str(number).encode() for number in range(60)]
    produce(kafka, name, values[:30])
    with Readers(_source(kafka, name, 3, end={name: {0: 60}}), 2) as readers:
        assert readers.plan is not None
        assert [each.end for each in readers.plan.ranges] == [10, 20, 60]
        readers.read(30)
        produce(kafka, name, values[30:])
        assert sorted(readers.read()) == sorted((0, value) for value in values)


def test_lost_records_of_a_range_fail_the_job_or_are_skipped(kafka: Kafka) -> None:
    name = create_topic(kafka)
    values = [str(number).encode() for number in range(60)]
    produce(kafka, name, values)
    source = _source(kafka, name, 3)
    with Readers(source, 1) as readers:
        states = readers.killed(3)
        gone = TopicPartition(name, 0, 35)
        client = AdminClient(kafka.settings())
        client.delete_records([gone])[TopicPartition(name, 0)].result(PATIENCE_S)
    with pytest.raises(FiresteelError, match="deleted records that were not read; offset 0"):
        Readers(source, 3, states)
    lenient = _source(kafka, name, 3, fail_on_data_loss=False)
    with Readers(lenient, 3, states) as readers:
        assert sorted(readers.read()) == sorted((0, value) for value in values[35:])

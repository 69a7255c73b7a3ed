"""KafkaSink on a real broker."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer
from kafka.partitioner.default import murmur2

from firesteel.common.key_groups import key_group
from firesteel.connectors import KafkaSink
from firesteel.connectors.kafka.connection import connection
from firesteel.connectors.kafka.formats import Raw
from firesteel.errors import FiresteelError
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.kafka.producers import Sender
from taskexecutor.executor.connectors.kafka.topics import Topics
from taskexecutor.executor.connectors.kafka.transactions import Transactions
from taskexecutor.executor.connectors.runtime import sink_runtime
from taskexecutor.executor.state import RestoredOperatorState
from tests.kafka.broker import Kafka
from tests.kafka.records import create_topic, read
from tests.waiting import eventually

PLAIN = pa.schema([("value", pa.string())])


def values(*texts: str) -> pa.RecordBatch:
    return pa.record_batch([list(texts)], schema=PLAIN)


def harness(sink: KafkaSink, schema: pa.Schema = PLAIN, **options: Any) -> OperatorHarness:
    return OperatorHarness(sink_runtime(sink).operator(), [schema], **options)


def write(sink: KafkaSink, *batches: pa.RecordBatch) -> None:
    schema = batches[0].schema
    sink_runtime(sink).analyze(schema)
    running = harness(sink, schema)
    try:
        running.open()
        for batch in batches:
            running.process(batch)
        running.finish()
    finally:
        running.close()


def texts(kafka: Kafka, topic: str, isolation: str = "read_committed") -> list[str]:
    return [
        record.value.decode() for record in read(kafka, topic, isolation=isolation) if record.value
    ]


def send(running: OperatorHarness, text: str, checkpoint: int = 2) -> None:
    running.process(values(text))
    running.checkpoint(checkpoint)


class Job:
    """The attempts of a sink with checkpoints."""

    def __init__(self, kafka: Kafka, topic: str, **options: Any) -> None:
        self.prefix = f"job-{uuid.uuid4().hex[:8]}"
        self.sink = KafkaSink(
            topic,
            bootstrap_servers=kafka.bootstrap,
            delivery="exactly-once",
            transactional_id_prefix=self.prefix,
            **options,
        )
        self.attempts: list[OperatorHarness] = []

    def attempt(
        self, restored: RestoredOperatorState | None = None, **options: Any
    ) -> OperatorHarness:
        number = len(self.attempts)
        running = harness(self.sink, restored=restored, checkpoints=True, attempt=number, **options)
        self.attempts.append(running)
        return running.open()

    def close(self) -> None:
        for running in self.attempts:
            running.close()


@pytest.fixture
def transactions(kafka: Kafka) -> Iterator[Transactions]:
    found = Transactions(connection("test", kafka.bootstrap, {}))
    yield found
    found.close()


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return create_topic(kafka, partitions=2)


@pytest.fixture
def job(kafka: Kafka, topic: str) -> Iterator[Job]:
    found = Job(kafka, topic)
    yield found
    found.close()


def test_records_have_the_columns_of_spark(kafka: Kafka, topic: str) -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    rows = pa.record_batch(
        {
            "Key": pa.array([b"a", None, b"c"], pa.binary()),
            "value": pa.array(["1", None, "3"]),
            "topic": [topic] * 3,
            "partition": pa.array([1, 0, None], pa.int32()),
            "headers": pa.array(
                [[{"key": "h", "value": b"x"}, {"key": "h", "value": None}], None, []],
                pa.list_(header),
            ),
        }
    )
    write(KafkaSink(bootstrap_servers=kafka.bootstrap), rows)
    found = {record.key: record for record in read(kafka, topic)}
    assert found[b"a"].value == b"1" and found[b"a"].partition == 1
    assert found[b"a"].headers == (("h", b"x"), ("h", None))
    assert found[None].value is None and found[None].partition == 0
    assert found[b"c"].value == b"3" and found[b"c"].headers == ()


def test_nothing_is_visible_before_the_commit(kafka: Kafka, topic: str, job: Job) -> None:
    running = job.attempt()
    running.process(values("a", "b"))
    running.checkpoint(1)
    running.process(values("c"))
    assert texts(kafka, topic) == []
    running.complete(1)
    eventually(lambda: sorted(texts(kafka, topic)) == ["a", "b"], "the first transaction")
    running.checkpoint(2)
    running.complete(2)
    running.finish()
    eventually(lambda: sorted(texts(kafka, topic)) == ["a", "b", "c"], "the second one")


def test_a_restored_transaction_is_committed_and_others_aborted(
    kafka: Kafka, topic: str, job: Job, transactions: Transactions
) -> None:
    first = job.attempt()
    first.process(values("kept"))
    restored = first.checkpoint(1)
    first.process(values("written again"))
    second = job.attempt(restored)
    eventually(lambda: texts(kafka, topic) == ["kept"], "the restored transaction is committed")
    assert transactions.open_ids(job.prefix) == []
    second.process(values("written again"))
    second.checkpoint(2)
    second.complete(2)
    eventually(lambda: sorted(texts(kafka, topic)) == ["kept", "written again"], "all, once")
    with pytest.raises(FiresteelError, match="another producer with this id"):
        send(first, "zombie")


def test_a_committed_transaction_is_accepted_again_and_again(
    kafka: Kafka, topic: str, job: Job, transactions: Transactions
) -> None:
    first = job.attempt()
    first.process(values("once"))
    restored = first.checkpoint(1)
    first.process(values("x"))
    first.complete(1)
    first.checkpoint(2)
    first.process(values("y"))  # in a later transaction of the first transactional id
    for _ in range(3):
        running = job.attempt(restored)
        assert transactions.open_ids(job.prefix) == []
        running.process(values("z"))
    eventually(lambda: texts(kafka, topic) == ["once"], "only what is committed")


@pytest.mark.parametrize("on_aborted", ["fail", "ignore"])
def test_data_that_the_broker_aborted_is_not_lost_silently(
    kafka: Kafka, topic: str, on_aborted: str, transactions: Transactions
) -> None:
    job = Job(kafka, topic, transaction_timeout="1 s", on_aborted=on_aborted)
    first = job.attempt()
    first.process(values("lost", "too"))
    restored = first.checkpoint(7)
    (name,) = transactions.open_ids(job.prefix)
    eventually(lambda: not transactions.open_ids(job.prefix), "the transaction times out")
    expected = (
        rf"data of checkpoint 7 was aborted by the broker: 2 records \(7 bytes\) of transactional id"
        rf" {name} .* in .*topic {topic} partition \d from offset \d+.*Restore an earlier savepoint"
    )
    for _ in range(2):
        if on_aborted == "ignore":
            job.attempt(restored).process(values("next"))
        else:
            with pytest.raises(FiresteelError, match=expected):
                job.attempt(restored)
    # The process that wrote it says the same.
    if on_aborted == "fail":
        with pytest.raises(FiresteelError, match=expected):
            first.complete(7)
    job.close()
    assert texts(kafka, topic) == []


def test_a_transaction_that_ends_before_its_checkpoint_fails_it(
    kafka: Kafka, topic: str, transactions: Transactions
) -> None:
    job = Job(kafka, topic, transaction_timeout="1 s")
    running = job.attempt()
    running.process(values("a"))
    eventually(lambda: bool(transactions.open_ids(job.prefix)), "it is open")
    eventually(lambda: not transactions.open_ids(job.prefix), "it times out")
    with pytest.raises(FiresteelError, match="nothing is lost|timed out"):
        running.checkpoint(1)
    job.close()


@pytest.mark.parametrize("committed", [True, False])
def test_the_topic_tells_what_the_broker_has_forgotten(
    kafka: Kafka, topic: str, job: Job, transactions: Transactions, committed: bool
) -> None:
    first = job.attempt()
    first.process(values("a"))
    restored = first.checkpoint(1)
    (name,) = transactions.open_ids(job.prefix)
    if committed:
        first.complete(1)
    transactions.fence(name, 60_000)  # twice, as two later jobs do
    transactions.fence(name, 60_000)
    if committed:
        job.attempt(restored)
        assert texts(kafka, topic) == ["a"]
    else:
        with pytest.raises(FiresteelError, match="data of checkpoint 1 was aborted by the broker"):
            job.attempt(restored)


def test_two_jobs_with_one_prefix_are_fenced(kafka: Kafka, topic: str, job: Job) -> None:
    first = job.attempt()
    send(first, "a", 1)
    other = job.attempt()
    other.process(values("b"))
    with pytest.raises(FiresteelError, match="give each job its own"):
        send(first, "a")
    other.checkpoint(1)
    other.complete(1)
    eventually(lambda: texts(kafka, topic) == ["b"], "the later one continues")


def test_a_producer_knows_who_fenced_it_before_it_has_reported_that(
    kafka: Kafka, topic: str, job: Job
) -> None:
    """The client refuses records as soon as it is fenced, and reports the cause when polled."""
    context = job.attempt().operator.context
    to = connection("test", kafka.bootstrap, {})
    sender = Sender(to, Topics(to), context, transactional_id=topic)
    sender.call(sender.client.init_transactions)
    sender.client.begin_transaction()
    later = Producer({**kafka.settings(), "transactional.id": topic})
    later.init_transactions()

    def refused() -> KafkaException | None:
        try:
            sender.client.produce(topic, b"x")
        except KafkaException as error:
            return error
        return None

    error = eventually(refused, "the first one is fenced")
    assert error is not None
    assert sender.reports.latest is None
    assert "give each job its own" in str(sender.in_words(error, topic))
    sender.close()


def test_subtasks_that_no_longer_exist_leave_nothing_open(
    kafka: Kafka, topic: str, job: Job, transactions: Transactions
) -> None:
    """Three subtasks become one, which restores all committables, and aborts the rest once the
    restored ones are committed.
    """
    wide = [job.attempt(subtask=n, parallelism=3) for n in range(3)]
    restored = []
    for number, running in enumerate(wide):
        running.process(values(f"kept {number}"))
        restored.append(running.checkpoint(1))
        running.process(values("not in the checkpoint"))
        running.operator.flush()
    eventually(lambda: len(transactions.open_ids(job.prefix)) == 6, "all are open")
    merged = RestoredOperatorState(
        keyed=[],
        lists={"committables": [c for each in restored for c in each.lists["committables"]]},
        union_lists={},
        broadcasts={},
    )
    narrow = job.attempt(merged)
    assert len(transactions.open_ids(job.prefix)) == 3
    narrow.checkpoint(2)
    narrow.complete(2)
    assert transactions.open_ids(job.prefix) == []
    eventually(
        lambda: sorted(texts(kafka, topic)) == ["kept 0", "kept 1", "kept 2"], "they are visible"
    )


def test_producers_are_reused_and_few_are_kept(kafka: Kafka, topic: str, job: Job) -> None:
    running = job.attempt()
    pool = running.operator._of_kafka._committer.pool  # type: ignore[attr-defined]
    for checkpoint in range(1, 5):  # no checkpoint completes
        send(running, str(checkpoint), checkpoint)
    assert len(pool._used) == 4
    running.complete(4)
    assert len(pool._used) == 2
    for checkpoint in range(5, 9):
        send(running, str(checkpoint), checkpoint)
        running.complete(checkpoint)
    assert {pool.ids.name(0), pool.ids.name(1)} >= pool._used
    eventually(lambda: len(texts(kafka, topic)) == 8, "all are visible")


def test_a_bounded_input_without_checkpoints_is_one_transaction(kafka: Kafka, topic: str) -> None:
    sink = KafkaSink(
        topic,
        bootstrap_servers=kafka.bootstrap,
        delivery="exactly-once",
        transactional_id_prefix=uuid.uuid4().hex,
    )
    running = harness(sink).open()
    running.process(values("a"))
    running.process(values("b"))
    assert texts(kafka, topic) == []
    running.end()
    eventually(lambda: sorted(texts(kafka, topic)) == ["a", "b"], "the end commits")


def test_a_cancelled_job_leaves_nothing_open(
    kafka: Kafka, topic: str, job: Job, transactions: Transactions
) -> None:
    running = job.attempt()
    running.process(values("a"))
    eventually(lambda: bool(transactions.open_ids(job.prefix)), "it is open")
    running.cancel()
    running.close()
    job.attempts.clear()
    assert transactions.open_ids(job.prefix) == []


def test_a_timeout_above_the_maximum_is_refused(kafka: Kafka, topic: str) -> None:
    sink = Job(kafka, topic, transaction_timeout="1 h").sink
    with pytest.raises(
        FiresteelError, match=r"is 3600000 ms, but the brokers at .* allow at most 900000 ms"
    ):
        sink_runtime(sink).analyze(PLAIN)


def test_a_short_timeout_is_a_warning(
    kafka: Kafka, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for interval, expected in (("10 s", False), ("3 min", True)):
        job = Job(kafka, topic, transaction_timeout="2 min")
        job.attempt(config={"execution.checkpointing.interval": interval})
        job.close()
        assert ("less than the checkpoint interval" in capsys.readouterr().err) is expected


def test_an_unknown_topic_is_not_created(kafka: Kafka, topic: str) -> None:
    wrong = topic.removesuffix(topic[-1])
    with pytest.raises(
        FiresteelError, match=f"{wrong} .* does not exist.* similar names: .*{topic}"
    ):
        write(KafkaSink(wrong, bootstrap_servers=kafka.bootstrap), values("a"))
    named = pa.record_batch({"value": ["a"], "topic": [wrong]})
    with pytest.raises(FiresteelError, match=f"{wrong} .* does not exist"):
        write(KafkaSink(bootstrap_servers=kafka.bootstrap), named)


def test_no_broker_at_the_address_is_known_in_seconds() -> None:
    started_s = time.monotonic()
    with pytest.raises(FiresteelError, match=r"127\.0\.0\.1:1\b.*no broker answers"):
        sink_runtime(KafkaSink("t", bootstrap_servers="127.0.0.1:1")).analyze(PLAIN)
    assert time.monotonic() - started_s < 30


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_record_that_is_too_large_names_size_and_limit(kafka: Kafka, delivery: str) -> None:
    topic = create_topic(kafka, config={"max.message.bytes": "2000"})
    prefix = None if delivery == "at-least-once" else uuid.uuid4().hex
    sink = KafkaSink(
        topic, bootstrap_servers=kafka.bootstrap, delivery=delivery, transactional_id_prefix=prefix
    )  # type: ignore[arg-type]
    rows = pa.record_batch({"key": ["the key"], "value": ["x" * 3000]})
    with pytest.raises(
        FiresteelError,
        match=rf"{topic}.* 3007 bytes is too large \(its key is b'the key'\): max.message.bytes of the"
        " topic is 2000",
    ):
        write(sink, rows)


def test_a_missing_partition_is_named(kafka: Kafka, topic: str) -> None:
    rows = pa.record_batch({"value": ["a"], "partition": pa.array([2], pa.int32())})
    with pytest.raises(FiresteelError, match="has no partition 2; it has 2, numbered from 0"):
        write(KafkaSink(topic, bootstrap_servers=kafka.bootstrap), rows)


def test_keys_go_to_the_partitions_of_the_java_producer(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=7)
    keys = [b"", *(uuid.uuid4().bytes[: n % 17] for n in range(1, 100))]
    write(
        KafkaSink(topic, bootstrap_servers=kafka.bootstrap),
        pa.record_batch({"key": pa.array(keys, pa.binary()), "value": keys}),
    )
    for record in read(kafka, topic):
        assert record.key is not None
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 7


def test_round_robin_fills_partitions_evenly(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=3)
    write(
        KafkaSink(topic, bootstrap_servers=kafka.bootstrap, partition_by="round_robin"),
        values(*"abcdefghi"),
    )
    found = Counter(record.partition for record in read(kafka, topic))
    assert set(found.values()) == {3}


def test_a_partition_has_the_keys_of_a_range_of_key_groups(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=4)
    names = [f"name {n}" for n in range(50)]
    sink = KafkaSink(topic, bootstrap_servers=kafka.bootstrap, partition_by="key_group")
    write(sink, pa.record_batch({"key": names, "value": names}))
    for record in read(kafka, topic):
        assert record.key is not None
        assert record.partition == key_group(record.key.decode(), 128) * 4 // 128


def test_formats_write_keys_values_headers_and_partitions(kafka: Kafka, topic: str) -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    rows = pa.record_batch(
        {
            "id": ["a"],
            "text": ["1"],
            "place": pa.array([1], pa.int64()),
            "about": pa.array([[{"key": "h", "value": b"x"}]], pa.list_(header)),
        }
    )
    sink = KafkaSink(
        topic,
        bootstrap_servers=kafka.bootstrap,
        value=Raw(),
        key="ID",
        headers="about",
        partition_by="place",
    )
    write(sink, rows)
    (record,) = read(kafka, topic)
    assert (record.key, record.value, record.partition) == (b"a", b"1", 1)
    assert record.headers == (("h", b"x"),)


def test_a_deleted_row_becomes_a_tombstone(kafka: Kafka, topic: str) -> None:
    rows = pa.record_batch({"key": ["a", "b"], "value": ["1", "2"], ROW_KIND: [INSERT, DELETE]})
    write(KafkaSink(topic, bootstrap_servers=kafka.bootstrap, upsert=True), rows)
    assert {record.key: record.value for record in read(kafka, topic)} == {b"a": b"1", b"b": None}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": [None], "value": ["1"], ROW_KIND: [INSERT]}, r"the key \(key\) of a row is null"),
        ({"key": ["a"], "value": ["1"], ROW_KIND: ["update"]}, "row_kind is 'update'"),
        ({"value": ["1"], ROW_KIND: [INSERT]}, "the column 'key' .* is missing"),
        (
            {"key": [1], "value": ["1"], ROW_KIND: [INSERT]},
            "column 'key' is int64; it must be string",
        ),
    ],
)
def test_wrong_rows_of_an_upsert_are_refused(
    kafka: Kafka, topic: str, columns: dict[str, Any], message: str
) -> None:
    rows = pa.record_batch(columns)
    if "key" in columns and columns["key"] == [None]:
        rows = rows.set_column(0, "key", pa.array([None], pa.string()))
    with pytest.raises(FiresteelError, match=message):
        write(KafkaSink(topic, bootstrap_servers=kafka.bootstrap, upsert=True), rows)


def test_metrics_have_the_names_of_flink(kafka: Kafka, topic: str) -> None:
    running = harness(KafkaSink(topic, bootstrap_servers=kafka.bootstrap)).open()
    running.process(values("abc", "de"))
    running.end()
    counted = {name: counter.value for name, counter in running.metrics.counters.items()}
    assert (counted["numRecordsSend"], counted["numBytesSend"]) == (2, 5)
    assert counted["numRecordsOutErrors"] == 0
    assert "currentSendTime" in running.metrics.gauges

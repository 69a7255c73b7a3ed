"""KafkaSource on real brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.connectors import UNREADABLE_TAG, DeadLetter, KafkaOffsets, KafkaSource
from firesteel.connectors.kafka.formats import Json
from firesteel.elements import StreamStatus
from firesteel.errors import FiresteelError
from firesteel.operators import WatermarkSpec
from firesteel.testing import OperatorHarness, restored_from
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.connectors.kafka import consumer
from taskexecutor.executor.connectors.kafka.source import DATA_LOSSES, KafkaReading
from taskexecutor.executor.connectors.kafka.starting_offsets import check_and_plan
from taskexecutor.executor.connectors.runtime import source_runtime
from taskexecutor.executor.state import RestoredOperatorState
from tests.kafka.broker import Kafka
from tests.kafka.records import Record, create_topic, produce, read

PATIENCE_S = 120.0
QUIET_S = 1.5  # nothing is read for this long after the last record: there is no more


def _source(kafka: Kafka, topics: Any = None, **options: Any) -> KafkaSource:
    return KafkaSource(topics, bootstrap_servers=kafka.bootstrap, **options)


class Reader:
    """A subtask of a source."""

    def __init__(self, source: KafkaSource, **options: Any) -> None:
        watermarks, plan = options.pop("watermarks", None), options.pop("plan", None)
        if plan is None and source.end is not None:
            plan = check_and_plan(source)
        self.harness = OperatorHarness(
            KafkaReading(source, watermarks, plan), checkpoints=True, **options
        )
        self.more = True
        try:
            self.harness.open()
        except BaseException:
            self.harness.close()
            raise

    def until(self, reached: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while self.more and not reached():
            assert time.monotonic() < deadline, f"only {self.values}"
            self.step()

    def step(self) -> None:
        self.more = self.harness.poll()
        if self.more and self.harness.operator.waiting:
            wait_s = self.harness.operator.poll_interval_s
            self.harness.environment.mailbox.wait(0.1 if wait_s is None else min(0.1, wait_s))

    def reads(self, *values: bytes) -> None:
        """Reads until these are all values."""
        self.until(lambda: len(self.values) >= len(values))
        assert sorted(self.values) == sorted(values)

    def reads_no_more(self) -> None:
        before = self.values
        deadline = time.monotonic() + QUIET_S
        while time.monotonic() < deadline:
            self.step()
        assert self.values == before

    @property
    def values(self) -> list[bytes]:
        return [row["value"] for row in self.harness.rows()]

    def count(self, name: str) -> int:
        return self.harness.metrics.counter(name).value

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.harness.close()


def _union(*readers: Reader, checkpoint: int = 1) -> RestoredOperatorState:
    """Returns the state that each subtask restores at any parallelism."""
    parts = [restored_from(reader.harness.snapshot(checkpoint)) for reader in readers]
    items = [item for part in parts for item in part.union_lists["partitions"]]
    return RestoredOperatorState(
        keyed=[], lists={}, union_lists={"partitions": items}, broadcasts=parts[0].broadcasts
    )


def _numbers(start: int, stop: int) -> list[bytes]:
    return [str(number).encode() for number in range(start, stop)]


def _spread(values: Sequence[bytes], partitions: int) -> list[Record]:
    return [Record(value=v, partition=n % partitions) for n, v in enumerate(values)]


def _admin(kafka: Kafka) -> AdminClient:
    return AdminClient(kafka.settings())


def _delete(kafka: Kafka, topic: str) -> None:
    client = _admin(kafka)
    client.delete_topics([topic])[topic].result(PATIENCE_S)


# -- records


def test_rows_have_the_columns_of_spark(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    headers = (("h", b"x"), ("h", None))
    produce(
        kafka,
        topic,
        [
            Record(value=b"v", key=b"k", timestamp_ms=1_700_000_000_123, headers=headers),
            Record(value=None, key=None, timestamp_ms=5),
        ],
    )
    with Reader(_source(kafka, topic, end="latest", metadata=("headers",))) as reader:
        reader.until(lambda: False)
        assert reader.harness.rows() == [
            {
                "key": b"k",
                "value": b"v",
                "topic": topic,
                "partition": 0,
                "offset": 0,
                "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
                "timestampType": 0,
                "headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": None}],
            },
            {
                "key": None,
                "value": None,
                "topic": topic,
                "partition": 0,
                "offset": 1,
                "timestamp": datetime(1970, 1, 1, 0, 0, 0, 5_000, UTC),
                "timestampType": 0,
                "headers": None,
            },
        ]
        assert reader.count("numRecordsIn") == 2 and reader.count("numBytesIn") == 2


RECORDS = st.lists(
    st.builds(
        Record,
        value=st.none() | st.binary(max_size=50),
        key=st.none() | st.binary(max_size=5),
        partition=st.integers(0, 2),
        timestamp_ms=st.integers(1, 2**40),
        headers=st.lists(
            st.tuples(st.text("ab", min_size=1), st.none() | st.binary(max_size=3)), max_size=2
        ).map(tuple),
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("known_layout", [True, False])
@settings(max_examples=4)
@given(records=RECORDS, codec=st.sampled_from(["none", "gzip", "lz4", "zstd", "snappy"]))
def test_any_records_are_read_as_they_were_written(
    kafka: Kafka,
    monkeypatch: pytest.MonkeyPatch,
    known_layout: bool,
    records: list[Record],
    codec: str,
) -> None:
    monkeypatch.setattr(consumer, "supported", lambda: known_layout)
    topic = create_topic(kafka, partitions=3)
    produce(kafka, topic, records, settings={"compression.type": codec})
    with Reader(_source(kafka, topic, end="latest", metadata=("headers",))) as reader:
        reader.until(lambda: False)
        found = reader.harness.rows()
    for partition in range(3):
        assert [
            (
                row["value"],
                row["key"],
                int(row["timestamp"].timestamp() * 1000 + 0.5),
                tuple((h["key"], h["value"]) for h in row["headers"] or ()),
            )
            for row in found
            if row["partition"] == partition
        ] == [
            (r.value, r.key, r.timestamp_ms, r.headers) for r in records if r.partition == partition
        ]


# -- starts and ends


def test_records_before_the_start_are_not_read(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=2)
    produce(
        kafka,
        topic,
        [
            Record(value=v, partition=0, timestamp_ms=1_000 * (n + 1))
            for n, v in enumerate(_numbers(0, 5))
        ],
    )
    group = f"group-{topic}"
    member = Consumer({**kafka.settings(), "group.id": group})
    member.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    member.close()
    starts: list[tuple[Any, list[bytes]]] = [
        ("earliest", _numbers(0, 5)),
        ("latest", []),
        (KafkaOffsets.at(2_500), _numbers(2, 5)),
        (datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), _numbers(1, 5)),
        (KafkaOffsets.at(99_000), []),
        (KafkaOffsets.committed(otherwise="earliest"), _numbers(4, 5)),
    ]
    for start, expected in starts:
        source = _source(kafka, topic, group_id=group, start=start, end="latest")
        with Reader(source) as reader:
            reader.until(lambda: False)
            assert reader.values == expected, start
    listed = _source(kafka, topic, start={topic: {0: 2, 1: -2}}, end={topic: {0: 4, 1: -1}})
    with Reader(listed) as reader:
        reader.until(lambda: False)
        assert reader.values == _numbers(2, 4)


def test_a_group_without_commits_fails_unless_there_is_a_fallback(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    with pytest.raises(FiresteelError, match="the group has committed no offset for it"):
        Reader(_source(kafka, topic, group_id=f"new-{topic}", start="committed"))


def test_a_pattern_that_matches_nothing_is_a_warning(
    kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = f"{create_topic(kafka)}-.*"
    with Reader(_source(kafka, topic_pattern=pattern, end="latest")) as reader:
        reader.reads_no_more()
    logged = capsys.readouterr().err
    assert "no topic matches, so nothing is read" in logged and pattern in logged


def test_a_bounded_read_ends_after_an_aborted_transaction(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    producer = Producer({**kafka.settings(), "transactional.id": topic})
    producer.init_transactions()
    for value, commits in ((b"yes", True), (b"no", False)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    with Reader(_source(kafka, topic, end="latest")) as reader:
        reader.until(lambda: False)
        assert reader.values == [b"yes"] and not reader.more


def test_a_bounded_read_ignores_later_records(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=2)
    produce(kafka, topic, _spread(_numbers(0, 10), 2))
    with Reader(_source(kafka, topic, end="latest")) as reader:
        produce(kafka, topic, _spread(_numbers(10, 20), 2))
        reader.until(lambda: False)
        assert sorted(reader.values) == sorted(_numbers(0, 10))


def test_a_bounded_read_ends_where_it_would_have_ended_before(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=2)
    produce(kafka, topic, _spread(_numbers(0, 10), 2))
    with Reader(_source(kafka, topic, end="latest")) as reader:
        state = reader.harness.checkpoint(1)
    produce(kafka, topic, _spread(_numbers(10, 20), 2))
    with Reader(_source(kafka, topic, end="latest"), restored=state) as reader:
        reader.until(lambda: False)
        assert sorted(reader.values) == sorted(_numbers(0, 10))
    with pytest.raises(FiresteelError, match="the state is of a KafkaSource with an end"):
        Reader(_source(kafka, topic), restored=state)


# -- state


def test_rescaling_loses_and_repeats_no_record(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=5)
    source, found, total = _source(kafka, topic), list[bytes](), 0
    state: RestoredOperatorState | None = None
    for parallelism in (1, 3, 7, 2):
        produce(kafka, topic, _spread(_numbers(total, total + 50), 5))
        total += 50
        readers = [
            Reader(source, subtask=subtask, parallelism=parallelism, restored=state)
            for subtask in range(parallelism)
        ]
        try:
            deadline = time.monotonic() + PATIENCE_S
            while sum(len(reader.values) for reader in readers) < 50:
                assert time.monotonic() < deadline
                for reader in readers:
                    reader.step()
            state = _union(*readers)
            found += [value for reader in readers for value in reader.values]
        finally:
            for reader in readers:
                reader.harness.close()
    assert sorted(found) == sorted(_numbers(0, total))


def test_offsets_are_committed_when_a_checkpoint_completes(kafka: Kafka) -> None:
    topic, group = create_topic(kafka), "commits"
    produce(kafka, topic, [b"a", b"b"])
    member = Consumer({**kafka.settings(), "group.id": group})
    with Reader(_source(kafka, topic, group_id=group)) as reader:
        reader.reads(b"a", b"b")
        reader.harness.snapshot(1)
        assert member.committed([TopicPartition(topic, 0)])[0].offset < 0
        reader.harness.complete(1)
        reader.until(lambda: reader.count("KafkaSourceReader_commitsSucceeded") == 1)
        assert member.committed([TopicPartition(topic, 0)])[0].offset == 2
        shown = reader.harness.metrics.topics
        assert shown is not None
        (partition,) = shown().partitions
        assert (partition.current_offset, partition.committed_offset) == (2, 2)
    member.close()


def test_offsets_of_the_last_checkpoint_are_committed(kafka: Kafka) -> None:
    topic, group = create_topic(kafka), "ended"
    produce(kafka, topic, [b"a", b"b"])
    with Reader(_source(kafka, topic, group_id=group, end="latest")) as reader:
        reader.reads(b"a", b"b")
        reader.harness.snapshot(1)
        reader.harness.complete(1)
    produce(kafka, topic, [b"c"])
    later = _source(kafka, topic, group_id=group, start="committed", end="latest")
    with Reader(later) as reader:
        reader.until(lambda: False)
        assert reader.values == [b"c"]


def test_a_failed_commit_is_counted_and_nothing_else(kafka: Kafka) -> None:
    topic, group = create_topic(kafka), "taken"
    produce(kafka, topic, [b"a"])
    member = Consumer({**kafka.settings(), "group.id": group})
    member.subscribe([topic])
    assert _joined(member)
    with Reader(_source(kafka, topic, group_id=group)) as reader:
        reader.reads(b"a")
        reader.harness.snapshot(1)
        reader.harness.complete(1)
        reader.until(lambda: reader.count("KafkaSourceReader_commitsFailed") == 1)
        produce(kafka, topic, [b"b"])
        reader.reads(b"a", b"b")
    member.close()


def test_a_group_of_two_jobs_is_a_warning(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    topic, group = create_topic(kafka), "shared"
    produce(kafka, topic, [b"a"])
    member = Consumer({**kafka.settings(), "group.id": group})
    logged = ""

    def warned() -> bool:
        nonlocal logged
        logged += capsys.readouterr().err
        return "another job commits offsets to the same group" in logged

    source = _source(kafka, topic, group_id=group, partition_discovery_interval="100 ms")
    with Reader(source) as reader:
        reader.reads(b"a")
        reader.harness.snapshot(1)
        reader.harness.complete(1)
        reader.until(lambda: reader.count("KafkaSourceReader_commitsSucceeded") == 1)
        assert not warned()
        theirs = TopicPartition(topic, 0, 1, "firesteel job another-job")  # type: ignore[call-arg]
        member.commit(offsets=[theirs], asynchronous=False)
        reader.until(warned)
        assert "other_job=another-job" in logged and f"group={group}" in logged
    member.close()


def _joined(member: Consumer) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not member.assignment() and time.monotonic() < deadline:
        member.poll(0.1)
    return bool(member.assignment())


def test_the_limit_of_records_is_per_checkpoint(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    produce(kafka, topic, _numbers(0, 25))
    with Reader(_source(kafka, topic, end="latest", max_records_per_checkpoint=10)) as reader:
        reader.reads(*_numbers(0, 10))
        reader.reads_no_more()
        reader.harness.snapshot(1)
        reader.reads(*_numbers(0, 20))
        reader.harness.snapshot(2)
        reader.until(lambda: False)
        assert reader.values == _numbers(0, 25)


# -- discovery


def test_new_partitions_are_read_from_their_first_record(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    with Reader(
        _source(kafka, topic, start="latest", partition_discovery_interval="100 ms")
    ) as reader:
        reader.step()
        client = _admin(kafka)
        client.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
        produce(kafka, topic, _spread(_numbers(0, 30), 3))
        reader.reads(*_numbers(0, 30))
        assert len(_union(reader).union_lists["partitions"]) == 1


def test_new_topics_that_match_are_read(kafka: Kafka) -> None:
    first = create_topic(kafka)
    create_topic(kafka, f"not-{first}")
    pattern = f"{first}(-[a-z]+)?"
    source = _source(kafka, topic_pattern=pattern, partition_discovery_interval="100 ms")
    with Reader(source) as reader:
        produce(kafka, first, [b"1"])
        produce(kafka, f"not-{first}", [b"other"])
        reader.reads(b"1")
        second = create_topic(kafka, f"{first}-more")
        produce(kafka, second, [b"2"])
        reader.reads(b"1", b"2")


def test_a_subtask_without_partitions_is_idle(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    readers = [Reader(_source(kafka, topic), subtask=n, parallelism=2) for n in range(2)]
    try:
        statuses = []
        for reader in readers:
            reader.step()
            statuses.append([e for e in reader.harness.elements if isinstance(e, StreamStatus)])
        assert sorted(statuses, key=len) == [[], [StreamStatus(True)]]
    finally:
        for reader in readers:
            reader.harness.close()


def test_event_time_is_that_of_the_slowest_partition(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=2)
    times = WatermarkSpec(column="timestamp", max_out_of_orderness_us=1_000_000)
    with Reader(_source(kafka, topic), watermarks=times) as reader:
        produce(kafka, topic, [Record(value=b"a", partition=0, timestamp_ms=90_000)])
        reader.reads(b"a")
        assert reader.harness.watermarks_us == []
        produce(kafka, topic, [Record(value=b"b", partition=1, timestamp_ms=50_000)])
        reader.reads(b"a", b"b")
        assert reader.harness.watermarks_us == [48_999_999]


def test_a_quiet_partition_holds_back_event_time_until_it_is_idle(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=2)
    times = WatermarkSpec(column="timestamp", max_out_of_orderness_us=0, idle_us=1_000_000)
    with Reader(_source(kafka, topic), watermarks=times) as reader:
        produce(kafka, topic, [Record(value=b"a", partition=0, timestamp_ms=90_000)])
        reader.reads(b"a")
        assert reader.harness.watermarks_us == []
        reader.until(lambda: reader.harness.watermarks_us == [89_999_999])


def test_event_time_in_the_future_is_a_warning(
    kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = create_topic(kafka, config={"message.timestamp.after.max.ms": str(2**62)})
    times = WatermarkSpec(column="timestamp", max_out_of_orderness_us=0)
    now_ms = int(time.time() * 1000)
    tomorrow = [Record(value=b"b", timestamp_ms=now_ms + hours * 3_600_000) for hours in (24, 25)]
    with Reader(_source(kafka, topic), watermarks=times) as reader:
        produce(kafka, topic, [Record(value=b"a", timestamp_ms=now_ms)])
        reader.reads(b"a")
        produce(kafka, topic, tomorrow)
        reader.reads(b"a", b"b", b"b")
    logged = capsys.readouterr().err
    assert logged.count("event time is in the future") == 1
    assert f"topic={topic}" in logged and "column=timestamp" in logged


# -- missing data


def _state_after_two(kafka: Kafka, topic: str) -> RestoredOperatorState:
    """Returns the state of a source that has read two records."""
    produce(kafka, topic, [b"1", b"2"])
    with Reader(_source(kafka, topic)) as reader:
        reader.reads(b"1", b"2")
        return _union(reader)


def _delete_records(kafka: Kafka, topic: str) -> list[bytes]:
    produce(kafka, topic, [b"3", b"4", b"5"])
    partition = TopicPartition(topic, 0, 4)
    client = _admin(kafka)
    client.delete_records([partition])[TopicPartition(topic, 0)].result(PATIENCE_S)
    return [b"5"]


def _recreate(kafka: Kafka, topic: str) -> list[bytes]:
    _delete(kafka, topic)
    create_topic(kafka, topic)
    produce(kafka, topic, [b"new 1", b"new 2", b"new 3"])
    return [b"new 1", b"new 2", b"new 3"]


def _remove(kafka: Kafka, topic: str) -> list[bytes]:
    _delete(kafka, topic)
    return []


LOSSES = [
    (
        _delete_records,
        "deleted records that were not read; offset 2 is requested, and offsets 4 to 5",
    ),
    (_recreate, "the topic was deleted and created again; offset 2 is requested"),
    (_remove, "the topic was deleted; offset 2 is requested, and none is available"),
]


@pytest.mark.parametrize(("lose", "why"), LOSSES)
def test_missing_records_fail_the_restore(
    kafka: Kafka, lose: Callable[[Kafka, str], list[bytes]], why: str
) -> None:
    topic = create_topic(kafka)
    state = _state_after_two(kafka, topic)
    available = lose(kafka, topic)
    with pytest.raises(FiresteelError, match=f"topic {topic}, partition 0: .*{why}"):
        Reader(_source(kafka, topic), restored=state)
    with Reader(_source(kafka, topic, fail_on_data_loss=False), restored=state) as reader:
        reader.reads(*available)
        assert reader.count(DATA_LOSSES) == 1


def test_a_log_shorter_than_the_restored_offset_fails(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    state = _state_after_two(kafka, topic)
    items = state.union_lists["partitions"]
    items[:] = [item.replace(", 2, null", ", 7, null") for item in items]
    with pytest.raises(
        FiresteelError, match="lost records.*offset 7 is requested, and offsets 0 to 2"
    ):
        Reader(_source(kafka, topic), restored=state)
    with Reader(_source(kafka, topic, fail_on_data_loss=False), restored=state) as reader:
        produce(kafka, topic, [b"3"])
        reader.reads(b"3")


@pytest.mark.parametrize(("lose", "why"), LOSSES[1:])
@pytest.mark.parametrize("fails", [True, False])
def test_missing_records_are_found_while_running(
    kafka: Kafka, lose: Callable[[Kafka, str], list[bytes]], why: str, fails: bool
) -> None:
    topic = create_topic(kafka)
    produce(kafka, topic, [b"1", b"2"])
    source = _source(kafka, topic, fail_on_data_loss=fails, partition_discovery_interval="200 ms")
    with Reader(source) as reader:
        reader.reads(b"1", b"2")
        lost = lose(kafka, topic)
        if fails:
            # The source may have a look between deletion and creation.
            with pytest.raises(FiresteelError, match=why.partition(";")[0].partition(" and ")[0]):
                reader.until(lambda: False)
        else:
            reader.until(lambda: reader.count(DATA_LOSSES) >= 1)
            reader.reads(b"1", b"2", *lost)


# -- bad input


def test_an_unknown_topic_has_near_names(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    with pytest.raises(FiresteelError, match=f"there is no topic x{topic}; did you mean {topic}"):
        source_runtime(_source(kafka, f"x{topic}")).analyze(None)  # type: ignore[arg-type]
    assert f"x{topic}" not in _admin(kafka).list_topics(timeout=PATIENCE_S).topics


def test_an_unknown_partition_is_named(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=2)
    with pytest.raises(FiresteelError, match="has no partition 5; it has 2, from 0 to 1"):
        Reader(_source(kafka, partitions={topic: [1, 5]}))
    with pytest.raises(FiresteelError, match=f"start has an offset for topic {topic}, partition 9"):
        Reader(_source(kafka, topic, start={topic: {0: 1, 1: 1, 9: 1}}))


def test_no_broker_is_reported_with_its_address() -> None:
    source = KafkaSource("t", bootstrap_servers="127.0.0.1:1")
    with pytest.raises(FiresteelError, match="127.0.0.1:1: .*no broker answers .*refused"):
        source_runtime(source).analyze(None)  # type: ignore[arg-type]


def test_an_unknown_property_is_reported(kafka: Kafka) -> None:
    source = _source(kafka, "t", properties={"fetch.max.byte": 1})
    with pytest.raises(FiresteelError, match='No such configuration property: "fetch.max.byte"'):
        source_runtime(source).analyze(None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def secure(no_leaks: None) -> Iterator[Kafka]:
    """A broker that the tests may stop, with users."""
    with Kafka(users={"reader": "reads-a-lot"}) as broker:
        yield broker


def test_missing_permissions_are_named(secure: Kafka) -> None:
    topic = create_topic(secure)
    settings = secure.settings("reader")
    source = KafkaSource(
        topic, bootstrap_servers=settings.pop("bootstrap.servers"), properties=settings
    )
    with pytest.raises(FiresteelError, match=f"no permission for topic {topic}; grant Read"):
        source_runtime(source).analyze(None)  # type: ignore[arg-type]


def test_wrong_credentials_are_reported(secure: Kafka) -> None:
    settings = {**secure.settings("reader"), "sasl.password": "wrong-word"}
    source = KafkaSource(
        "t", bootstrap_servers=settings.pop("bootstrap.servers"), properties=settings
    )
    with pytest.raises(FiresteelError, match="do not agree on security") as raised:
        source_runtime(source).analyze(None)  # type: ignore[arg-type]
    assert "wrong-word" not in str(raised.value)


def test_a_source_waits_for_its_broker(secure: Kafka) -> None:
    topic = create_topic(secure, partitions=2)
    with Reader(_source(secure, topic, partition_discovery_interval="200 ms")) as reader:
        produce(secure, topic, _spread(_numbers(0, 10), 2))
        reader.reads(*_numbers(0, 10))
        secure.kill()
        reader.reads_no_more()
        state = _union(reader)
        secure.restart()
        produce(secure, topic, _spread(_numbers(10, 20), 2))
        reader.reads(*_numbers(0, 20))
    with Reader(_source(secure, topic), restored=state) as restored:
        restored.reads(*_numbers(10, 20))


def test_a_source_closes_while_its_broker_is_away(secure: Kafka) -> None:
    topic = create_topic(secure)
    reader = Reader(_source(secure, topic, group_id=topic))
    produce(secure, topic, [b"1"])
    reader.reads(b"1")
    reader.harness.snapshot(1)
    secure.kill()
    reader.harness.complete(1)  # commits, which the broker does not answer
    reader.reads_no_more()
    closing = threading.Thread(target=reader.harness.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_S / 2)
    assert not closing.is_alive()
    secure.restart()


# -- unreadable records


def _mixed(kafka: Kafka) -> str:
    topic = create_topic(kafka)
    headers = (("h", b"x"),)
    good = Record(value=b'{"n": 1}', timestamp_ms=1_000)
    bad = Record(value=b"{", key=b"k", timestamp_ms=2_000, headers=headers)
    produce(kafka, topic, [good, bad, Record(value=b'{"n": 3}', timestamp_ms=3_000)])
    return topic


def _json(kafka: Kafka, topic: str, on_unreadable: Any) -> KafkaSource:
    return _source(
        kafka,
        topic,
        format=Json("n INT"),
        metadata=("offset", "timestamp"),
        on_unreadable=on_unreadable,
    )


def test_an_unreadable_record_fails_the_job(kafka: Kafka, engine: SparkEngine) -> None:
    topic = _mixed(kafka)
    with Reader(_json(kafka, topic, "fail"), spark=engine.session) as reader:
        with pytest.raises(FiresteelError, match=f"topic {topic}, partition 0, offset 1: "):
            reader.until(lambda: False)
        assert reader.harness.rows() == []


@pytest.mark.parametrize("on_unreadable", ["drop", "side_output", DeadLetter("dead-letters")])
def test_unreadable_records_are_set_aside(
    kafka: Kafka, engine: SparkEngine, on_unreadable: Any
) -> None:
    topic = _mixed(kafka)
    if isinstance(on_unreadable, DeadLetter):
        create_topic(kafka, on_unreadable.topic)
    times = WatermarkSpec(column="timestamp", max_out_of_orderness_us=0)
    options = {"spark": engine.session, "side_output_tags": [UNREADABLE_TAG], "watermarks": times}
    with Reader(_json(kafka, topic, on_unreadable), **options) as reader:
        reader.until(lambda: len(reader.harness.rows()) >= 2)
        reader.harness.snapshot(1)
        assert [(row["n"], row["offset"]) for row in reader.harness.rows()] == [(1, 0), (3, 2)]
        assert reader.harness.watermarks_us == [2_999_999]
        side = [row for batch in reader.harness.side(UNREADABLE_TAG) for row in batch.to_pylist()]
        dropped = reader.count("numUnreadableRecordsDropped")
    match on_unreadable:
        case "drop":
            assert (dropped, side) == (1, [])
        case "side_output":
            ((row,), expected) = side, [{"key": "h", "value": b"x"}]
            assert (row["value"], row["offset"], row["headers"]) == (b"{", 1, expected)
            assert row["error"]
        case _:
            (letter,) = read(kafka, on_unreadable.topic)
            headers = dict(letter.headers)
            assert (letter.value, letter.key, headers["h"]) == (b"{", b"k", b"x")
            assert headers["firesteel.topic"] == topic.encode()
            assert headers["firesteel.offset"] == b"1" and headers["firesteel.error"]


# -- the end of the available records


def test_a_source_has_caught_up_once_it_has_read_every_partition_to_its_end(kafka: Kafka) -> None:
    topic = create_topic(kafka, partitions=2)
    produce(kafka, topic, _spread(_numbers(0, 4), 2))
    with Reader(_source(kafka, topic)) as reader:
        source = reader.harness.operator
        assert isinstance(source, KafkaReading)
        assert not source.caught_up
        reader.until(lambda: source.caught_up)
        assert sorted(reader.values) == _numbers(0, 4)
        produce(kafka, topic, _spread(_numbers(4, 6), 1))
        reader.reads(*_numbers(0, 6))
        reader.until(lambda: source.caught_up)
    read = []
    for subtask in range(3):
        with Reader(_source(kafka, topic), subtask=subtask, parallelism=3) as part:
            read.append(_rows_until_caught_up(part))
    assert sum(read) == 6 and 0 in read, "no partition is assigned to one of them"


def _rows_until_caught_up(reader: Reader) -> int:
    source = reader.harness.operator
    assert isinstance(source, KafkaReading)
    reader.until(lambda: source.caught_up)
    return len(reader.values)


def test_a_source_has_caught_up_when_it_has_read_as_much_as_it_may(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    produce(kafka, topic, _spread(_numbers(0, 4), 1))
    with Reader(_source(kafka, topic, max_records_per_checkpoint=3)) as reader:
        source = reader.harness.operator
        assert isinstance(source, KafkaReading)
        reader.until(lambda: source.caught_up)
        assert reader.values == _numbers(0, 3)
        reader.harness.snapshot(1)
        assert not source.caught_up
        reader.until(lambda: source.caught_up)
        assert reader.values == _numbers(0, 4)

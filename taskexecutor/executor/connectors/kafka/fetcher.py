"""Fetches records in a separate thread, which waits in the client without Python's lock.

The thread is at most READY batches ahead of the task. While it is, it takes nothing from the
client, whose queue fills up to its limit; then the client stops fetching. So back-pressure reaches
the brokers, and memory is bounded.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.common.logs import get_logger
from firesteel.connectors.kafka.connection import KafkaConnection
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka import clients, consumer
from taskexecutor.executor.connectors.kafka.clients import KafkaUnavailable, Reports, Subject
from taskexecutor.executor.connectors.kafka.consumer import ArrowConsumer
from taskexecutor.executor.connectors.kafka.partitions import Partition
from taskexecutor.executor.connectors.kafka.record_batches import (
    Records,
    records_of,
    records_of_batch,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

MOST_ROWS = 65_536  # of a batch
READY = 2
_POLL_S = 0.1  # so often the thread sees commands, and that it must end
# The time between two batches that are not full: see docs/decisions/0072.
_LEAST_REST_S = 0.003
_MOST_REST_S = 0.05
_REST = 2  # times the CPU time that was spent
_CLOSE_S = 2.0  # the longest wait for the answer to a last commit
_LOOK_S = 1.0  # the interval of reading end offsets
# A program's properties override these.
_SETTINGS = {
    "isolation.level": "read_committed",
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 500,
    # A full queue is checked again at this interval: the default stalls a fast reader.
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 32_768,
    "fetch.max.bytes": 16_777_216,
    "topic.metadata.refresh.interval.ms": 60_000,
}
# Errors that mean that records are missing, or may be.
_SUSPECT = frozenset(
    {
        *("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION", "UNKNOWN_TOPIC_ID"),
        *("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "INCONSISTENT_TOPIC_ID"),
    }
)
_OF_GROUP = frozenset({"GROUP_AUTHORIZATION_FAILED", "COORDINATOR_NOT_AVAILABLE"})

_log = get_logger("task")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    records: Records | None
    ends: Mapping[Partition, int]  # partitions that were read to their ends, and these offsets
    suspects: frozenset[Partition]  # partitions of which records may be missing
    generation: int  # see `Fetcher.seek`


def rest_s(spent_s: float) -> float:
    """Returns how long a source waits for more records after a batch that is not full. `spent_s`:
    the CPU time of the process since the batch before.
    """
    return min(max(_REST * spent_s, _LEAST_REST_S), _MOST_REST_S)


class Fetcher:
    """A consumer with its thread, which makes all calls of the client: another thread that commits
    while this one polls could wait for it forever. `on_fetched` and `on_commit` are called there.

    The methods are called by the task's thread; `end_offset` and `throttle_ms` by any.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        group: str | None,
        *,
        headers: bool,
        on_fetched: Callable[[], None],
        on_commit: Callable[[Exception | None, Iterable[tuple[Partition, int]]], None],
        name: str,
    ) -> None:
        self._connection = connection
        self._group = group
        self._headers = headers
        self._on_fetched = on_fetched
        self._on_commit = on_commit
        self._reports = Reports()
        self._ready: deque[Fetched] = deque()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._closed = False
        self._throttled: tuple[float, float] = (0.0, 0.0)  # until when, and the delay in ms
        self._away_s: float | None = None  # since when no broker answers
        self._due_s = 0.0  # when the next batch may be taken
        self._library = clients.library()
        configured = {
            **_SETTINGS,
            **clients.configuration(connection, self._reports),
            # Without a group, nothing is committed, but the client wants a name.
            "group.id": group or f"firesteel-{name}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "on_commit": self._committed,
            "throttle_cb": self._throttle,
        }
        self._consumer = clients.consumer(connection, configured)
        self._arrow: ArrowConsumer | None = None
        if consumer.supported():
            self._arrow = ArrowConsumer(self._consumer, headers=headers, on_error=self._reports)
        self._commands: deque[Callable[[], None]] = deque()
        self._assigned: set[Partition] = set()
        self._seeks = 0  # requested by the task
        self._generation = 0  # of them, those that the client has made
        self._end_offsets: dict[Partition, int] = {}
        self._looked_at_s = 0.0  # when end offsets were read
        self._spent_s = time.process_time()  # CPU time of the process until the last batch
        self._thread = threading.Thread(target=self._run, name=f"kafka {name[:24]}", daemon=True)

    # -- the task's thread

    def start(self) -> None:
        self._thread.start()

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        """Starts to read partitions."""
        if offsets:
            self._command(partial(self._assign, dict(offsets)))

    def unassign(self, partitions: Iterable[Partition]) -> None:
        self._command(partial(self._unassign, tuple(partitions)))

    def restart(self, partition: Partition, offset: int) -> None:
        """Reads a partition from another offset, perhaps of a topic that was created again."""
        self._command(partial(self._restart, partition, offset))

    def seek(self, partition: Partition, offset: int) -> int:
        """Reads a partition from another offset. Returns a generation: what was fetched of the
        partition in earlier ones is not of the new place.
        """
        self._seeks += 1
        self._command(partial(self._seek, partition, offset))
        return self._seeks

    def take(self) -> Fetched | None:
        """Returns the oldest batch. Raises the error that has ended the thread."""
        with self._changed:
            if self._ready:
                fetched = self._ready.popleft()
                self._changed.notify()
                return fetched
            if self._failure is not None:
                raise self._failure
            return None

    @property
    def full(self) -> bool:
        return len(self._ready) >= READY

    def commit(self, offsets: Mapping[Partition, int], metadata: str) -> None:
        """Commits offsets to the group; `on_commit` gets the outcome."""
        self._command(partial(self._commit, offsets, metadata))

    def close(self) -> None:
        """Returns soon, even if no broker answers: the client then waits in the background for the
        answer to a commit, which may take minutes.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()
        if self._arrow is not None:
            self._arrow.close()
        closing = threading.Thread(target=self._consumer.close, name="kafka close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    def _command(self, command: Callable[[], None]) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    # -- any thread

    def end_offset(self, of: Partition) -> int | None:
        """Returns the end of the partition's log, as of the last fetch."""
        return self._end_offsets.get(of)

    @property
    def throttle_ms(self) -> float:
        """By how long brokers delay requests now."""
        until_s, delay_ms = self._throttled
        return delay_ms if time.monotonic() < until_s else 0.0

    # -- the fetching thread

    def _run(self) -> None:
        try:
            while self._has_room():
                time.sleep(max(0.0, self._due_s - time.monotonic()))
                self._put(self._fetched())
            if self._away_s is None:
                self._run_commands()  # the offsets of the last checkpoint
        except BaseException as error:
            with self._changed:
                self._failure = error
            self._on_fetched()

    def _has_room(self) -> bool:
        """Runs commands, and waits for room. Returns False if the thread must end."""
        while not self._closed:
            self._run_commands()
            self._read_end_offsets()
            with self._changed:
                if not self.full:
                    return not self._closed
                if not self._commands and not self._closed:
                    self._changed.wait(_LOOK_S)
        return False

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _assign(self, offsets: Mapping[Partition, int]) -> None:
        self._assigned.update(offsets)
        if self._arrow is not None:
            self._arrow.forward(offsets)
        self._consumer.incremental_assign(
            [self._library.TopicPartition(*of, at) for of, at in offsets.items()]
        )

    def _unassign(self, partitions: Sequence[Partition]) -> None:
        self._assigned.difference_update(partitions)
        self._consumer.incremental_unassign(
            [self._library.TopicPartition(*each) for each in partitions]
        )

    def _restart(self, partition: Partition, offset: int) -> None:
        self._unassign([partition])
        # The client would use the topic's former id until its next request for metadata.
        with contextlib.suppress(self._library.KafkaException):
            self._consumer.list_topics(partition.topic, timeout=clients.REQUEST_TIMEOUT_S)
        self._assign({partition: offset})

    def _seek(self, partition: Partition, offset: int) -> None:
        self._generation += 1
        try:
            self._consumer.seek(self._library.TopicPartition(*partition, offset))
        except self._library.KafkaException:  # the client does not read the partition at present
            self._restart(partition, offset)

    def _commit(self, offsets: Mapping[Partition, int], metadata: str) -> None:
        of_library = [self._library.TopicPartition(*of, at, metadata) for of, at in offsets.items()]
        try:
            self._consumer.commit(offsets=of_library, asynchronous=True)
        except self._library.KafkaException as error:
            self._committed(error.args[0], ())

    def _read_end_offsets(self) -> None:
        """Reads the ends of all partitions as of their last fetch, from time to time."""
        now_s = time.monotonic()
        if now_s - self._looked_at_s < _LOOK_S:
            return
        self._looked_at_s = now_s
        for each in self._assigned:
            of = self._library.TopicPartition(*each)
            found = self._consumer.get_watermark_offsets(of, cached=True)
            if found is not None and found[1] >= 0:
                self._end_offsets[each] = found[1]

    def _put(self, fetched: Fetched | None) -> None:
        if fetched is None:
            return
        if fetched.records is None or fetched.records.batch.num_rows < MOST_ROWS:
            spent_s = time.process_time()
            self._due_s = time.monotonic() + rest_s(spent_s - self._spent_s)
            self._spent_s = spent_s
        with self._changed:
            self._ready.append(fetched)
        self._on_fetched()

    def _fetched(self) -> Fetched | None:
        ends: dict[Partition, int] = {}
        suspects: set[Partition] = set()
        records = self._messages(ends, suspects) if self._arrow is None else None
        if self._arrow is not None:
            records = self._columns(self._arrow, ends, suspects)
        if records is None and not ends and not suspects:
            self._note_outage()
            return None
        if records is not None or ends:
            self._note_return()
        return Fetched(
            records=records,
            ends=ends,
            suspects=frozenset(suspects),
            generation=self._generation,
        )

    def _columns(
        self, arrow: ArrowConsumer, ends: dict[Partition, int], suspects: set[Partition]
    ) -> Records | None:
        """Waits for records, which have another queue than callbacks and errors of the client."""
        if (message := self._consumer.poll(0)) is not None:
            self._handle_message(message, ends, suspects)
        batch = arrow.poll(MOST_ROWS, _POLL_S)
        errors, arrow.errors = arrow.errors, []
        for each in errors:
            of = Partition(each.topic, each.partition)
            self._handle(each.error, of, each.offset, ends, suspects)
        return None if batch is None else records_of_batch(batch)

    def _messages(self, ends: dict[Partition, int], suspects: set[Partition]) -> Records | None:
        """Waits for messages, of a client whose memory has an unknown layout."""
        first = self._consumer.poll(_POLL_S)
        if first is None:
            return None
        # `consume` alone would wait until a batch is full.
        messages = [first, *self._consumer.consume(MOST_ROWS - 1, 0)]
        read = [message for message in messages if message.error() is None]
        if len(read) < len(messages):
            for message in messages:
                self._handle_message(message, ends, suspects)
        return records_of(read, headers=self._headers) if read else None

    def _handle_message(
        self, message: Message, ends: dict[Partition, int], suspects: set[Partition]
    ) -> None:
        error, topic, partition = message.error(), message.topic(), message.partition()
        if error is not None:
            of = None if topic is None or partition is None else Partition(topic, partition)
            self._handle(error, of, message.offset(), ends, suspects)

    def _handle(
        self,
        error: KafkaError,
        of: Partition | None,
        offset: int | None,
        ends: dict[Partition, int],
        suspects: set[Partition],
    ) -> None:
        name = error.name()
        if name == "_PARTITION_EOF" and of is not None and offset is not None:
            ends[of] = offset
        elif name in _SUSPECT and of is not None:
            suspects.add(of)
        elif name not in _OF_GROUP or self._group is not None:
            subject = Subject(
                connection=self._connection,
                topic=None if of is None else of.topic,
                partition=None if of is None else of.partition,
                group=self._group,
            )
            explained = clients.explained(error, subject, reports=self._reports)
            if not isinstance(explained, KafkaUnavailable):
                raise explained
            self._reports(error)

    def _note_outage(self) -> None:
        if self._away_s is None and self._reports.all_down:
            self._away_s = time.monotonic()
            _log.warning(
                "no broker of Kafka answers; waiting",
                brokers=self._connection.bootstrap_servers,
                cause=self._reports.cause,
            )

    def _note_return(self) -> None:
        self._reports.clear()
        if self._away_s is not None:
            away_s, self._away_s = time.monotonic() - self._away_s, None
            _log.info("Kafka answers again", after_s=round(away_s, 1))

    def _committed(self, error: Any, offsets: Iterable[Any]) -> None:
        subject = Subject(connection=self._connection, group=self._group)
        failure: FiresteelError | None = None
        if error is not None:
            failure = clients.explained(error, subject, "commit offsets", self._reports)
        done: list[tuple[Partition, int]] = []
        for each in offsets:
            if each.error is not None:
                failure = clients.explained(each.error, subject, "commit offsets", self._reports)
            else:
                done.append((Partition(each.topic, each.partition), each.offset))
        self._on_commit(failure, () if failure is not None else done)

    def _throttle(self, event: Any) -> None:
        delay_s = event.throttle_time
        self._throttled = (time.monotonic() + delay_s, delay_s * 1_000)

"""Looks after topics in a separate thread: finds new partitions, deleted and recreated topics, and
the reason why a partition cannot be read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from firesteel.common.logs import get_logger
from firesteel.connectors.kafka.source import KafkaSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.clients import KafkaUnavailable
from taskexecutor.executor.connectors.kafka.metadata import Metadata
from taskexecutor.executor.connectors.kafka.partitions import Available, Listing, Partition

_RETRY_S = 1.0  # while no broker answers about suspects

_log = get_logger("task")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of one round."""

    listing: Listing
    new: Mapping[Partition, int] = field(default_factory=dict)  # with their first offsets
    # The logs of those suspects that exist.
    available: Mapping[Partition, Available] = field(default_factory=dict)
    suspects: frozenset[Partition] = frozenset()
    # Metadata of the group's commits: it names jobs.
    committed_by: frozenset[str] = frozenset()


def open_metadata(source: KafkaSource) -> Metadata:
    return Metadata(source.connection, read_committed=source.read_committed)


def listing(source: KafkaSource, topics: Metadata) -> Listing:
    """Returns the topics of the source that exist."""
    if source.topic_pattern is not None:
        return topics.matching(source.topic_pattern)
    return topics.listed(source.topics or tuple(source.partitions or ()))


class Discovery:
    """`own` selects the partitions of this subtask; `found` gets the findings, in the thread of
    Discovery. Methods are called by the task's thread.
    """

    def __init__(
        self,
        source: KafkaSource,
        known: Iterable[Partition],
        *,
        own: Callable[[Iterable[Partition]], list[Partition]],
        found: Callable[[Findings], None],
        name: str,
    ) -> None:
        self._source = source
        self._known = set(known)
        self._own = own
        self._found = found
        self._interval_s = source.discovery_interval_s if source.end is None else None
        self._suspects: set[Partition] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"topics {name[:24]}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def examine(self, suspects: Iterable[Partition]) -> None:
        """Finds out why these partitions cannot be read."""
        with self._lock:
            self._suspects.update(suspects)
        self._wake.set()

    def forget(self, partition: Partition) -> None:
        """Treats the partition as new if it exists at a later round."""
        with self._lock:
            self._known.discard(partition)

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    # -- the thread

    def _run(self) -> None:
        wait_s = self._interval_s
        while True:
            self._wake.wait(wait_s)
            self._wake.clear()
            if self._closed:
                return
            wait_s = self._interval_s
            try:
                findings = self._round()
            except KafkaUnavailable:  # the fetcher has logged it
                if self._suspects:
                    wait_s = _RETRY_S
            except FiresteelError as error:
                _log.warning("topics cannot be listed", cause=str(error))
            except Exception:
                _log.exception("topics cannot be listed")
            else:
                if not self._closed:
                    self._found(findings)

    def _round(self) -> Findings:
        source, topics = self._source, open_metadata(self._source)
        listed = listing(source, topics)
        with self._lock:
            known, suspects = set(self._known), frozenset(self._suspects)
        existing = listed.partitions(source.partitions)
        new = [each for each in self._own(existing) if each not in known]
        if source.end is not None:
            new = []
        asked = topics.available([*new, *suspects.intersection(existing)])
        # A group may be used by one job: commits of another are seen at a partition of this one.
        seen = sorted(known.intersection(existing))[:1]
        committed_by = topics.committed_by(source.group_id, seen) if source.group_id else ()
        with self._lock:
            self._suspects -= suspects
            self._known.update(each for each in new if each in asked)
        return Findings(
            listing=listed,
            new={each: asked[each].first for each in new if each in asked},
            available={each: asked[each] for each in suspects if each in asked},
            suspects=suspects,
            committed_by=frozenset(committed_by),
        )

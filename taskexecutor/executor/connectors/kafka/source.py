"""KafkaSource in a slot: one consumer for all partitions of a subtask.

    fetcher        waits in the client, and converts messages to columns
    this operator  decodes and emits them, keeps offsets and watermarks, and commits
    discovery      finds partitions, and missing records

Threads hand their results to the task as mails.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.column_names import column_index
from firesteel.common.logs import get_logger
from firesteel.common.task_metrics import PartitionProgress, TopicProgress
from firesteel.connectors.kafka.source import KafkaSource
from firesteel.elements import MIN_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, SourceOperator
from firesteel.operators import SourceSpec, WatermarkSpec
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.connectors.kafka import clients, starting_offsets
from taskexecutor.executor.connectors.kafka.bad_records import (
    UNREADABLE,
    Unreadable,
    needs_headers,
)
from taskexecutor.executor.connectors.kafka.decoders import Decoded, decoded_schema, decoder
from taskexecutor.executor.connectors.kafka.discovery import (
    Discovery,
    Findings,
    listing,
    open_metadata,
)
from taskexecutor.executor.connectors.kafka.fetcher import Fetched, Fetcher
from taskexecutor.executor.connectors.kafka.metadata import Metadata
from taskexecutor.executor.connectors.kafka.partition_watermarks import (
    PartitionEnds,
    PartitionWatermarks,
)
from taskexecutor.executor.connectors.kafka.partitions import (
    VERSION,
    Listing,
    Missing,
    Partition,
    Progress,
    decoded,
    encoded,
    missing,
    owned,
)
from taskexecutor.executor.connectors.kafka.ranges import Plan, in_order
from taskexecutor.executor.connectors.kafka.record_batches import Records
from taskexecutor.executor.connectors.kafka.records import HEADERS
from taskexecutor.executor.connectors.runtime import SourceAnalysis, SourceRuntime
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.timing.bundle_time import row_limit

DATA_LOSSES = "numDataLosses"
_PLAN = b"firesteel.kafka.plan"  # in the metadata of the source's schema
POLL_S = 1.0  # at least so often, the source reports that it has caught up
_METADATA = "firesteel job "
_FUTURE_S = 3_600.0  # more than clocks differ by

_log = get_logger("task")


class KafkaSourceRuntime(SourceRuntime[KafkaSource]):
    def analyze(self, engine: SparkEngine) -> SourceAnalysis:
        source = self.source
        plan = starting_offsets.check_and_plan(source)
        schema = decoded_schema(source.format, engine, metadata=source.metadata)
        return SourceAnalysis(
            schema=schema if plan is None else schema.with_metadata({_PLAN: plan.encoded}),
            side_schemas=dict.fromkeys(source.side_output_tags, UNREADABLE),
        )

    def operator(self, group: Sequence[OpenedOperator]) -> SourceOperator:
        spec, schema = group[0].spec, group[0].output_schema
        assert isinstance(spec, SourceSpec)
        plan = None
        if self.source.end is not None:
            assert schema is not None and schema.metadata is not None, "the analysis has planned"
            plan = Plan.decoded(schema.metadata[_PLAN])
        return KafkaReading(self.source, spec.watermarks, plan)


class KafkaReading(SourceOperator):
    """Reads the partitions of one subtask, or ranges of them: of each partition one at a time."""

    def __init__(
        self, source: KafkaSource, watermarks: WatermarkSpec | None, plan: Plan | None
    ) -> None:
        """`plan` has the ranges of all subtasks of a bounded source."""
        self._source = source
        self._bounded = source.end is not None
        self._plan = plan
        self._spec = watermarks
        self._progress: dict[Partition, Progress] = {}
        # The ranges of a partition that follow the present one. Tuples: another thread reads them.
        self._later: dict[Partition, tuple[Progress, ...]] = {}
        self._generations: dict[Partition, int] = {}  # since when a partition's range is read
        self._divided: frozenset[Partition] = frozenset()  # some of their ranges may be of others
        self._committed: dict[Partition, int] = {}
        self._by_checkpoint: dict[int, dict[Partition, int]] = {}
        self._started = False
        self._reading: set[Partition] = set()  # assigned to the consumer
        self._ends: PartitionEnds[Partition] = PartitionEnds()
        self._rest: Fetched | None = None  # beyond the budget or the bundle
        self._budget: int | None = None  # records until the next checkpoint; None: no limit
        self._shares = (0, 0)  # partitions of this subtask, and of all
        self._commits_failed = 0
        self._shared_with: set[str] = set()  # other jobs that use the group
        self._fetcher: Fetcher | None = None
        self._discovery: Discovery | None = None
        self._unreadable: Unreadable | None = None
        self._decoder = decoder(source.format, metadata=source.metadata)

    # -- life cycle

    def initialize_state(self, state: OperatorState) -> None:
        # The ends of a bounded source are determined once, and finished subtasks leave no state.
        self._items = (state.list_state if self._bounded else state.union_list_state)("partitions")
        self._about = state.broadcast_state("kafka")
        if not self._about:
            self._about.update(version=VERSION, bounded=self._bounded)
            if self._plan is not None:
                self._about.update(ranges=len(self._plan.ranges), divided=self._plan.divided)
            return
        self._started = True
        if self._about["version"] != VERSION:
            raise FiresteelError(
                f"{self.context.operator_name}: state of version {self._about['version']!r} cannot"
                f" be restored, only one of version {VERSION}"
            )
        if self._about["bounded"] != self._bounded:
            raise FiresteelError(
                f"{self.context.operator_name}: the state is of a KafkaSource"
                f" {'with' if self._about['bounded'] else 'without'} an end, and this one is"
                f" {'with' if self._bounded else 'without'} one; give it another uid to start over"
            )

    def open(self) -> None:
        context, source = self.context, self._source
        if source.max_records_per_checkpoint is not None and not context.checkpoints:
            raise FiresteelError(
                f"{context.operator_name}: max_records_per_checkpoint needs checkpoints; set"
                " execution.checkpointing.interval, or remove it"
            )
        self._records_in = context.counter("numRecordsIn")
        self._bytes_in = context.counter("numBytesIn")
        self._limit = row_limit(chained=context.chained)
        self._succeeded = context.counter("KafkaSourceReader_commitsSucceeded")
        self._failed = context.counter("KafkaSourceReader_commitsFailed")
        delay_us = 0 if self._spec is None else self._spec.max_out_of_orderness_us
        idle_us = None if self._spec is None else self._spec.idle_us
        self._ahead: set[Partition] = set()  # partitions whose event time was in the future
        self._times: PartitionWatermarks[Partition] = PartitionWatermarks(delay_us, idle_us)
        self._decoder.open(context)
        self._unreadable = Unreadable(source, context, self.output)
        progress = clients.retried(self._begin, waiting=clients.Waiting(lambda: context.cancelled))
        name = f"{context.task.task_name_with_subtask} {context.operator_id[:8]}"
        self._fetcher = Fetcher(
            source.connection,
            source.group_id,
            headers=HEADERS in source.metadata or needs_headers(source),
            on_fetched=lambda: context.request_mail(_nothing),
            on_commit=lambda error, offsets: context.request_mail(
                partial(self._on_commit, error, offsets)
            ),
            name=name,
        )
        self._discovery = Discovery(
            source,
            (each.key for each in progress),
            own=lambda found: owned(found, context.task.subtask, context.task.parallelism),
            found=lambda findings: context.request_mail(partial(self._on_findings, findings)),
            name=name,
        )
        self._read(progress)
        self._restore_budget()
        self._fetcher.start()
        self._discovery.start()
        context.show_topics(self._shown)

    def close(self) -> None:
        discovery, self._discovery = self._discovery, None
        fetcher, unreadable = self._fetcher, self._unreadable
        try:
            if discovery is not None:
                discovery.close()
        finally:
            try:
                if fetcher is not None:
                    fetcher.close()
            finally:
                if unreadable is not None:
                    unreadable.close()
                self._decoder.close()

    def _begin(self) -> list[Progress]:
        """Returns the partitions to read, from where on. Raises FiresteelError if records of the
        state are missing.
        """
        source, task = self._source, self.context.task
        topics = open_metadata(source)
        listed = listing(source, topics)
        self._divided = frozenset(Partition(*each) for each in self._about.get("divided", ()))
        if not self._started:
            starting_offsets.check(source, topics, listed)
            found = self._first_start(topics, listed)
        else:
            restored = decoded(self._items)
            if self._bounded:  # only this subtask's
                found = [each for each in restored if starting_offsets.wanted(source, each.key)]
            else:
                found = starting_offsets.restart(
                    source, topics, listed, restored, task.subtask, task.parallelism
                )
            unread = (each for each in found if not each.ended)
            for each, lost in starting_offsets.missing_of(topics, listed, unread):
                if not self._accept(each, lost, listed.topic_id(each.topic)):
                    found.remove(each)
        every = self._about.get("ranges") or len(listed.partitions(source.partitions))
        self._shares = (len(found), every)
        return found

    def _first_start(self, topics: Metadata, listed: Listing) -> list[Progress]:
        task = self.context.task
        if not self._bounded:
            return starting_offsets.first_start(
                self._source, topics, listed, task.subtask, task.parallelism
            )
        assert self._plan is not None
        if self._plan.problem:
            raise FiresteelError(self._plan.problem)
        return self._plan.share(task.subtask, task.parallelism)

    def _read(self, partitions: Iterable[Progress]) -> None:
        """Starts to read the partitions."""
        assert self._fetcher is not None
        offsets: dict[Partition, int] = {}
        for key, (first, *later) in in_order(partitions).items():
            self._progress[key] = first
            if later:
                self._later[key] = tuple(later)
            if not first.ended:
                offsets[key] = first.next
                self._reading.add(key)
                self._times.add(key, first.time_us)
        self._fetcher.assign(offsets)

    # -- data

    def poll(self, max_wait_s: float) -> bool:
        assert self._fetcher is not None
        if self._budget is not None and self._budget <= 0:
            return self._sleep()
        fetched, self._rest = self._rest, None
        if fetched is None:
            fetched = self._fetcher.take()
        if fetched is None:
            return self._sleep()
        begun_s = self.context.busy_s
        fetched = self._within_limits(fetched)
        self._handle(fetched)
        if self._limit is not None and fetched.records is not None:
            self._limit.took(self.context.busy_s - begun_s, fetched.records.batch.num_rows)
        self.waiting = False
        return True

    @property
    def caught_up(self) -> bool:
        """Also true if the records of this checkpoint have been read."""
        self.limit_reached = self._budget is not None and self._budget <= 0
        if self.limit_reached:
            return True
        return self._ends.all_reached(self._reading)

    def _sleep(self) -> bool:
        """Waits for records, or until the next partition becomes idle."""
        now_s = self._now_s()
        self._advance(now_s)
        if self._bounded and all(each.ended for each in self._progress.values()):
            return False
        due_s = self._times.due_s()
        self.waiting = True
        wait_s = POLL_S if due_s is None else min(POLL_S, due_s - now_s)
        self.poll_interval_s = max(0.001, wait_s)
        return True

    def _now_s(self) -> float:
        """Returns a time that stands still while the task is paused by watermark alignment."""
        return time.monotonic() - self.context.stopped_ms / 1_000

    def _handle(self, fetched: Fetched) -> None:
        if fetched.records is not None:
            self._emit(fetched.records, fetched.generation)
        now_s = self._now_s()
        for partition, offset in fetched.ends.items():
            progress = self._current(partition, fetched.generation)
            if progress is not None and offset >= progress.next:
                progress.next = offset  # markers of transactions may precede the end
                self._times.read_to_end(partition, now_s)
                self._ends.reached(partition)
                self._end(progress)
        self._advance(now_s)
        if fetched.suspects:
            assert self._discovery is not None
            self._discovery.examine(
                each for each in fetched.suspects if self._current(each, fetched.generation)
            )

    def _within_limits(self, fetched: Fetched) -> Fetched:
        """Returns what may be emitted now, and before the next checkpoint; keeps the rest."""
        records = fetched.records
        if records is None:
            return fetched
        rows = records.batch.num_rows
        most = rows if self._limit is None else min(rows, int(self._limit.size))
        if self._budget is not None:
            most = min(most, self._budget)
            self._budget -= most
        if most == rows:
            return fetched
        self._rest = replace(fetched, records=records.slice(most, rows))
        return replace(fetched, records=records.slice(0, most), ends={}, suspects=frozenset())

    def _current(self, partition: Partition, generation: int) -> Progress | None:
        """Returns the progress of a partition; None if what was fetched in this generation is not
        of the range that is read.
        """
        if generation < self._generations.get(partition, 0):
            return None
        return self._progress.get(partition)

    def _emit(self, records: Records, generation: int) -> None:
        records, passed = self._wanted(records, generation)
        if records.batch.num_rows:
            self._emit_wanted(records)
        for progress in passed:
            if not progress.ended:
                assert progress.end is not None
                progress.next = progress.end
                self._end(progress)
        self._advance(self._now_s())

    def _emit_wanted(self, records: Records) -> None:
        batch = records.batch
        with self.context.time("python"):
            found = self._decoder.decode(batch)
        if found.bad is not None:
            assert self._unreadable is not None
            self._unreadable.handle(batch, found.bad)
        self._records_in.inc(batch.num_rows)
        self._bytes_in.inc(records.size_bytes)
        latest_us = self._latest_us(records, found)
        if found.rows.num_rows:
            self.output.emit(found.rows)
        offsets = records.offsets
        for run, time_us in zip(records.runs, latest_us, strict=True):
            progress = self._progress[run.partition]
            progress.next = int(offsets[run.stop - 1]) + 1
            if time_us is not None and (progress.time_us is None or time_us > progress.time_us):
                progress.time_us = time_us
                self._warn_of_future(run.partition, time_us)
            self._times.rows(run.partition, time_us)
            self._ends.rows(run.partition)
            self._end(progress)

    def _wanted(self, records: Records, generation: int) -> tuple[Records, list[Progress]]:
        """Returns the records without those that were read before, or are after the end; and the
        ranges whose ends they have passed. Markers of transactions, or compaction, may have
        taken the place of the last records before an end.
        """
        offsets, passed = records.offsets, list[Progress]()
        parts: list[tuple[int, int]] = []
        for run in records.runs:
            progress = self._current(run.partition, generation)
            if progress is None:
                continue
            of = offsets[run.start : run.stop]
            start = run.start + int(np.searchsorted(of, progress.next))
            stop = run.stop
            if progress.end is not None:
                stop = run.start + int(np.searchsorted(of, progress.end))
                if stop < run.stop:
                    passed.append(progress)
            if start < stop:
                parts.append((start, stop))
        if parts == [(run.start, run.stop) for run in records.runs]:
            return records, passed
        return _joined(records, parts), passed

    def _end(self, progress: Progress) -> None:
        """Continues with the next range of a partition if the present one has ended."""
        if not progress.ended:
            return
        key = progress.key
        if following := self._later.get(key):
            assert self._fetcher is not None
            self._progress[key], self._later[key] = following[0], following[1:]
            following[0].time_us = progress.time_us
            self._generations[key] = self._fetcher.seek(key, following[0].next)
        else:
            self._stop_reading(key)

    def _stop_reading(self, partition: Partition) -> None:
        assert self._fetcher is not None
        self._later.pop(partition, None)
        if partition in self._reading:
            self._reading.discard(partition)
            self._times.remove(partition)
            self._fetcher.unassign([partition])

    def _latest_us(self, records: Records, found: Decoded) -> list[int | None]:
        """Returns the latest event time of each run."""
        if self._spec is None:
            return [None] * len(records.runs)
        column = found.rows.column(column_index(found.rows.schema, self._spec.column))
        times = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        values = pc.fill_null(times, MIN_TIMESTAMP_US).to_numpy(zero_copy_only=False)
        bounds = [run.start for run in records.runs] + [records.runs[-1].stop]
        if found.records is not None:
            bounds = np.searchsorted(found.records.to_numpy(), bounds).tolist()
        latest = (
            int(values[start:stop].max()) if start < stop else MIN_TIMESTAMP_US
            for start, stop in itertools.pairwise(bounds)
        )
        return [None if time_us == MIN_TIMESTAMP_US else time_us for time_us in latest]

    def _warn_of_future(self, partition: Partition, time_us: int) -> None:
        """Warns once of a partition whose event time is ahead of this machine's clock."""
        ahead_s = time_us / 1e6 - time.time()
        if ahead_s < _FUTURE_S or partition in self._ahead:
            return
        self._ahead.add(partition)
        assert self._spec is not None
        _log.warning(
            "a record's event time is in the future: once the watermark follows it, rows with"
            " correct times are late; filter such records, or correct the clock of their producer",
            topic=partition.topic,
            partition=partition.partition,
            column=self._spec.column,
            hours_ahead=round(ahead_s / 3600, 1),
        )

    def _advance(self, now_s: float) -> None:
        for event in self._times.advance(now_s):
            if isinstance(event, StreamStatus):
                self.output.emit_status(event)
            elif isinstance(event, Watermark) and self._spec is not None:
                self.output.emit_watermark(event)

    # -- findings

    def _on_findings(self, findings: Findings) -> None:
        if self._discovery is None:
            return  # closed
        lost: list[tuple[Progress, Missing]] = []
        for each in list(self._progress.values()):
            available = findings.available.get(each.key)
            suspect = each.key in findings.suspects
            topic = findings.listing.topics.get(each.topic)
            topic_id = None if topic is None else topic.topic_id
            gone = topic is None or each.partition not in topic.partitions
            recreated = bool(topic_id and each.topic_id and topic_id != each.topic_id)
            if each.ended or not (suspect or gone or recreated):
                continue
            if not gone and available is None:
                self._discovery.examine([each.key])
                continue
            found = missing(each, topic_id, available)
            if found is not None:
                lost.append((each, found))
            else:  # it was a passing error of the broker
                self._restart(each)
        for progress, found in lost:
            self._lose(progress, found, findings)
        if findings.new:
            self._read(
                Progress(
                    topic=each.topic,
                    partition=each.partition,
                    topic_id=findings.listing.topics[each.topic].topic_id,
                    next=first,
                )
                for each, first in findings.new.items()
                if each not in self._progress
            )
            _log.info("reading new partitions", partitions=[str(each) for each in findings.new])
        self._shares = (
            len(self._progress),
            len(findings.listing.partitions(self._source.partitions)),
        )
        self._warn_of_other_jobs(findings.committed_by)

    def _lose(self, progress: Progress, found: Missing, findings: Findings) -> None:
        assert self._discovery is not None
        if self._accept(progress, found, findings.listing.topic_id(progress.topic)):
            if progress.ended:
                self._end(progress)
            else:
                self._restart(progress)
        else:
            del self._progress[progress.key]
            self._stop_reading(progress.key)
            self._discovery.forget(progress.key)

    def _restart(self, progress: Progress) -> None:
        assert self._fetcher is not None
        self._fetcher.restart(progress.key, progress.next)

    def _accept(self, progress: Progress, lost: Missing, topic_id: str | None) -> bool:
        """Moves to the next available record. Returns False if there is nothing to read. Raises
        FiresteelError if the job must fail.
        """
        if self._source.fail_on_data_loss:
            raise FiresteelError(
                f"{lost}. Records would be skipped; set fail_on_data_loss=False of KafkaSource to"
                " continue with those that are available"
            )
        resume = lost.resume
        if resume is not None and resume < progress.next and progress.key in self._divided:
            resume = progress.end  # the earlier records of the new log are of other ranges
        self.context.counter(DATA_LOSSES).inc()
        _log.warning("records of Kafka are missing", cause=str(lost), continues_at=resume)
        if resume is None:
            return False
        progress.next = resume
        progress.topic_id = topic_id or progress.topic_id
        return True

    def _warn_of_other_jobs(self, metadata: Iterable[str]) -> None:
        own = self.context.task.job_id
        jobs = {text.removeprefix(_METADATA) for text in metadata if text.startswith(_METADATA)} - {
            own,
            *self._shared_with,
        }
        if self._committed and jobs:
            self._shared_with |= jobs
            _log.warning(
                "another job commits offsets to the same group, so neither's lag can be seen there;"
                " give each job its own group_id",
                group=self._source.group_id,
                other_job=min(jobs),
            )

    # -- checkpoints

    def position(self) -> Any:
        """Returns a token: the offsets are in the operator's state, where every subtask finds those
        of the partitions that it reads.
        """
        return {"version": VERSION}

    def merged(self, positions: Sequence[Any]) -> Any:
        return positions[0]

    def restore(self, position: Any) -> None:
        """Does nothing: `open` has read the state."""

    def prepare_barrier(self, checkpoint_id: int) -> None:
        if self._unreadable is not None:
            self._unreadable.flush()

    def snapshot_state(self, checkpoint_id: int) -> None:
        progress = [*self._progress.values(), *itertools.chain(*self._later.values())]
        self._items[:] = (
            [encoded([each]) for each in progress] if self._bounded else [encoded(progress)]
        )
        if self._source.group_id is not None:
            # No subtask knows how far a divided partition has been read without gaps.
            self._by_checkpoint[checkpoint_id] = {
                key: each.next for key, each in self._progress.items() if key not in self._divided
            }
        self._restore_budget()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        offsets = self._by_checkpoint.pop(checkpoint_id, None)
        self._by_checkpoint = {n: at for n, at in self._by_checkpoint.items() if n > checkpoint_id}
        if not offsets or self._fetcher is None:
            return
        changed = {of: at for of, at in offsets.items() if self._committed.get(of) != at}
        if changed:
            self._fetcher.commit(changed, f"{_METADATA}{self.context.task.job_id}")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._by_checkpoint.pop(checkpoint_id, None)

    def _on_commit(self, error: Exception | None, offsets: Iterable[tuple[Partition, int]]) -> None:
        if error is None:
            self._succeeded.inc()
            self._committed.update(offsets)
            return
        self._failed.inc()
        self._commits_failed += 1
        if self._commits_failed == 1:
            _log.warning("offsets were not committed to the group", cause=str(error))

    def _restore_budget(self) -> None:
        limit = self._source.max_records_per_checkpoint
        if limit is not None:
            own, every = self._shares
            self._budget = max(1, limit * own // max(1, every))

    # -- metrics

    def _shown(self) -> TopicProgress:
        """Called by another thread."""
        fetcher = self._fetcher
        assert fetcher is not None
        full = fetcher.full
        return TopicProgress.of(
            [
                PartitionProgress(
                    each.topic,
                    each.partition,
                    each.next,
                    self._committed.get(each.key),
                    each.end if self._bounded else fetcher.end_offset(each.key),
                    full,
                )
                for each in list(self._progress.values())
            ],
            waiting_records=sum(
                each.end - each.next
                for ranges in list(self._later.values())
                for each in ranges
                if each.end is not None
            ),
            failed_commits=self._commits_failed,
            throttle_ms=fetcher.throttle_ms,
        )


def _joined(records: Records, parts: Sequence[tuple[int, int]]) -> Records:
    pieces = [records.slice(start, stop) for start, stop in parts]
    if not pieces:
        return records.slice(0, 0)
    runs, at = [], 0
    for piece in pieces:
        runs += [run._replace(start=run.start + at, stop=run.stop + at) for run in piece.runs]
        at += piece.batch.num_rows
    batch = pa.Table.from_batches([piece.batch for piece in pieces]).combine_chunks()
    return Records(batch=batch.to_batches()[0], runs=runs)


def _nothing() -> None:
    """Only wakes the task."""

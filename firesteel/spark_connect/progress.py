"""The progress of a streaming query, computed from successive details of its job.

A batch is what the job does between two checkpoints. Spark's names of fields are kept; the values
have these sources:

* `numInputRows`: the rows that the sources have read, before filters. Checkpoints count them
  exactly, except for the first one after another JobMaster has adopted the job. Its batch, and that
  of the end of a finite input, have the rows that the details have counted;
* `durationMs.triggerExecution`: from the trigger of the checkpoint to its completion;
* `numRowsTotal`, `numRowsUpdated` and `numRowsRemoved` of state are -1: they are not counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from firesteel.client.job_details import CheckpointDetails, JobDetails, OperatorDetails, Vertex
from firesteel.common.states import ExecutionState, JobStatus

RECENT = 100  # batches, as spark.sql.streaming.numRecentProgressUpdates
IDLE_EVERY_MS = 10_000  # as spark.sql.streaming.noDataProgressEventInterval
UNKNOWN = -1
# Kinds of operators whose state is not that of an operator of the query.
_OTHERS = frozenset({"Source", "Sink", "AssignWatermarks", "EventTimeWatermark", "Batches"})

OBSERVATION = "Sink: observation"  # the name of sinks for metrics, which are not those of a query

_NO_ROWS = {"numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}

INITIALIZING = "Initializing sources"
WAITING = "Waiting for data to arrive"
PROCESSING = "Processing new data"
RESTARTING = "Restarting after a failure"
STOPPED = "Stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryIds:
    """`query_id` survives restarts of the program, `run_id` belongs to one start. UUIDs."""

    query_id: str
    run_id: str
    name: str = ""  # empty: none

    def fields(self) -> dict[str, Any]:
        return {"id": self.query_id, "runId": self.run_id, "name": self.name or None}


@dataclass(frozen=True, slots=True)
class Status:
    """As Spark's `StreamingQuery.status`."""

    message: str = INITIALIZING
    is_data_available: bool = False
    is_trigger_active: bool = False


Offsets = Mapping[str, Mapping[str, int]]  # by topic and partition


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that has read rows, or the only one of a query that has ended without any; `progress`
    is Spark's JSON. `checkpoint_id` is that of the checkpoint that ended it; None: the end of a
    finite input. `ends` has the end offset of each source.
    """

    number: int
    progress: str
    checkpoint_id: int | None
    rows: int = 1  # that were read
    ends: tuple[Offsets | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Idle:
    """The query has read nothing for IDLE_EVERY_MS. The time is in milliseconds since 1970."""

    at_ms: int


@dataclass(slots=True)
class _Counters:
    """Counts what the job has done since a batch."""

    source_rows: dict[str, int] = field(default_factory=dict)  # by vertex
    sink_rows: int = 0
    busy_ms: dict[str, float] = field(default_factory=dict)  # of a subtask, by vertex
    late: dict[str, int] = field(default_factory=dict)  # by vertex


class ProgressReporter:
    """Follows one job. `sources` and `sink` are their descriptions; `first_batch` is the number of
    the first batch, and `starts` are the offsets at which its sources start, if they are known.
    """

    def __init__(
        self,
        ids: QueryIds,
        *,
        sources: Sequence[str],
        sink: str,
        first_batch: int = 0,
        starts: Sequence[Offsets | None] = (),
    ) -> None:
        self._ids = ids
        self._sources = tuple(sources)
        self._sink = sink
        self._first_batch = self._next_batch = first_batch
        self._last_checkpoint = 0
        self._seen: dict[tuple[str, str], float] = {}  # counters of the last details
        self._since = _Counters()
        self._offsets = (*starts, *[None] * len(self._sources))[: len(self._sources)]
        self._batch_at_ms = 0
        self._reported_at_ms = 0
        self.status = Status()
        self.recent: list[Batch] = []  # those that are published

    def update(self, details: JobDetails, now_ms: int) -> Batch | Idle | None:
        """Takes newer details; returns what they complete. `publish` a batch once its rows are
        visible.
        """
        if not self._batch_at_ms:
            self._batch_at_ms = self._reported_at_ms = details.start_ms or now_ms
        moved = self._count(details)
        self.status = self._status(details, moved)
        completed = [
            each
            for each in details.checkpoints
            if each.state == "COMPLETED" and each.checkpoint_id > self._last_checkpoint
        ]
        if completed:
            newest = max(completed, key=lambda each: each.checkpoint_id)
            self._last_checkpoint = newest.checkpoint_id
            checkpoint_id: int | None = newest.checkpoint_id
            triggered_ms, duration_ms = newest.triggered_ms, newest.duration_ms
        elif details.status is JobStatus.FINISHED:  # the end of a finite input
            checkpoint_id, triggered_ms, duration_ms = None, details.end_ms, 0
        else:
            return None
        counted = self._since.source_rows
        rows = _read_by(completed, counted)
        self._since.source_rows = {v: max(0, counted[v] - read) for v, read in rows.items()}
        is_empty = not any(rows.values())
        has_ended = details.status is JobStatus.FINISHED
        if is_empty and not (has_ended and self._next_batch == self._first_batch):
            if now_ms - self._reported_at_ms < IDLE_EVERY_MS:
                return None
            self._reported_at_ms = now_ms
            return Idle(now_ms)
        batch = self._batch(details, rows, checkpoint_id, triggered_ms, duration_ms)
        self._batch_at_ms, self._reported_at_ms = triggered_ms + duration_ms, now_ms
        self._since = _Counters(source_rows=self._since.source_rows)
        return batch

    def publish(
        self, batch: Batch, metrics: Mapping[str, Any] | None = None, *, again: bool = False
    ) -> Batch:
        """Publishes a batch with the metrics of observations. `again`: as another batch, for more
        metrics, without rows.
        """
        progress = json.loads(batch.progress)
        if metrics:
            progress["observedMetrics"] = metrics
        if again:
            progress["batchId"], self._next_batch = self._next_batch, self._next_batch + 1
            progress["sink"]["numOutputRows"] = 0
            for each in (progress, *progress["sources"]):
                each |= _NO_ROWS
        published = replace(batch, progress=json.dumps(progress), number=progress["batchId"])
        self.recent = [*self.recent[1 - RECENT :], published]
        return published

    def _count(self, details: JobDetails) -> bool:
        """Adds what has changed since the last details; returns whether rows have moved."""
        moved = False
        for vertex in details.vertices:
            name, metrics = vertex.vertex_id, vertex.metrics
            busy_ms = self._increase(name, "busy", metrics.busy_ms) / max(1, vertex.parallelism)
            self._since.busy_ms[name] = self._since.busy_ms.get(name, 0.0) + busy_ms
            late = int(self._increase(name, "late", metrics.late_records_dropped))
            self._since.late[name] = self._since.late.get(name, 0) + late
            if _is_source(vertex):
                rows = int(self._increase(name, "rows", vertex.metrics.records_read))
                self._since.source_rows[name] = self._since.source_rows.get(name, 0) + rows
                moved = moved or rows > 0
            elif _is_sink(vertex):
                rows = int(self._increase(name, "in", metrics.records_in))
                self._since.sink_rows += rows
                moved = moved or rows > 0
        return moved

    def _increase(self, vertex: str, what: str, value: float) -> float:
        """Returns what a counter has gained. One that has started over counts from zero."""
        before = self._seen.get((vertex, what), 0.0)
        self._seen[vertex, what] = value
        return value - before if value >= before else value

    def _status(self, details: JobDetails, moved: bool) -> Status:
        if details.status.globally_terminal:
            return Status(STOPPED)
        if details.status is JobStatus.RESTARTING:
            return Status(RESTARTING)
        if details.waiting_for:
            return Status(f"Waiting for {details.waiting_for}")
        # A source that has read a finite input is FINISHED.
        ready = {ExecutionState.RUNNING, ExecutionState.FINISHED}
        if details.status is not JobStatus.RUNNING or not set(details.states) <= ready:
            return Status(INITIALIZING)
        return Status(PROCESSING, True, True) if moved else Status(WAITING)

    def _batch(
        self,
        details: JobDetails,
        rows: Mapping[str, int],
        checkpoint_id: int | None,
        triggered_ms: int,
        duration_ms: int,
    ) -> Batch:
        number, self._next_batch = self._next_batch, self._next_batch + 1
        interval_s = max(0.001, (triggered_ms + duration_ms - self._batch_at_ms) / 1000)
        busy_s = max(0.001, max(self._since.busy_ms.values(), default=0.0) / 1000)
        total = sum(rows.values())

        def counted(read: int) -> dict[str, Any]:
            return {
                "numInputRows": read,
                "inputRowsPerSecond": round(read / interval_s, 3),
                "processedRowsPerSecond": round(read / busy_s, 3),
            }

        sources = [
            {
                "description": description,
                "startOffset": start,
                **_offsets(vertex),
                **counted(rows.get(vertex.vertex_id, 0)),
            }
            for vertex, description, start in zip(
                (each for each in details.vertices if _is_source(each)),
                self._sources,
                self._offsets,
                strict=False,
            )
        ]
        ends = [each["endOffset"] or each["startOffset"] for each in sources]
        self._offsets = (*ends, *self._offsets[len(ends) :])
        progress = {
            **self._ids.fields(),
            "timestamp": timestamp(self._batch_at_ms),
            "batchId": number,
            "batchDuration": round(interval_s * 1000),
            **counted(total),
            "durationMs": {"triggerExecution": duration_ms},
            **_event_time(details),
            "stateOperators": self._states(details),
            "sources": sources,
            "sink": {
                "description": self._sink,
                "numOutputRows": self._since.sink_rows
                if any(_is_sink(vertex) for vertex in details.vertices)
                else UNKNOWN,
            },
        }
        return Batch(number, json.dumps(progress), checkpoint_id, total, self._offsets)

    def _states(self, details: JobDetails) -> list[dict[str, Any]]:
        """Describes the operators with state. Late rows are dropped where watermarks are assigned,
        which may be before the first operator with state; it also counts those.
        """
        found = [
            (vertex, operator)
            for vertex in details.vertices
            for operator in vertex.operators
            if operator.state_bytes and operator.kind not in _OTHERS
        ]
        late = {vertex.vertex_id: self._since.late[vertex.vertex_id] for vertex, _ in found}
        before = sum(self._since.late.values()) - sum(late.values())
        states = [
            self._state(vertex, operator, late[vertex.vertex_id]) for vertex, operator in found
        ]
        for first in states[:1]:
            first["numRowsDroppedByWatermark"] += before
        return states

    def _state(self, vertex: Vertex, operator: OperatorDetails, late: int) -> dict[str, Any]:
        return {
            "operatorName": operator.name,
            "numRowsTotal": UNKNOWN,
            "numRowsUpdated": UNKNOWN,
            "numRowsRemoved": UNKNOWN,
            "allUpdatesTimeMs": UNKNOWN,
            "allRemovalsTimeMs": UNKNOWN,
            "commitTimeMs": UNKNOWN,
            "memoryUsedBytes": operator.state_bytes or 0,
            "numRowsDroppedByWatermark": late,
            "numShufflePartitions": vertex.parallelism,
            "numStateStoreInstances": vertex.parallelism,
        }


def timestamp(at_ms: int) -> str:
    """As Spark writes times: 2026-11-27T15:21:19.123Z."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def started_event(ids: QueryIds, at_ms: int) -> str:
    return json.dumps({**ids.fields(), "timestamp": timestamp(at_ms), "jobTags": []})


def progress_event(batch: Batch) -> str:
    return json.dumps({"progress": json.loads(batch.progress)})


def idle_event(ids: QueryIds, idle: Idle) -> str:
    return json.dumps({**ids.fields(), "timestamp": timestamp(idle.at_ms)})


def terminated_event(ids: QueryIds, exception: str | None, condition: str = "") -> str:
    """`condition` is that of Spark's error which ended the query; empty if none did."""
    error_class = condition or None
    return json.dumps(
        {**ids.fields(), "exception": exception, "errorClassOnException": error_class}
    )


def _read_by(completed: Sequence[CheckpointDetails], counted: Mapping[str, int]) -> dict[str, int]:
    """Returns the rows that each source has read by the last of these checkpoints since the batch
    before; what was `counted` where a checkpoint does not know it, or there is none.
    """
    return {
        vertex_id: sum(each.records_read[vertex_id] for each in completed)
        if completed and all(vertex_id in each.records_read for each in completed)
        else rows
        for vertex_id, rows in counted.items()
    }


def _is_source(vertex: Vertex) -> bool:
    """Whether it reads rows; the vertex that only lists files or partitions does not."""
    return any(
        operator.kind == "Source" and not operator.name.endswith(" plan")
        for operator in vertex.operators
    )


def _is_sink(vertex: Vertex) -> bool:
    """Whether it is a sink that gets its rows from another vertex."""
    return bool(vertex.input_vertex_ids) and any(
        operator.kind == "Sink" and operator.name != OBSERVATION for operator in vertex.operators
    )


def _offsets(vertex: Vertex) -> dict[str, Offsets | None]:
    """Returns where a source of Kafka has read to, and where its partitions end."""
    current: dict[str, dict[str, int]] = {}
    latest: dict[str, dict[str, int]] = {}
    for topic in vertex.metrics.topics.values():
        for each in topic.partitions:
            current.setdefault(each.topic, {})[str(each.partition)] = each.current_offset
            if each.end_offset is not None:
                latest.setdefault(each.topic, {})[str(each.partition)] = each.end_offset
    return {"endOffset": current or None, "latestOffset": latest or None}


def _event_time(details: JobDetails) -> dict[str, dict[str, str]]:
    """Returns the field `eventTime`, which queries without a watermark do not have."""
    watermarks = [
        vertex.metrics.watermark_us
        for vertex in details.vertices
        if vertex.metrics.watermark_us is not None
    ]
    if not watermarks or not 0 <= min(watermarks) < _FAR_US:
        return {}
    return {"eventTime": {"watermark": timestamp(min(watermarks) // 1000)}}


_FAR_US = 253_402_300_800_000_000  # the year 10000: the end of a finite input

"""Waits until a query has read the rows that its sources have: for the triggers availableNow and
once, and for processAllAvailable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from firesteel.client.client import Client
from firesteel.client.job_details import Attempt, JobDetails, Vertex
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import FiresteelError


def stop_when_read(client: Client, job_id: str, savepoints: str) -> JobDetails:
    """Stops the job with a savepoint below `savepoints` once it has read everything. Returns its
    details after its end, whatever ended it.

    If the savepoint fails, the job continues, and is stopped when its sources have caught up again.
    """
    for details in client.watch_job(job_id):
        if details.status.globally_terminal:
            return details
        if has_read_everything(details):
            try:
                client.stop(job_id, savepoints)
            except FiresteelError:
                continue  # it has ended, or it restarts
    return client.job_details(job_id)


def process_available(client: Client, job_id: str) -> int | None:
    """Waits until the sinks of the job have the results of everything that its sources have now.
    Returns the id of a checkpoint that includes it, or None if the job has ended.

    Raises FiresteelError if no checkpoint can be taken of the running job.
    """
    while True:
        waiting = AvailableRows()
        for details in client.watch_job(job_id):
            if details.status.globally_terminal:
                return None
            if waiting.are_read(details) and _all_run(details):
                break
        try:
            client.checkpoint(job_id)
            # Once it is complete, sinks have processed the one before.
            return client.checkpoint(job_id)
        except FiresteelError:
            now = client.job_details(job_id)
            if now.status is JobStatus.RUNNING and _attempts(now) == _attempts(details):
                raise
            # It has restarted, and reads some of the rows again, or it has ended.


def has_read_everything(details: JobDetails) -> bool:
    """Whether all sources of the job have emitted what was available when their attempts started.
    A barrier that follows includes all of these rows.
    """
    attempts = _sources(details)
    return bool(attempts) and all(
        attempt is not None and (_has_ended(attempt) or attempt.metrics.caught_up > 0)
        for attempt in attempts
    )


class AvailableRows:
    """The rows that the sources of a job have when this object is made.

    Metrics are reported every second, and a source may look for rows at intervals. So a source must
    catch up in three reports: the first may be older than the object, and the look for rows that
    ended before the second may have started earlier. The first report of a new attempt is enough.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] | None = None  # attempts: how often each had caught up
        self._reports: Counter[str] = Counter()  # in which an attempt has caught up

    def are_read(self, details: JobDetails) -> bool:
        """Whether the rows have been emitted, according to these and the earlier details."""
        attempts = _sources(details)
        counts = {each.attempt_id: each.metrics.caught_up for each in attempts if each is not None}
        if self._known is None:
            self._known = counts
            self._reports.update(dict.fromkeys(counts, -_REPORTS))
        for attempt_id, count in counts.items():
            if count > self._known.get(attempt_id, 0):
                self._known[attempt_id] = count
                self._reports[attempt_id] += 1
        return bool(attempts) and all(
            each is not None and (_has_ended(each) or self._is_read(each.attempt_id))
            for each in attempts
        )

    def _is_read(self, attempt_id: str) -> bool:
        assert self._known is not None
        return self._known.get(attempt_id, 0) > 0 and self._reports[attempt_id] >= 0


_REPORTS = 3


def _has_ended(attempt: Attempt) -> bool:
    return attempt.state is ExecutionState.FINISHED


def _all_run(details: JobDetails) -> bool:
    """Whether a checkpoint can be taken: no task is still being started."""
    return all(
        attempt is not None and (attempt.state is ExecutionState.RUNNING or _has_ended(attempt))
        for attempt in _current(details.vertices)
    )


def _attempts(details: JobDetails) -> list[str | None]:
    return [attempt.attempt_id if attempt else None for attempt in _current(details.vertices)]


def _sources(details: JobDetails) -> list[Attempt | None]:
    """Returns the current attempts of all sources; none if the job does not run."""
    if details.status is not JobStatus.RUNNING:
        return []
    return _current(vertex for vertex in details.vertices if not vertex.input_vertex_ids)


def _current(vertices: Iterable[Vertex]) -> list[Attempt | None]:
    return [subtask.current for vertex in vertices for subtask in vertex.subtasks]

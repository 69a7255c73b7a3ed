"""availableNow and once: a query that ends when it has read what its sources have."""

from __future__ import annotations

from firesteel.client.client import Client
from firesteel.client.job_details import JobDetails, Vertex
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import FiresteelError


def has_read_everything(details: JobDetails) -> bool:
    """Whether all sources of the job have emitted what was available when their attempts started.
    A barrier that follows includes all of these rows.
    """
    sources = [vertex for vertex in details.vertices if not vertex.input_vertex_ids]
    return (
        details.status is JobStatus.RUNNING
        and bool(sources)
        and all(_has_caught_up(vertex) for vertex in sources)
    )


def _has_caught_up(vertex: Vertex) -> bool:
    attempts = [subtask.current for subtask in vertex.subtasks]
    return all(
        attempt is not None
        and (
            attempt.state is ExecutionState.FINISHED
            or (attempt.state is ExecutionState.RUNNING and attempt.metrics.caught_up > 0)
        )
        for attempt in attempts
    )


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

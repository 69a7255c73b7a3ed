"""flink_jobmanager_job_*: the job's own metrics, computed from its states at each scrape."""

from __future__ import annotations

import itertools

from firesteel.common.metrics import Sample
from firesteel.common.states import JobStatus
from jobmaster.checkpoint_details import checkpoint_metrics
from jobmaster.core.core import JobMasterCore

_PREFIX = "flink_jobmanager_job_"


def samples(core: JobMasterCore, host: str, now_ms: float, *, dropped: int = 0) -> list[Sample]:
    """Returns the samples. `dropped` is the number of stale messages that did not reach the
    core.
    """
    graph = core.graph
    labels = {"host": host, "job_id": graph.job_graph.job_id, "job_name": graph.job_graph.name}
    spent = dict.fromkeys(JobStatus, 0.0)
    for (status, since_ms), (_, until_ms) in itertools.pairwise(graph.timestamps):
        spent[status] += until_ms - since_ms
    status, since_ms = graph.timestamps[-1]
    if not status.terminal:
        spent[status] += now_ms - since_ms
    running = status is JobStatus.RUNNING
    down = status in (JobStatus.FAILING, JobStatus.RESTARTING)
    values = {
        "uptime": now_ms - since_ms if running else 0.0,
        "downtime": now_ms - since_ms if down else 0.0,
        "runningTime": spent[JobStatus.RUNNING],
        "restartingTime": spent[JobStatus.RESTARTING],
        "cancellingTime": spent[JobStatus.CANCELLING],
        "numRestarts": float(core.restarts),
        "fullRestarts": float(core.job.full_restarts),
        "staleMessages": float(core.stale_messages + dropped),
        **checkpoint_metrics(core),
    }
    return [Sample(_PREFIX + name, labels, value) for name, value in values.items()]

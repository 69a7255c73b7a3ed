"""flink_jobmanager_job_*: the job's own metrics, computed from its states at each scrape."""

from __future__ import annotations

from firesteel.common.metrics import Sample
from firesteel.common.states import JobStatus
from jobmaster.core.core import JobMasterCore

_PREFIX = "flink_jobmanager_job_"


def samples(core: JobMasterCore, host: str, now_ms: float) -> list[Sample]:
    graph = core.graph
    labels = {"host": host, "job_id": graph.job_graph.job_id, "job_name": graph.job_graph.name}
    history = list(graph.timestamps)
    spent = dict.fromkeys(JobStatus, 0.0)
    for index, (status, since_ms) in enumerate(history):
        until_ms = (
            history[index + 1][1]
            if index + 1 < len(history)
            else (since_ms if status.terminal else now_ms)
        )
        spent[status] += until_ms - since_ms
    status, since_ms = history[-1]
    running = status is JobStatus.RUNNING
    down = status in (JobStatus.FAILING, JobStatus.RESTARTING)
    values = {
        "uptime": now_ms - since_ms if running else 0.0,
        "downtime": now_ms - since_ms if down else 0.0,
        "runningTime": spent[JobStatus.RUNNING],
        "restartingTime": spent[JobStatus.RESTARTING],
        "cancellingTime": spent[JobStatus.CANCELLING],
        "numRestarts": float(core.restarts),
        "fullRestarts": float(core.restarts),
        "staleMessages": float(core.stale_messages),
    }
    return [Sample(_PREFIX + name, labels, value) for name, value in values.items()]

"""flink_jobmanager_job_*: the job's own metrics, computed from its states when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.common.states import JobStatus
from jobmaster.core.core import JobMasterCore

_PREFIX = "flink_jobmanager_job_"


def samples(
    core: JobMasterCore, host: str, now_ms: float
) -> Iterable[tuple[str, dict[str, str], float]]:
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
    yield _PREFIX + "uptime", labels, now_ms - since_ms if status is JobStatus.RUNNING else 0.0
    yield (
        _PREFIX + "downtime",
        labels,
        now_ms - since_ms if status in (JobStatus.FAILING, JobStatus.RESTARTING) else 0.0,
    )
    yield _PREFIX + "runningTime", labels, spent[JobStatus.RUNNING]
    yield _PREFIX + "restartingTime", labels, spent[JobStatus.RESTARTING]
    yield _PREFIX + "cancellingTime", labels, spent[JobStatus.CANCELLING]
    yield _PREFIX + "numRestarts", labels, float(core.restarts)
    yield _PREFIX + "fullRestarts", labels, float(core.restarts)
    yield _PREFIX + "staleMessages", labels, float(core.stale_messages)

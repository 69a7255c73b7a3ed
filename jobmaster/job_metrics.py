"""flink_jobmanager_job_*: the job's own metrics, computed from its states at each scrape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from firesteel.common.metrics import Sample
from firesteel.common.states import JobStatus, running_since_ms
from jobmaster.checkpoint_details import checkpoint_metrics
from jobmaster.core.core import JobMasterCore

_PREFIX = "flink_jobmanager_job_"
_ENUMERATOR_PREFIX = "flink_jobmanager_job_operator_coordinator_enumerator_"


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
    running_ms = running_since_ms(graph.timestamps)
    down = status in (JobStatus.FAILING, JobStatus.RESTARTING)
    values = {
        "uptime": now_ms - running_ms if running_ms is not None else 0.0,
        "downtime": now_ms - since_ms if down else 0.0,
        "runningTime": spent[JobStatus.RUNNING],
        "restartingTime": spent[JobStatus.RESTARTING],
        "cancellingTime": spent[JobStatus.CANCELLING],
        "numRestarts": float(core.restarts),
        "fullRestarts": float(core.job.full_restarts),
        "staleMessages": float(core.stale_messages + dropped),
        **checkpoint_metrics(core),
    }
    if core.job.checkpoints.interval_s is not None:
        values["checkpointInterval"] = core.job.checkpoints.interval_s * 1000
        if running_ms is not None:
            last_ms = values.get("lastCheckpointCompletedTimestamp", 0.0)
            values["checkpointAge"] = now_ms - max(last_ms, since_ms)
    return [
        *(Sample(_PREFIX + name, labels, value) for name, value in values.items()),
        *_source_samples(core, labels),
    ]


def _source_samples(core: JobMasterCore, labels: dict[str, str]) -> Iterator[Sample]:
    coordinators = core.coordinators.by_operator
    for vertex in core.graph.job_graph.vertices:
        for operator in vertex.operators:
            if (coordinator := coordinators.get(operator.operator_id)) is None:
                continue
            of_operator = {
                **labels,
                "operator_id": operator.operator_id,
                "operator_name": operator.name,
            }
            for name, value in coordinator.backlog().items():
                yield Sample(_ENUMERATOR_PREFIX + name, of_operator, value)

"""Reads the pods of TaskExecutors as the API server reports them."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.kubernetes.pods.labels import TASK_EXECUTOR, selector_of
from firesteel.kubernetes.pods.status import (
    Life,
    end_of,
    killed_for_memory,
    life_of,
    main_status,
    node_is_silent,
    problem_of,
)
from firesteel.kubernetes.resources import Object, name_of
from resourcemanager.core.events import WorkerId

ATTEMPT_LABEL = "firesteel/attempt"
NUMBER_LABEL = "firesteel/number"
WORKER_LABEL = "firesteel/worker-id"
TEMPLATE_LABEL = "firesteel/template"  # a hash of the manifest and the configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The facts of a pod that decisions depend on."""

    name: str
    uid: str
    worker_id: WorkerId
    attempt: int
    number: int  # within the attempt
    life: Life
    deleting: bool = False  # its deletion was requested
    leaving: bool = False  # and its TaskExecutor runs until the grace period is over
    grace_s: float = 0.0
    template: str = ""
    has_log: bool = False
    node: str = ""
    problem: str = ""  # why it does not start; empty if no reason is known
    out_of_memory: bool = False  # the kernel has ended it
    end: str = ""  # why it has ended or is about to end; empty if no reason is known

    @property
    def over(self) -> bool:
        """Whether its TaskExecutor has ended, or cannot be reached."""
        return self.life is Life.ENDED or (self.deleting and not self.leaving)

    @property
    def counts(self) -> bool:
        """Whether it counts against the limit on pods."""
        return not self.deleting and self.life is not Life.ENDED


def selector(cluster_id: str) -> str:
    """Selects the pods of a cluster's TaskExecutors."""
    return selector_of(cluster_id, TASK_EXECUTOR)


def read_pod(manifest: Object) -> Pod | None:
    """Returns None for a pod without the labels of a driver."""
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    worker_id, attempt = labels.get(WORKER_LABEL, ""), labels.get(ATTEMPT_LABEL, "")
    number = labels.get(NUMBER_LABEL, "")
    if not (worker_id and attempt.isdecimal() and number.isdecimal()):
        return None
    status = manifest.get("status") or {}
    main = main_status(status)
    state = main.get("state") or {}
    life = life_of(status, state)
    deleting = "deletionTimestamp" in metadata
    grace_s = float(metadata.get("deletionGracePeriodSeconds") or 0)
    return Pod(
        name=name_of(manifest),
        uid=metadata.get("uid", ""),
        worker_id=WorkerId(worker_id),
        attempt=int(attempt),
        number=int(number),
        life=life,
        deleting=deleting,
        leaving=deleting
        and grace_s > 0
        and life is Life.RUNNING
        and not node_is_silent(status, main),
        grace_s=grace_s,
        template=labels.get(TEMPLATE_LABEL, ""),
        has_log="running" in state or "terminated" in state,
        node=(manifest.get("spec") or {}).get("nodeName") or "",
        problem="" if life is Life.ENDED else problem_of(status),
        out_of_memory=killed_for_memory(state),
        end=end_of(manifest, main),
    )

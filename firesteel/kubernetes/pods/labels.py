"""The labels of a cluster's objects."""

from __future__ import annotations

MAIN_CONTAINER = "firesteel-main-container"

APP_LABEL = "app"
CLUSTER_LABEL = "firesteel/cluster-id"
COMPONENT_LABEL = "component"

JOB_MANAGER = "jobmanager"  # a component: the masters, under Flink's name
TASK_EXECUTOR = "taskexecutor"


def labels_of(cluster_id: str, component: str = "") -> dict[str, str]:
    labels = {
        APP_LABEL: cluster_id,
        CLUSTER_LABEL: cluster_id,
        "app.kubernetes.io/name": "firesteel",
        "app.kubernetes.io/instance": cluster_id,
    }
    if component:
        labels |= {COMPONENT_LABEL: component, "app.kubernetes.io/component": component}
    return labels


def selecting(cluster_id: str, component: str = "") -> dict[str, str]:
    """Returns the labels that select the pods of a cluster, or of one of its components."""
    return {CLUSTER_LABEL: cluster_id} | ({COMPONENT_LABEL: component} if component else {})


def selector_of(cluster_id: str, component: str = "") -> str:
    return ",".join(f"{key}={value}" for key, value in selecting(cluster_id, component).items())

"""The configuration of the driver, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.config.redaction import is_sensitive
from firesteel.common.resources import slot_resources
from firesteel.kubernetes.configuration import cluster_id_of
from firesteel.kubernetes.pods.settings import (
    HEALTH_PORT,
    TASK_EXECUTORS,
    PodSettings,
    cores,
    extended_resources,
    mebibytes,
    pod_settings,
)
from firesteel.kubernetes.resources import DEPLOYMENTS, PODS, REPLICA_SETS, STATEFUL_SETS, Resource

NO_OWNER = "none"
KILLED_EARLIER_S = 5.0  # a TaskExecutor ends by itself before its grace period is over
_OWNERS = {each.kind: each for each in (DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, PODS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    resource: Resource
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """Everything that the driver reads from the configuration."""

    cluster_id: str
    namespace: str
    owner: Owner | None  # None: the pods have no owner
    pods_max: int
    rate_per_s: float
    concurrency: int
    pod: PodSettings
    resource_manager_address: str  # empty: that of the process
    arguments: Sequence[str]  # of `firesteel service taskexecutor`


def kubernetes_settings(conf: Configuration, *, initial_workers: int) -> KubernetesSettings:
    """Raises ConfigurationError, with the key, the value and the rule."""
    cluster_id = cluster_id_of(conf)
    slots, total, _ = slot_resources(conf)
    memory_bytes = total.total_bytes + conf.get(options.KUBERNETES_TM_MEMORY_OVERHEAD)
    cpu_limit = total.cpu_cores * conf.get(options.KUBERNETES_TM_CPU_LIMIT)
    memory_limit_bytes = int(memory_bytes * conf.get(options.KUBERNETES_TM_MEMORY_LIMIT))
    further = extended_resources(conf, options.KUBERNETES_TM_RESOURCES)
    pod = pod_settings(
        conf,
        TASK_EXECUTORS,
        requests={"cpu": cores(total.cpu_cores), "memory": mebibytes(memory_bytes)} | further,
        limits={"cpu": cores(cpu_limit), "memory": mebibytes(memory_limit_bytes)} | further,
        ports={"rpc": conf.get(options.KUBERNETES_TM_PORT)},
        command=("firesteel", "service", "taskexecutor"),
        restart_policy="Never",
    )
    return KubernetesSettings(
        cluster_id=cluster_id,
        namespace=conf.get(options.KUBERNETES_NAMESPACE),
        owner=_owner(conf.get(options.KUBERNETES_OWNER), cluster_id),
        pods_max=max(initial_workers, conf.get(options.MAX_SLOTS) // slots),
        rate_per_s=conf.get(options.KUBERNETES_CREATION_RATE),
        concurrency=conf.get(options.KUBERNETES_CREATION_CONCURRENCY),
        pod=pod,
        resource_manager_address=conf.get(options.KUBERNETES_RM_ADDRESS),
        arguments=_arguments(conf, pod.security.values),
    )


def _owner(text: str, cluster_id: str) -> Owner | None:
    if text == NO_OWNER:
        return None
    if not text:
        return Owner(resource=DEPLOYMENTS, name=cluster_id)
    kind, _, name = text.partition("/")
    if kind not in _OWNERS or not name:
        raise ConfigurationError(
            f"{options.KUBERNETES_OWNER.key}: {text!r} is not allowed; expected KIND/NAME with one"
            f" of the kinds {', '.join(_OWNERS)}, or {NO_OWNER}"
        )
    return Owner(resource=_OWNERS[kind], name=name)


def _arguments(conf: Configuration, security: Mapping[str, str]) -> list[str]:
    """Returns the configuration of TaskExecutors as arguments. Everybody who may read a pod sees
    them, so they have no secrets.
    """
    values = {
        key: text
        for key, text in conf.to_dict().items()
        if not is_sensitive(key) and not key.startswith("kubernetes.")
    }
    values |= _location_of_leases(conf)
    values[options.TM_RPC_PORT.key] = str(conf.get(options.KUBERNETES_TM_PORT))
    values[options.HEALTH_PORT.key] = str(HEALTH_PORT)
    drain_s = max(conf.get(options.KUBERNETES_TM_GRACE) - KILLED_EARLIER_S, 0.0)
    values.setdefault(options.TM_DRAIN_TIMEOUT.key, f"{drain_s:g} s")
    values.pop(options.BIND_HOST.key, None)
    if conf.get(options.KUBERNETES_RM_ADDRESS):
        values[options.HA_TYPE.key] = "none"
    values.pop(options.SECURITY_DIRECTORY.key, None)  # of this process
    values |= security
    return [part for key, text in values.items() for part in ("-D", f"{key}={text}")]


def _location_of_leases(conf: Configuration) -> dict[str, str]:
    """Returns the values by which TaskExecutors find the leader, if they have no fixed address."""
    if conf.get(options.HA_TYPE) != "kubernetes" or conf.get(options.KUBERNETES_RM_ADDRESS):
        return {}
    keys = (options.KUBERNETES_CLUSTER_ID.key, options.KUBERNETES_NAMESPACE.key)
    return {key: text for key, text in conf.to_dict().items() if key in keys}

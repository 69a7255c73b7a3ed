"""The configuration of a cluster's masters, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.config.options import Option
from firesteel.common.config.redaction import is_sensitive
from firesteel.common.ids import stable_id
from firesteel.common.metrics import parse_ports
from firesteel.kubernetes.configuration import cluster_id_of
from firesteel.kubernetes.pods.settings import (
    HEALTH_PORT,
    MASTERS,
    PodSettings,
    cores,
    mebibytes,
    pairs,
    pod_settings,
)
from firesteel.kubernetes.pods.template import TemplateFile, read_template

CONFIGURATION = "/etc/firesteel"  # where the ConfigMap is mounted
CONFIG_FILE, TEMPLATE_FILE = "config.yaml", "taskexecutor-pod-template.yaml"
MASTERS_TEMPLATE_FILE = "jobmanager-pod-template.yaml"  # for later updates; no pod reads it
RM_PORT = 6124
RESOURCE_MANAGER = "resourcemanager"
MAX_SLOTS = 100  # unless configured: other clusters start with a fixed number of TaskExecutors
# They find the API server from the client's machine, and name files of that machine.
_OF_CLIENT = (
    options.KUBERNETES_CONFIG_FILE,
    options.KUBERNETES_CONTEXT,
    options.KUBERNETES_JM_TEMPLATE,
    options.KUBERNETES_TM_TEMPLATE,
    options.KUBERNETES_START_TIMEOUT,
    options.SECURITY_DIRECTORY,
    options.RPC_ADDRESS,
    options.BIND_HOST,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The program of an application cluster. An empty `program` is submitted by the client; another
    one is the path of a file in the image, or local:///PATH.
    """

    program: str = ""
    arguments: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    cluster_id: str
    namespace: str  # empty: that of the client
    pod: PodSettings
    replicas: int
    separate: bool  # the ResourceManagers have their own Deployment
    application: Application | None  # None: a session cluster
    task_executors: int  # to keep running
    rpc_port: int
    rest_port: int  # 0: no REST API
    rest_type: str
    rest_annotations: Mapping[str, str]
    shared_store: bool  # two masters can run at the same time
    network_policy: bool
    metrics_ports: tuple[int, int]
    configuration: str  # the content of config.yaml
    task_executor_template: str  # the content of the file; empty: none
    masters_template: str  # as above


def job_id_of(cluster_id: str) -> str:
    """Returns the id of the job of an application cluster. A pod that restarts submits the same
    job.
    """
    return stable_id("kubernetes-application", cluster_id)


def cluster_settings(
    conf: Configuration, application: Application | None, task_executors: int
) -> ClusterSettings:
    """Raises ConfigurationError, with the key, the value and the rule."""
    replicas = conf.get(options.KUBERNETES_JM_REPLICAS)
    shared_store = bool(conf.get(options.DATABASE_URL) and conf.get(options.HA_STORAGE_DIR))
    if replicas > 1 and not shared_store:
        raise ConfigurationError(
            f"{options.KUBERNETES_JM_REPLICAS.key}: {replicas} masters need a job store and a"
            f" storage directory that all of them reach: set {options.DATABASE_URL.key} and"
            f" {options.HA_STORAGE_DIR.key}"
        )
    rest_ports = conf.get(options.REST_PORT)
    rpc_port = conf.get(options.RPC_PORT)
    if not rpc_port:
        raise ConfigurationError(f"{options.RPC_PORT.key}: 0 is not allowed on Kubernetes")
    rest_port = parse_ports(rest_ports, options.REST_PORT.key)[0] if rest_ports else 0
    metrics = parse_ports(conf.get(options.METRICS_PORT), options.METRICS_PORT.key)
    separate = conf.get(options.KUBERNETES_MASTERS) == "separate"
    ports = {"rpc": rpc_port} | ({} if separate else {RESOURCE_MANAGER: RM_PORT})
    return ClusterSettings(
        cluster_id=cluster_id_of(conf),
        namespace=conf.get(options.KUBERNETES_NAMESPACE),
        pod=_pod(conf, ports | ({"rest": rest_port} if rest_port else {})),
        replicas=replicas,
        separate=separate,
        application=application,
        task_executors=task_executors,
        rpc_port=rpc_port,
        rest_port=rest_port,
        rest_type=conf.get(options.KUBERNETES_REST_TYPE),
        rest_annotations=pairs(conf, options.KUBERNETES_REST_ANNOTATIONS),
        shared_store=shared_store,
        network_policy=conf.get(options.KUBERNETES_NETWORK_POLICY),
        metrics_ports=(metrics[0], metrics[-1]),
        configuration=_configuration(conf, rest_port),
        task_executor_template=_content(conf, options.KUBERNETES_TM_TEMPLATE),
        masters_template=_content(conf, options.KUBERNETES_JM_TEMPLATE),
    )


def _pod(conf: Configuration, ports: Mapping[str, int]) -> PodSettings:
    cpu = conf.get(options.KUBERNETES_JM_CPU)
    memory_bytes = conf.get(options.JM_PROCESS_SIZE)
    limit_bytes = int(memory_bytes * conf.get(options.KUBERNETES_JM_MEMORY_LIMIT))
    return pod_settings(
        conf,
        MASTERS,
        requests={"cpu": cores(cpu), "memory": mebibytes(memory_bytes)},
        limits={
            "cpu": cores(cpu * conf.get(options.KUBERNETES_JM_CPU_LIMIT)),
            "memory": mebibytes(limit_bytes),
        },
        ports=ports,
        command=("firesteel", "service", "masters"),
        restart_policy="Always",
    )


def _configuration(conf: Configuration, rest_port: int) -> str:
    """Returns the config.yaml of the pods. It has no secrets: many people may read ConfigMaps."""
    election = conf.get(options.HA_TYPE) if conf.is_set(options.HA_TYPE) else "kubernetes"
    if election != "kubernetes":
        raise ConfigurationError(
            f"{options.HA_TYPE.key}: {election!r} is not allowed for a cluster on Kubernetes, whose"
            " masters are elected with Leases; omit it"
        )
    omitted = {option.key for option in _OF_CLIENT}
    values: dict[str, Any] = {
        key: text
        for key, text in conf.to_dict().items()
        if key not in omitted and not is_sensitive(key)
    }
    values[options.HA_TYPE.key] = election
    values[options.RM_PORT.key] = str(RM_PORT)
    values[options.HEALTH_PORT.key] = str(HEALTH_PORT)
    values.setdefault(options.MAX_SLOTS.key, str(MAX_SLOTS))
    address = f"{cluster_id_of(conf)}-{RESOURCE_MANAGER}:{RM_PORT}"
    values.setdefault(options.KUBERNETES_RM_ADDRESS.key, address)
    values[options.REST_PORT.key] = str(rest_port or "")
    return yaml.safe_dump(values, sort_keys=True, allow_unicode=True)


def _content(conf: Configuration, option: Option[str]) -> str:
    """Returns the content of a pod template. Pods of TaskExecutors use theirs only later, so a
    wrong one must be found now.
    """
    path = conf.get(option)
    if not path:
        return ""
    read_template(TemplateFile(option.key, Path(path)))
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option.key}: {path} cannot be read: {error}") from None

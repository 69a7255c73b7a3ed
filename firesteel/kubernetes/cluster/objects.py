"""Builds the objects of a cluster from its configuration."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import replace

import firesteel
from firesteel.common.config import Configuration, options
from firesteel.kubernetes.cluster.access import (
    named,
    network_policies,
    permissions,
    service_account_of,
)
from firesteel.kubernetes.cluster.settings import (
    CONFIG_FILE,
    CONFIGURATION,
    MASTERS_TEMPLATE_FILE,
    RESOURCE_MANAGER,
    RM_PORT,
    TEMPLATE_FILE,
    Application,
    ClusterSettings,
    cluster_settings,
    job_id_of,
)
from firesteel.kubernetes.pods.labels import JOB_MANAGER, labels_of, selecting
from firesteel.kubernetes.pods.settings import PodSettings
from firesteel.kubernetes.pods.template import HOME, main_container, owner_reference, pod_of
from firesteel.kubernetes.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    POD_DISRUPTION_BUDGETS,
    SERVICES,
    Object,
)

# Annotations of the Deployment:
VERSION = "firesteel.io/version"  # of the client that has created it
MODE = "firesteel.io/mode"  # "application" or "session"
JOB = "firesteel.io/job-id"
# A label of the pod whose ResourceManager leads:
LEADS = {"firesteel/leads": RESOURCE_MANAGER}
# An annotation of the pods, which a changed configuration replaces.
CONFIGURATION_HASH = "firesteel.io/configuration"


def cluster_objects(
    conf: Configuration, application: Application | None = None, *, task_executors: int = 0
) -> list[Object]:
    """Returns the manifests of all objects of a cluster, the Deployment that owns the others first.
    `task_executors` is the number of TaskExecutors to keep running.

    Raises ConfigurationError. Objects have the namespace of the configuration, or none. `owned`
    adds the owner references, which need the uid of the Deployment.
    """
    settings = cluster_settings(conf, application, task_executors)
    objects = [
        _deployment(settings),
        *([_resource_managers(settings)] if settings.separate else []),
        *permissions(settings),
        _config_map(settings),
        _headless_service(settings),
        *([_rest_service(settings)] if settings.rest_port else []),
        _leader_service(settings),
        *(_lease(settings, office) for office in ("dispatcher", RESOURCE_MANAGER)),
        *_budgets(settings),
        *network_policies(settings),
    ]
    for each in objects:
        metadata = each["metadata"]
        metadata["labels"] = labels_of(settings.cluster_id) | metadata.get("labels", {})
        if settings.namespace:
            metadata["namespace"] = settings.namespace
    return objects


def owned(objects: Sequence[Object], owner: Object) -> list[Object]:
    """Returns the objects with references to their owner: the Deployment as the API server has
    it.
    """
    reference = owner_reference(owner)
    dependents = copy.deepcopy(list(objects))
    for each in dependents:
        each["metadata"]["ownerReferences"] = [reference]
    return dependents


# ------------------------------------------------------------ the masters


def _deployment(settings: ClusterSettings) -> Object:
    application = settings.application
    services = ["--only", "dispatcher"] if settings.separate else []
    workers = [] if settings.separate else _workers(settings)
    run: list[str] = []
    if application is not None:
        run = ["--application"]
        if application.program:
            run += ["--program", application.program, "--", *application.arguments]
    arguments = [*services, *workers, *run]
    annotations = {
        VERSION: firesteel.__version__,
        MODE: "session" if application is None else "application",
    }
    if application is not None:
        annotations[JOB] = job_id_of(settings.cluster_id)
    deployment = _masters(settings, settings.cluster_id, settings.pod, arguments)
    deployment["metadata"]["annotations"] = annotations
    return deployment


def _resource_managers(settings: ClusterSettings) -> Object:
    pod = replace(settings.pod, component=RESOURCE_MANAGER, ports={RESOURCE_MANAGER: RM_PORT})
    arguments = ["--only", "resourcemanager", *_workers(settings)]
    return _masters(settings, f"{settings.cluster_id}-{RESOURCE_MANAGER}", pod, arguments)


def _workers(settings: ClusterSettings) -> list[str]:
    number = settings.task_executors
    return ["--task-executors", str(number)] if number else []


def _masters(
    settings: ClusterSettings, name: str, pod: PodSettings, arguments: Sequence[str]
) -> Object:
    """Returns a Deployment of pods that run masters."""
    pod = replace(
        pod,
        service_account=service_account_of(settings),
        uses_api=True,
        volumes=({"name": "firesteel-configuration", "configMap": {"name": _config(settings)}},),
        mounts=({"name": "firesteel-configuration", "mountPath": CONFIGURATION, "readOnly": True},),
        environment={"FIRESTEEL_CONF_DIR": CONFIGURATION} | dict(pod.environment),
    )
    template = pod_of(pod)
    for name_ in ("apiVersion", "kind"):
        del template[name_]
    files = settings.configuration + settings.task_executor_template + settings.masters_template
    template["metadata"].setdefault("annotations", {})[CONFIGURATION_HASH] = hashlib.sha256(
        files.encode()
    ).hexdigest()[:16]
    path = f"{CONFIGURATION}/{TEMPLATE_FILE}"
    main_container(template)["args"] = [
        *("--host", "$(POD_IP)", "--dir", f"{HOME}/masters"),
        *(
            ("-D", f"{options.KUBERNETES_TM_TEMPLATE.key}={path}")
            if settings.task_executor_template
            else ()
        ),
        *Configuration(pod.security.values).to_arguments(),
        *arguments,
    ]
    surge = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    return named(DEPLOYMENTS, name) | {
        "spec": {
            "replicas": settings.replicas,
            # Two masters at a time need a job store that both reach.
            "strategy": surge if settings.shared_store else {"type": "Recreate"},
            "selector": {"matchLabels": selecting(settings.cluster_id, pod.component)},
            "template": template,
        }
    }


# ------------------------------------------------------------ their dependents


def _config_map(settings: ClusterSettings) -> Object:
    data = {CONFIG_FILE: settings.configuration}
    if settings.task_executor_template:
        data[TEMPLATE_FILE] = settings.task_executor_template
    if settings.masters_template:
        data[MASTERS_TEMPLATE_FILE] = settings.masters_template
    return named(CONFIG_MAPS, _config(settings)) | {"data": data}


def _config(settings: ClusterSettings) -> str:
    return f"{settings.cluster_id}-config"


def _headless_service(settings: ClusterSettings) -> Object:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selecting(settings.cluster_id, JOB_MANAGER),
        "ports": [_port("rpc", settings.rpc_port)],
    }
    return named(SERVICES, settings.cluster_id) | {"spec": spec}


def _leader_service(settings: ClusterSettings) -> Object:
    """The address of the leading ResourceManager for TaskExecutors, which have no token to read its
    Lease with. The pod of the leader has the label.
    """
    spec = {
        "selector": selecting(settings.cluster_id) | LEADS,
        "ports": [_port(RESOURCE_MANAGER, RM_PORT)],
    }
    return named(SERVICES, f"{settings.cluster_id}-{RESOURCE_MANAGER}") | {"spec": spec}


def _rest_service(settings: ClusterSettings) -> Object:
    headless = settings.rest_type == "Headless_ClusterIP"
    service = named(SERVICES, f"{settings.cluster_id}-rest")
    if settings.rest_annotations:
        service["metadata"]["annotations"] = dict(settings.rest_annotations)
    service["spec"] = {
        "type": "ClusterIP" if headless else settings.rest_type,
        "selector": selecting(settings.cluster_id, JOB_MANAGER),
        "ports": [_port("rest", settings.rest_port)],
    } | ({"clusterIP": "None"} if headless else {})
    return service


def _port(name: str, number: int) -> Object:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}


def _lease(settings: ClusterSettings, office: str) -> Object:
    """Returns a Lease that the first leader takes without waiting for its expiry."""
    return named(LEASES, f"{settings.cluster_id}-{office}") | {"spec": {}}


def _budgets(settings: ClusterSettings) -> list[Object]:
    if settings.replicas < 2:
        return []
    components = (JOB_MANAGER, RESOURCE_MANAGER) if settings.separate else (JOB_MANAGER,)
    return [
        named(
            POD_DISRUPTION_BUDGETS,
            f"{settings.cluster_id}-{'masters' if component == JOB_MANAGER else component}",
        )
        | {
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": selecting(settings.cluster_id, component)},
            }
        }
        for component in components
    ]

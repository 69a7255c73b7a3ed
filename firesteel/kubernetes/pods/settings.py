"""The configuration of the pods of one component, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.config.options import Option
from firesteel.common.security import folder
from firesteel.kubernetes.configuration import cluster_id_of
from firesteel.kubernetes.pods.labels import JOB_MANAGER, TASK_EXECUTOR
from firesteel.kubernetes.resources import Object
from firesteel.kubernetes.security import PodSecurity, pod_security

HEALTH_PORT = 6125  # each pod has its own address
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESOURCE = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    cluster_id: str
    component: str
    template: Path | None
    template_key: str  # of the option, for errors
    image: str  # empty: that of the template
    pull_policy: str
    pull_secrets: Sequence[str]
    service_account: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    node_selector: Mapping[str, str]
    tolerations: Sequence[Mapping[str, Any]]
    environment: Mapping[str, str]
    environment_secrets: Sequence[str]
    secrets: Mapping[str, str]  # directories by the names of Secrets
    requests: Mapping[str, str]  # of the main container
    limits: Mapping[str, str]
    grace_s: int
    ports: Mapping[str, int]  # by name
    security: PodSecurity
    command: Sequence[str]
    restart_policy: str
    uses_api: bool = False  # its containers get the token of the service account
    volumes: Sequence[Object] = ()
    mounts: Sequence[Object] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """The options of one component that the pods of all components have."""

    component: str
    holder: str  # of keys
    template: Option[str]
    service_account: Option[str]
    labels: Option[list[str]]
    annotations: Option[list[str]]
    node_selector: Option[list[str]]
    tolerations: Option[str]
    environment: Option[list[str]]
    environment_secrets: Option[list[str]]
    grace: Option[float]


MASTERS = PodOptions(
    component=JOB_MANAGER,
    holder=folder.MASTERS,
    template=options.KUBERNETES_JM_TEMPLATE,
    service_account=options.KUBERNETES_SERVICE_ACCOUNT,
    labels=options.KUBERNETES_JM_LABELS,
    annotations=options.KUBERNETES_JM_ANNOTATIONS,
    node_selector=options.KUBERNETES_JM_NODE_SELECTOR,
    tolerations=options.KUBERNETES_JM_TOLERATIONS,
    environment=options.KUBERNETES_JM_ENVIRONMENT,
    environment_secrets=options.KUBERNETES_JM_ENVIRONMENT_SECRETS,
    grace=options.KUBERNETES_JM_GRACE,
)
TASK_EXECUTORS = PodOptions(
    component=TASK_EXECUTOR,
    holder=folder.TASK_EXECUTORS,
    template=options.KUBERNETES_TM_TEMPLATE,
    service_account=options.KUBERNETES_TM_SERVICE_ACCOUNT,
    labels=options.KUBERNETES_TM_LABELS,
    annotations=options.KUBERNETES_TM_ANNOTATIONS,
    node_selector=options.KUBERNETES_TM_NODE_SELECTOR,
    tolerations=options.KUBERNETES_TM_TOLERATIONS,
    environment=options.KUBERNETES_TM_ENVIRONMENT,
    environment_secrets=options.KUBERNETES_TM_ENVIRONMENT_SECRETS,
    grace=options.KUBERNETES_TM_GRACE,
)


def pod_settings(
    conf: Configuration,
    of: PodOptions,
    *,
    requests: Mapping[str, str],
    limits: Mapping[str, str],
    ports: Mapping[str, int],
    command: Sequence[str],
    restart_policy: str,
) -> PodSettings:
    """Raises ConfigurationError, with the key, the value and the rule."""
    template = conf.get(of.template)
    pull_secrets: list[str] = conf.get(options.KUBERNETES_PULL_SECRETS)
    environment_secrets: list[str] = conf.get(of.environment_secrets)
    grace_s: float = conf.get(of.grace)
    return PodSettings(
        cluster_id=cluster_id_of(conf),
        component=of.component,
        template=Path(template) if template else None,
        template_key=of.template.key,
        image=conf.get(options.KUBERNETES_IMAGE),
        pull_policy=conf.get(options.KUBERNETES_PULL_POLICY),
        pull_secrets=tuple(pull_secrets),
        service_account=conf.get(of.service_account),
        labels=pairs(conf, of.labels),
        annotations=pairs(conf, of.annotations),
        node_selector=pairs(conf, of.node_selector),
        tolerations=_tolerations(conf, of.tolerations),
        environment=_environment(conf, of.environment),
        environment_secrets=tuple(environment_secrets),
        secrets=_secrets(conf),
        requests=requests,
        limits=limits,
        grace_s=max(round(grace_s), 1),
        ports=ports,
        security=pod_security(conf, of.holder),
        command=tuple(command),
        restart_policy=restart_policy,
    )


def pairs(conf: Configuration, option: Option[Any], separator: str = ":") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in conf.get(option):
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise ConfigurationError(
                f"{option.key}: {text!r} is not allowed; expected NAME{separator}VALUE"
            )
        pairs[name.strip()] = value.strip()
    return pairs


def _environment(conf: Configuration, option: Option[Any]) -> dict[str, str]:
    variables = pairs(conf, option, "=")
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            raise ConfigurationError(f"{option.key}: {name!r} is not the name of a variable")
    return variables


def _secrets(conf: Configuration) -> dict[str, str]:
    secrets = pairs(conf, options.KUBERNETES_SECRETS)
    for name, directory in secrets.items():
        if not directory.startswith("/"):
            raise ConfigurationError(
                f"{options.KUBERNETES_SECRETS.key}: '{name}:{directory}' is not allowed; the"
                " directory is an absolute path"
            )
    return secrets


def extended_resources(conf: Configuration, option: Option[Any]) -> dict[str, str]:
    resources = pairs(conf, option, "=")
    for name, amount in resources.items():
        if name in ("cpu", "memory"):
            raise ConfigurationError(
                f"{option.key}: {name} follows from the slots; see {options.TM_CPU_CORES.key} and"
                f" {options.TM_PROCESS_SIZE.key}"
            )
        try:
            positive = Decimal(re.sub(r"[a-zA-Z]+$", "", amount)) > 0
        except InvalidOperation:
            positive = False
        if not positive or not _RESOURCE.fullmatch(name):
            raise ConfigurationError(
                f"{option.key}: '{name}={amount}' is not allowed; expected the name of a resource"
                " and a positive amount, such as nvidia.com/gpu=1"
            )
    return resources


def _tolerations(conf: Configuration, option: Option[str]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for part in filter(None, (part.strip() for part in conf.get(option).split(";"))):
        toleration: dict[str, Any] = {}
        for entry in part.split(","):
            name, separator, value = entry.strip().partition(":")
            if not separator or name not in _TOLERATION:
                raise ConfigurationError(
                    f"{option.key}: {entry.strip()!r} is not allowed;"
                    f" expected FIELD:VALUE with one of the fields {', '.join(_TOLERATION)}"
                )
            toleration[name] = int(value) if name == "tolerationSeconds" else value
        found.append(toleration)
    return found


def cores(cores: float) -> str:
    return f"{max(round(cores * 1000), 1)}m"


def mebibytes(size_bytes: int) -> str:
    return f"{-(-size_bytes // 2**20)}Mi"

"""The configuration of the driver, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import structlog

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.config.options import Option
from firesteel.common.config.redaction import is_sensitive
from firesteel.common.resources import slot_resources
from firesteel.kubernetes.configuration import cluster_id_of
from firesteel.kubernetes.resources import DEPLOYMENTS, PODS, REPLICA_SETS, STATEFUL_SETS, Resource

log = structlog.get_logger(__name__)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESOURCE = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")
NO_OWNER = "none"
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
    template: Path | None
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
    port: int
    tls: bool  # of TaskExecutors in pods
    arguments: Sequence[str]  # of `firesteel service taskexecutor`


def kubernetes_settings(conf: Configuration, *, initial_workers: int) -> KubernetesSettings:
    """Raises ConfigurationError, with the key, the value and the rule."""
    cluster_id = cluster_id_of(conf)
    slots, total, _ = slot_resources(conf)
    cores = total.cpu_cores
    memory_bytes = total.total_bytes + conf.get(options.KUBERNETES_TM_MEMORY_OVERHEAD)
    further = _resources(conf)
    template = conf.get(options.KUBERNETES_TM_TEMPLATE)
    grace_s: float = conf.get(options.KUBERNETES_TM_GRACE)
    pull_secrets: list[str] = conf.get(options.KUBERNETES_PULL_SECRETS)
    environment_secrets: list[str] = conf.get(options.KUBERNETES_TM_ENVIRONMENT_SECRETS)
    return KubernetesSettings(
        cluster_id=cluster_id,
        namespace=conf.get(options.KUBERNETES_NAMESPACE),
        owner=_owner(conf.get(options.KUBERNETES_OWNER), cluster_id),
        pods_max=max(initial_workers, conf.get(options.MAX_SLOTS) // slots),
        rate_per_s=conf.get(options.KUBERNETES_CREATION_RATE),
        concurrency=conf.get(options.KUBERNETES_CREATION_CONCURRENCY),
        template=Path(template) if template else None,
        image=conf.get(options.KUBERNETES_IMAGE),
        pull_policy=conf.get(options.KUBERNETES_PULL_POLICY),
        pull_secrets=tuple(pull_secrets),
        service_account=conf.get(options.KUBERNETES_TM_SERVICE_ACCOUNT),
        labels=_pairs(conf, options.KUBERNETES_TM_LABELS),
        annotations=_pairs(conf, options.KUBERNETES_TM_ANNOTATIONS),
        node_selector=_pairs(conf, options.KUBERNETES_TM_NODE_SELECTOR),
        tolerations=_tolerations(conf.get(options.KUBERNETES_TM_TOLERATIONS)),
        environment=_environment(conf),
        environment_secrets=tuple(environment_secrets),
        secrets=_secrets(conf),
        requests={"cpu": _cores(cores), "memory": _mebibytes(memory_bytes)} | further,
        limits={
            "cpu": _cores(cores * conf.get(options.KUBERNETES_TM_CPU_LIMIT)),
            "memory": _mebibytes(int(memory_bytes * conf.get(options.KUBERNETES_TM_MEMORY_LIMIT))),
        }
        | further,
        grace_s=max(round(grace_s), 1),
        port=conf.get(options.KUBERNETES_TM_PORT),
        tls=conf.get(options.SECURITY_ENABLED) and conf.get(options.SECURITY_TLS) != "never",
        arguments=_arguments(conf),
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


def _pairs(conf: Configuration, option: Option[Any], separator: str = ":") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in conf.get(option):
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise ConfigurationError(
                f"{option.key}: {text!r} is not allowed; expected NAME{separator}VALUE"
            )
        pairs[name.strip()] = value.strip()
    return pairs


def _environment(conf: Configuration) -> dict[str, str]:
    variables = _pairs(conf, options.KUBERNETES_TM_ENVIRONMENT, "=")
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            raise ConfigurationError(
                f"{options.KUBERNETES_TM_ENVIRONMENT.key}: {name!r} is not the name of a variable"
            )
    return variables


def _secrets(conf: Configuration) -> dict[str, str]:
    secrets = _pairs(conf, options.KUBERNETES_SECRETS)
    for name, directory in secrets.items():
        if not directory.startswith("/"):
            raise ConfigurationError(
                f"{options.KUBERNETES_SECRETS.key}: '{name}:{directory}' is not allowed; the"
                " directory is an absolute path"
            )
    return secrets


def _resources(conf: Configuration) -> dict[str, str]:
    option = options.KUBERNETES_TM_RESOURCES
    resources = _pairs(conf, option, "=")
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


def _tolerations(text: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        toleration: dict[str, Any] = {}
        for field in part.split(","):
            name, separator, value = field.strip().partition(":")
            if not separator or name not in _TOLERATION:
                raise ConfigurationError(
                    f"{options.KUBERNETES_TM_TOLERATIONS.key}: {field.strip()!r} is not allowed;"
                    f" expected FIELD:VALUE with one of the fields {', '.join(_TOLERATION)}"
                )
            toleration[name] = int(value) if name == "tolerationSeconds" else value
        found.append(toleration)
    return found


def _arguments(conf: Configuration) -> list[str]:
    """Returns the configuration of TaskExecutors as arguments. Everybody who may read a pod sees
    them, so they have no secrets.
    """
    values = {
        key: text
        for key, text in conf.to_dict().items()
        if not is_sensitive(key) and not key.startswith("kubernetes.")
    }
    values[options.TM_RPC_PORT.key] = str(conf.get(options.KUBERNETES_TM_PORT))
    values.pop(options.BIND_HOST.key, None)
    hidden = sorted(key for key in conf.to_dict() if is_sensitive(key))
    if hidden and not conf.get(options.KUBERNETES_TM_ENVIRONMENT_SECRETS):
        log.warning(
            "pods of TaskExecutors do not get these values; a Secret can pass them",
            keys=hidden,
            option=options.KUBERNETES_TM_ENVIRONMENT_SECRETS.key,
        )
    return [part for key, text in values.items() for part in ("-D", f"{key}={text}")]


def _cores(cores: float) -> str:
    return f"{max(round(cores * 1000), 1)}m"


def _mebibytes(size_bytes: int) -> str:
    return f"{-(-size_bytes // 2**20)}Mi"

"""The configuration of a cluster that runs, and the objects of one that is changed. Needs no API
server.

A change starts from the cluster's own configuration: the ConfigMap, the secret values, the pod
templates, and the arguments of the masters. So options that are given once, when the cluster
starts, need not be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import yaml

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.config.configuration import SECRETS
from firesteel.common.config.redaction import is_sensitive
from firesteel.kubernetes.cluster.objects import CONFIGURATION_HASH
from firesteel.kubernetes.cluster.settings import (
    CONFIG_FILE,
    MASTERS_TEMPLATE_FILE,
    TEMPLATE_FILE,
    Application,
)
from firesteel.kubernetes.pods.template import HOME, main_container
from firesteel.kubernetes.resources import DEPLOYMENTS, SERVICES, Object
from firesteel.kubernetes.security import DIRECTORY

_TEMPLATES = {
    options.KUBERNETES_JM_TEMPLATE.key: MASTERS_TEMPLATE_FILE,
    options.KUBERNETES_TM_TEMPLATE.key: TEMPLATE_FILE,
}
# A cluster keeps them for its life.
_FIXED = (options.KUBERNETES_MASTERS, options.KUBERNETES_CLUSTER_ID, options.HA_STORAGE_DIR)


class Change(NamedTuple):
    key: str
    before: str  # empty: not set
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before or 'not set'} -> {self.after or 'not set'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCluster:
    values: Mapping[str, str]  # its configuration, with secret values
    templates: Mapping[str, str]  # the contents of pod templates, by option
    application: Application | None
    task_executors: int  # to keep running

    def changed(
        self, given: Mapping[str, str], folder: Path, unset: Collection[str] = ()
    ) -> Configuration:
        """Returns the configuration with the `given` values and without those that are `unset`.
        Writes the pod templates that are not given into `folder`. Raises ConfigurationError.
        """
        self._check_unset(unset, given)
        values = {key: value for key, value in self.values.items() if key not in unset}
        for option in _FIXED:
            now, then = values.get(option.key, ""), given.get(option.key, "")
            if then and then != (now or str(option.default)):
                raise ConfigurationError(
                    f"{option.key}: a running cluster keeps {now or option.default!r}, not {then!r}"
                    "; stop the cluster and start it with the other value"
                )
        secret = sorted(k for k in given if is_sensitive(k) and given[k] != values.get(k))
        if secret:
            raise ConfigurationError(
                f"{', '.join(secret)}: secret values are not changed by an update; replace the"
                " Secrets with `firesteel cluster secrets | kubectl apply -f -` and restart the"
                " pods"
            )
        for key, content in self.templates.items():
            if key in unset:
                continue
            path = folder / _TEMPLATES[key]
            path.write_text(content, encoding="utf-8")
            values[key] = str(path)
        return Configuration(values | dict(given))

    def _check_unset(self, unset: Collection[str], given: Mapping[str, str]) -> None:
        for key in unset:
            if key in given:
                raise ConfigurationError(
                    f"{key}: cannot be unset, because this command's configuration sets it to"
                    f" {given[key]!r}"
                )
            if key in (option.key for option in _FIXED) or is_sensitive(key):
                raise ConfigurationError(f"{key}: cannot be unset while the cluster runs")
            if key not in self.values and key not in self.templates:
                raise ConfigurationError(f"{key}: cannot be unset: the cluster does not set it")


def running_cluster(
    deployments: Sequence[Object], config_map: Object, secret: Mapping[str, bytes]
) -> RunningCluster:
    """`deployments` are those of the masters, the owner first; `secret` that of the masters."""
    data: Mapping[str, str] = config_map.get("data") or {}
    values = {
        str(k): str(v) for k, v in (yaml.safe_load(data.get(CONFIG_FILE) or "") or {}).items()
    }
    values |= json.loads(secret.get(SECRETS) or b"{}")
    owner, last = _arguments(deployments[0]), _arguments(deployments[-1])
    mounted = next(_values_of(owner, f"{options.SECURITY_DIRECTORY.key}="), DIRECTORY)
    if mounted != DIRECTORY:  # keys that the user provides
        values[options.SECURITY_DIRECTORY.key] = mounted
    return RunningCluster(
        values=values,
        templates={key: data[name] for key, name in _TEMPLATES.items() if data.get(name)},
        application=_application(owner),
        task_executors=int(_after(last, "--task-executors") or 0),
    )


def _arguments(deployment: Object) -> list[str]:
    return list(main_container(deployment["spec"]["template"]).get("args") or ())


def _values_of(arguments: Sequence[str], prefix: str) -> Iterator[str]:
    defined = (text for before, text in pairwise(arguments) if before == "-D")
    return (text.removeprefix(prefix) for text in defined if text.startswith(prefix))


def _after(arguments: Sequence[str], name: str) -> str:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[arguments.index(name) + 1] if name in arguments[:end] else ""


def _application(arguments: Sequence[str]) -> Application | None:
    if "--application" not in arguments:
        return None
    given = arguments[arguments.index("--") + 1 :] if "--" in arguments else ()
    return Application(program=_after(arguments, "--program"), arguments=tuple(given))


# ------------------------------------------------------------ what changes


def changes(before: Object, after: Object) -> list[Change]:
    """Returns the differences between two ConfigMaps of a cluster."""
    old, new = (dict(each.get("data") or {}) for each in (before, after))
    was, now = (yaml.safe_load(each.pop(CONFIG_FILE, "")) or {} for each in (old, new))
    found = [
        Change(key, str(was.get(key, "")), str(now.get(key, "")))
        for key in sorted(was.keys() | now.keys())
        if was.get(key) != now.get(key)
    ]
    for key, name in _TEMPLATES.items():
        if old.get(name) != new.get(name):
            found.append(Change(key, "a template" * (name in old), "another" * (name in new)))
    return found


def configuration_of(pod_or_deployment: Object) -> str:
    """Returns the hash of the configuration with which the pods of masters have started."""
    template = pod_or_deployment.get("spec", {}).get("template", pod_or_deployment)
    annotations: Object = template["metadata"].get("annotations") or {}
    return str(annotations.get(CONFIGURATION_HASH, ""))


def loses_its_store(deployment: Object) -> bool:
    """Whether the job store of a master is in its pod, and is lost when the pod is replaced."""
    spec = deployment["spec"]["template"]["spec"]
    mounts = main_container(deployment["spec"]["template"]).get("volumeMounts") or ()
    at_home = {mount["name"] for mount in mounts if mount.get("mountPath") == HOME}
    volumes = [v for v in spec.get("volumes") or () if v["name"] in at_home]
    recreated = deployment["spec"].get("strategy", {}).get("type") == "Recreate"
    return recreated and all("emptyDir" in volume for volume in volumes)


def replacing(old: Object, new: Object) -> Object:
    """Returns the manifest that replaces `old`, an object as the API server has it, by `new`: the
    labels and annotations of others stay.
    """
    metadata = dict(old["metadata"])
    for name in ("labels", "annotations"):
        both = (metadata.get(name) or {}) | (new["metadata"].get(name) or {})
        if both:
            metadata[name] = both
    content = {k: v for k, v in new.items() if k != "metadata"}
    if old["kind"] == SERVICES.kind:  # its addresses are assigned once
        content["spec"] = old["spec"] | new["spec"]
    if old["kind"] == DEPLOYMENTS.kind:  # the selector never changes
        content["spec"] = new["spec"] | {"selector": old["spec"]["selector"]}
    return {**old, **content, "metadata": metadata}

"""Translates the configuration that Flink's client deploys, without I/O.

Most keys are Firesteel's as well. Keys that no process of Firesteel reads are ignored. Keys that
change the results of a job, or its safety, and that Firesteel would have to ignore are refused.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from firesteel.common.config import ConfigurationError, options
from firesteel.common.config.options import OPTIONS, Option

APPLICATION, SESSION = "kubernetes-application", "kubernetes-session"

_JARS = "pipeline.jars"
_MAIN = "$internal.application.main"
_ARGUMENTS = "$internal.application.program-args"
_PYTHON_DRIVER = "org.apache.flink.client.python.PythonDriver"
_LOCAL = "local://"
_TEMPLATE = "kubernetes.pod-template-file.taskmanager"
_RM_PORT = "6124"
_MAIN_CONTAINERS = {"flink-main-container": "firesteel-main-container"}

# The names that Flink has for options of Firesteel, besides the same ones. Of several names for one
# option, the first that is set counts.
_RENAMED: Mapping[str, Option[Any]] = {
    "kubernetes.container.image": options.KUBERNETES_IMAGE,
    "kubernetes.taskmanager.cpu.amount": options.TM_CPU_CORES,
    "kubernetes.taskmanager.cpu": options.TM_CPU_CORES,
    "state.checkpoints.dir": options.CHECKPOINT_DIR,
    "state.savepoints.dir": options.SAVEPOINT_DIR,
    "execution.savepoint.path": options.RECOVERY_PATH,
    "high-availability": options.HA_TYPE,
    "high-availability.storage-dir": options.HA_STORAGE_DIR,
    "blob.server.port": options.RM_PORT,
    "restart-strategy": options.RESTART_STRATEGY,
    "state.backend": options.STATE_BACKEND,
    "taskmanager.memory.flink.size": options.TM_PROCESS_SIZE,
}
# Flink's defaults, which differ from Firesteel's.
_DEFAULTS: Mapping[Option[Any], str] = {
    options.HA_TYPE: "kubernetes",
    options.MAX_SLOTS: str(2**31 - 1),
}
# Addresses: each pod has its own.
_REPLACED = (
    options.RPC_ADDRESS.key,
    options.BIND_HOST.key,
    options.TM_RPC_PORT.key,
    options.KUBERNETES_CONFIG_FILE.key,
    options.KUBERNETES_CONTEXT.key,
)
_SYNONYMS = {
    "org.apache.flink.kubernetes.highavailability.kuberneteshaservicesfactory": "kubernetes",
    "off": "none",
    "disable": "none",
}
_REFUSED = {
    r"pipeline\.classpaths": "programs are Python programs; add their modules to the image",
    r"user\.artifacts\..*": "nothing is fetched; add the files of the program to the image",
    r"table\..*|sql-.*": "there is no Table API; express the query with PySpark",
    r"pipeline\.time-characteristic": "a program chooses between event time and processing time",
    r"python\.client\.executable": "set python.executable",
    r"security\.ssl\.(.*\.)?enabled": "set security.tls",
    r"security\.kerberos\..*": "Kerberos is not supported",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program inside the image, with its arguments."""

    path: str = ""
    module: str = ""  # instead of a path
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    values: Mapping[str, str]  # Firesteel's configuration
    program: Program | None  # None for a session cluster
    template: str  # path of the user's pod template for TaskExecutors, or empty
    ignored: tuple[str, ...]  # keys


def translate(given: Mapping[str, str], mode: str) -> Translation:
    """`given` has flat keys. Raises ConfigurationError for a key that cannot be obeyed."""
    if mode not in (APPLICATION, SESSION):
        raise ConfigurationError(f"{mode!r} is not allowed; expected {APPLICATION} or {SESSION}")
    refused = list(_refusals(given))
    if refused:
        raise ConfigurationError("\n".join(refused))
    values: dict[str, str] = {}
    ignored = []
    for key in sorted(given, key=lambda key: key not in OPTIONS):  # Firesteel's names count first
        if key in OPTIONS and key not in _REPLACED:
            values[key] = _value(key, given[key])
        elif key in _RENAMED:
            name = _RENAMED[key].key
            values.setdefault(name, _value(name, given[key]))
        elif key.startswith(("spark.", "firesteel.")):
            values[key] = given[key]
        elif key not in (_JARS, _MAIN, _ARGUMENTS, _TEMPLATE):
            ignored.append(key)
    if cluster_id := values.get(options.KUBERNETES_CLUSTER_ID.key):
        # Flink's headless Service has this port, and the pod of the masters.
        values.setdefault(options.RM_PORT.key, _RM_PORT)
        address = f"{cluster_id}:{values[options.RM_PORT.key]}"
        values.setdefault(options.KUBERNETES_RM_ADDRESS.key, address)
    for option, default in _DEFAULTS.items():
        values.setdefault(option.key, default)
    return Translation(
        values=values,
        program=_program(given) if mode == APPLICATION else None,
        template=given.get(_TEMPLATE, ""),
        ignored=tuple(sorted(ignored)),
    )


def template_of(pod: Any) -> Any:
    """Returns a pod template with Firesteel's name for the main container."""
    pod = copy.deepcopy(pod)
    spec = pod.get("spec") if isinstance(pod, dict) else None
    for container in (spec or {}).get("containers") or ():
        name = container.get("name")
        container["name"] = _MAIN_CONTAINERS.get(name, name)
    return pod


def _refusals(given: Mapping[str, str]) -> Iterator[str]:
    for key, value in given.items():
        for pattern, advice in _REFUSED.items():
            if value not in ("", "[]", "false") and re.fullmatch(pattern, key):
                yield f"{key}: {value!r} is not allowed; Firesteel cannot obey it: {advice}"


def _value(key: str, text: str) -> str:
    """Flink ignores case and separators in names that are one of several; Firesteel's have one
    spelling.
    """
    option = OPTIONS[key]
    if option.kind != "enum":
        return text
    text = _SYNONYMS.get(text.lower(), text)
    plain = {re.sub("[-_]", "", choice.lower()): choice for choice in option.choices}
    return plain.get(re.sub("[-_]", "", text.lower()), text)


def _program(given: Mapping[str, str]) -> Program:
    arguments = flink_list(given.get(_ARGUMENTS, ""))
    if given.get(_MAIN, "") == _PYTHON_DRIVER:
        return _of_python_driver(arguments)
    paths = flink_list(given.get(_JARS, ""))
    if len(paths) != 1:
        raise ConfigurationError(
            f"{_JARS}: {len(paths)} programs are not allowed; expected one, such as"
            " local:///opt/job.py"
        )
    if given.get(_MAIN):
        raise ConfigurationError(
            f"{_MAIN}: {given[_MAIN]!r} is not allowed; {paths[0]} is a Python program without a"
            " main class"
        )
    return Program(path=_local(_JARS, paths[0]), arguments=arguments)


def _of_python_driver(arguments: tuple[str, ...]) -> Program:
    """The arguments of PyFlink's driver: `-py FILE` or `-pym MODULE`, then the program's."""
    name, value, *rest = (*arguments, "", "")
    rest = rest[: len(arguments) - 2] if len(arguments) > 2 else []
    if name in ("-py", "--python") and value:
        return Program(path=_local(_ARGUMENTS, value), arguments=tuple(rest))
    if name in ("-pym", "--pyModule") and value:
        return Program(module=value, arguments=tuple(rest))
    raise ConfigurationError(
        f"{_ARGUMENTS}: {' '.join(arguments)!r} is not allowed; expected -py FILE or -pym MODULE"
    )


def _local(key: str, path: str) -> str:
    """Returns the path inside the image. A Java program is refused."""
    inside = path.removeprefix(_LOCAL).removeprefix("file://")
    if "://" in inside or not inside.startswith("/") or not inside.endswith(".py"):
        raise ConfigurationError(
            f"{key}: {path!r} is not allowed; expected a Python program of the image, such as"
            " local:///opt/job.py"
        )
    return inside


def flink_list(text: str) -> tuple[str, ...]:
    """Parses a list as Flink writes it: of YAML, or separated by `;`, with quotes."""
    if text.startswith("["):
        return tuple(json.loads(text))
    items: list[str] = []
    for part in re.findall(r"""(?:'(?:[^']|'')*'|"(?:[^"]|"")*"|[^;'"])+""", text):
        items.append(re.sub(r"""'((?:[^']|'')*)'|"((?:[^"]|"")*)\"""", _unquoted, part).strip())
    return tuple(items)


def _unquoted(found: re.Match[str]) -> str:
    quote = found[0][0]
    return found[0][1:-1].replace(quote * 2, quote)

"""Names of Services and pods, in an /etc/hosts per pod where the machine permits it."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
from pathlib import Path

from tests.kubernetes.kinds import Object
from tests.kubernetes.selection import selects
from tests.kubernetes.store import Store

_WITH_THREAD = ("setpriv", "--pdeathsig", "KILL")
_MOUNT = 'mount --bind "$0" /etc/hosts && exec "$@"'


def command_with(hosts: Path) -> list[str]:
    """Returns the start of a command that sees this file as /etc/hosts and is killed with the thread
    that starts it; empty if that is not permitted. The process keeps its pid.
    """
    unshare = _unshare()
    return [*unshare, *_WITH_THREAD, "sh", "-c", _MOUNT, str(hosts)] if unshare else []


@functools.cache
def _unshare() -> tuple[str, ...]:
    unshare = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    check = [*unshare, *_WITH_THREAD, "sh", "-c", _MOUNT, "/etc/hosts", "true"]
    try:
        permitted = subprocess.run(check, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        permitted = False
    return unshare if permitted else ()


def hosts(store: Store, pod: Object) -> str:
    """Returns the content of /etc/hosts of a pod."""
    metadata = pod["metadata"]
    # This machine's name: the host name of a process, which is that of its pod in a real cluster.
    lines = [
        f"127.0.0.1 localhost {socket.gethostname()}",
        f"{pod['status']['podIP']} {metadata['name']}",
    ]
    for service in store.all("Service"):
        name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
        names = [f"{name}.{namespace}{suffix}" for suffix in ("", ".svc", ".svc.cluster.local")]
        if namespace == metadata["namespace"]:
            names.insert(0, name)
        lines += [f"{address} {' '.join(names)}" for address in _addresses(store, service)]
    return "\n".join(lines) + "\n"


def _addresses(store: Store, service: Object) -> list[str]:
    spec = service["spec"]
    if not spec.get("selector"):
        return []
    found = [
        pod["status"]["podIP"]
        for pod in store.all("Pod", service["metadata"]["namespace"])
        if selects({"matchLabels": spec["selector"]}, pod["metadata"].get("labels") or {})
        and pod["status"].get("podIP")
        and (spec.get("publishNotReadyAddresses") or _is_ready(pod))
    ]
    return found if spec.get("clusterIP") == "None" else found[:1]


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def write(path: Path, content: str) -> None:
    """Writes into the same file, which is mounted."""
    if path.exists() and path.read_text() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+" if path.exists() else "w") as file:
        file.write(content)
        file.truncate()

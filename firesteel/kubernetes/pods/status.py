"""Reads a pod as the API server reports it: its life, and why it waits or has ended.

The order matters: an evicted pod, or one whose node is lost, may have no or outdated statuses of
its containers. So the phase, the deletion and the node are read before the containers.
"""

from __future__ import annotations

import contextlib
import signal
from enum import Enum
from typing import Any

from firesteel.kubernetes.pods.labels import MAIN_CONTAINER
from firesteel.kubernetes.resources import Object

OOM_KILLED = "OOMKilled"
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
_IMAGE = "ErrImagePull"
_IMAGE_BACK_OFF = "ImagePullBackOff"


class Life(Enum):
    PENDING = "its main container has not started"
    RUNNING = "its main container runs"
    ENDED = "its main container does not run, and will not run again"


def latest_problem(before: str, after: str) -> str:
    """Returns the problem to show. The reason of a failed pull stays while Kubernetes waits before
    the next one.
    """
    if _IMAGE in before and _IMAGE_BACK_OFF in after:
        return before
    return after


def main_status(status: Object) -> Object:
    for container in status.get("containerStatuses") or ():
        if container.get("name") == MAIN_CONTAINER:
            return dict(container)
    return {}


def life_of(status: Object, main: Object) -> Life:
    if status.get("phase") in ("Failed", "Succeeded") or "terminated" in main:
        return Life.ENDED
    return Life.RUNNING if "running" in main else Life.PENDING


# ------------------------------------------------------------ why it does not start


def problem_of(status: Object) -> str:
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        why = scheduled.get("message") or scheduled.get("reason") or "no reason given"
        return f"its pod cannot be scheduled: {why}"
    containers = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason") or ""
        if reason in _STARTING:
            continue
        text = f"{_what(container)}: {reason}"
        if message := waiting.get("message"):
            text += f": {message}"
        terminated = (container.get("lastState") or {}).get("terminated")
        return f"{text}; it {exit_of(terminated)}" if terminated else text
    return ""


def _what(container: Object) -> str:
    name, image = container.get("name", ""), container.get("image", "")
    if name == MAIN_CONTAINER:
        return f"the image {image} of its pod"
    return f"container {name} of its pod (image {image})"


# ------------------------------------------------------------ why it has ended


def killed_for_memory(state: Object) -> bool:
    """Whether the kernel has killed a container in this state at its memory limit."""
    return (state.get("terminated") or {}).get("reason") == OOM_KILLED


def end_of(manifest: Object, main: Object) -> str:
    status = manifest.get("status") or {}
    node = (manifest.get("spec") or {}).get("nodeName") or ""
    where = f" on node {node}" if node else ""
    reason, message = status.get("reason") or "", status.get("message") or ""
    if reason == "Evicted":
        return f"was evicted from node {node or 'unknown'}{_after(message)}"
    if reason:
        return f"ended{where} with {reason}{_after(message)}"
    disrupted = condition(status, "DisruptionTarget")
    if disrupted.get("status") == "True":
        why = disrupted.get("reason") or "a disruption"
        return f"was ended{where} by {why}{_after(disrupted.get('message') or '')}"
    terminated = (main.get("state") or {}).get("terminated")
    if terminated and killed_for_memory(main["state"]):
        return exit_of(terminated, where, _limit(manifest))
    if node_is_silent(status, main):
        return f"is lost: its node {node} does not answer"
    if "deletionTimestamp" in manifest["metadata"]:
        return f"is deleted{where} by someone else (a drain of the node, an eviction or a user)"
    if terminated:
        return exit_of(terminated, where)
    if status.get("phase") in ("Failed", "Succeeded"):
        return f"ended{where} in phase {status['phase']}; no reason is known"
    return ""


def exit_of(terminated: Object, where: str = "", limit: str = "") -> str:
    if terminated.get("reason") == OOM_KILLED:
        of = f" of {limit}" if limit else ""
        return f"was killed by the kernel{where}: it reached its memory limit{of} (OOMKilled)"
    code = int(terminated.get("exitCode") or 0)
    text = f"ended{where} with exit code {code}"
    if code > 128:
        with contextlib.suppress(ValueError):
            text += f" (killed by {signal.Signals(code - 128).name})"
    reason = terminated.get("reason") or ""
    if reason not in ("", "Error", "Completed"):
        text += f", {reason}"
    lines = (terminated.get("message") or "").strip().splitlines()
    return text + _after(lines[-1] if lines else "")


def _limit(manifest: Object) -> str:
    for container in (manifest.get("spec") or {}).get("containers") or ():
        if container.get("name") == MAIN_CONTAINER:
            limits = (container.get("resources") or {}).get("limits") or {}
            return str(limits.get("memory") or "")
    return ""


def node_is_silent(status: Object, main: Object) -> bool:
    """Whether the control plane has marked a pod whose kubelet last reported it ready."""
    ready = condition(status, "Ready")
    return (
        bool(main.get("ready"))
        and ready.get("status") in ("False", "Unknown")
        and ready.get("reason") != "ReadinessGatesNotReady"
    )


def _after(message: str) -> str:
    return f": {message.rstrip('.')}" if message else ""


def condition(status: Object, kind: str) -> dict[str, Any]:
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            return dict(condition)
    return {}

"""Describes masters that start, from their Deployment and their pods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firesteel.kubernetes.pods.status import (
    Life,
    condition,
    exit_of,
    life_of,
    main_status,
    problem_of,
)
from firesteel.kubernetes.resources import Object, name_of


class Progress(NamedTuple):
    lines: Sequence[str]
    restarts: int  # of the container that was restarted most often


def masters_progress(deployment: Object, pods: Sequence[Object]) -> Progress:
    lines = [_pod(pod) for pod in pods]
    failure = condition(deployment.get("status") or {}, "ReplicaFailure")
    if failure.get("status") == "True":
        lines.append(f"its pods cannot be created: {failure.get('message') or failure['reason']}")
    statuses = [main_status(pod.get("status") or {}) for pod in pods]
    return Progress(lines, max((int(s.get("restartCount") or 0) for s in statuses), default=0))


def _pod(pod: Object) -> str:
    status = pod.get("status") or {}
    main = main_status(status)
    phase = "Terminating" if "deletionTimestamp" in pod["metadata"] else status.get("phase")
    text = f"pod {name_of(pod)}: {phase or 'Pending'}"
    if problem := problem_of(status):
        return f"{text}: {problem}"
    terminated = (main.get("lastState") or {}).get("terminated")
    if terminated:
        return f"{text}: its masters restart; the last run {exit_of(terminated)}"
    life = life_of(status, main.get("state") or {})
    if life is Life.RUNNING:
        return f"{text}: {'ready' if main.get('ready') else 'its masters start'}"
    return text

"""The life of a pod, and the reasons of its problems, as the API server reports them."""

from __future__ import annotations

from typing import Any

import pytest

from firesteel.kubernetes.pods.labels import MAIN_CONTAINER
from firesteel.kubernetes.pods.status import Life, latest_problem
from firesteel.kubernetes.resources import Object
from resourcemanager.kubernetes.pod import Pod, read_pod

LABELS = {
    "firesteel/worker-id": "worker-1",
    "firesteel/attempt": "3",
    "firesteel/number": "7",
}


def read(*, main: Object | None = None, metadata: Object | None = None, **status: Any) -> Pod:
    named = {"name": "p", "uid": "u", "labels": LABELS} | (metadata or {})
    limits = {"resources": {"limits": {"memory": "2Gi"}}}
    spec = {"nodeName": "n", "containers": [{"name": MAIN_CONTAINER} | limits]}
    if main is not None:
        status["containerStatuses"] = [{"name": MAIN_CONTAINER, "image": "i"} | main]
    pod = read_pod({"metadata": named, "spec": spec, "status": {"phase": "Running"} | status})
    assert pod is not None
    return pod


def terminated(**state: Any) -> Object:
    return {"state": {"terminated": state}}


RUNNING: Object = {"state": {"running": {}}, "ready": True}
WAITING: Object = {"state": {"waiting": {"reason": "ContainerCreating"}}}


def test_a_pod_has_the_facts_of_its_labels() -> None:
    pod = read(main=RUNNING)
    assert (pod.worker_id, pod.attempt, pod.number, pod.node) == ("worker-1", 3, 7, "n")
    assert (pod.life, pod.over, pod.has_log, pod.problem) == (Life.RUNNING, False, True, "")


def test_pods_without_our_labels_are_ignored() -> None:
    assert read_pod({"metadata": {"name": "p"}, "status": {}}) is None


@pytest.mark.parametrize(
    ("life", "facts"),
    [
        (Life.PENDING, {"phase": "Pending"}),
        (Life.PENDING, {"phase": "Running", "main": WAITING}),
        (Life.RUNNING, {"main": RUNNING}),
        (Life.ENDED, {"phase": "Failed"}),
        (Life.ENDED, {"phase": "Failed", "main": RUNNING}),  # the status is out of date
        (Life.ENDED, {"phase": "Running", "main": terminated(exitCode=1)}),  # sidecars run
    ],
)
def test_the_phase_comes_before_the_containers(life: Life, facts: Object) -> None:
    assert read(**facts).life is life


@pytest.mark.parametrize(
    ("end", "facts"),
    [
        (
            "was evicted from node n: The node was low on resource: memory",
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "The node was low on resource: memory.",
            },
        ),
        (
            "was killed by the kernel on node n: it reached its memory limit of 2Gi (OOMKilled)",
            {"phase": "Failed", "main": terminated(exitCode=137, reason="OOMKilled")},
        ),
        (
            "ended on node n with exit code 143 (killed by SIGTERM)",
            {"phase": "Failed", "main": terminated(exitCode=143, reason="Error")},
        ),
        (
            "ended on node n with exit code 128, StartError: no such file",
            {
                "phase": "Failed",
                "main": terminated(
                    exitCode=128, reason="StartError", message="exec:\nno such file."
                ),
            },
        ),
        (
            "was ended on node n by PreemptionByScheduler: a more important pod",
            {
                "main": RUNNING,
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "PreemptionByScheduler",
                        "message": "a more important pod",
                    }
                ],
            },
        ),
        (
            "is lost: its node n does not answer",
            {"main": RUNNING, "conditions": [{"type": "Ready", "status": "False"}]},
        ),
        (
            "is deleted on node n by someone else (a drain of the node, an eviction or a user)",
            {"main": RUNNING, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        ),
        (
            "is deleted on node n by someone else (a drain of the node, an eviction or a user)",
            {
                "phase": "Failed",
                "main": terminated(exitCode=143),
                "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            },
        ),
        ("ended on node n in phase Failed; no reason is known", {"phase": "Failed"}),
        ("", {"main": RUNNING}),
    ],
)
def test_the_reason_of_an_end(end: str, facts: Object) -> None:
    pod = read(**facts)
    assert pod.end == end
    assert pod.out_of_memory == ("OOMKilled" in end)


@pytest.mark.parametrize(
    ("problem", "facts"),
    [
        (
            "its pod cannot be scheduled: 0/3 nodes are available: 3 Insufficient cpu.",
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient cpu.",
                    }
                ],
            },
        ),
        (
            "the image i of its pod: ErrImagePull: manifest unknown",
            {
                "phase": "Pending",
                "main": {
                    "state": {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
                },
            },
        ),
        (
            "container init of its pod (image j): CrashLoopBackOff; it ended with exit code 2",
            {
                "phase": "Pending",
                "initContainerStatuses": [
                    {
                        "name": "init",
                        "image": "j",
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 2}},
                    }
                ],
            },
        ),
        ("", {"phase": "Pending", "main": WAITING}),
    ],
)
def test_the_reason_why_it_does_not_start(problem: str, facts: Object) -> None:
    assert read(**facts).problem == problem


def test_the_reason_of_a_failed_pull_stays() -> None:
    reason, pause = "ErrImagePull: manifest unknown", "ImagePullBackOff: Back-off pulling image"
    assert latest_problem(reason, pause) == reason
    assert latest_problem("", pause) == pause
    assert latest_problem(reason, "") == ""

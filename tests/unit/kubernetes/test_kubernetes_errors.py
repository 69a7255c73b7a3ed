"""Errors by the kinds of answers, and the stream of a watch."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from firesteel.kubernetes.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubernetesError,
    NotFound,
    QuotaExceeded,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    error_of,
)
from firesteel.kubernetes.resources import DEPLOYMENTS, NODES, PODS, Target
from firesteel.kubernetes.watch import WatchEvent, WatchEventType, watch_events

POD = Target(verb="delete", resource=PODS, namespace="jobs", name="a")
WATCH = Target(verb="watch", resource=PODS, namespace="jobs")


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", KubernetesError),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
def test_each_kind_of_answer_has_a_class(code: int, reason: str, kind: type) -> None:
    error = error_of(POD, code, {"reason": reason, "message": "the message"})
    assert type(error) is kind
    assert str(error).startswith("cannot delete pods/a in namespace jobs: the message")


def test_a_missing_permission_prints_its_role() -> None:
    message = 'pods "a" is forbidden: User "x" cannot delete resource "pods" in API group ""'
    error = error_of(POD, 403, {"reason": "Forbidden", "message": message})
    assert str(error) == (
        f"cannot delete pods/a in namespace jobs: {message}\n"
        "The ServiceAccount or user lacks the permission. This grants it, together with a"
        " RoleBinding:\n"
        "apiVersion: rbac.authorization.k8s.io/v1\n"
        "kind: Role\n"
        "metadata:\n"
        "  name: firesteel\n"
        "  namespace: jobs\n"
        "rules:\n"
        '- apiGroups: [""]\n'
        '  resources: ["pods"]\n'
        '  verbs: ["delete"]'
    )


def test_a_role_names_group_and_subresource() -> None:
    scale = Target(verb="patch", resource=DEPLOYMENTS, namespace="n", name="d", subresource="scale")
    assert 'apiGroups: ["apps"]\n  resources: ["deployments/scale"]' in scale.permission
    assert "kind: ClusterRole\n" in Target(verb="list", resource=NODES).permission


def test_a_quota_or_a_policy_is_not_a_missing_permission() -> None:
    quota = 'pods "a" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2'
    error = error_of(POD, 403, {"reason": "Forbidden", "message": quota})
    assert isinstance(error, QuotaExceeded) and "RoleBinding" not in str(error)
    policy = 'pods "a" is forbidden: violates PodSecurity "restricted:latest"'
    error = error_of(POD, 403, {"reason": "Forbidden", "message": policy})
    assert type(error) is Forbidden and "RoleBinding" not in str(error)


def test_an_invalid_object_has_a_message_per_field() -> None:
    causes = [{"field": "spec.containers", "message": "Required value", "reason": "x"}]
    error = error_of(POD, 422, {"message": "invalid", "details": {"causes": causes}})
    assert isinstance(error, Invalid) and error.fields == {"spec.containers": "Required value"}


def test_an_answer_without_a_message_shows_its_code() -> None:
    assert str(error_of(POD, 502, {})).endswith(": HTTP 502")


# ---- watches


async def decoded(*chunks: bytes) -> list[WatchEvent]:
    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [event async for event in watch_events(WATCH, stream())]


def line(kind: str, content: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": content}).encode() + b"\n"


def pod(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


async def test_lines_are_joined_from_any_chunks() -> None:
    stream = line("ADDED", pod("ä", "1")) + line("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
    expected = await decoded(stream)
    assert [event.type for event in expected] == [WatchEventType.ADDED, WatchEventType.BOOKMARK]
    assert [event.resource_version for event in expected] == ["1", "9"]
    for size in (1, 2, 7, 50):
        chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert await decoded(*chunks) == expected


async def test_a_line_that_a_broken_connection_cut_is_dropped() -> None:
    assert len(await decoded(line("ADDED", pod("a", "1")), b'{"type": "ADD')) == 1


async def test_an_error_in_the_stream_is_raised() -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    with pytest.raises(Gone, match="cannot watch pods in namespace jobs: too old"):
        await decoded(line("ERROR", status))


@pytest.mark.parametrize(
    "bad",
    [
        b"no json\n",
        b"[]\n",
        line("NEW", pod("a", "1")),
        b'{"type": "ERROR", "object": 1}\n',
        b'{"type":1}\n',
    ],
)
async def test_a_malformed_line_is_the_servers_fault(bad: bytes) -> None:
    with pytest.raises(Unavailable, match="malformed"):
        await decoded(bad)

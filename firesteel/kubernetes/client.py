"""The calls of the Kubernetes API that Firesteel needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self

import aiohttp

from firesteel.common.backoff import Backoff
from firesteel.common.logs import get_logger
from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.errors import Gone, KubernetesError, TooManyRequests, Unavailable
from firesteel.kubernetes.resources import ACCESS_REVIEWS, EVENTS, PODS, Object, Resource, Target
from firesteel.kubernetes.resources import name_of as _name_of
from firesteel.kubernetes.transport import Request, Transport
from firesteel.kubernetes.watch import WatchEvent, watch_events

log = get_logger(__name__)

ATTEMPT_TIMEOUT_S = 10.0
TOTAL_TIMEOUT_S = 30.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
PAGE = 500
FIELD_MANAGER = "firesteel"
PORT_FORWARD = "v4.channel.k8s.io"

# Repeating these after an unknown outcome does no harm. A repeated delete may raise NotFound.
_REPEATABLE = frozenset({"get", "list", "delete", "patch"})


class Propagation(Enum):
    """Whether deleting an object deletes the objects that it owns, and when."""

    BACKGROUND = "Background"  # after it
    FOREGROUND = "Foreground"  # before it
    ORPHAN = "Orphan"  # not at all


class Patch(Enum):
    """How a patch is applied; the value is its media type."""

    MERGE = "application/merge-patch+json"  # lists are replaced
    STRATEGIC = "application/strategic-merge-patch+json"  # lists with keys are merged


APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectList:
    items: list[Object]
    resource_version: str  # watch from here


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessReview:
    allowed: bool
    reason: str
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    git_version: str  # such as v1.33.2
    major: int
    minor: int


class KubernetesClient:
    """Belongs to one event loop. Requests without a namespace use that of the configuration.

    Failed requests are repeated, with growing pauses, for up to `total_timeout_s`: all requests
    that the API server did not execute (HTTP 429, no connection), and those whose repetition does
    no harm. `create` and `replace` raise Unavailable if their outcome is unknown.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        total_timeout_s: float = TOTAL_TIMEOUT_S,
    ) -> None:
        self.access = access
        self._transport = Transport(access)
        self._attempt_timeout_s = attempt_timeout_s
        self._total_timeout_s = total_timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    @property
    def namespace(self) -> str:
        return self.access.namespace

    # ---- objects

    async def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        subresource: str = "",
        within_s: float | None = None,
    ) -> Object:
        """Raises NotFound. `within_s` replaces `total_timeout_s`; 0 stands for a single attempt."""
        target = self._target("get", resource, namespace, name, subresource)
        return await self._object(Request(target=target), within_s)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        page: int = PAGE,
        within_s: float | None = None,
    ) -> ObjectList:
        """Returns the latest objects that match the selectors, in pages. A list that takes longer
        than the API server keeps its pages is read again as a whole.
        """
        target = self._target("list", resource, namespace)
        selectors = _given({"labelSelector": labels, "fieldSelector": fields})
        items: list[Object] = []
        following = ""
        while True:
            query = {**selectors, **_given({"limit": str(page or ""), "continue": following})}
            try:
                answer = await self._object(Request(target=target, query=query), within_s)
            except Gone:
                if not following:
                    raise
                answer = await self._object(Request(target=target, query=selectors), within_s)
                items.clear()
            for item in answer.get("items") or ():
                # Items of a list carry no type.
                items.append(
                    {"apiVersion": resource.api_version, "kind": resource.kind} | dict(item)
                )
            following = answer["metadata"].get("continue", "")
            if not following:
                version = answer["metadata"].get("resourceVersion", "")
                return ObjectList(items=items, resource_version=version)

    async def create(
        self,
        resource: Resource,
        manifest: Object,
        *,
        namespace: str = "",
        subresource: str = "",
        name: str = "",
        dry_run: bool = False,
        within_s: float | None = None,
    ) -> Object:
        """Raises AlreadyExists. `name` names the object that a subresource belongs to."""
        target = self._target("create", resource, namespace, name, subresource)
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        request = Request(target=target, method="POST", query=query, body=manifest)
        return await self._object(request, within_s)

    async def replace(
        self,
        resource: Resource,
        manifest: Object,
        *,
        namespace: str = "",
        subresource: str = "",
        within_s: float | None = None,
    ) -> Object:
        """Raises Conflict if the object no longer has the resourceVersion of `manifest`."""
        target = self._target("update", resource, namespace, _name_of(manifest), subresource)
        query = {"fieldManager": FIELD_MANAGER}
        request = Request(target=target, method="PUT", query=query, body=manifest)
        return await self._object(request, within_s)

    async def patch(
        self,
        resource: Resource,
        name: str,
        changes: Object,
        kind: Patch = Patch.MERGE,
        *,
        namespace: str = "",
        subresource: str = "",
        within_s: float | None = None,
    ) -> Object:
        """A patch with `metadata.resourceVersion` raises Conflict if the object has changed."""
        request = Request(
            target=self._target("patch", resource, namespace, name, subresource),
            method="PATCH",
            query={"fieldManager": FIELD_MANAGER},
            body=changes,
            content_type=kind.value,
        )
        return await self._object(request, within_s)

    async def apply(
        self,
        resource: Resource,
        manifest: Object,
        *,
        namespace: str = "",
        force: bool = False,
        manager: str = FIELD_MANAGER,
        dry_run: bool = False,
        within_s: float | None = None,
    ) -> Object:
        """Creates the object, or changes the fields of `manifest`; removes fields that an earlier
        call set and this one omits. Raises Conflict for fields of other managers, unless `force`.
        """
        query = {"fieldManager": manager} | ({"force": "true"} if force else {})
        request = Request(
            target=self._target("patch", resource, namespace, _name_of(manifest)),
            method="PATCH",
            query=query | ({"dryRun": "All"} if dry_run else {}),
            body=manifest,
            content_type=APPLY,
        )
        return await self._object(request, within_s)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        propagation: Propagation | None = None,
        uid: str = "",
        resource_version: str = "",
        grace_s: int | None = None,
        within_s: float | None = None,
    ) -> None:
        """Requests the deletion. Raises NotFound, and Conflict if the object has another uid or
        resourceVersion.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if propagation is not None:
            options["propagationPolicy"] = propagation.value
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if preconditions := _given({"uid": uid, "resourceVersion": resource_version}):
            options["preconditions"] = preconditions
        target = self._target("delete", resource, namespace, name)
        await self._object(Request(target=target, method="DELETE", body=options), within_s)

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        timeout_s: int,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Yields an iterator of changes after `resource_version`, and of bookmarks, once the API
        server has accepted the watch. The iterator ends when the API server ends the watch, after
        `timeout_s` at the latest if it is alive. Never repeats the request.

        Both raise Gone if the changes are no longer known, and Unavailable.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        query |= _given({"labelSelector": labels, "fieldSelector": fields})
        target = self._target("watch", resource, namespace)
        request = Request(target=target, query=query)
        async with (
            self._transport.send(request, timeout_s=self._attempt_timeout_s) as response,
            aclosing(watch_events(target, response.content.iter_any())) as events,
        ):
            yield events

    # ---- pods

    async def pod_log(
        self,
        name: str,
        *,
        namespace: str = "",
        container: str = "",
        tail_lines: int | None = None,
        limit_bytes: int | None = None,
        previous: bool = False,
        timestamps: bool = False,
        within_s: float | None = None,
    ) -> str:
        """Returns the log of a container; `previous` is the one before its last restart."""
        query = _given(
            {
                "container": container,
                "tailLines": "" if tail_lines is None else str(tail_lines),
                "limitBytes": "" if limit_bytes is None else str(limit_bytes),
                "previous": "true" if previous else "",
                "timestamps": "true" if timestamps else "",
            }
        )
        target = self._target("get", PODS, namespace, name, "log")
        body = await self._read(Request(target=target, query=query), within_s)
        return body.decode(errors="replace")

    async def follow_pod_log(
        self, name: str, *, namespace: str = "", container: str = ""
    ) -> AsyncIterator[bytes]:
        """Yields the log in pieces, until the container ends."""
        query = {"follow": "true"} | _given({"container": container})
        target = self._target("get", PODS, namespace, name, "log")
        request = Request(target=target, query=query)
        async with self._transport.send(request, timeout_s=self._attempt_timeout_s) as response:
            async for piece in response.content.iter_any():
                yield piece

    @asynccontextmanager
    async def port_forward(
        self, name: str, port: int, *, namespace: str = ""
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Yields a connection to a port of a pod; see `port_forward.py` for its messages."""
        target = self._target("get", PODS, namespace, name, "portforward")
        async with self._transport.websocket(
            Request(target=target, query={"ports": str(port)}),
            protocol=PORT_FORWARD,
            timeout_s=self._attempt_timeout_s,
        ) as socket:
            yield socket

    async def events_of(
        self, manifest: Object, *, within_s: float | None = None
    ) -> Sequence[Object]:
        """Returns the Events about this object, and not about another of its name, oldest
        first.
        """
        metadata = manifest["metadata"]
        fields = f"involvedObject.uid={metadata['uid']}"
        namespace = metadata.get("namespace", "")
        found = await self.list(EVENTS, namespace=namespace, fields=fields, within_s=within_s)
        return sorted(found.items, key=_last_seen)

    # ---- the API server

    async def may(
        self,
        verb: str,
        resource: Resource,
        *,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        within_s: float | None = None,
    ) -> AccessReview:
        """Returns whether the caller has a permission; `target.permission` has its Role."""
        target = self._target(verb, resource, namespace, name, subresource)
        attributes = {
            "verb": verb,
            "group": resource.group,
            "resource": resource.plural,
            "subresource": subresource,
            "namespace": target.namespace,
            "name": name,
        }
        manifest: Object = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": _given(attributes)},
        }
        review = Target(verb="create", resource=ACCESS_REVIEWS)
        request = Request(target=review, method="POST", body=manifest)
        answer = await self._object(request, within_s, repeatable=True)
        status = answer.get("status") or {}
        return AccessReview(
            allowed=bool(status.get("allowed")), reason=status.get("reason", ""), target=target
        )

    async def version(self, *, within_s: float | None = None) -> Version:
        target = Target(verb="get", resource=_VERSION)
        answer = await self._object(Request(target=target, path="/version"), within_s)
        return Version(
            git_version=answer.get("gitVersion", ""),
            major=_number(answer.get("major", "")),
            minor=_number(answer.get("minor", "")),
        )

    # ---- inside

    def _target(
        self, verb: str, resource: Resource, namespace: str, name: str = "", subresource: str = ""
    ) -> Target:
        return Target(
            verb=verb,
            resource=resource,
            namespace=(namespace or self.namespace) if resource.namespaced else "",
            name=name,
            subresource=subresource,
        )

    async def _object(
        self, request: Request, within_s: float | None, *, repeatable: bool = False
    ) -> Object:
        body = await self._read(request, within_s, repeatable=repeatable)
        try:
            answer: Object = json.loads(body)
        except ValueError:
            raise KubernetesError(request.target, "the answer is not JSON") from None
        return answer

    async def _read(
        self, request: Request, within_s: float | None, *, repeatable: bool = False
    ) -> bytes:
        """Repeats the request until it succeeds, must not be repeated, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._total_timeout_s if within_s is None else within_s)
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, jitter=0.5)
        repeatable = repeatable or request.target.verb in _REPEATABLE
        timeout_s = self._attempt_timeout_s
        while True:
            if within_s != 0:
                timeout_s = min(timeout_s, max(deadline - loop.time(), 0.001))
            try:
                return await self._transport.read(request, timeout_s=timeout_s)
            except (TooManyRequests, Unavailable) as error:
                unexecuted = isinstance(error, TooManyRequests) or error.executed is False
                pause_s = max(backoff.next(), error.retry_after_s)
                if not (unexecuted or repeatable) or loop.time() + pause_s >= deadline:
                    raise
                log.info(
                    "repeating a request to Kubernetes",
                    request=str(request.target),
                    reason=error.message,
                    pause_s=round(pause_s, 2),
                )
            await asyncio.sleep(pause_s)


_VERSION = Resource(kind="Version", plural="version", namespaced=False)


def _given(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _number(text: Any) -> int:
    digits = "".join(c for c in str(text) if c.isdigit())  # some clusters answer "33+"
    return int(digits or 0)


def _last_seen(event: Object) -> str:
    series = event.get("series") or {}
    seen = (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
    )
    return str(seen or "")

"""Decodes the stream of a watch: a JSON document per line."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from enum import Enum

from firesteel.kubernetes.errors import Unavailable, error_of
from firesteel.kubernetes.resources import Object, Target

MAX_LINE_BYTES = 32 * 1024 * 1024  # etcd limits objects to 1.5 MB


class WatchEventType(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # only a resourceVersion: all changes up to it were sent


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    type: WatchEventType
    object: Object

    @property
    def resource_version(self) -> str:
        version: str = self.object["metadata"]["resourceVersion"]
        return version


async def watch_events(
    target: Target, chunks: AsyncIterable[bytes]
) -> AsyncGenerator[WatchEvent, None]:
    """Raises the error that the API server sends in the stream, such as Gone; and Unavailable if
    the stream is malformed.
    """
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        size += len(first)
        for following in rest:
            line = b"".join(parts)
            parts, size = [following], len(following)
            if line.strip():
                yield _event(target, line)
        if size > MAX_LINE_BYTES:
            raise Unavailable(target, f"a line of the watch exceeds {MAX_LINE_BYTES} bytes")


def _event(target: Target, line: bytes) -> WatchEvent:
    try:
        message = json.loads(line)
        kind, content = message["type"], message["object"]
        if kind != "ERROR":
            event = WatchEvent(type=WatchEventType(kind), object=content)
            event.resource_version  # noqa: B018  # it has one
            return event
        code = int(content.get("code") or 500)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unavailable(target, "a line of the watch is malformed") from None
    raise error_of(target, code, content)

"""The streams of watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tests.kubernetes.failure import expired
from tests.kubernetes.faults import Faults
from tests.kubernetes.kinds import Kind, Object
from tests.kubernetes.selection import Matches
from tests.kubernetes.store import Change, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    kind: Kind
    namespace: str
    matches: Matches
    resource_version: str
    timeout_s: float
    bookmarks: bool
    bookmark_interval_s: float
    initial: bool = False  # `sendInitialEvents`


async def events(watch: Watch, store: Store, faults: Faults) -> AsyncIterator[bytes]:
    """Yields the lines of the stream."""
    position = int(watch.resource_version or 0)
    if watch.initial or position == 0:
        position = store.version
        for found in store.all(watch.kind, watch.namespace):
            if watch.matches(found):
                yield _line("ADDED", found)
        if watch.initial and watch.bookmarks:
            ends = {"k8s.io/initial-events-end": "true"}
            yield _line("BOOKMARK", _bookmark(watch.kind, position, ends))
    elif position > store.version:
        status = expired(f"Too large resource version: {position}, current: {store.version}").status
        yield _line("ERROR", status | {"code": 504, "reason": "Timeout"})
        return
    ends_at = time.monotonic() + watch.timeout_s
    bookmark_at = time.monotonic() + watch.bookmark_interval_s
    while True:
        if not faults.silent:
            if position < store.compacted:
                yield _line(
                    "ERROR",
                    expired(f"too old resource version: {position} ({store.compacted})").status,
                )
                return
            version = store.version
            for change in store.since(position, watch.kind, watch.namespace):
                if line := _event(change, watch.matches):
                    yield line
            position = version
            now = time.monotonic()
            over = now >= ends_at
            if watch.bookmarks and (over or now >= bookmark_at):
                bookmark_at = now + watch.bookmark_interval_s
                yield _line("BOOKMARK", _bookmark(watch.kind, position))
            if over:
                return
        if position == store.version or faults.silent:
            pause_s = min(bookmark_at, ends_at) - time.monotonic() if not faults.silent else 0.1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(pause_s, 0.001)):
                    await store.changed()


def _event(change: Change, matches: Matches) -> bytes | None:
    before = change.before is not None and matches(change.before)
    if change.after is not None and matches(change.after):
        return _line("MODIFIED" if before else "ADDED", change.after)
    if before:
        assert change.before is not None
        metadata = change.before["metadata"] | {"resourceVersion": str(change.version)}
        return _line("DELETED", change.before | {"metadata": metadata})
    return None


def _bookmark(kind: Kind, version: int, annotations: dict[str, str] | None = None) -> Object:
    metadata: Object = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = annotations
    return {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}


def _line(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}, separators=(",", ":")).encode() + b"\n"

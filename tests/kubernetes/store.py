"""Objects, their resourceVersions and the history that watches read. Everything is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.kubernetes.kinds import Kind, Object


class Key(NamedTuple):
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    version: int
    key: Key
    before: Object | None
    after: Object | None


class Store:
    """Objects in it are never modified, only replaced."""

    def __init__(self) -> None:
        self.version = 1
        self.compacted = 0  # changes up to this version are forgotten
        self._objects: dict[Key, Object] = {}
        self._history: list[Change] = []
        self._changed = asyncio.Event()

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def put(self, key: Key, value: Object) -> Object:
        """Stores an object with the next version; returns it."""
        self.version += 1
        before = self._objects.get(key)
        stored = value | {
            "metadata": value["metadata"] | {"resourceVersion": str(self.version)},
        }
        self._objects[key] = stored
        self._record(Change(self.version, key, before, stored))
        return stored

    def remove(self, key: Key) -> Object:
        """Returns the object as it was last, with the version of its removal."""
        self.version += 1
        before = self._objects.pop(key)
        self._record(Change(self.version, key, before, None))
        return before | {
            "metadata": before["metadata"] | {"resourceVersion": str(self.version)},
        }

    def all(self, kind: Kind | str, namespace: str = "") -> list[Object]:
        """Returns the objects of a kind, ordered by namespace and name."""
        name = kind if isinstance(kind, str) else kind.kind
        keys = [k for k in self._objects if k.kind == name and namespace in ("", k.namespace)]
        return [self._objects[key] for key in sorted(keys)]

    def items(self) -> list[tuple[Key, Object]]:
        return list(self._objects.items())

    def since(self, version: int, kind: Kind, namespace: str) -> Iterator[Change]:
        for change in self._history:
            its = change.key
            if change.version > version and its.kind == kind.kind:
                if namespace and namespace != its.namespace:
                    continue
                yield change

    def compact(self) -> None:
        """Forgets the history: watches from earlier versions and pages of lists end with 410."""
        self.compacted = self.version
        self._history.clear()

    async def changed(self) -> None:
        """Returns at the next change, of any object."""
        await self._changed.wait()

    def _record(self, change: Change) -> None:
        self._history.append(change)
        self._changed.set()
        self._changed = asyncio.Event()

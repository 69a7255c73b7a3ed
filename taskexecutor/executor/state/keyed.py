"""The task runtime's view of a keyed state backend. Operators use
`firesteel.operator.KeyedStateBackend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from firesteel.common.checkpoints.key_group_content import KeyedStateEntry
from firesteel.common.checkpoints.state import DatabaseHandle, StateFile
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.key_groups import KeyGroupRange
from firesteel.errors import FiresteelError
from firesteel.text import text_of
from taskexecutor.executor.column_memory import SlotColumnMemory
from taskexecutor.executor.timing.timers import Timers


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTarget:
    """Where a backend may write one operator's part of a checkpoint in its own format."""

    storage: CheckpointStorage
    checkpoint_id: int
    name: str  # prefix of its file names, unique within the checkpoint
    base: int | None  # see CheckpointBarrier
    written: list[str]  # paths, added before they are written

    def write(self, path: str, chunks: Iterable[bytes]) -> StateFile:
        self.written.append(path)
        return self.storage.write(path, chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredDatabase:
    storage: CheckpointStorage
    handle: DatabaseHandle


class KeyedStateSnapshot(Protocol):
    """The state at the moment of the snapshot, unaffected by later changes. Read it from any single
    thread.
    """

    @property
    def empty(self) -> bool:
        """Whether the snapshot is certainly empty."""

    def entries_by_key_group(self) -> Iterator[tuple[int, list[KeyedStateEntry]]]:
        """Yields every entry by ascending key group, without empty key groups."""

    def write(self, target: SnapshotTarget) -> tuple[DatabaseHandle, ...]:
        """Writes every entry in the backend's own format. Returns nothing if it has none; then use
        `entries_by_key_group`.
        """

    def key_group_of(self, key: Any) -> int: ...

    def release(self) -> None:
        """Releases the snapshot once it is written or abandoned."""


class KeyedState(Protocol):
    """Keyed state of one operator's subtask. `put` replaces values; only a value from `owned` may
    be changed in place.
    """

    @property
    def key_groups(self) -> KeyGroupRange: ...

    @property
    def columns(self) -> SlotColumnMemory:
        """The memory for the operator's state in columns."""

    def get(self, name: str, key: Any, namespace: Any = None) -> Any: ...

    def owned(self, name: str, key: Any, copy: Callable[[Any], Any], namespace: Any = None) -> Any:
        """Returns the value, to be changed in place before the next call of the backend; None if
        there is none.

        Meant for values that grow, such as lists: `copy` is called at most once per snapshot and
        value, not at every change.
        """

    def put(self, name: str, key: Any, value: Any, namespace: Any = None) -> None: ...

    def remove(self, name: str, key: Any, namespace: Any = None) -> None: ...

    def entries(self, name: str) -> Iterator[KeyedStateEntry]:
        """Yields all entries of one state, in no particular order. Do not write while iterating."""

    def timers(self, name: str, *, saved: bool = True) -> Timers:
        """Returns timers that start with those restored under this name. `saved`: every backend is
        to restore them; otherwise the operator can derive them from other state if none were
        restored.
        """

    def snapshot(self) -> KeyedStateSnapshot:
        """Takes the synchronous part of a checkpoint, in constant time with respect to the state's
        size.
        """

    def restore(
        self, entries: Iterable[KeyedStateEntry], databases: Sequence[RestoredDatabase] = ()
    ) -> None:
        """Fills an empty backend with the entries of its key groups."""

    def statistics(self) -> Mapping[str, int]:
        """Returns the backend's metrics by name. May be called from any thread."""

    def close(self) -> None: ...


def not_pickled(state: str, value: Any, error: Exception) -> FiresteelError:
    """Returns the error for a value of `state`, such as "the state 'count' of key 7"."""
    return FiresteelError(
        f"{state} has a value that cannot be pickled ({type(value).__name__}): {text_of(error)}"
    )

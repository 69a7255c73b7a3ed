"""The task runtime's view of a keyed state backend; operators see
`firesteel.operator.KeyedStateBackend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """Where one operator's part of a checkpoint goes that need not be in the format that every
    backend reads.
    """

    storage: CheckpointStorage
    checkpoint_id: int
    name: str  # what names of its files begin with: no other part of the checkpoint has it
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
    """The state at the moment of the snapshot, whatever the backend does later. Read it from any
    one thread.
    """

    @property
    def empty(self) -> bool:
        """Whether there is certainly nothing in it."""

    def entries_by_key_group(self) -> Iterator[tuple[int, list[KeyedStateEntry]]]:
        """Every entry, by ascending key group; key groups without state are omitted."""

    def write(self, target: SnapshotTarget) -> DatabaseHandle | None:
        """Every entry, in a format of the backend's own. None: it has none, use
        `entries_by_key_group`.
        """

    def key_group_of(self, key: Any) -> int: ...

    def release(self) -> None:
        """The snapshot is written, or abandoned."""


class KeyedState(Protocol):
    """Keyed state of one operator's subtask. `put` replaces values; only a value from `owned` may
    be changed in place.
    """

    @property
    def key_groups(self) -> KeyGroupRange: ...

    @property
    def columns(self) -> SlotColumnMemory:
        """Where the operator's state in columns is."""

    def get(self, name: str, key: Any, namespace: Any = None) -> Any: ...

    def owned(self, name: str, key: Any, copy: Callable[[Any], Any], namespace: Any = None) -> Any:
        """The value, to change in place before the next call of the backend; None if there is none.

        For values that grow, such as lists: `copy` is called at most once per snapshot and value,
        not at every change.
        """

    def put(self, name: str, key: Any, value: Any, namespace: Any = None) -> None: ...

    def remove(self, name: str, key: Any, namespace: Any = None) -> None: ...

    def entries(self, name: str) -> Iterator[KeyedStateEntry]:
        """All entries of one state, in no particular order. Do not write while iterating."""

    def timers(self, name: str, *, saved: bool = True) -> Timers:
        """Timers that begin as those that were restored under this name, of those that
        `has_timers` accepts. `saved`: whether every backend is to restore them; else the operator
        has other state that they follow from, if none were restored.
        """

    def snapshot(self) -> KeyedStateSnapshot:
        """The synchronous part of a checkpoint: constant time in the size of the state."""

    def restore(
        self, entries: Iterable[KeyedStateEntry], databases: Sequence[RestoredDatabase] = ()
    ) -> None:
        """Fills an empty backend with the entries of its key groups."""

    def close(self) -> None: ...


def not_pickled(state: str, value: Any, error: Exception) -> FiresteelError:
    """`state`: whose value it is, such as "the state 'count' of key 7"."""
    return FiresteelError(
        f"{state} has a value that cannot be pickled ({type(value).__name__}): {text_of(error)}"
    )

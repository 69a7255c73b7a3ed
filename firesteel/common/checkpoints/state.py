"""A checkpoint as masters refer to it, and the state of operators in it: names of files, and
positions in them.

Several checkpoints of a job may refer to one file, such as DIR/JOB-ID/shared/7-..., which
checkpoint 7 has written.

Only the operator's own process reads the values. So masters can split state and distribute it
without the program's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.ids import OperatorId, ResultId
from firesteel.common.job_graph import Partitioner
from firesteel.common.key_groups import KeyGroupRange
from firesteel.common.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A file below the checkpoint directory of the job."""

    path: str  # relative, with /
    size_bytes: int
    checksum: str  # xxh3-128 of the whole file, 32 hex


class KeyGroupSlice(NamedTuple):
    """Where the state of one key group is in its file."""

    key_group: int
    offset: int
    size_bytes: int
    checksum: str  # xxh3-128 of the slice: a task reads only the slices that it needs


class TableSlice(NamedTuple):
    """The position of rows of a state in columns, as one subtask had them. A reader that restores
    some of its key groups reads the whole slice and keeps the rows of these key groups.
    """

    name: str  # of the state
    key_groups: KeyGroupRange  # of the subtask
    offset: int
    size_bytes: int
    checksum: str  # xxh3-128 of the slice


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedHandle:
    file: StateFile
    slices: tuple[KeyGroupSlice, ...]  # ascending
    tables: tuple[TableSlice, ...] = ()  # before them in the file; savepoints have none


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineHandle:
    """Keyed state that is small enough to travel in the task's acknowledgement and is stored in
    `_metadata`. Masters cannot split it: `key_groups` says which part is restored.
    """

    key_groups: KeyGroupRange  # to be restored, as far as there is state of them
    content: bytes  # key_group_content.encode_inline

    def of(self, key_groups: KeyGroupRange) -> InlineHandle:
        """Returns the part for these key groups, which overlap with its own."""
        both = KeyGroupRange(
            max(self.key_groups.first, key_groups.first), min(self.key_groups.end, key_groups.end)
        )
        return InlineHandle(key_groups=both, content=self.content)


_INLINE_BYTES = MIB  # of an operator


def inline_bytes(threshold_bytes: int, parallelism: int) -> int:
    """Returns the size up to which a subtask's keyed state is stored without a file. It keeps
    `_metadata` and deployments small, however many subtasks an operator has.
    """
    return min(threshold_bytes, _INLINE_BYTES // parallelism)


class DatabaseFile(NamedTuple):
    name: str  # in the database
    file: StateFile


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseHandle:
    """Keyed state as the files of a RocksDB. Some may have been written by earlier checkpoints."""

    checkpoint_id: int  # of the one that it is part of
    key_groups: KeyGroupRange
    tables: tuple[DatabaseFile, ...]  # which never change
    rest: StateFile  # the database's other files, pickled: their names and contents
    new_bytes: int  # of the files that this checkpoint has written

    @property
    def files(self) -> tuple[StateFile, ...]:
        return (*(table.file for table in self.tables), self.rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """Batches to one subtask, by one edge, that a checkpoint overtook."""

    result_id: ResultId  # the edge's
    partitioner: Partitioner
    file: StateFile  # an Arrow IPC stream of all of them, producer after producer
    batches: tuple[
        tuple[int, int], ...
    ]  # producer subtasks, ascending, and their numbers of batches


Items = tuple[bytes, ...]  # each a value that the operator has encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSnapshot:
    """One operator's state in one subtask. Operator state is small, and part of the metadata."""

    operator_id: OperatorId
    keyed: tuple[KeyedHandle, ...] = ()
    inline: tuple[InlineHandle, ...] = ()
    databases: tuple[DatabaseHandle, ...] = ()
    in_flight: tuple[InFlight, ...] = ()  # to its inputs
    lists: Mapping[str, Items] = field(default_factory=dict)
    union_lists: Mapping[str, Items] = field(default_factory=dict)
    broadcasts: Mapping[str, bytes] = field(default_factory=dict)
    # The event time that the subtask had reached. What its state represents depends on it.
    watermark_us: int | None = None
    states: StateDescriptions = field(default_factory=dict)  # only where it is restored
    # All subtasks of the operator had finished before this attempt: it has nothing left to do.
    finished: bool = False

    @property
    def empty(self) -> bool:
        keyed = self.keyed or self.inline or self.databases
        state = keyed or self.lists or self.union_lists or self.broadcasts
        return not (state or self.in_flight or self.finished)

    @property
    def files(self) -> tuple[StateFile, ...]:
        handles: Sequence[KeyedHandle | InFlight] = (*self.keyed, *self.in_flight)
        databases = (file for database in self.databases for file in database.files)
        return (*(handle.file for handle in handles), *databases)

    @property
    def size_bytes(self) -> int:
        """The number of bytes that its checkpoint has written."""
        items: Sequence[bytes] = [
            item
            for states in (self.lists, self.union_lists)
            for values in states.values()
            for item in values
        ]
        return (
            sum(part.size_bytes for handle in self.keyed for part in handle.slices)
            + sum(part.size_bytes for handle in self.keyed for part in handle.tables)
            + sum(len(handle.content) for handle in self.inline)
            + sum(database.new_bytes for database in self.databases)
            + sum(handle.file.size_bytes for handle in self.in_flight)
            + sum(map(len, items))
            + sum(map(len, self.broadcasts.values()))
        )

    @property
    def state_bytes(self) -> int:
        """The size of its state, whichever checkpoint has written it, without batches in flight."""
        not_new = sum(
            sum(file.size_bytes for file in database.files) - database.new_bytes
            for database in self.databases
        )
        return self.size_bytes + not_new - sum(each.file.size_bytes for each in self.in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCheckpoint:
    """A row of the job store."""

    checkpoint_id: int
    savepoint: bool = False  # a savepoint belongs to its user, not to the job
    path: str  # of the directory with its _metadata: a path or a URI
    size_bytes: int = 0
    triggered_ms: int = 0
    completed_ms: int = 0
    epoch: int = 1  # of the JobMaster that took it


SHARED = "shared"


def shared_path(checkpoint_id: int, name: str) -> str:
    return f"{SHARED}/{checkpoint_id}-{name}"


def is_shared(path: str) -> bool:
    return path.startswith(f"{SHARED}/")


def writer_of(path: str) -> int | None:
    """Returns the checkpoint that wrote a shared file; None if its name has another form."""
    number = path.removeprefix(f"{SHARED}/").partition("-")[0]
    return int(number) if is_shared(path) and number.isdecimal() else None

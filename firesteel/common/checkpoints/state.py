"""The state of operators as a checkpoint refers to it: names of files and places in them.

Nobody but the operator's own process ever looks into the values, so masters can cut state and hand
it out again without the program's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import xxhash

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.ids import OperatorId, ResultId
from firesteel.common.job_graph import Partitioner
from firesteel.common.key_groups import KeyGroupRange
from firesteel.common.units import MIB

_INLINED_BYTES = MIB  # of an operator


def inline_bytes(threshold_bytes: int, parallelism: int) -> int:
    """Up to which size a subtask's keyed state goes without a file, so that `_metadata` and what is
    deployed stay small however many subtasks an operator has.
    """
    return min(threshold_bytes, _INLINED_BYTES // parallelism)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A file below the checkpoint directory of the job, or the content of one that would be small:
    it travels in the task's acknowledgement, and is stored in `_metadata`.
    """

    path: str  # relative, with /; empty: there is no file
    size_bytes: int
    checksum: str  # xxh3-128 of the whole file, 32 hex
    content: bytes | None = None  # of what has no file

    @classmethod
    def inlined(cls, content: bytes) -> StateFile:
        checksum = xxhash.xxh3_128_hexdigest(content)
        return cls(path="", size_bytes=len(content), checksum=checksum, content=content)


class KeyGroupSlice(NamedTuple):
    """Where the state of one key group is in its file."""

    key_group: int
    offset: int
    size_bytes: int
    checksum: str  # xxh3-128 of the slice: a task reads only the slices that it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedHandle:
    file: StateFile
    slices: tuple[KeyGroupSlice, ...]  # ascending

    def cut(self, key_groups: KeyGroupRange) -> KeyedHandle | None:
        """The part of these key groups, None if there is none. Of what has no file, nothing else
        goes with it: however many subtasks restore it, it is sent once.
        """
        slices = tuple(part for part in self.slices if part.key_group in key_groups)
        if not slices:
            return None
        content = self.file.content
        if content is None or len(slices) == len(self.slices):
            return replace(self, slices=slices)
        begin, last = slices[0].offset, slices[-1]
        return KeyedHandle(
            file=StateFile.inlined(content[begin : last.offset + last.size_bytes]),
            slices=tuple(part._replace(offset=part.offset - begin) for part in slices),
        )


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
    """Batches that a checkpoint has overtaken on their way to one subtask, by one edge."""

    result_id: ResultId  # the edge's
    partitioner: Partitioner
    file: StateFile  # an Arrow IPC stream of all of them, producer after producer
    batches: tuple[tuple[int, int], ...]  # producer subtasks, and how many each has sent


Items = tuple[bytes, ...]  # each a value that the operator has encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSnapshot:
    """One operator's state in one subtask. Operator state is small, and part of the metadata."""

    operator_id: OperatorId
    keyed: tuple[KeyedHandle, ...] = ()
    databases: tuple[DatabaseHandle, ...] = ()
    in_flight: tuple[InFlight, ...] = ()  # to its inputs
    lists: Mapping[str, Items] = field(default_factory=dict)
    union_lists: Mapping[str, Items] = field(default_factory=dict)
    broadcasts: Mapping[str, bytes] = field(default_factory=dict)
    # The event time that it had reached, on which depends what its state stands for.
    watermark_us: int | None = None
    states: StateDescriptions = field(default_factory=dict)  # only where it is restored
    # All subtasks of the operator had finished before this attempt: it has nothing more to do.
    finished: bool = False

    @property
    def empty(self) -> bool:
        state = self.keyed or self.databases or self.lists or self.union_lists or self.broadcasts
        return not (state or self.in_flight or self.finished)

    @property
    def files(self) -> tuple[StateFile, ...]:
        """Without what has no file."""
        handles: Sequence[KeyedHandle | InFlight] = (*self.keyed, *self.in_flight)
        databases = (file for database in self.databases for file in database.files)
        files = (*(handle.file for handle in handles), *databases)
        return tuple(file for file in files if file.content is None)

    @property
    def size_bytes(self) -> int:
        """What its checkpoint has written."""
        items: Sequence[bytes] = [
            item
            for states in (self.lists, self.union_lists)
            for values in states.values()
            for item in values
        ]
        return (
            sum(s.size_bytes for handle in self.keyed for s in handle.slices)
            + sum(database.new_bytes for database in self.databases)
            + sum(handle.file.size_bytes for handle in self.in_flight)
            + sum(map(len, items))
            + sum(map(len, self.broadcasts.values()))
        )

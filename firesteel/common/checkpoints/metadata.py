"""The `_metadata` file of a checkpoint or savepoint: all operators, and where their state is.

8 bytes   "firestlC"
16 bytes  xxh3-128 of the rest
the rest  protobuf CheckpointMetadata (proto/checkpoints.proto), with its version; never pickle
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash
from google.protobuf.message import DecodeError

from firesteel._proto import checkpoints_pb2 as pb
from firesteel.common.checkpoints.descriptions import StateDescription, StateDescriptions
from firesteel.common.checkpoints.shared import is_shared
from firesteel.common.checkpoints.state import (
    DatabaseFile,
    DatabaseHandle,
    InFlight,
    InlineHandle,
    KeyedHandle,
    KeyGroupSlice,
    OperatorSnapshot,
    StateFile,
    TableSlice,
)
from firesteel.common.checkpoints.storage import METADATA, CheckpointStorage, StorageError
from firesteel.common.ids import JobId, OperatorId, ResultId
from firesteel.common.job_graph import Partitioner
from firesteel.common.key_groups import KeyGroupRange

VERSION = 1
_MAGIC = b"firestlC"
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedOperator:
    """All that a checkpoint has of one operator."""

    operator_id: OperatorId
    uid: str  # empty: the program gave it none
    name: str
    parallelism: int
    max_parallelism: int
    finished: bool = False  # all of its subtasks had finished
    coordinator: Any = None  # JSON
    key_type: str = ""  # e.g. "string, int64"; empty: it has no keys, or they are not known
    states: StateDescriptions = field(default_factory=dict)  # as far as they are declared
    # By subtask. Those that had finished are missing.
    subtasks: Mapping[int, OperatorSnapshot] = field(default_factory=dict)

    @property
    def has_state(self) -> bool:
        return self.coordinator is not None or any(not s.empty for s in self.subtasks.values())

    @property
    def keyed(self) -> bool:
        return any(s.keyed or s.inline or s.databases for s in self.subtasks.values())

    def __str__(self) -> str:
        return f"{self.name!r} (uid {self.uid})" if self.uid else f"{self.name!r} (without a uid)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetadata:
    checkpoint_id: int
    job_id: JobId
    job_name: str
    timestamp_ms: int  # of its trigger
    savepoint: bool
    operators: tuple[CheckpointedOperator, ...]

    @property
    def shared_files(self) -> tuple[str, ...]:
        """Those that other checkpoints of the job may refer to, too."""
        return tuple(
            file.path
            for operator in self.operators
            for snapshot in operator.subtasks.values()
            for file in snapshot.files
            if is_shared(file.path)
        )


def encode(metadata: CheckpointMetadata) -> bytes:
    message = pb.CheckpointMetadata(
        version=VERSION,
        checkpoint_id=metadata.checkpoint_id,
        job_id=metadata.job_id,
        job_name=metadata.job_name,
        timestamp_ms=metadata.timestamp_ms,
        savepoint=metadata.savepoint,
        operators=[_operator_to_proto(operator) for operator in metadata.operators],
    )
    content = message.SerializeToString(deterministic=True)
    return _MAGIC + xxhash.xxh3_128_digest(content) + content


def decode(content: bytes, where: str) -> CheckpointMetadata:
    """`where`: the file's name, for errors. Raises StorageError."""
    if content[: len(_MAGIC)] != _MAGIC:
        raise StorageError(f"{where} is not the metadata of a Firesteel checkpoint")
    digest, rest = content[len(_MAGIC) :][:_DIGEST_BYTES], content[len(_MAGIC) + _DIGEST_BYTES :]
    if xxhash.xxh3_128_digest(rest) != digest:
        raise StorageError(f"{where} is cut short or damaged: its checksum does not match")
    try:
        message = pb.CheckpointMetadata.FromString(rest)
    except DecodeError as error:  # with a matching checksum: written by something else
        raise StorageError(f"{where} cannot be read: {error}") from error
    if message.version > VERSION:
        raise StorageError(
            f"{where} has format {message.version}; this version of Firesteel reads up to"
            f" {VERSION}: restore it with the version that wrote it, or a later one"
        )
    return CheckpointMetadata(
        checkpoint_id=message.checkpoint_id,
        job_id=JobId(message.job_id),
        job_name=message.job_name,
        timestamp_ms=message.timestamp_ms,
        savepoint=message.savepoint,
        operators=tuple(_operator_from_proto(operator) for operator in message.operators),
    )


def read_metadata(directory: str) -> CheckpointMetadata:
    """Of the checkpoint in this directory: a path or a URI. Raises StorageError."""
    storage = CheckpointStorage(directory)
    return decode(storage.read_unchecked(METADATA), f"{METADATA} of {directory}")


def encode_snapshots(snapshots: tuple[OperatorSnapshot, ...]) -> bytes:
    """What a task acknowledges, or restores: then also of operators that have no state, which are
    to know that they do not begin from nothing.
    """
    return pb.TaskSnapshot(operators=map(_snapshot_to_proto, snapshots)).SerializeToString()


def decode_snapshots(content: bytes) -> tuple[OperatorSnapshot, ...]:
    return tuple(_snapshot_from_proto(s) for s in pb.TaskSnapshot.FromString(content).operators)


def _operator_to_proto(operator: CheckpointedOperator) -> pb.CheckpointedOperator:
    return pb.CheckpointedOperator(
        operator_id=operator.operator_id,
        uid=operator.uid,
        name=operator.name,
        parallelism=operator.parallelism,
        max_parallelism=operator.max_parallelism,
        finished=operator.finished,
        coordinator_json="" if operator.coordinator is None else json.dumps(operator.coordinator),
        subtasks={n: _snapshot_to_proto(s) for n, s in operator.subtasks.items()},
        key_type=operator.key_type,
        states=states_to_proto(operator.states),
    )


def _operator_from_proto(message: pb.CheckpointedOperator) -> CheckpointedOperator:
    return CheckpointedOperator(
        operator_id=OperatorId(message.operator_id),
        uid=message.uid,
        name=message.name,
        parallelism=message.parallelism,
        max_parallelism=message.max_parallelism,
        finished=message.finished,
        coordinator=json.loads(message.coordinator_json) if message.coordinator_json else None,
        subtasks={n: _snapshot_from_proto(s) for n, s in sorted(message.subtasks.items())},
        key_type=message.key_type,
        states=states_from_proto(message.states),
    )


def states_to_proto(states: StateDescriptions) -> dict[str, str]:
    return {name: state.to_json() for name, state in states.items()}


def states_from_proto(states: Mapping[str, str]) -> dict[str, StateDescription]:
    return {name: StateDescription.from_json(text) for name, text in sorted(states.items())}


def _snapshot_to_proto(snapshot: OperatorSnapshot) -> pb.OperatorSnapshot:
    return pb.OperatorSnapshot(
        operator_id=snapshot.operator_id,
        keyed=[
            pb.KeyedHandle(
                file=_file_to_proto(handle.file),
                slices=[
                    pb.KeyGroupSlice(
                        key_group=part.key_group,
                        offset=part.offset,
                        size_bytes=part.size_bytes,
                        checksum=part.checksum,
                    )
                    for part in handle.slices
                ],
                tables=[
                    pb.TableSlice(
                        name=part.name,
                        first_key_group=part.key_groups.first,
                        end_key_group=part.key_groups.end,
                        offset=part.offset,
                        size_bytes=part.size_bytes,
                        checksum=part.checksum,
                    )
                    for part in handle.tables
                ],
            )
            for handle in snapshot.keyed
        ],
        inline=[
            pb.InlineHandle(
                first_key_group=handle.key_groups.first,
                end_key_group=handle.key_groups.end,
                content=handle.content,
            )
            for handle in snapshot.inline
        ],
        databases=[
            pb.DatabaseHandle(
                checkpoint_id=database.checkpoint_id,
                first_key_group=database.key_groups.first,
                end_key_group=database.key_groups.end,
                tables=[
                    pb.DatabaseHandle.Table(name=table.name, file=_file_to_proto(table.file))
                    for table in database.tables
                ],
                rest=_file_to_proto(database.rest),
                new_bytes=database.new_bytes,
            )
            for database in snapshot.databases
        ],
        in_flight=[
            pb.InFlight(
                result_id=handle.result_id,
                partitioner=handle.partitioner.name,
                file=_file_to_proto(handle.file),
                batches=[
                    pb.InFlight.FromProducer(producer=producer, count=count)
                    for producer, count in handle.batches
                ],
            )
            for handle in snapshot.in_flight
        ],
        lists={name: pb.Items(items=items) for name, items in snapshot.lists.items()},
        union_lists={name: pb.Items(items=items) for name, items in snapshot.union_lists.items()},
        broadcasts=snapshot.broadcasts,
        states=states_to_proto(snapshot.states),
        watermark_us=snapshot.watermark_us,
        finished=snapshot.finished,
    )


def _snapshot_from_proto(message: pb.OperatorSnapshot) -> OperatorSnapshot:
    return OperatorSnapshot(
        operator_id=OperatorId(message.operator_id),
        keyed=tuple(
            KeyedHandle(
                file=_file_from_proto(handle.file),
                slices=tuple(
                    KeyGroupSlice(part.key_group, part.offset, part.size_bytes, part.checksum)
                    for part in handle.slices
                ),
                tables=tuple(
                    TableSlice(
                        name=part.name,
                        key_groups=KeyGroupRange(part.first_key_group, part.end_key_group),
                        offset=part.offset,
                        size_bytes=part.size_bytes,
                        checksum=part.checksum,
                    )
                    for part in handle.tables
                ),
            )
            for handle in message.keyed
        ),
        inline=tuple(
            InlineHandle(
                key_groups=KeyGroupRange(handle.first_key_group, handle.end_key_group),
                content=handle.content,
            )
            for handle in message.inline
        ),
        databases=tuple(
            DatabaseHandle(
                checkpoint_id=database.checkpoint_id,
                key_groups=KeyGroupRange(database.first_key_group, database.end_key_group),
                tables=tuple(
                    DatabaseFile(table.name, _file_from_proto(table.file))
                    for table in database.tables
                ),
                rest=_file_from_proto(database.rest),
                new_bytes=database.new_bytes,
            )
            for database in message.databases
        ),
        in_flight=tuple(
            InFlight(
                result_id=ResultId(handle.result_id),
                partitioner=Partitioner[handle.partitioner],
                file=_file_from_proto(handle.file),
                batches=tuple((part.producer, part.count) for part in handle.batches),
            )
            for handle in message.in_flight
        ),
        lists={name: tuple(items.items) for name, items in sorted(message.lists.items())},
        union_lists={
            name: tuple(items.items) for name, items in sorted(message.union_lists.items())
        },
        broadcasts=dict(sorted(message.broadcasts.items())),
        states=states_from_proto(message.states),
        watermark_us=message.watermark_us if message.HasField("watermark_us") else None,
        finished=message.finished,
    )


def _file_to_proto(file: StateFile) -> pb.StateFile:
    return pb.StateFile(path=file.path, size_bytes=file.size_bytes, checksum=file.checksum)


def _file_from_proto(file: pb.StateFile) -> StateFile:
    return StateFile(path=file.path, size_bytes=file.size_bytes, checksum=file.checksum)

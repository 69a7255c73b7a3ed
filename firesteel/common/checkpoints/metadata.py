"""The `_metadata` file of a checkpoint or savepoint: all operators, and where their state is. A
checkpoint is deleted with the files to which its metadata refers.

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
from firesteel._proto import dispatcher_pb2, tasks_pb2
from firesteel.common.checkpoints.descriptions import StateDescription, StateDescriptions
from firesteel.common.checkpoints.messages import Snapshot
from firesteel.common.checkpoints.state import CompleteCheckpoint, OperatorSnapshot, is_shared
from firesteel.common.checkpoints.storage import METADATA, CheckpointStorage, StorageError
from firesteel.common.ids import JobId, OperatorId
from firesteel.common.rpc.mapping import Codec, Wire, register

VERSION = 1
_MAGIC = b"firestlC"
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedOperator:
    """Everything that a checkpoint has of one operator."""

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
        """The files that other checkpoints of the job may also refer to."""
        return tuple(
            file.path
            for operator in self.operators
            for snapshot in operator.subtasks.values()
            for file in snapshot.files
            if is_shared(file.path)
        )


register(StateDescription, Codec(StateDescription.to_json, StateDescription.from_json))
COMPLETE_CHECKPOINT = Wire(CompleteCheckpoint, dispatcher_pb2.CompleteCheckpoint)
_METADATA = Wire(CheckpointMetadata, pb.CheckpointMetadata, unmapped=("version",))
Wire(
    CheckpointedOperator,
    pb.CheckpointedOperator,
    codecs={
        "coordinator": Codec(
            lambda value: "" if value is None else json.dumps(value),
            lambda text: json.loads(text) if text else None,
        )
    },
)
_SNAPSHOT = Wire(OperatorSnapshot, pb.OperatorSnapshot)


def encode(metadata: CheckpointMetadata) -> bytes:
    message = _METADATA.encode(metadata)
    message.version = VERSION
    content = message.SerializeToString(deterministic=True)
    return _MAGIC + xxhash.xxh3_128_digest(content) + content


def decode(content: bytes, where: str) -> CheckpointMetadata:
    """Decodes the file; `where` is its name, for errors. Raises StorageError."""
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
    return _METADATA.decode(message)


def read_metadata(directory: str) -> CheckpointMetadata:
    """Reads the metadata of the checkpoint in this directory (a path or URI). Raises
    StorageError.
    """
    storage = CheckpointStorage(directory)
    return decode(storage.read_unchecked(METADATA), f"{METADATA} of {directory}")


def encode_snapshots(snapshots: tuple[OperatorSnapshot, ...]) -> bytes:
    """Encodes what a task acknowledges or restores. A restored snapshot includes operators without
    state, so that they know that they do not start from scratch.
    """
    return pb.TaskSnapshot(operators=map(_SNAPSHOT.encode, snapshots)).SerializeToString()


def decode_snapshots(content: bytes) -> tuple[OperatorSnapshot, ...]:
    return tuple(map(_SNAPSHOT.decode, pb.TaskSnapshot.FromString(content).operators))


SNAPSHOTS = Codec(encode_snapshots, decode_snapshots)
Wire(Snapshot, tasks_pb2.Snapshot, codecs={"operators": SNAPSHOTS})


def other_files(savepoint: CheckpointStorage) -> list[str]:
    """Returns the files in a savepoint's directory that do not belong to it. Raises
    StorageError.
    """
    return [name for name in savepoint.files() if not name.startswith((METADATA, "chk-"))]


def delete_checkpoint(directory: str) -> None:
    """Deletes a checkpoint and the shared files that no other checkpoint beside it refers to. Files
    that somebody else put beside a savepoint's files stay. Raises StorageError, also if the
    metadata cannot be read: the contents of the directory are then unknown.
    """
    metadata, storage = read_metadata(directory), CheckpointStorage(directory)
    shared = set(metadata.shared_files)
    if metadata.savepoint and (others := other_files(storage)):
        storage.delete(sorted(set(storage.files()) - set(others)))
        return
    storage.delete_directory("")
    if not shared:
        return
    where, mark, query = directory.partition("?")  # of a URI
    job = where.rstrip("/").rpartition("/")[0]
    storage = CheckpointStorage(f"{job}{mark}{query}")
    for path in storage.files():
        folder, _, name = path.rpartition("/")
        if name == METADATA:
            shared -= set(read_metadata(f"{job}/{folder}{mark}{query}").shared_files)
    storage.delete(sorted(shared))

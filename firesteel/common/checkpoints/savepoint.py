"""Finds and reads the savepoint or complete checkpoint from which another job starts.

    DIR/savepoint-4711ab-0123456789ab/_metadata      paths in it are relative to this directory
    DIR/JOB-ID/chk-7/_metadata                       paths in it are relative to DIR/JOB-ID

Both can be copied and moved: a savepoint by its directory, a checkpoint by that of its job.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from firesteel.common.checkpoints.fits import check_fits
from firesteel.common.checkpoints.metadata import CheckpointMetadata, read_metadata
from firesteel.common.checkpoints.storage import METADATA, CheckpointStorage, StorageError
from firesteel.common.config import Configuration, options
from firesteel.common.job_graph import JobGraph
from firesteel.errors import FiresteelError

_NAMES = ("chk-", "savepoint-")
_SHOWN = 3  # the newest ones of a job


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    metadata: CheckpointMetadata
    directory: str  # its own
    base: str  # what paths in the metadata are relative to


def directory_of(path: str) -> str:
    """Returns the directory of a savepoint or checkpoint. `path` may also name its `_metadata`."""
    where, mark, query = path.partition("?")  # of a URI
    return f"{where.rstrip('/').removesuffix(f'/{METADATA}')}{mark}{query}"


def read_restored(graph: JobGraph, conf: Configuration) -> Restored | None:
    """Returns the checkpoint from which the job starts, or None if it starts from scratch. Raises
    StorageError if it cannot be read, CannotRestore if it does not match the job.
    """
    path = conf.get(options.RECOVERY_PATH)
    if not path:
        return None
    if not conf.get(options.CHECKPOINT_INTERVAL):
        raise FiresteelError(
            "a job that starts from a savepoint must also take checkpoints: set"
            f" {options.CHECKPOINT_INTERVAL.key} and {options.CHECKPOINT_DIR.key}"
        )
    try:
        checkpoint = open_checkpoint(path)
        operators = checkpoint.metadata.operators
        parts = [part for operator in operators for part in operator.subtasks.values()]
        CheckpointStorage(checkpoint.base).check_whole(
            file for part in parts for file in part.files
        )
    except StorageError as error:
        raise type(error)(
            f"{path!r} cannot be restored: {error}. Name the directory of a savepoint or checkpoint"
            f" ({options.RECOVERY_PATH.key})"
        ) from error
    check_fits(
        graph,
        checkpoint.metadata.operators,
        allow_non_restored_state=conf.get(options.RECOVERY_ALLOW_UNMATCHED),
    )
    return checkpoint


def metadata_in(directory: str) -> CheckpointMetadata:
    """Reads the metadata. Raises StorageError; if it is the parent directory, lists its
    contents.
    """
    try:
        return read_metadata(directory)
    except StorageError:
        below = _below(directory)
        if not below:
            raise
        shown = ", ".join(sorted(below, key=lambda name: (len(name), name))[-_SHOWN:])
        raise StorageError(
            f"{directory} is not itself a savepoint or checkpoint; in it there are {shown}: name"
            " one of them"
        ) from None


def _below(directory: str) -> list[str]:
    """Returns the names of checkpoints and savepoints in it; empty if it cannot be read."""
    with suppress(StorageError):
        storage = CheckpointStorage(directory)
        return [
            name
            for name in storage.directories()
            if name.startswith(_NAMES) and storage.exists(f"{name}/{METADATA}")
        ]
    return []


def open_checkpoint(path: str) -> Restored:
    """Opens a checkpoint; `path` is its directory or its `_metadata`. Raises StorageError."""
    directory = directory_of(path)
    metadata = metadata_in(directory)
    where, mark, query = directory.partition("?")
    above = where.rpartition("/")[0]
    base = directory if metadata.savepoint else f"{above}{mark}{query}"
    return Restored(metadata=metadata, directory=directory, base=base)

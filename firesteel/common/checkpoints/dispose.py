"""Deleting a checkpoint that no job takes care of any more."""

from __future__ import annotations

from firesteel.common.checkpoints.metadata import read_metadata
from firesteel.common.checkpoints.storage import METADATA, CheckpointStorage


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

"""Deleting a checkpoint that no job takes care of any more."""

from __future__ import annotations

from firesteel.common.checkpoints.metadata import read_metadata
from firesteel.common.checkpoints.storage import METADATA, CheckpointStorage, StorageError


def delete_checkpoint(directory: str) -> None:
    """With the shared files that no other checkpoint beside it refers to. Raises StorageError."""
    try:
        shared = set(read_metadata(directory).shared_files)
    except StorageError:  # damaged or gone
        shared = set()
    CheckpointStorage(directory).delete_directory("")
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

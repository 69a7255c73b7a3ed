"""Deletes savepoints, unless a job would begin again from them."""

from __future__ import annotations

from dispatcher.job_store import JobStore
from firesteel.common.checkpoints.metadata import read_metadata
from firesteel.common.checkpoints.savepoint import directory_of
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.errors import FiresteelError


def dispose_savepoint(store: JobStore, path: str) -> None:
    """`path`: its directory, or its `_metadata`. Raises FiresteelError."""
    storage = CheckpointStorage(directory_of(path))
    if not read_metadata(storage.uri).savepoint:
        raise FiresteelError(
            f"{path} is a checkpoint, not a savepoint: it belongs to its job, which deletes it"
        )
    job_id = store.drop_savepoint(storage.uri)
    if job_id is not None:
        raise FiresteelError(
            f"job {job_id} would begin again from {path} if it failed now: wait for its next"
            f" checkpoint, or take one (`firesteel checkpoint {job_id}`)"
        )
    storage.delete_directory("")

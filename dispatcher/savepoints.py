"""Deletes savepoints, unless a job would restart from them."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.job_store import JobStore
from firesteel.common.checkpoints.metadata import other_files
from firesteel.common.checkpoints.savepoint import directory_of, metadata_in
from firesteel.common.checkpoints.storage import METADATA, CheckpointStorage
from firesteel.common.ids import JobId
from firesteel.errors import FiresteelError


def dispose_savepoint(store: JobStore, path: str, begun_from: Mapping[JobId, str]) -> None:
    """`path` is the savepoint's directory or its `_metadata`; `begun_from` has the savepoints from
    which jobs started that have not ended. Raises FiresteelError.
    """
    storage = CheckpointStorage(directory_of(path))
    if not metadata_in(storage.uri).savepoint:
        raise FiresteelError(
            f"{path} is a checkpoint, not a savepoint: its job owns and deletes it"
        )
    if others := other_files(storage):
        raise FiresteelError(
            f"{path} contains files that do not belong to the savepoint, such as {others[0]}:"
            f" nothing was deleted. Delete {METADATA} and chk-* yourself, or move the other files"
            " away"
        )
    needed = (
        job_id
        for job_id, begun in begun_from.items()
        if CheckpointStorage(directory_of(begun)).uri == storage.uri
        and not store.checkpoints(job_id)
    )
    job_id = next(needed, None) or store.drop_savepoint(storage.uri)
    if job_id is not None:
        raise FiresteelError(
            f"job {job_id} would restart from {path} if it failed now: wait for its next"
            f" checkpoint, or take one (`firesteel checkpoint {job_id}`)"
        )
    storage.delete_directory("")

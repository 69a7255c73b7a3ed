"""Determines the state that a job starts with: the latest checkpoint of its earlier JobMasters,
else the savepoint that it was submitted with, else none. Blocking I/O: called in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.common.checkpoints.metadata import read_metadata
from firesteel.common.checkpoints.savepoint import read_restored
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.checkpoints.storage import StorageError
from firesteel.common.config import Configuration, options
from firesteel.common.job_graph import JobGraph
from firesteel.common.logs import get_logger
from jobmaster.core.checkpoints.recovery import Recovery

_log = get_logger(__name__)


def recovery_of(
    epoch: int, graph: JobGraph, conf: Configuration, checkpoints: Sequence[CompleteCheckpoint]
) -> Recovery:
    """`checkpoints` belong to the job itself, in order of their ids. Raises FiresteelError:
    StorageError if state cannot be read, CannotRestore if it does not fit.
    """
    if checkpoints:
        return _own(epoch, checkpoints)
    restored = read_restored(graph, conf)
    if restored is None:
        return Recovery(epoch=epoch)
    claims = conf.get(options.RECOVERY_CLAIM_MODE) == "CLAIM"
    return Recovery(
        epoch=epoch,
        latest=restored.metadata,
        restored_from=restored.base,
        claimed=CompleteCheckpoint(
            checkpoint_id=restored.metadata.checkpoint_id, path=restored.directory
        )
        if claims
        else None,
    )


def _own(epoch: int, checkpoints: Sequence[CompleteCheckpoint]) -> Recovery:
    latest = checkpoints[-1]
    try:
        metadata = read_metadata(latest.path)
    except StorageError as error:
        raise type(error)(
            f"the job's JobMaster has ended, and checkpoint {latest.checkpoint_id}, its latest,"
            f" cannot be restored: {error}"
        ) from error
    return Recovery(
        epoch=epoch,
        checkpoints=checkpoints,
        latest=metadata,
        latest_epoch=latest.epoch,
        restored_from=latest.path if latest.savepoint else "",
        shared_files=_shared_files(checkpoints),
    )


def _shared_files(
    checkpoints: Sequence[CompleteCheckpoint],
) -> dict[int, tuple[str, ...]] | None:
    """Returns None if a checkpoint other than the latest cannot be read."""
    try:
        return {
            checkpoint.checkpoint_id: read_metadata(checkpoint.path).shared_files
            for checkpoint in checkpoints
            if not checkpoint.savepoint
        }
    except StorageError as error:
        _log.warning("shared files of checkpoints cannot be deleted", cause=str(error))
        return None

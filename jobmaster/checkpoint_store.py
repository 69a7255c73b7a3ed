"""Where a job's complete checkpoints are: their metadata is written and deleted by one thread, in
the order of the core's commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from firesteel.common.checkpoints.metadata import CheckpointMetadata, encode
from firesteel.common.checkpoints.storage import METADATA, CheckpointStorage, StorageError
from firesteel.common.ids import JobId
from jobmaster.core import commands, events

log = structlog.get_logger(__name__)


class CheckpointStore:
    """`post` gets the outcomes, on the loop that runs when commands are executed."""

    def __init__(self, directory: str, job_id: JobId, post: Callable[[events.Event], None]) -> None:
        """`directory`: execution.checkpointing.dir; empty if the job takes no checkpoints."""
        self._directory = directory
        self._job_id = job_id
        self._post = post
        self._storage: CheckpointStorage | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoints")

    def execute(
        self,
        command: commands.StoreCheckpoint
        | commands.DropCheckpoint
        | commands.DropCheckpointFiles
        | commands.DropAllCheckpoints,
    ) -> None:
        loop = asyncio.get_running_loop()
        match command:
            case commands.StoreCheckpoint(metadata=metadata):
                loop.run_in_executor(self._thread, self._store, metadata).add_done_callback(
                    lambda stored: self._post(stored.result())
                )
            case commands.DropCheckpoint(checkpoint_id=checkpoint_id):
                loop.run_in_executor(self._thread, self._drop, checkpoint_id)
            case commands.DropAllCheckpoints():
                loop.run_in_executor(self._thread, self._drop_all)
            case commands.DropCheckpointFiles(paths=paths):
                loop.run_in_executor(self._thread, self._drop_files, paths)

    # -- the thread

    def _store(self, metadata: CheckpointMetadata) -> events.Event:
        checkpoint_id = metadata.checkpoint_id
        try:
            self._opened().write(f"chk-{checkpoint_id}/{METADATA}", [encode(metadata)])
        except StorageError as error:
            return events.CheckpointNotStored(checkpoint_id=checkpoint_id, problem=str(error))
        except Exception as error:
            log.exception("a checkpoint could not be stored", checkpoint=checkpoint_id)
            return events.CheckpointNotStored(checkpoint_id=checkpoint_id, problem=repr(error))
        return events.CheckpointStored(checkpoint_id=checkpoint_id)

    def _drop(self, checkpoint_id: int) -> None:
        self._try(lambda: self._opened().delete_directory(f"chk-{checkpoint_id}"))

    def _drop_all(self) -> None:
        self._try(lambda: self._opened().delete_directory(""))

    def _drop_files(self, paths: tuple[str, ...]) -> None:
        self._try(lambda: self._opened().delete(paths))

    def _try(self, delete: Callable[[], None]) -> None:
        try:
            delete()
        except StorageError as error:
            log.warning("files of a checkpoint are left over", cause=str(error))

    def _opened(self) -> CheckpointStorage:
        if self._storage is None:
            self._storage = CheckpointStorage(self._directory).at(self._job_id)
        return self._storage

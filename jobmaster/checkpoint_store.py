"""Stores a job's complete checkpoints: their files, which one thread writes and deletes in the
order of the core's commands, and their rows in the job store, which the Dispatcher writes.

    files of tasks -> `_metadata` -> row -> notices to tasks

The parallelism that follows a checkpoint is stored in the same way and in the same order.

A row is committed under this JobMaster's epoch, so that a JobMaster that was replaced cannot add
rows. While the outcome of a commit is unknown, because an answer was lost, the call is repeated:
the Dispatcher finds the row, or writes it. The checkpoint fails only if the row was certainly never
written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import TypeAlias

import grpc
import tenacity

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc, job_master_pb2
from firesteel.common.checkpoints.metadata import COMPLETE_CHECKPOINT, delete_checkpoint, encode
from firesteel.common.checkpoints.state import SHARED, CompleteCheckpoint, writer_of
from firesteel.common.checkpoints.storage import METADATA, CheckpointStorage, StorageError
from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.ids import JobId
from firesteel.common.leader import LeaderRetriever
from firesteel.common.logs import get_logger
from firesteel.common.rpc.leader_stub import LeaderStub
from firesteel.common.rpc.mapping import Wire
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.service.platform import Platform
from jobmaster.core import commands, events

log = get_logger(__name__)

ATTEMPT_TIMEOUT_S = 10.0
_COPIES_AT_ONCE = 8  # each copy to an object store has a latency, however small the file
Dispatcher: TypeAlias = LeaderStub[dispatcher_pb2_grpc.DispatcherStub]

# The call has written nothing; also gRPC's own code for a request that is too large. After any
# other error the outcome is unknown.
_NOT_WRITTEN = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)


_PARALLELISM = Wire(commands.StoreParallelism, job_master_pb2.JobParallelism, context=("must",))


class CheckpointStore:
    """Stores checkpoints and calls `post` with the outcomes, on the event loop of `execute`."""

    def __init__(
        self,
        directory: str,
        job_id: JobId,
        epoch: int,
        *,
        paths: Mapping[int, str],
        dispatcher: str | LeaderRetriever,
        platform: Platform,
        post: Callable[[events.Event], None],
    ) -> None:
        """`directory` is execution.checkpointing.dir, or empty if the job takes no checkpoints;
        `paths` has the complete checkpoints of earlier JobMasters; `dispatcher` is an address or a
        leader.
        """
        self._directory = directory
        self._job_id = job_id
        self._epoch = epoch
        self._paths = dict(paths)
        self._dispatcher = dispatcher
        self._platform = platform
        self._post = post
        self._storage: CheckpointStorage | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._to_store: asyncio.Queue[commands.StoreCheckpoint | commands.StoreParallelism] = (
            asyncio.Queue()
        )

    def execute(
        self,
        command: commands.StoreCheckpoint
        | commands.StoreParallelism
        | commands.DropCheckpoint
        | commands.DropCheckpointFiles
        | commands.SweepSharedFiles
        | commands.DropAllCheckpoints,
    ) -> None:
        loop = asyncio.get_running_loop()
        match command:
            case commands.StoreCheckpoint() | commands.StoreParallelism():
                self._to_store.put_nowait(command)
            case commands.DropCheckpoint(checkpoint_id=checkpoint_id):
                loop.run_in_executor(self._thread, self._drop, checkpoint_id)
            case commands.DropAllCheckpoints():
                loop.run_in_executor(self._thread, self._drop_all)
            case commands.DropCheckpointFiles(paths=paths):
                loop.run_in_executor(self._thread, self._drop_files, paths)
            case commands.SweepSharedFiles():
                loop.run_in_executor(self._thread, self._sweep_shared, command)

    async def run(self) -> None:
        """Stores checkpoints until it is cancelled."""
        command = await self._to_store.get()  # jobs without checkpoints usually store nothing
        channel = self._platform.transport.channel
        async with LeaderStub(
            self._dispatcher, dispatcher_pb2_grpc.DispatcherStub, channel
        ) as dispatcher:
            while True:
                match command:
                    case commands.StoreCheckpoint():
                        self._post(await self._stored(dispatcher, command))
                    case commands.StoreParallelism():
                        self._post(await self._parallelism_stored(dispatcher, command))
                command = await self._to_store.get()

    async def _parallelism_stored(
        self, dispatcher: Dispatcher, command: commands.StoreParallelism
    ) -> events.Event:
        request = dispatcher_pb2.CommitParallelismRequest(
            job_id=self._job_id,
            epoch=self._epoch,
            parallelism=_PARALLELISM.encode(command),
        )
        reached(Failpoint.PARALLELISM_BEFORE)
        outcome = await _commit(
            dispatcher,
            lambda stub: stub.CommitParallelism(request, timeout=ATTEMPT_TIMEOUT_S),
            f"parallelism {command.version}",
            must=command.must,
        )
        match outcome:
            case _Commit.DONE:
                reached(Failpoint.PARALLELISM_AFTER)
                return events.ParallelismStored()
            case _Commit.SUPERSEDED:
                return events.Superseded()
            case str():
                return events.ParallelismNotStored(problem=outcome)

    async def _stored(
        self, dispatcher: Dispatcher, command: commands.StoreCheckpoint
    ) -> events.Event:
        checkpoint_id = command.metadata.checkpoint_id
        loop = asyncio.get_running_loop()
        reached(Failpoint.METADATA_BEFORE)
        path = await loop.run_in_executor(self._thread, self._write, command)
        reached(Failpoint.METADATA_AFTER)
        if isinstance(path, StorageError):
            return events.CheckpointNotStored(checkpoint_id=checkpoint_id, problem=str(path))
        outcome = await self._commit(dispatcher, command, path)
        match outcome:
            case events.CheckpointStored():
                reached(Failpoint.ROW_AFTER)
                self._paths[checkpoint_id] = path
                if command.savepoint_path:  # the savepoint has copies of these
                    loop.run_in_executor(self._thread, self._drop_directory, checkpoint_id)
                if command.unsettled is not None:
                    kept = command.unsettled | self._paths.keys()
                    loop.run_in_executor(self._thread, self._sweep, checkpoint_id, kept)
            case events.CheckpointNotStored():
                loop.run_in_executor(self._thread, self._drop_metadata, command)
        return outcome

    async def _commit(
        self, dispatcher: Dispatcher, command: commands.StoreCheckpoint, path: str
    ) -> events.Event:
        metadata = command.metadata
        checkpoint = CompleteCheckpoint(
            checkpoint_id=metadata.checkpoint_id,
            savepoint=metadata.savepoint,
            path=path,
            size_bytes=command.size_bytes,
            triggered_ms=metadata.timestamp_ms,
            completed_ms=int(self._platform.clock.time() * 1000),
        )
        request = dispatcher_pb2.CommitCheckpointRequest(
            job_id=self._job_id,
            epoch=self._epoch,
            checkpoint=COMPLETE_CHECKPOINT.encode(checkpoint),
            subsumed=command.subsumed,
        )
        outcome = await _commit(
            dispatcher,
            lambda stub: stub.CommitCheckpoint(request, timeout=ATTEMPT_TIMEOUT_S),
            f"checkpoint {metadata.checkpoint_id}",
        )
        match outcome:
            case _Commit.DONE:
                return events.CheckpointStored(checkpoint_id=metadata.checkpoint_id)
            case _Commit.SUPERSEDED:
                return events.Superseded()
            case str():
                return events.CheckpointNotStored(
                    checkpoint_id=metadata.checkpoint_id, problem=outcome, store_away=True
                )

    # -- the thread

    def _write(self, command: commands.StoreCheckpoint) -> str | StorageError:
        """Writes the checkpoint's metadata and returns its path, or the error."""
        checkpoint_id = command.metadata.checkpoint_id
        try:
            storage = self._opened()
            if command.savepoint_path:
                return self._write_savepoint(storage, command)
            storage.write(f"chk-{checkpoint_id}/{METADATA}", [encode(command.metadata)])
            return storage.at(f"chk-{checkpoint_id}").uri
        except StorageError as error:
            return error
        except Exception as error:
            log.exception("a checkpoint could not be stored", checkpoint=checkpoint_id)
            return StorageError(repr(error))

    def _write_savepoint(
        self, storage: CheckpointStorage, command: commands.StoreCheckpoint
    ) -> str:
        """Copies all files of the savepoint, keeping their paths relative to the job's
        directory.
        """
        savepoint = CheckpointStorage(command.savepoint_path, option="the savepoint's directory")
        folder = f"chk-{command.metadata.checkpoint_id}"
        try:
            paths = [f"{folder}/{name}" for name in storage.at(folder).files()]
            with ThreadPoolExecutor(_COPIES_AT_ONCE) as copying:
                for _ in copying.map(lambda path: storage.copy(path, savepoint), paths):
                    pass
            savepoint.write(METADATA, [encode(command.metadata)])
        except StorageError:
            self._try(lambda: savepoint.delete_directory(""))
            raise
        return savepoint.uri

    def _drop_metadata(self, command: commands.StoreCheckpoint) -> None:
        """Deletes the metadata; the core deletes the rest of the checkpoint."""
        if command.savepoint_path:
            savepoint = CheckpointStorage(command.savepoint_path)
            self._try(lambda: savepoint.delete_directory(""))
        else:
            self._drop_files((f"chk-{command.metadata.checkpoint_id}/{METADATA}",))

    def _drop_directory(self, checkpoint_id: int) -> None:
        self._try(lambda: self._opened().delete_directory(f"chk-{checkpoint_id}"))

    def path(self, checkpoint_id: int) -> str:
        """Returns the path of a complete checkpoint."""
        return self._paths.get(checkpoint_id, "")

    def _drop(self, checkpoint_id: int) -> None:
        path = self._paths.pop(checkpoint_id)
        own = self._opened().at(f"chk-{checkpoint_id}")
        # For a checkpoint of this job, the core knows which shared files to delete with it.
        self._try(lambda: own.delete_directory("") if path == own.uri else delete_checkpoint(path))

    def _sweep_shared(self, command: commands.SweepSharedFiles) -> None:
        def sweep() -> None:
            storage = self._opened()
            found = (f"{SHARED}/{name}" for name in storage.at(SHARED).files())
            left = [
                path
                for path in found
                if path not in command.kept and (writer_of(path) or command.before) < command.before
            ]
            if left:
                log.info("files that no checkpoint refers to", files=len(left))
            storage.delete(left)

        self._try(sweep)

    def _sweep(self, before: int, kept: Set[int]) -> None:
        """Deletes the directories of checkpoints that have no row and will not get one."""

        def sweep() -> None:
            storage = self._opened()
            for name in storage.directories():
                prefix, _, number = name.partition("-")
                if prefix != "chk" or not number.isdecimal():
                    continue
                if int(number) < before and int(number) not in kept:
                    log.info("deleting the files of a failed checkpoint", checkpoint=number)
                    storage.delete_directory(name)

        self._try(sweep)

    def _drop_all(self) -> None:
        self._try(lambda: self._opened().delete_directory(""))

    def _drop_files(self, paths: tuple[str, ...]) -> None:
        self._try(lambda: self._opened().delete(paths))

    def _try(self, delete: Callable[[], None]) -> None:
        try:
            delete()
        except StorageError as error:
            log.warning("files of a checkpoint could not be deleted", cause=str(error))

    def _opened(self) -> CheckpointStorage:
        if self._storage is None:
            self._storage = CheckpointStorage(self._directory).at(self._job_id)
        return self._storage


class _Commit(Enum):
    """The outcome of a commit whose row may be stored."""

    DONE = auto()
    SUPERSEDED = auto()  # this JobMaster must not store anything


async def _commit(
    dispatcher: Dispatcher,
    call: Callable[[dispatcher_pb2_grpc.DispatcherStub], Awaitable[object]],
    what: str,
    *,
    must: bool = False,
) -> _Commit | str:
    """Repeats the call until its outcome is known. Returns a problem if the row was certainly never
    written; with `must`, repeats the call then as well.
    """
    known = True  # whether no earlier call can have written the row
    async for attempt in tenacity.AsyncRetrying(
        wait=tenacity.wait_exponential(multiplier=0.05, max=1.0), sleep=asyncio.sleep
    ):
        with attempt:
            try:
                await call(await dispatcher.get())
            except grpc.aio.AioRpcError as error:
                if reason_of(error) is Reason.STALE_EPOCH:
                    log.error("this JobMaster is superseded", cause=error.details())
                    return _Commit.SUPERSEDED
                if error.code() in _NOT_WRITTEN and known and not must:
                    return error.details() or error.code().name
                known = False
                log.warning(
                    "the outcome of a commit is unknown; retrying",
                    of=what,
                    cause=error.details(),
                )
                raise
    return _Commit.DONE

"""A checkpoint's way into its files and its row, whatever the Dispatcher answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.checkpoints.metadata import (
    CheckpointedOperator,
    CheckpointMetadata,
    encode,
    read_metadata,
)
from firesteel.common.checkpoints.state import (
    DatabaseFile,
    DatabaseHandle,
    OperatorSnapshot,
    StateFile,
)
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import JobId, OperatorId
from firesteel.common.key_groups import KeyGroupRange
from firesteel.common.rpc.server import bind, new_server
from firesteel.common.rpc.status import Reason, abort
from firesteel.common.service.platform import SYSTEM
from jobmaster.checkpoint_store import CheckpointStore
from jobmaster.core import commands, events

JOB = JobId("a" * 32)
AWAY, UNKNOWN, TAKEN = Reason.STORE_UNAVAILABLE, Reason.OUTCOME_UNKNOWN, Reason.STALE_EPOCH


class Dispatcher(dispatcher_pb2_grpc.DispatcherServicer):
    """Answers with these errors first."""

    def __init__(self) -> None:
        self.errors: list[Reason] = []
        self.asked: list[dispatcher_pb2.CommitCheckpointRequest] = []

    async def CommitCheckpoint(
        self, request: dispatcher_pb2.CommitCheckpointRequest, context: Any
    ) -> dispatcher_pb2.CommitCheckpointResponse:
        self.asked.append(request)
        if self.errors:
            await abort(context, self.errors.pop(0), "an error")
        return dispatcher_pb2.CommitCheckpointResponse()


class World:
    def __init__(self, directory: Path, address: str, dispatcher: Dispatcher) -> None:
        self.directory = directory
        self.dispatcher = dispatcher
        self.posted: asyncio.Queue[events.Event] = asyncio.Queue()
        self.store = CheckpointStore(
            str(directory),
            JOB,
            3,
            paths={},
            dispatcher=address,
            platform=SYSTEM,
            post=self.posted.put_nowait,
        )

    async def complete(
        self,
        checkpoint_id: int,
        *subsumed: int,
        savepoint: str = "",
        unsettled: frozenset[int] | None = None,
    ) -> events.Event:
        metadata = CheckpointMetadata(
            checkpoint_id=checkpoint_id,
            job_id=JOB,
            job_name="a job",
            timestamp_ms=5,
            savepoint=bool(savepoint),
            operators=(),
        )
        self.store.execute(
            commands.StoreCheckpoint(
                metadata=metadata,
                size_bytes=7,
                subsumed=subsumed,
                savepoint_path=savepoint,
                unsettled=unsettled,
            )
        )
        async with asyncio.timeout(60.0):
            return await self.posted.get()

    async def files(self) -> list[str]:
        """Once everything that was to be deleted is."""
        await asyncio.get_running_loop().run_in_executor(self.store._thread, lambda: None)
        return CheckpointStorage(str(self.directory)).files()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    dispatcher, server = Dispatcher(), new_server([])
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(dispatcher, server)
    world = World(tmp_path, bind(server, "127.0.0.1", 0), dispatcher)
    await server.start()
    running = asyncio.create_task(world.store.run())
    yield world
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    world.store._thread.shutdown()
    await server.stop(None)


async def test_the_row_names_a_directory_that_can_be_read(world: World) -> None:
    assert await world.complete(1) == events.CheckpointStored(checkpoint_id=1)
    await world.complete(2, 1)
    first, second = world.dispatcher.asked
    assert (first.job_id, first.epoch, list(second.subsumed)) == (JOB, 3, [1])
    assert (first.checkpoint.size_bytes, first.checkpoint.triggered_ms) == (7, 5)
    assert first.checkpoint.completed_ms > 5
    assert read_metadata(first.checkpoint.path).checkpoint_id == 1
    world.store.execute(commands.DropCheckpoint(checkpoint_id=1))
    assert await world.files() == [f"{JOB}/chk-2/_metadata"]


async def test_a_savepoint_has_copies_of_its_files_and_nothing_else_refers_to_it(
    world: World, tmp_path: Path
) -> None:
    job = CheckpointStorage(str(tmp_path)).at(JOB)
    job.write("chk-1/state", [b"state"])
    world.dispatcher.errors = [AWAY]
    path = tmp_path / "savepoints" / "savepoint-1"
    for outcome in (events.CheckpointNotStored, events.CheckpointStored):
        assert isinstance(await world.complete(1, savepoint=str(path)), outcome)
        files = await world.files()
        if outcome is events.CheckpointNotStored:
            assert files == [f"{JOB}/chk-1/state"]
    assert files == ["savepoints/savepoint-1/_metadata", "savepoints/savepoint-1/chk-1/state"]
    assert world.dispatcher.asked[-1].checkpoint.path == str(path)
    assert read_metadata(str(path)).savepoint


async def test_files_of_a_savepoint_are_copied_side_by_side(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = CheckpointStorage(str(tmp_path)).at(JOB)
    for name in ("a", "b"):
        job.write(f"chk-1/{name}", [name.encode()])
    together = threading.Barrier(2, timeout=60.0)
    copy = CheckpointStorage.copy

    def copy_together(storage: CheckpointStorage, path: str, to: CheckpointStorage) -> None:
        together.wait()
        copy(storage, path, to)

    monkeypatch.setattr(CheckpointStorage, "copy", copy_together)
    path = tmp_path / "savepoint-1"
    assert await world.complete(1, savepoint=str(path)) == events.CheckpointStored(checkpoint_id=1)
    assert sorted(found.name for found in (path / "chk-1").iterdir()) == ["a", "b"]


async def test_a_row_that_was_certainly_not_written_fails_the_checkpoint(world: World) -> None:
    world.dispatcher.errors = [AWAY]
    outcome = await world.complete(1)
    assert outcome == events.CheckpointNotStored(
        checkpoint_id=1, problem="an error", store_away=True
    )
    assert await world.files() == []
    assert await world.complete(2) == events.CheckpointStored(checkpoint_id=2)


async def test_after_an_ambiguous_answer_the_row_is_queried_until_known(
    world: World,
) -> None:
    """The first call may have written it: that the next ones have not proves nothing."""
    world.dispatcher.errors = [UNKNOWN, AWAY, AWAY]
    assert await world.complete(1) == events.CheckpointStored(checkpoint_id=1)
    assert len(world.dispatcher.asked) == 4
    assert {request.checkpoint.checkpoint_id for request in world.dispatcher.asked} == {1}


async def test_a_superseded_master_deletes_nothing(world: World) -> None:
    """The successor may restore the files that the master has written."""
    world.dispatcher.errors = [UNKNOWN, TAKEN]
    assert await world.complete(1) == events.Superseded()
    assert await world.files() == [f"{JOB}/chk-1/_metadata"]


async def test_a_complete_checkpoint_deletes_the_files_of_failed_ones(
    world: World, tmp_path: Path
) -> None:
    """A process that died could not report its files."""
    job = CheckpointStorage(str(tmp_path)).at(JOB)
    await world.complete(3)
    others = ["chk-x/a", "other/a", "shared/a"]
    for path in ["chk-2/died", "chk-4/died.part", "chk-5/savepoint", "chk-7/later", *others]:
        job.write(path, [b"x"])
    await world.complete(6)
    assert f"{JOB}/chk-2/died" in await world.files(), "none has failed"
    await world.complete(8, unsettled=frozenset({5, 8}))
    left = ["chk-3/_metadata", "chk-5/savepoint", "chk-6/_metadata", "chk-8/_metadata", *others]
    assert await world.files() == sorted(f"{JOB}/{path}" for path in left)


async def test_shared_files_that_nothing_refers_to_are_swept(world: World) -> None:
    storage = CheckpointStorage(str(world.directory)).at(JOB)
    for name in ("3-kept", "3-left", "9-of a later one", "odd"):
        storage.write(f"shared/{name}", [b"x"])
    world.store.execute(commands.SweepSharedFiles(before=9, kept=frozenset({"shared/3-kept"})))
    assert await world.files() == [
        f"{JOB}/shared/{name}" for name in ("3-kept", "9-of a later one", "odd")
    ]


async def test_a_claimed_checkpoint_is_deleted_with_its_unshared_files(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = CheckpointStorage(str(tmp_path_factory.mktemp("other job")))
    a, b = (other.write(f"shared/1-{name}", [b"x"]) for name in "ab")
    for checkpoint_id, files in ((1, (a, b)), (2, (b,))):
        rest = other.write(f"chk-{checkpoint_id}/rest", [b"x"])
        content = encode(with_tables(checkpoint_id, files, rest))
        other.write(f"chk-{checkpoint_id}/_metadata", [content])
    world.store._paths[1] = other.at("chk-1").uri
    world.store.execute(commands.DropCheckpoint(checkpoint_id=1))
    await world.files()
    assert other.files() == ["chk-2/_metadata", "chk-2/rest", "shared/1-b"]


async def test_a_claimed_savepoint_goes_without_what_is_beside_it(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone, mixed, gone = (
        CheckpointStorage(str(tmp_path_factory.mktemp("savepoint"))) for _ in range(3)
    )
    for storage in (alone, mixed):
        rest = storage.write("chk-1/rest", [b"x"])
        metadata = replace(with_tables(1, (), rest), savepoint=True)
        storage.write("_metadata", [encode(metadata)])
    for storage in (mixed, gone):
        storage.write("mine", [b"x"])
    for number, storage in enumerate((alone, mixed, gone), 1):
        world.store._paths[number] = storage.uri
        world.store.execute(commands.DropCheckpoint(checkpoint_id=number))
    await world.files()
    assert [storage.files() for storage in (alone, mixed, gone)] == [[], ["mine"], ["mine"]]


def with_tables(
    checkpoint_id: int, files: tuple[StateFile, ...], rest: StateFile
) -> CheckpointMetadata:
    database = DatabaseHandle(
        checkpoint_id=checkpoint_id,
        key_groups=KeyGroupRange(0, 8),
        tables=tuple(DatabaseFile(file.path, file) for file in files),
        rest=rest,
        new_bytes=1,
    )
    operator_id = OperatorId("0" * 32)
    operator = CheckpointedOperator(
        operator_id=operator_id,
        uid="",
        name="a",
        parallelism=1,
        max_parallelism=8,
        subtasks={0: OperatorSnapshot(operator_id=operator_id, databases=(database,))},
    )
    return CheckpointMetadata(
        checkpoint_id=checkpoint_id,
        job_id=JOB,
        job_name="a job",
        timestamp_ms=5,
        savepoint=False,
        operators=(operator,),
    )

"""Partitions that finished tasks leave: kept, served and deleted, whatever becomes of others."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from firesteel._proto import executor_pb2, job_master_pb2, tasks_pb2
from firesteel.common.config import Configuration
from firesteel.common.ids import Epoch, ExecutorId, ResultId
from firesteel.common.job_graph import (
    DistributionPattern,
    Partitioner,
    ResultPartitionId,
    StoredPartition,
)
from firesteel.common.process import temporary
from firesteel.common.states import ExecutionState as E
from firesteel.elements import EndOfData, EndOfPartition
from taskexecutor import convert
from taskexecutor.core import commands, events
from taskexecutor.executor.exchange import (
    BlockingPartition,
    Exchange,
    Locations,
    PartitionFailed,
    ResultFolders,
)
from taskexecutor.result_server import FlightResultServer
from taskexecutor.results import Results
from tests.unit.taskexecutor.slot_world import JM, JOB, World

RESULT = ResultId("result")


def stored(attempt: int = 0, path: str = "", size_bytes: int = 10) -> StoredPartition:
    partition_id = ResultPartitionId(RESULT, producer=0, attempt=attempt)
    return StoredPartition(partition_id, size_bytes=size_bytes, rows=1, path=path)


# -- the core


def finished(world: World, *partitions: StoredPartition, task: str = "t") -> None:
    world.submit(task)
    world.handle(
        events.TaskStatesReported(
            executor_id=world.executor(),
            job_id=JOB,
            states=(events.TaskState(task, E.FINISHED),),
            message="finished",
            partitions=partitions,
        )
    )


@pytest.fixture
def world() -> World:
    world = World(slots=1)
    world.ready()
    world.give()
    return world


def test_a_partition_is_taken_over_before_the_job_master_hears_of_it(world: World) -> None:
    finished(world, stored())
    kinds = [type(command) for command in world.commands]
    taken = kinds.index(commands.TakePartitionsOver)
    assert taken < kinds.index(commands.RelayToJobMaster)
    report = world.only(commands.ReportSlots)
    assert (report.stored_partitions, report.stored_bytes) == (1, 10)
    finished(world, stored())  # the report came twice
    assert world.none(commands.TakePartitionsOver)


def test_partitions_outlive_their_slot_and_are_named_on_reconnection(
    world: World,
) -> None:
    finished(world, stored(0), stored(1))
    world.die()
    assert world.reported() == [""]
    world.handle(events.JobMasterDisconnected(job_id=JOB, cause="broken"))
    assert world.none(commands.CloseJobMaster), "it is connected again: results are kept for it"
    world.connect()
    assert world.only(commands.SendHello).partitions == (stored(0).id, stored(1).id)
    released = (stored(0).id, ResultPartitionId(RESULT, 9, 9))
    world.handle(events.PartitionsReleased(partitions=released, **JM))
    assert world.only(commands.DeletePartitions).partitions == (stored(0).id,)
    report = world.only(commands.ReportSlots)
    assert (report.stored_partitions, report.stored_bytes) == (1, 10)


def test_results_wait_for_the_next_job_master() -> None:
    """Although the job has no slot here any more."""
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t", recovers=True)
    finished(world, stored())
    assert world.only(commands.ReportSlots).stored_jobs == (JOB,)
    world.free("a")
    world.clean()
    world.lose_job_master()
    world.replace_job_master()
    world.connect()
    assert world.only(commands.SendHello).partitions == (stored().id,)


@pytest.mark.parametrize("end", ["goodbye", "silence", "disconnected"])
def test_all_are_deleted_when_the_job_master_has_gone_for_good(world: World, end: str) -> None:
    finished(world, stored())
    world.free("a")
    world.clean()
    assert JOB in world.core.table.jobs
    if end == "goodbye":
        world.handle(events.JobMasterLeft(cause="the job has finished", **JM))
    else:
        if end == "disconnected":
            world.handle(events.JobMasterDisconnected(job_id=JOB, cause="broken"))
        world.pass_time(30)
    assert world.only(commands.DeleteResults).job_id == JOB
    assert world.only(commands.CloseJobMaster)
    report = world.all(commands.ReportSlots)[-1]
    assert (report.stored_partitions, report.stored_bytes) == (0, 0)
    assert world.core.table.jobs == {}


def test_what_a_task_leaves_after_its_job_master_was_given_up_is_not_kept(world: World) -> None:
    world.submit("t")
    world.handle(events.JobMasterLeft(cause="", **JM))
    world.handle(
        events.TaskStatesReported(
            executor_id=world.executor(),
            job_id=JOB,
            states=(events.TaskState("t", E.FINISHED),),
            message="finished",
            partitions=(stored(),),
        )
    )
    assert world.none(commands.TakePartitionsOver)


def test_the_wire_says_which_partitions_there_are() -> None:
    change = tasks_pb2.TaskStateChange(
        attempt_id="t",
        state=E.FINISHED.value,
        partitions=[
            tasks_pb2.StoredPartition(
                id=tasks_pb2.PartitionId(result_id=RESULT, producer=0, attempt=3),
                size_bytes=10,
                rows=1,
                path="/p",
            )
        ],
    )
    states = tasks_pb2.TaskStateChanges(job_id=JOB, updates=[change])
    heard = convert.from_executor(
        ExecutorId("e"), JOB, executor_pb2.ExecutorToTaskExecutor(task_states=states)
    )
    assert isinstance(heard, events.TaskStatesReported)
    assert heard.partitions == (stored(3, "/p"),)
    hello = convert.to_job_master(
        commands.SendHello(job_id=JOB, slots=(), tasks=(), places={}, partitions=(stored(3).id,)),
        epoch=Epoch(1),
        task_executor_id="te",
        address="here:1",
        data_address="here:2",
        host="here",
        now_ms=0,
    ).hello
    assert hello.data_address == "here:2"
    assert hello.partitions[0] == change.partitions[0].id
    message = job_master_pb2.JobMasterToTaskExecutor(
        job_id=JOB, job_master_epoch=1, release_partitions={"partitions": [hello.partitions[0]]}
    )
    released = convert.from_job_master(message, Configuration({}))
    assert isinstance(released, events.PartitionsReleased)
    assert released.partitions == (stored(3).id,)


# -- the store


class Store:
    """A TaskExecutor's store, and a slot's process beside it."""

    def __init__(self, directory: Path, memory_bytes: int) -> None:
        self.results = Results(
            directory,
            memory_bytes=memory_bytes,
            start_server=lambda host: FlightResultServer(host, window_bytes=2**20, batch_rows=1000),
        )
        self.directory = directory

    async def start(self) -> None:
        self.results.prepare()
        await self.results.serve("127.0.0.1")
        assert self.results.memory is not None
        self.slot = self.exchange(
            ResultFolders(
                disk=self.directory / "tmp" / "e" / "results", memory=self.results.memory / "e"
            )
        )
        self.consumer = self.exchange(None)

    def exchange(self, folders: ResultFolders | None) -> Exchange:
        return Exchange(
            host="127.0.0.1",
            window_bytes=2**20,
            batch_rows=1000,
            partition_timeout_s=60,
            folders=folders,
        )

    def write(self, attempt: int, rows: int = 10) -> StoredPartition:
        partition = self.slot.create_partition(
            job_id=JOB,
            result_id=RESULT,
            producer=0,
            attempt=attempt,
            partitioner=Partitioner.FORWARD,
            producers=1,
            consumers=1,
            max_parallelism=1,
            key_columns=(),
            blocking=True,
        )
        assert isinstance(partition, BlockingPartition)
        partition.emit(pa.record_batch({"n": pa.array(range(rows))}))
        partition.emit_event(EndOfData())
        partition.emit_event(EndOfPartition())
        partition.finish()
        partition.close()
        assert partition.stored is not None
        return partition.stored

    def read(self, attempt: int) -> int:
        arrived = threading.Event()
        gate = self.consumer.create_gate(
            job_id=JOB,
            result_id=RESULT,
            consumer=0,
            producers=1,
            consumers=1,
            pattern=DistributionPattern.POINTWISE,
            locations=Locations((self.results.address,), [0], [attempt]),
            on_available=arrived.set,
        )
        rows = 0
        try:
            while (polled := gate.poll()) is None or not isinstance(polled[1], EndOfPartition):
                if polled is None:
                    assert arrived.wait(60)
                    arrived.clear()
                elif isinstance(polled[1], pa.RecordBatch):
                    rows += polled[1].num_rows
        finally:
            gate.close()
        return rows

    def files(self) -> list[Path]:
        assert self.results.memory is not None
        folders = (self.directory, self.results.memory)
        found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return [path for path in found if path.name != "owner"]

    async def stop(self) -> None:
        self.slot.close()
        self.consumer.close()
        await self.results.stop()


@pytest.fixture
async def new_store(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[Store] = []

    async def new(memory_bytes: int = 2**20) -> Store:
        made.append(Store(tmp_path, memory_bytes))
        await made[-1].start()
        return made[-1]

    yield new
    for store in made:
        await store.stop()


async def test_what_is_taken_over_outlives_its_process_until_it_is_released(new_store: Any) -> None:
    store = await new_store()
    first, second = store.write(0), store.write(1)
    store.results.take_over(JOB, [first, second])
    store.slot.release_job(JOB)
    assert [store.read(0), store.read(1), store.read(0)] == [10, 10, 10]
    store.results.delete(JOB, [first.id])
    with pytest.raises(PartitionFailed, match="released by its job"):
        store.read(0)
    assert store.read(1) == 10
    assert len(store.files()) == 1
    store.results.delete_job(JOB)
    assert store.files() == []
    await store.results.stop()
    assert store.results.memory is not None
    assert not store.results.memory.exists()


async def test_beyond_its_size_in_memory_it_is_on_disk_until_there_is_room_again(
    new_store: Any,
) -> None:
    store = await new_store(memory_bytes=1000)
    for attempt in range(3):
        store.results.take_over(JOB, [store.write(attempt)])
    in_memory = [path for path in store.files() if path.is_relative_to(store.results.memory)]
    assert len(in_memory) == 2
    assert len(store.files()) == 3
    assert [store.read(attempt) for attempt in range(3)] == [10, 10, 10]
    store.results.delete(JOB, [stored(0).id])
    store.results.take_over(JOB, [store.write(3)])
    in_memory = [path for path in store.files() if path.is_relative_to(store.results.memory)]
    assert len(in_memory) == 2


async def test_one_whose_file_has_gone_fails_its_consumers_immediately(new_store: Any) -> None:
    store = await new_store()
    written = store.write(0)
    Path(written.path).unlink()
    store.results.take_over(JOB, [written])
    with pytest.raises(PartitionFailed, match="could not be taken over.*No such file"):
        store.read(0)


def test_what_a_killed_task_executor_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / "results" / JOB
    left.mkdir(parents=True)
    (left / "file").touch()
    results = Results(tmp_path, memory_bytes=1, start_server=lambda host: pytest.fail("not now"))
    results.prepare()
    assert not left.exists()
    assert results.memory is not None
    # In memory the lock of the process that has ended is free: its folder goes with the others'.
    temporary._locks.pop(results.memory).release()
    assert results.memory in temporary.sweep(temporary.SHARED_MEMORY)

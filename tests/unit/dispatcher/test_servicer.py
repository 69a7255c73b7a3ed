"""The Dispatcher's real service, and a stub for the JobMaster."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from dispatcher.core import processes
from dispatcher.core.records import JobAdded, JobAssigned, JobEnded, JobStatusChanged
from dispatcher.job_store import Fenced, JobStore
from dispatcher.results import ResultStore
from dispatcher.service import Dispatcher
from firesteel._proto import dispatcher_pb2 as pb
from firesteel._proto import (
    dispatcher_pb2_grpc,
    inspections_pb2,
    job_logs_pb2,
    job_master_pb2,
    resource_manager_pb2,
    resource_manager_pb2_grpc,
)
from firesteel.client.client import Client
from firesteel.common.checkpoints import metadata
from firesteel.common.checkpoints.fits import DISPOSABLE
from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.checkpoints.state import CompleteCheckpoint, KeyedHandle, OperatorSnapshot
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.config import Configuration
from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.job_graph import Blob, BlobKind, JobGraph
from firesteel.common.leader import FixedLeader
from firesteel.common.metrics import Registry
from firesteel.common.process import StartFailed
from firesteel.common.rpc.convert import JOB_GRAPH
from firesteel.common.rpc.server import aio_channel, bind, new_server
from firesteel.common.rpc.status import STATUS_CODES, Reason, detail_of, reason_of
from firesteel.common.service.platform import SYSTEM, Process
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError, JobFailed, JobNotFound, SubmissionRejected
from tests.job_master import job, operator_id, vertex
from tests.waiting import eventually

JOB, ENDED, SINK, MASTER = JobId("1" * 32), JobId("4" * 32), "2" * 32, JobMasterId("3" * 32)
SOON_S = 60.0


class NoProcesses:
    """A machine on which no process starts."""

    pid = os.getpid()

    async def spawn(self, argv: object, **how: object) -> Process:
        raise StartFailed("no process starts here")

    def kill(self, pid: int) -> None:
        pass


@pytest.fixture
async def dispatcher(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Dispatcher]:
    """With one job, which has a JobMaster with epoch 1, and one that has ended with rows.

    The fixture's parameter is its configuration.
    """
    ResultStore(tmp_path / "spool").append(ENDED, SINK, 1, 0, rows(7, 8))
    now_ms = time.time_ns() // 1_000_000
    store = JobStore(JobStore.sqlite_url(tmp_path))
    store.persist(
        [
            JobAdded(job_id=JOB, name="a job", graph_id=store.put_graph(b""), start_ms=1),
            JobAssigned(job_id=JOB, epoch=1, job_master_id=MASTER),
            JobStatusChanged(job_id=JOB, status=JobStatus.RUNNING),
            JobAdded(job_id=ENDED, name="ended", graph_id=store.put_graph(b""), start_ms=1),
            JobEnded(job_id=ENDED, status=JobStatus.FINISHED, end_ms=now_ms),
        ]
    )
    store.close()
    async with running(dispatcher_in(tmp_path, getattr(request, "param", {}))) as dispatcher:
        yield dispatcher


@asynccontextmanager
async def running(dispatcher: Dispatcher) -> AsyncIterator[Dispatcher]:
    await dispatcher.start()
    task = asyncio.create_task(dispatcher.run())
    try:
        yield dispatcher
    finally:
        dispatcher.stop()
        with suppress(Fenced):
            await task


def dispatcher_in(directory: Path, values: Mapping[str, str]) -> Dispatcher:
    conf = Configuration.load(overrides=dict(values))
    return Dispatcher(
        conf,
        host="127.0.0.1",
        port=0,
        directory=directory,
        resource_manager="127.0.0.1:1",
        registry=Registry.from_configuration(conf),
        platform=replace(SYSTEM, processes=NoProcesses()),
    )


def store_of(dispatcher: Dispatcher) -> JobStore:
    assert dispatcher.shell is not None
    return dispatcher.shell.store


class JobMaster:
    """Sends collected rows, and ends its job."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = dispatcher_pb2_grpc.DispatcherStub(channel)

    async def send(
        self, index: int, *values: int, restart: int = 0, epoch: int = 1, begin: bool = False
    ) -> None:
        request = pb.AppendResultsRequest(
            job_id=JOB,
            epoch=epoch,
            operator_id=SINK,
            generation=(epoch << 32) + restart,
            index=index,
            ipc_stream=b"" if begin else rows(*values),
        )
        await self._stub.AppendResults(request, timeout=SOON_S)

    async def finish(self) -> None:
        stream = await self._reporting("JOB_FINISHED")
        async with asyncio.timeout(SOON_S):
            while (await stream.read()).WhichOneof("message") != "ack":
                pass
        await stream.done_writing()

    async def die(self) -> None:
        """Ends as an orphan and without a message. Nothing listens at its port."""
        stream = await self._reporting("JOB_RUNNING")
        async with asyncio.timeout(SOON_S):
            while (await stream.read()).WhichOneof("message") != "start":
                pass
        stream.cancel()

    async def _reporting(self, status: str) -> Any:
        stream = self._stub.ConnectJobMaster()
        register = pb.JobMasterRegister(job_master_id=MASTER, address="127.0.0.1:1", pid=99)
        await stream.write(pb.JobMasterToDispatcher(register=register))
        changed = pb.JobStatusChanged(
            job_id=JOB, epoch=1, status=status, timestamp_ms=5, unadoptable=True
        )
        await stream.write(pb.JobMasterToDispatcher(status=changed))
        return stream


@pytest.fixture
async def job_master(dispatcher: Dispatcher) -> AsyncIterator[JobMaster]:
    async with aio_channel(dispatcher.address) as channel:
        yield JobMaster(channel)


@pytest.fixture
async def client(dispatcher: Dispatcher) -> AsyncIterator[Client]:
    """Yields a client whose calls block, so tests call it in separate threads."""
    with await asyncio.to_thread(Client, dispatcher.address) as client:
        yield client


def rows(*values: int) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"value": pa.array(values, pa.int64())})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@contextmanager
def refused(reason: Reason, text: str) -> Iterator[None]:
    with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
        yield
    assert reason_of(caught.value) is reason
    assert caught.value.code() is STATUS_CODES[reason]


def values_of(table: pa.Table) -> list[int]:
    values: list[int] = table["value"].to_pylist()
    return values


async def test_collected_rows_reach_the_client_once(client: Client, job_master: JobMaster) -> None:
    await job_master.send(0, 1, 2)
    await job_master.send(0, 1, 2)  # its answer was lost
    await job_master.send(1, 3)
    await job_master.finish()
    table = await asyncio.to_thread(client.fetch_table, JOB, SINK)
    assert values_of(table) == [1, 2, 3]


async def test_rows_of_a_job_that_starts_over_reach_the_client_once(
    client: Client, job_master: JobMaster
) -> None:
    await job_master.send(0, 1, 2)
    table = asyncio.create_task(asyncio.to_thread(client.fetch_table, JOB, SINK))
    await job_master.send(0, begin=True, restart=1)
    await job_master.send(0, 1, restart=1)
    await job_master.send(1, 2, 3, restart=1)
    await job_master.finish()
    assert values_of(await table) == [1, 2, 3]


async def test_reading_on_after_rows_that_come_again_is_an_error(
    client: Client, job_master: JobMaster
) -> None:
    await job_master.send(0, 1, 2)
    batches = client.fetch_results(JOB, SINK)
    assert (await asyncio.to_thread(next, batches)).num_rows == 2
    await job_master.send(0, begin=True, restart=1)
    with pytest.raises(FiresteelError, match="started over after 2 of its rows had been read"):
        await asyncio.to_thread(next, batches)


async def test_rows_that_are_not_the_current_job_masters_are_refused(
    job_master: JobMaster,
) -> None:
    with refused(Reason.STALE_EPOCH, "newer JobMaster than that of epoch 2"):
        await job_master.send(0, 1, epoch=2)
    with refused(Reason.CHUNK_OUT_OF_ORDER, "chunk 1 of operator .* came before chunk 0"):
        await job_master.send(1, 1)
    await job_master.send(0, 1, restart=2)
    with refused(Reason.CHUNK_OUT_OF_ORDER, "is older than"):
        await job_master.send(0, 1, restart=1)
    with refused(Reason.INVALID_REQUEST, f"generation {2 << 32} under epoch 1"):
        await job_master.send(0, 1, restart=2**32)
    await job_master.finish()
    with refused(Reason.STALE_EPOCH, f"job {JOB} is over"):
        await job_master.send(1, 2, restart=2)


@pytest.mark.parametrize("dispatcher", [{"results.max-size": "2000 b"}], indirect=True)
async def test_rows_of_an_ended_job_make_room_and_their_readers_learn_it(
    client: Client, job_master: JobMaster
) -> None:
    assert values_of(await asyncio.to_thread(client.fetch_table, ENDED, SINK)) == [7, 8]
    await job_master.send(0, *range(200))
    with pytest.raises(
        FiresteelError, match=r"are gone: .* 2000 b \(results.max-size\), and these"
    ):
        await asyncio.to_thread(client.fetch_table, ENDED, SINK)
    with refused(Reason.RESULTS_NOT_STORED, r"2000 b in all \(results.max-size\)"):
        await job_master.send(1, *range(200))
    await job_master.finish()
    rows_kept = values_of(await asyncio.to_thread(client.fetch_table, JOB, SINK))
    assert rows_kept == list(range(200)), "the client received all rows"


@pytest.mark.parametrize("dispatcher", [{"results.max-age": "1 ms"}], indirect=True)
async def test_rows_that_are_too_old_are_deleted(client: Client) -> None:
    with pytest.raises(
        FiresteelError, match=r"kept for 1 ms after the job's end \(results.max-age"
    ):
        await asyncio.to_thread(eventually, lambda: not client.fetch_table(ENDED, SINK))


async def test_a_removed_job_has_no_rows_and_says_why(client: Client) -> None:
    with pytest.raises(FiresteelError, match=f"job {JOB} .* is RUNNING: cancel it first"):
        await asyncio.to_thread(client.remove, JOB)
    await asyncio.to_thread(client.remove, ENDED)
    assert [job.job_id for job in await asyncio.to_thread(client.list_jobs)] == [JOB]
    for read in (client.fetch_table, client.fetch_results):
        with pytest.raises(JobNotFound, match=f"rows of job {ENDED} are gone: it was removed"):
            await asyncio.to_thread(lambda read=read: list(read(ENDED, SINK)))
    with pytest.raises(JobNotFound, match=f"logs of job {ENDED} are gone: it was removed"):
        await asyncio.to_thread(lambda: list(client.logs(ENDED)))


async def test_the_first_submission_after_a_start_keeps_its_graph(tmp_path: Path) -> None:
    """Graphs of former submissions, which were never accepted, are gone before it can come."""
    store = JobStore(JobStore.sqlite_url(tmp_path))
    former = store.put_graph(b"never accepted")
    store.close()
    dispatcher = dispatcher_in(tmp_path, {})
    await dispatcher.start()
    first = store_of(dispatcher).put_graph(b"about to be accepted")
    running = asyncio.create_task(dispatcher.run())
    await asyncio.sleep(0)
    dispatcher.stop()
    await running
    store = JobStore(JobStore.sqlite_url(tmp_path))
    assert [store.graph(graph_id) for graph_id in (former, first)] == [
        None,
        b"about to be accepted",
    ]
    store.close()


async def test_a_submission_to_a_replaced_dispatcher_is_for_the_next_one(
    tmp_path: Path,
) -> None:
    async with (
        running(dispatcher_in(tmp_path, {})) as dispatcher,
        aio_channel(dispatcher.address) as channel,
    ):
        JobStore(JobStore.sqlite_url(tmp_path)).close()  # the next one's
        stub: Any = dispatcher_pb2_grpc.DispatcherStub(channel)
        request = pb.SubmitJobRequest(job_graph=JOB_GRAPH.encode(job(vertex("a", 1))))
        with refused(Reason.NOT_LEADER, "has taken over the job store"):
            await stub.SubmitJob(request, timeout=SOON_S)


def submission(graph: JobGraph | None = None, **changes: Any) -> pb.SubmitJobRequest:
    return pb.SubmitJobRequest(
        job_graph=JOB_GRAPH.encode(replace(graph or job(vertex("a", 1)), **changes))
    )


UNKNOWN = "9" * 32
REFUSED: dict[str, tuple[str, Any, Reason, dict[str, str]]] = {
    "a large job": (
        "SubmitJob",
        submission(name="x" * 40_000),
        Reason.PAYLOAD_TOO_LARGE,
        {"limit_bytes": "32768"},
    ),
    "no operators": ("SubmitJob", submission(vertices=()), Reason.INVALID_REQUEST, {}),
    "a missing file": (
        "SubmitJob",
        submission(blobs=(Blob(hash=UNKNOWN, name="a.py", kind=BlobKind.FILE, size_bytes=1),)),
        Reason.BLOBS_MISSING,
        {},
    ),
    "a job that does not exist": (
        "GetJobDetails",
        job_master_pb2.JobDetailsRequest(job_id=UNKNOWN),
        Reason.JOB_NOT_FOUND,
        {"job_id": UNKNOWN},
    ),
    "the removal of a job that does not exist": (
        "RemoveJob",
        pb.RemoveJobRequest(job_id=UNKNOWN),
        Reason.JOB_NOT_FOUND,
        {"job_id": UNKNOWN},
    ),
    "the id of another job": (
        "SubmitJob",
        submission(job_id=JOB),
        Reason.JOB_EXISTS,
        {"job_id": JOB},
    ),
    "the removal of a job that runs": (
        "RemoveJob",
        pb.RemoveJobRequest(job_id=JOB),
        Reason.JOB_IN_WRONG_STATE,
        {"job_id": JOB},
    ),
    "the cancellation of a job that has ended": (
        "CancelJob",
        job_master_pb2.CancelJobRequest(job_id=ENDED),
        Reason.JOB_IN_WRONG_STATE,
        {"job_id": ENDED},
    ),
    "a checkpoint of a job that has ended": (
        "TakeCheckpoint",
        job_master_pb2.TakeCheckpointRequest(job_id=ENDED),
        Reason.CHECKPOINT_NOT_TAKEN,
        {},
    ),
    "an inspection of a job that has ended": (
        "InspectTask",
        inspections_pb2.InspectTaskRequest(
            job_id=ENDED, stack_sampling=inspections_pb2.StackSampling(seconds=1)
        ),
        Reason.TASK_NOT_RUNNING,
        {},
    ),
    "an inspection that takes too long": (
        "InspectTask",
        inspections_pb2.InspectTaskRequest(
            job_id=JOB, stack_sampling=inspections_pb2.StackSampling(seconds=31)
        ),
        Reason.INVALID_REQUEST,
        {},
    ),
    "an inspection of nothing": (
        "InspectTask",
        inspections_pb2.InspectTaskRequest(job_id=JOB),
        Reason.INVALID_REQUEST,
        {},
    ),
    "rows on a cluster that shows none": (
        "InspectTask",
        inspections_pb2.InspectTaskRequest(
            job_id=JOB, row_sampling=inspections_pb2.RowSampling(count=1, seconds=1)
        ),
        Reason.DISABLED,
        {},
    ),
    "threads of an unknown TaskExecutor": (
        "DumpThreads",
        inspections_pb2.DumpThreadsRequest(task_executor_id=UNKNOWN),
        Reason.RESOURCE_MANAGER_UNAVAILABLE,
        {},
    ),
    "a savepoint that does not exist": (
        "DisposeSavepoint",
        pb.DisposeSavepointRequest(path="/nowhere"),
        Reason.SAVEPOINT_NOT_DISPOSED,
        {},
    ),
    "an invalid id": (
        "MissingBlobs",
        pb.MissingBlobsRequest(hashes=["../../etc"]),
        Reason.INVALID_REQUEST,
        {},
    ),
    "a ResourceManager that does not answer": (
        "StopTaskExecutor",
        resource_manager_pb2.StopTaskExecutorRequest(task_executor_id=UNKNOWN),
        Reason.RESOURCE_MANAGER_UNAVAILABLE,
        {},
    ),
    "a file that does not exist": (
        "DownloadBlob",
        pb.DownloadBlobRequest(hash=UNKNOWN),
        Reason.BLOB_NOT_FOUND,
        {"hash": UNKNOWN},
    ),
    "a large file": (
        "UploadBlob",
        iter([pb.BlobChunk(hash=UNKNOWN, data=b"x" * 2_000)]),
        Reason.PAYLOAD_TOO_LARGE,
        {"limit_bytes": "1024"},
    ),
    "rows of an unknown operator": (
        "FetchResults",
        pb.FetchResultsRequest(job_id=ENDED, operator_id="sink"),
        Reason.INVALID_REQUEST,
        {},
    ),
}


@pytest.mark.parametrize("call", REFUSED)
@pytest.mark.parametrize(
    "dispatcher",
    [
        {
            "client.payload.max-size": "32 kb",
            "blob.max-size": "1 kb",
            "rest.sample-rows": "false",
        }
    ],
    indirect=True,
)
async def test_a_refusal_has_its_reason(dispatcher: Dispatcher, call: str) -> None:
    method, request, reason, metadata = REFUSED[call]
    async with aio_channel(dispatcher.address) as channel:
        answer = getattr(dispatcher_pb2_grpc.DispatcherStub(channel), method)(
            request, timeout=SOON_S
        )
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await (read(answer) if hasattr(answer, "read") else answer)
    found = detail_of(raised.value)
    assert found is not None
    assert found.reason is reason
    assert raised.value.code() is STATUS_CODES[reason]
    assert metadata.items() <= found.metadata.items()


async def read(answers: Any) -> None:
    async for _ in answers:
        pass


async def test_a_directory_without_checkpoints_is_a_reason(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    (tmp_path / "a file").touch()
    graph = checkpointed_job(tmp_path / "a file" / "checkpoints")
    async with aio_channel(dispatcher.address) as channel:
        stub: Any = dispatcher_pb2_grpc.DispatcherStub(channel)
        with refused(Reason.CHECKPOINTS_UNUSABLE, "a file/checkpoints"):
            await stub.SubmitJob(submission(graph), timeout=SOON_S)


async def test_options_that_contradict_each_other_are_refused(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    without_directory = checkpointed_job(tmp_path)
    del without_directory.config["execution.checkpointing.dir"]
    unaligned = checkpointed_job(tmp_path)
    unaligned.config["execution.checkpointing.unaligned.enabled"] = "true"
    unaligned.config["execution.checkpointing.max-concurrent-checkpoints"] = "2"
    async with aio_channel(dispatcher.address) as channel:
        stub: Any = dispatcher_pb2_grpc.DispatcherStub(channel)
        with refused(Reason.INVALID_REQUEST, "set the directory for checkpoints"):
            await stub.SubmitJob(submission(without_directory), timeout=SOON_S)
        with refused(Reason.INVALID_REQUEST, "2 is not possible"):
            await stub.SubmitJob(submission(unaligned), timeout=SOON_S)


async def test_the_rows_and_lines_of_a_removed_job_are_gone_for_a_reason(
    dispatcher: Dispatcher,
) -> None:
    async with aio_channel(dispatcher.address) as channel:
        stub: Any = dispatcher_pb2_grpc.DispatcherStub(channel)
        await stub.RemoveJob(pb.RemoveJobRequest(job_id=ENDED), timeout=SOON_S)
        with refused(Reason.JOB_DATA_GONE, "rows .* are gone"):
            await read(stub.FetchResults(pb.FetchResultsRequest(job_id=ENDED, operator_id=SINK)))
        with refused(Reason.JOB_DATA_GONE, "logs .* are gone"):
            await read(stub.FetchLogs(job_logs_pb2.ReadJobLogsRequest(job_id=ENDED)))


async def test_a_stream_that_watches_ends_when_the_dispatcher_stops(tmp_path: Path) -> None:
    store = JobStore(JobStore.sqlite_url(tmp_path))
    store.persist([JobAdded(job_id=JOB, name="a", graph_id=store.put_graph(b""), start_ms=1)])
    store.close()
    async with (
        running(dispatcher_in(tmp_path, {})) as dispatcher,
        aio_channel(dispatcher.address) as channel,
    ):
        stub: Any = dispatcher_pb2_grpc.DispatcherStub(channel)
        request = job_master_pb2.JobDetailsRequest(job_id=JOB)
        watching = aiter(stub.WatchJob(request, timeout=SOON_S))
        await anext(watching)
        dispatcher.stop()
        with refused(Reason.SHUTTING_DOWN, "the Dispatcher is stopping"):
            await read(watching)


async def test_a_checkpoint_is_stored_for_the_current_job_master_only(
    dispatcher: Dispatcher, job_master: JobMaster
) -> None:
    checkpoint = pb.CompleteCheckpoint(checkpoint_id=5, path="/d/chk-5", completed_ms=9)
    request = pb.CommitCheckpointRequest(job_id=JOB, epoch=1, checkpoint=checkpoint)
    for _ in range(2):
        await job_master._stub.CommitCheckpoint(request, timeout=SOON_S)
    assert [c.checkpoint_id for c in store_of(dispatcher).checkpoints(JOB)] == [5]
    stale = pb.CommitCheckpointRequest(job_id=JOB, epoch=2, checkpoint=checkpoint)
    with refused(Reason.STALE_EPOCH, "newer JobMaster than that of epoch 2"):
        await job_master._stub.CommitCheckpoint(stale, timeout=SOON_S)
    with store_of(dispatcher)._engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE checkpoints RENAME TO elsewhere")
    with refused(Reason.STORE_UNAVAILABLE, "job store cannot be written .*checkpoints"):
        await job_master._stub.CommitCheckpoint(request, timeout=SOON_S)


def checkpointed_job(directory: Path, **configuration: str) -> JobGraph:
    graph = job(vertex("a", 1), vertex("b", 1))
    keys = {name.replace("__", ".").replace("_", "-"): v for name, v in configuration.items()}
    graph.config.update(
        {
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.dir": str(directory),
            **keys,
        }
    )
    return graph


async def test_a_directory_that_cannot_be_written_is_refused_at_submission(
    client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(
        SubmissionRejected, match=r"cannot be written \(execution.checkpointing.dir"
    ):
        await asyncio.to_thread(client.submit, checkpointed_job(file / "below"))
    assert JOB in [job.job_id for job in await asyncio.to_thread(client.list_jobs)]


async def test_what_cannot_be_restored_is_refused_at_submission(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(name: str, operator: str = "a", uid: str = "") -> str:
        (tmp_path / name).mkdir()
        file = CheckpointStorage(str(tmp_path / name)).write("state", [b"some state"])
        state = OperatorSnapshot(
            operator_id=operator_id(operator),
            keyed=(KeyedHandle(file=file, slices=()),),
            lists={"l": (b"x",)},
        )
        found = CheckpointedOperator(
            operator_id=operator_id(operator),
            uid=uid,
            name=operator,
            parallelism=1,
            max_parallelism=128,
            subtasks={0: state},
        )
        content = metadata.encode(
            metadata.CheckpointMetadata(
                checkpoint_id=7,
                job_id=JOB,
                job_name="a job",
                timestamp_ms=1,
                savepoint=True,
                operators=(found,),
            )
        )
        (tmp_path / name / "_metadata").write_bytes(content)
        return str(tmp_path / name)

    good, other = write("good"), write("other", "gone", uid="u")
    cut = Path(write("cut")) / "_metadata"
    cut.write_bytes(cut.read_bytes()[:-1])
    lacking, short = write("lacking"), write("short")
    (Path(lacking) / "state").unlink()
    (Path(short) / "state").write_bytes(b"some")
    monkeypatch.setattr(metadata, "VERSION", 99)
    newer = write("newer")
    monkeypatch.undo()
    for number in (9, 10, 11, 12):
        write(f"chk-{number}")
    for path, problem in {
        str(tmp_path): r"is not itself .*; in it there are chk-10, chk-11, chk-12: name one",
        str(tmp_path / "none"): r"none' cannot be restored: .*No such file.* Name the directory",
        str(cut): r"is cut short or damaged",
        lacking: r"the file state of .*lacking is missing",
        short: r"state of .*short is not whole: 10 bytes were written, and 4 are there",
        newer: r"has format 99; this version of Firesteel reads up to",
        other: r"state of 'gone' \(uid u\), which the program has not; .*'a' \(without a uid\)",
    }.items():
        graph = checkpointed_job(tmp_path / "c", execution__state_recovery__path=path)
        with pytest.raises(SubmissionRejected, match=problem):
            await asyncio.to_thread(client.submit, graph)
    graph = checkpointed_job(tmp_path / "c", execution__state_recovery__path=good)
    del graph.config["execution.checkpointing.interval"]
    with pytest.raises(SubmissionRejected, match="must also take checkpoints: set"):
        await asyncio.to_thread(client.submit, graph)
    unmatched = {"execution__state_recovery__ignore_unclaimed_state": "true"}
    disposable = write("disposable", "gone", uid=f"{DISPOSABLE}metrics")
    accepted = ((f"{good}/_metadata", unmatched), (other, unmatched), (disposable, {}))
    for number, (path, more) in enumerate(accepted):
        recovery = {"execution__state_recovery__path": path, **more}
        graph = checkpointed_job(tmp_path / "c", **recovery)
        await asyncio.to_thread(client.submit, replace(graph, job_id=JobId(f"{number:032x}")))


async def test_a_job_master_whose_port_is_closed_has_ended(
    client: Client, job_master: JobMaster
) -> None:
    await job_master.die()
    with pytest.raises(JobFailed, match=r"JobMaster process \(pid 99\) ended with its port closed"):
        await asyncio.wait_for(asyncio.to_thread(client.wait, JOB), SOON_S)


class Draining(resource_manager_pb2_grpc.ResourceManagerServicer):
    """Waits for a TaskExecutor's tasks until it stops itself, which cancels the call."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()

    async def StopTaskExecutor(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield resource_manager_pb2.StopTaskExecutorProgress()
        await self.stopping.wait()
        await context.abort(grpc.StatusCode.CANCELLED, "")


async def test_a_drain_reports_a_resource_manager_that_stops(
    client: Client, dispatcher: Dispatcher
) -> None:
    assert dispatcher.shell is not None
    resource_manager, server = Draining(), new_server([])
    resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(  # type: ignore[no-untyped-call]
        resource_manager, server
    )
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    dispatcher.shell._resource_manager = FixedLeader(address)
    draining = client.stop_task_executor("5" * 32, drain=True)
    await asyncio.to_thread(next, draining)
    dispatcher.shell._resource_manager = FixedLeader("127.0.0.1:2")  # the next one leads
    resource_manager.stopping.set()
    with pytest.raises(
        FiresteelError, match=f"ResourceManager at {address} does not answer: the TaskExecutor"
    ):
        await asyncio.to_thread(next, draining)
    await server.stop(0)


async def test_a_savepoint_needs_a_job_master(client: Client) -> None:
    with pytest.raises(FiresteelError, match=f"job {JOB} is RUNNING and has no JobMaster yet"):
        await asyncio.to_thread(client.savepoint, JOB)


async def test_only_savepoints_that_no_job_needs_are_deleted(
    client: Client, dispatcher: Dispatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STARTS_BEFORE_GIVING_UP", sys.maxsize)  # its jobs do not end

    def directory(name: str, *, savepoint: bool) -> str:
        content = metadata.encode(
            metadata.CheckpointMetadata(
                checkpoint_id=7,
                job_id=JOB,
                job_name="a job",
                timestamp_ms=1,
                savepoint=savepoint,
                operators=(),
            )
        )
        (tmp_path / name / "chk-7").mkdir(parents=True)
        (tmp_path / name / "_metadata").write_bytes(content)
        return str(tmp_path / name)

    needed, unknown = directory("needed", savepoint=True), directory("unknown", savepoint=True)
    store_of(dispatcher).commit_checkpoint(
        JOB, 1, CompleteCheckpoint(checkpoint_id=7, savepoint=True, path=needed), []
    )
    for path, problem in {
        needed: f"job {JOB} would restart from",
        directory("checkpoint", savepoint=False): "is a checkpoint, not a savepoint",
        str(tmp_path / "spool"): "_metadata",
    }.items():
        with pytest.raises(FiresteelError, match=problem):
            await asyncio.to_thread(client.dispose_savepoint, path)
        assert Path(path).exists()
    graph = checkpointed_job(tmp_path / "c", execution__state_recovery__path=unknown)
    await asyncio.to_thread(client.submit, graph)
    mixed = directory("mixed", savepoint=True)
    (tmp_path / "mixed" / "mine.txt").touch()
    for path, problem in {
        unknown: f"job {graph.job_id} would restart from",
        mixed: r"do not belong to the savepoint, such as mine.txt: nothing was deleted",
    }.items():
        with pytest.raises(FiresteelError, match=problem):
            await asyncio.to_thread(client.dispose_savepoint, path)
        assert (Path(path) / "_metadata").exists()
    await asyncio.to_thread(client.cancel, graph.job_id)
    await asyncio.to_thread(client.dispose_savepoint, unknown)
    assert not Path(unknown).exists()

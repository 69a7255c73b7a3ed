"""The real process, `python -m jobmaster`, between a stub Dispatcher, a stub ResourceManager and
stub TaskExecutors.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    job_master_pb2,
    job_master_pb2_grpc,
    resource_manager_pb2,
    resource_manager_pb2_grpc,
    tasks_pb2,
)
from firesteel.common.checkpoints.metadata import CheckpointMetadata, encode
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.job_graph import JobGraph
from firesteel.common.process import Child, spawn
from firesteel.common.rpc.bearer import carry_token
from firesteel.common.rpc.convert import JOB_GRAPH, PROFILE
from firesteel.common.rpc.server import aio_channel, bind, new_server
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.security.roles import Role
from firesteel.common.states import JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.convert import (
    HISTORY,
    brief_history,
    restart_history_from_json,
    restart_history_to_json,
)
from jobmaster.core.execution_graph.vertex import StatusChange
from jobmaster.core.failover.exceptions import Failure
from jobmaster.core.failover.restart_strategy import RestartHistory
from tests.credentials import folder
from tests.job_master import SLOT_PROFILE, job, operator_id, vertex
from tests.object_store import ObjectStore
from tests.waiting import until

EPOCH = 7
TIMEOUT_S = 60.0


class StubDispatcher(dispatcher_pb2_grpc.DispatcherServicer):
    def __init__(self) -> None:
        self.received: asyncio.Queue[dispatcher_pb2.JobMasterToDispatcher] = asyncio.Queue()
        self.outbox: asyncio.Queue[dispatcher_pb2.DispatcherToJobMaster] = asyncio.Queue()
        self.appended: list[dispatcher_pb2.AppendResultsRequest] = []

    async def AppendResults(
        self, request: dispatcher_pb2.AppendResultsRequest, context: Any
    ) -> dispatcher_pb2.AppendResultsResponse:
        self.appended.append(request)
        return dispatcher_pb2.AppendResultsResponse()

    async def ConnectJobMaster(self, request_iterator: Any, context: Any) -> None:
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            while True:
                await context.write(await self.outbox.get())
        finally:
            reader.cancel()

    async def _read(self, request_iterator: Any) -> None:
        async for message in request_iterator:
            self.received.put_nowait(message)

    async def until(self, status: int) -> dispatcher_pb2.JobStatusChanged:
        while True:
            message = await asyncio.wait_for(self.received.get(), TIMEOUT_S)
            if message.HasField("status") and message.status.status == status:
                return message.status


class StubResourceManager(resource_manager_pb2_grpc.ResourceManagerServicer):
    def __init__(self) -> None:
        self.received: asyncio.Queue[resource_manager_pb2.JobMasterToResourceManager] = (
            asyncio.Queue()
        )

    async def ConnectJobMaster(self, request_iterator: Any, context: Any) -> None:
        registered = resource_manager_pb2.Registered()
        await context.write(
            resource_manager_pb2.ResourceManagerToJobMaster(
                resource_manager_epoch=1, registered=registered
            )
        )
        async for message in request_iterator:
            self.received.put_nowait(message)

    async def declared(self) -> list[int]:
        """The counts of the next declaration."""
        while True:
            message = await asyncio.wait_for(self.received.get(), TIMEOUT_S)
            if message.HasField("declare"):
                return [requirement.count for requirement in message.declare.requirements]


class StubTaskExecutor:
    """One stream to the JobMaster; the test decides what it sends."""

    def __init__(self, channel: grpc.aio.Channel, job_id: str, epoch: int = EPOCH) -> None:
        self._job_id, self._epoch = job_id, epoch
        self.stream = job_master_pb2_grpc.JobMasterStub(channel).ConnectTaskExecutor()

    async def send(self, **fields: Any) -> None:
        message = job_master_pb2.TaskExecutorToJobMaster(
            job_id=self._job_id, job_master_epoch=self._epoch, **fields
        )
        await self.stream.write(message)

    async def receive(self, kind: str) -> Any:
        """The next message of this kind."""
        while True:
            message = await asyncio.wait_for(self.stream.read(), TIMEOUT_S)
            assert message is not grpc.aio.EOF, f"the stream ended before {kind}"  # type: ignore[attr-defined]
            if message.WhichOneof("message") == kind:
                return getattr(message, kind)

    async def bring_slots(self, count: int) -> None:
        await self.send(
            hello=job_master_pb2.TaskExecutorHello(task_executor_id="te-1", host="localhost")
        )
        self.slots = [
            job_master_pb2.SlotOffer(
                allocation_id=f"{number:032x}",
                slot_index=number,
                profile=PROFILE.encode(SLOT_PROFILE),
                executor_id=f"{number:032x}",
                data_address=f"127.0.0.1:{40000 + number}",
            )
            for number in range(count)
        ]
        await self.send(offer_slots=job_master_pb2.OfferSlots(slots=self.slots))
        answer = await self.receive("slots_answer")
        assert len(answer.accepted) == count

    async def analyze(self) -> tasks_pb2.Analyze:
        request: tasks_pb2.Analyze = await self.receive("analyze")
        schemas = [
            tasks_pb2.OperatorSchema(
                operator_id=o.operator_id, schema=b"schema", plan="Scan", repeatable=True
            )
            for v in request.job_graph.vertices
            for o in v.operators
        ]
        await self.send(
            analyze_result=tasks_pb2.AnalyzeResult(job_id=self._job_id, schemas=schemas)
        )
        return request

    async def report(self, submit: tasks_pb2.SubmitTasks, *states: Any, **fields: Any) -> None:
        for state in states:
            changes = [
                tasks_pb2.TaskStateChange(attempt_id=t.attempt_id, state=state, **fields)
                for t in submit.tasks
            ]
            await self.send(
                task_states=tasks_pb2.TaskStateChanges(job_id=self._job_id, updates=changes)
            )


class Cluster:
    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.dispatcher = StubDispatcher()
        self.resource_manager = StubResourceManager()
        self.process: Child
        self.address = ""  # of the stubs
        self.register = dispatcher_pb2.JobMasterRegister()

    async def start_job(
        self,
        graph: JobGraph,
        checkpoints: Sequence[dispatcher_pb2.CompleteCheckpoint] = (),
        restart_history: str = "",
        **earlier: Any,
    ) -> None:
        start = dispatcher_pb2.StartJob(
            job_graph=JOB_GRAPH.encode(graph),
            epoch=EPOCH,
            resource_manager_address=self.address,
            dispatcher_address=self.address,
            checkpoints=checkpoints,
            restart_history=restart_history,
            **earlier,
        )
        self.dispatcher.outbox.put_nowait(dispatcher_pb2.DispatcherToJobMaster(start=start))

    async def acknowledge(self, status: int) -> None:
        ack = dispatcher_pb2.StatusAck(status=status)  # type: ignore[arg-type]
        self.dispatcher.outbox.put_nowait(dispatcher_pb2.DispatcherToJobMaster(ack=ack))

    def channel(self, role: Role = Role.TASK_EXECUTOR) -> grpc.aio.Channel:
        channel = aio_channel(self.register.address)
        token = folder().issuer().issue("test", role, valid_s=600)
        carry_token(channel, lambda: token)
        return channel


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    server = new_server([])
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(cluster.dispatcher, server)
    resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(
        cluster.resource_manager, server
    )
    cluster.address = bind(server, "127.0.0.1", 0)
    await server.start()
    argv = [
        sys.executable,
        "-m",
        "jobmaster",
        "--dispatcher",
        cluster.address,
        "-D",
        "metrics.reporter.prom.port=0",
    ]
    cluster.process = await spawn(argv, log_path=tmp_path / "jobmaster.log")
    registered = await asyncio.wait_for(cluster.dispatcher.received.get(), TIMEOUT_S)
    cluster.register = registered.register
    yield cluster
    await cluster.process.stop()
    await server.stop(None)
    log = (tmp_path / "jobmaster.log").read_text()
    assert "Traceback" not in log, log


async def test_a_job_from_start_to_goodbye(cluster: Cluster) -> None:
    graph = job(vertex("a", 2), vertex("b", 2, coordinator=("collect", {})))
    await cluster.start_job(graph)
    assert await cluster.resource_manager.declared() == [2]
    async with cluster.channel() as channel:
        executor = StubTaskExecutor(channel, graph.job_id)
        await executor.bring_slots(2)
        request = await executor.analyze()
        assert request.dispatcher_address == cluster.address
        submit = await executor.receive("submit")
        assert len(submit.tasks) == 4
        assert submit.dispatcher_address == cluster.address
        assert [list(v.output_schemas) for v in submit.vertices] == [[b"schema"], [b"schema"]]
        locations = tasks_pb2.ResultLocations.FromString(submit.locations[0])
        assert (list(locations.addresses), list(locations.address_index)) == (
            ["127.0.0.1:40000", "127.0.0.1:40001"],
            [0, 1],
        )
        await executor.report(submit, common_pb2.TASK_INITIALIZING, common_pb2.TASK_RUNNING)
        while (await cluster.dispatcher.until(common_pb2.JOB_RUNNING)).tasks_by_state != {
            "RUNNING": 4
        }:
            pass

        sink = next(task for task in submit.tasks if task.vertex_id == graph.vertices[1].vertex_id)
        chunk = tasks_pb2.OperatorEvent(
            job_id=graph.job_id,
            operator_id=operator_id("b"),
            attempt_id=sink.attempt_id,
            collect_chunk=tasks_pb2.ChunkCollected(sequence=0, ipc_stream=b"rows"),
        )
        await executor.send(operator_event=chunk)
        assert (
            await executor.receive("operator_event")
        ).collect_ack == tasks_pb2.ChunkAcknowledged(sequence=0)
        begun, appended = cluster.dispatcher.appended
        assert (begun.generation, begun.ipc_stream) == (EPOCH << 32, b"")
        assert (appended.epoch, appended.generation, appended.index) == (EPOCH, EPOCH << 32, 0)
        assert (appended.operator_id, appended.ipc_stream) == (operator_id("b"), b"rows")

        async with cluster.channel(Role.DISPATCHER) as dispatcher:
            details = await job_master_pb2_grpc.JobMasterStub(dispatcher).GetJobDetails(
                job_master_pb2.JobDetailsRequest(job_id=graph.job_id)
            )
        assert [len(v.subtasks) for v in details.vertices] == [2, 2]
        attempt = details.vertices[0].subtasks[0].attempts[0]
        assert sorted(attempt.entered_ms) == [0, 1, 2, 3, 4]
        assert (attempt.host, attempt.task_executor_id) == ("localhost", "te-1")
        assert details.vertices[0].operators[0].plan == "Scan"

        await executor.report(
            submit,
            common_pb2.TASK_FINISHED,
            metrics=common_pb2.TaskMetrics(attempt_id=sink.attempt_id, records_in=5),
        )
        final = await cluster.dispatcher.until(common_pb2.JOB_FINISHED)
        assert final.tasks_by_state == {"FINISHED": 4}
        assert final.final_details.vertices[1].subtasks[0].attempts[0].metrics.records_in == 5
        await executor.receive("free_slots")
        await executor.receive("goodbye")
        assert await executor.stream.read() is grpc.aio.EOF  # type: ignore[attr-defined]
    while await cluster.resource_manager.declared() != []:
        pass
    await cluster.acknowledge(common_pb2.JOB_FINISHED)
    assert await asyncio.wait_for(cluster.process.wait(), TIMEOUT_S) == 0


async def test_a_missing_source_path_fails_the_job_naming_it(cluster: Cluster) -> None:
    await cluster.start_job(
        job(
            vertex(
                "src", 1, coordinator=("file-source", {"paths": [f"{cluster.tmp_path}/none/*.csv"]})
            )
        )
    )
    final = await cluster.dispatcher.until(common_pb2.JOB_FAILED)
    assert "none/*.csv' matches no file" in final.final_details.exceptions[0].summary
    assert final.final_details.exceptions[0].timestamp_ms > 0


async def test_a_bad_option_of_the_job_fails_it_naming_the_option(cluster: Cluster) -> None:
    graph = job(vertex("a", 1))
    graph.config["slot.request.timeout"] = "soon"
    await cluster.start_job(graph)
    final = await cluster.dispatcher.until(common_pb2.JOB_FAILED)
    assert "slot.request.timeout" in final.final_details.exceptions[0].summary
    await cluster.acknowledge(common_pb2.JOB_FAILED)
    assert await asyncio.wait_for(cluster.process.wait(), TIMEOUT_S) == 0


async def test_an_unreadable_checkpoint_fails_the_job_and_nothing_is_deleted(
    cluster: Cluster,
) -> None:
    """An older one is there, and is not taken instead."""
    graph = job(vertex("a", 1))
    graph.config["execution.checkpointing.interval"] = "1 s"
    graph.config["execution.checkpointing.dir"] = str(cluster.tmp_path / "checkpoints")
    paths = [cluster.tmp_path / "checkpoints" / name for name in ("chk-1", "chk-2")]
    for path in paths:
        path.mkdir(parents=True)
        (path / "_metadata").write_bytes(b"damaged")
    checkpoints = [
        dispatcher_pb2.CompleteCheckpoint(checkpoint_id=number, path=str(path))
        for number, path in enumerate(paths, 1)
    ]
    await cluster.start_job(graph, checkpoints)
    final = await cluster.dispatcher.until(common_pb2.JOB_FAILED)
    assert (
        "checkpoint 2, its latest, cannot be restored" in final.final_details.exceptions[0].summary
    )
    assert final.keeps_checkpoints
    await cluster.acknowledge(common_pb2.JOB_FAILED)
    assert await asyncio.wait_for(cluster.process.wait(), TIMEOUT_S) == 0
    assert [path.exists() for path in paths] == [True, True]


async def test_a_job_waits_for_the_store_that_has_its_checkpoint(
    object_store: ObjectStore, cluster: Cluster
) -> None:
    graph = job(vertex("a", 1))
    directory = object_store.uri("waits")
    graph.config["execution.checkpointing.interval"] = "1 s"
    graph.config["execution.checkpointing.dir"] = directory
    metadata = CheckpointMetadata(
        checkpoint_id=2,
        job_id=graph.job_id,
        job_name=graph.name,
        timestamp_ms=5,
        savepoint=False,
        operators=(),
    )
    found = CheckpointStorage(directory).at(graph.job_id).at("chk-2")
    found.write("_metadata", [encode(metadata)])
    log = cluster.tmp_path / "jobmaster.log"
    object_store.stop()
    try:
        await cluster.start_job(
            graph, [dispatcher_pb2.CompleteCheckpoint(checkpoint_id=2, path=found.uri)]
        )
        await until(lambda: "checkpoint cannot be read; retrying" in log.read_text())
    finally:
        object_store.start()
    assert await cluster.resource_manager.declared() == [1], "the job runs"


async def test_a_cancel_ends_the_tasks_and_a_stale_stream_is_refused(cluster: Cluster) -> None:
    graph = job(vertex("a", 1))
    await cluster.start_job(graph)
    await cluster.resource_manager.declared()  # it has the job
    async with cluster.channel() as channel:
        stale = StubTaskExecutor(channel, graph.job_id, epoch=EPOCH - 1)
        await stale.send(hello=job_master_pb2.TaskExecutorHello(task_executor_id="old"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stale.stream.read()
        assert reason_of(refused.value) is Reason.NOT_RESPONSIBLE
        executor = StubTaskExecutor(channel, graph.job_id)
        await executor.bring_slots(1)
        await executor.analyze()
        submit = await executor.receive("submit")
        async with cluster.channel(Role.DISPATCHER) as dispatcher:
            await job_master_pb2_grpc.JobMasterStub(dispatcher).CancelJob(
                job_master_pb2.CancelJobRequest(job_id=graph.job_id)
            )
        assert list((await executor.receive("cancel")).attempt_ids) == [submit.tasks[0].attempt_id]
        await executor.report(submit, common_pb2.TASK_CANCELED)
        await cluster.dispatcher.until(common_pb2.JOB_CANCELED)


async def test_a_split_lost_with_its_stream_is_assigned_again_on_the_next(cluster: Cluster) -> None:
    graph = job(
        vertex("src", 1, coordinator=("sequence-source", {"start": 0, "end": 20, "split_rows": 10}))
    )
    await cluster.start_job(graph)
    await cluster.resource_manager.declared()  # it has the job
    async with cluster.channel() as channel:
        executor = StubTaskExecutor(channel, graph.job_id)
        await executor.bring_slots(1)
        await executor.analyze()
        submit = await executor.receive("submit")
        await executor.report(submit, common_pb2.TASK_INITIALIZING, common_pb2.TASK_RUNNING)
        request = tasks_pb2.OperatorEvent(
            job_id=graph.job_id,
            operator_id=operator_id("src"),
            attempt_id=submit.tasks[0].attempt_id,
            request_split=tasks_pb2.SplitRequested(received=0),
        )
        await executor.send(operator_event=request)
        await cluster.dispatcher.until(common_pb2.JOB_RUNNING)
        executor.stream.cancel()  # the answer goes with it

        again = StubTaskExecutor(channel, graph.job_id)
        await again.send(
            hello=job_master_pb2.TaskExecutorHello(
                task_executor_id="te-1",
                host="localhost",
                slots=[executor.slots[0]],
                tasks=[
                    tasks_pb2.TaskStateChange(
                        attempt_id=request.attempt_id, state=common_pb2.TASK_RUNNING
                    )
                ],
                places={request.attempt_id: job_master_pb2.TaskPlace()},
            )
        )
        assert (await again.receive("operator_event")).WhichOneof("message") == "resend"
        await again.send(operator_event=request)
        answer = (await again.receive("operator_event")).assign_split
        assert (answer.number, json.loads(answer.split_json)) == (0, {"start": 0, "end": 10})
        request.request_split.received = 1
        await again.send(operator_event=request)
        assert json.loads((await again.receive("operator_event")).assign_split.split_json) == {
            "start": 10,
            "end": 20,
        }


async def test_a_job_keeps_its_start_and_its_failures_under_several_job_masters(
    cluster: Cluster,
) -> None:
    statuses = [StatusChange(JobStatus.INITIALIZING, 5)]
    statuses += [StatusChange(JobStatus.RUNNING, at_ms) for at_ms in range(10, 110)]
    failures = [
        Failure(ErrorInfo(summary="first", traceback="x" * 10**6), [ErrorInfo(summary="second")]),
        Failure(ErrorInfo(summary="third", timestamp_ms=9)),
    ]
    history = HISTORY.encode(brief_history(statuses, failures, ["a pipe"])).SerializeToString()
    assert len(history) < 10_000
    graph = job(vertex("a", 1))
    graph.config["restart-strategy.type"] = "none"
    await cluster.start_job(graph, history=history, start_ms=5)
    await cluster.resource_manager.declared()  # it has the job
    async with cluster.channel() as channel:
        executor = StubTaskExecutor(channel, graph.job_id)
        await executor.bring_slots(1)
        await executor.analyze()
        await executor.receive("submit")
        executor.stream.cancel()
    final = await asyncio.wait_for(cluster.dispatcher.until(common_pb2.JOB_FAILED), TIMEOUT_S)
    details = final.final_details
    assert "te-1 is lost" in details.exceptions[0].summary
    assert [error.summary for error in details.exceptions][1:] == ["third", "first", "second"]
    assert details.start_ms == details.entered_ms[0].timestamp_ms == 5
    assert [t.timestamp_ms for t in details.entered_ms][1:64] == list(range(47, 110))
    reported = job_master_pb2.JobHistory.FromString(final.history)
    assert [failure.primary.summary for failure in reported.failures][:2] == ["first", "third"]
    assert details.warnings == reported.warnings == ["a pipe"]


async def test_a_rejected_job_keeps_its_failures(cluster: Cluster) -> None:
    graph = job(vertex("a", 1))
    graph.config["restart-strategy.type"] = "nonsense"
    failures = [Failure(ErrorInfo(summary="an earlier one"))]
    earlier = brief_history([StatusChange(JobStatus.RUNNING, 7)], failures, ["a pipe"])
    history = HISTORY.encode(earlier)
    await cluster.start_job(graph, history=history.SerializeToString())
    final = await asyncio.wait_for(cluster.dispatcher.until(common_pb2.JOB_FAILED), TIMEOUT_S)
    assert "nonsense" in final.final_details.exceptions[0].summary
    assert final.final_details.exceptions[1].summary == "an earlier one"
    assert final.final_details.start_ms == 7
    assert final.final_details.warnings == ["a pipe"]


async def test_a_job_is_restarted_no_more_often_under_several_job_masters(
    cluster: Cluster,
) -> None:
    graph = job(vertex("a", 1))
    graph.config["restart-strategy.type"] = "fixed-delay"
    graph.config["restart-strategy.fixed-delay.attempts"] = "2"
    graph.config["restart-strategy.fixed-delay.delay"] = "0 s"
    used = restart_history_to_json(RestartHistory(used=1))
    await cluster.start_job(graph, restart_history=used)
    await cluster.resource_manager.declared()  # it has the job
    async with cluster.channel() as channel:
        executor = StubTaskExecutor(channel, graph.job_id)
        await executor.bring_slots(1)
        await executor.analyze()
        await executor.receive("submit")
        executor.stream.cancel()
        restarted = await cluster.dispatcher.until(common_pb2.JOB_RESTARTING)
        assert restart_history_from_json(restarted.restart_history).used == 2
        executor = StubTaskExecutor(channel, graph.job_id)
        await executor.bring_slots(1)
        await executor.receive("submit")
        executor.stream.cancel()
    final = await asyncio.wait_for(cluster.dispatcher.until(common_pb2.JOB_FAILED), TIMEOUT_S)
    assert "te-1 is lost" in final.final_details.exceptions[0].summary

"""The calls of the Flink Kubernetes Operator and its autoscaler, and the fields that they read.

The names are those of its AbstractFlinkService, ScalingMetricCollector and RestApiMetricsCollector.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dispatcher.rest.gateway import Gateway
from dispatcher.rest.programs import Programs
from dispatcher.rest.server import RestServer
from firesteel._proto import (
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    job_master_pb2,
    process_info_pb2,
)
from firesteel.client.job_details import (
    CLUSTER_OVERVIEW,
    JOB_DETAILS,
    JOB_OVERVIEW,
    ClusterOverview,
    JobDetails,
    JobOverview,
    StatusChange,
    TaskExecutorOverview,
    Vertex,
)
from firesteel.common.config import Configuration
from firesteel.common.leader import FixedLeader
from firesteel.common.rpc.server import bind, new_server
from firesteel.common.rpc.status import Reason, abort
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.task_metrics import TaskMetrics
from firesteel.errors import ErrorInfo
from tests.job_details import attempt, checkpoint, vertex

JOB, SOURCE, SINK, EXECUTOR = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)
TRIGGER, FAILING = "1" * 32, "2" * 32
SAVEPOINT = "s3://savepoints/savepoint-aaaaaa-0123456789ab"
CHECKPOINT = "s3://checkpoints/aaaa/chk-1"
HOST = "127.0.0.1"


def running(vertex_id: str, *inputs: str) -> Vertex:
    return vertex(
        attempt(
            number=1,
            task_executor_id=EXECUTOR,
            entered_ms={ExecutionState.CREATED: 1000, ExecutionState.RUNNING: 2000},
            metrics=TaskMetrics(records_in=10, records_out=20, busy_ms=800, idle_ms=200),
        ),
        vertex_id=vertex_id,
        input_vertex_ids=inputs,
        input_partitioners=("HASH",) * len(inputs),
    )


DETAILS = JobDetails(
    configuration={"execution.checkpointing.interval": "1 s"},
    job_id=JOB,
    name="job",
    status=JobStatus.RUNNING,
    start_ms=500,
    entered_ms=(StatusChange(JobStatus.CREATED, 500), StatusChange(JobStatus.RUNNING, 1000)),
    vertices=(running(SOURCE), running(SINK, SOURCE)),
    exceptions=(
        ErrorInfo(
            summary="ValueError: bad row",
            traceback="Traceback ...",
            timestamp_ms=3000,
            task_name="Map (1/1)",
        ),
    ),
    checkpoints=(
        checkpoint(checkpoint_id=3, state="COLLECTING"),
        checkpoint(checkpoint_id=2, path=SAVEPOINT, savepoint=True, triggered_ms=5000),
        checkpoint(checkpoint_id=1, path=CHECKPOINT, triggered_ms=5000),
    ),
)
CLUSTER = ClusterOverview(
    version="1",
    resource_manager_address=f"{HOST}:1",
    resource_manager_problem="",
    slots_total=2,
    slots_free=1,
    slots_warm=1,
    slots_missing=0,
    jobs_running=1,
    jobs_finished=0,
    jobs_canceled=0,
    jobs_failed=0,
    task_executors=(
        TaskExecutorOverview(
            task_executor_id=EXECUTOR,
            address="worker:1",
            host="worker",
            pid=1,
            slots=2,
            slots_free=1,
            slots_warm=1,
        ),
    ),
)


class StubDispatcher(dispatcher_pb2_grpc.DispatcherServicer):
    """A Dispatcher with one running job. The savepoint of the trigger `FAILING` fails."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    async def ListJobs(self, request: Any, context: Any) -> dispatcher_pb2.ListJobsResponse:
        overview = JobOverview(
            job_id=JOB,
            name="job",
            status=JobStatus.RUNNING,
            start_ms=500,
            end_ms=0,
            tasks_by_state={"RUNNING": 2},
        )
        return dispatcher_pb2.ListJobsResponse(jobs=[JOB_OVERVIEW.encode(overview)])

    async def GetJobDetails(self, request: Any, context: Any) -> Any:
        return JOB_DETAILS.encode(DETAILS)

    async def GetClusterOverview(self, request: Any, context: Any) -> Any:
        return CLUSTER_OVERVIEW.encode(CLUSTER)

    async def DescribeProcess(self, request: Any, context: Any) -> Any:
        heap = {"Status.JVM.Memory.Heap.Used": 2.0**30}
        return process_info_pb2.ProcessDescription(metrics=heap)

    async def CancelJob(self, request: Any, context: Any) -> Any:
        self.received.append(request)
        return job_master_pb2.CancelJobResponse()

    async def TakeCheckpoint(self, request: Any, context: Any) -> Any:
        self.received.append(request)
        if request.trigger_id == FAILING:
            await abort(context, Reason.CHECKPOINT_NOT_TAKEN, "the disk is full")
        return job_master_pb2.TakeCheckpointResponse(checkpoint_id=2, path=SAVEPOINT)

    async def RescaleJob(self, request: Any, context: Any) -> Any:
        self.received.append(request)
        if request.by_vertex[SOURCE] == 3:
            await abort(context, Reason.JOB_NOT_RESCALED, "1 more slot did not become available")
        return job_master_pb2.RescaleJobResponse()

    async def DisposeSavepoint(self, request: Any, context: Any) -> Any:
        self.received.append(request)
        return dispatcher_pb2.DisposeSavepointResponse()


class Client:
    def __init__(self, address: str) -> None:
        self._address = address

    async def __call__(self, route: str, body: Any = None, status: int = 200) -> Any:
        method, path = route.split(" ", 1)
        url = f"http://{self._address}/v1{path}"
        # Flink's client sends an empty object with GET.
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, json={} if body is None else body) as answer,
        ):
            assert answer.status == status, (route, await answer.text())
            return await answer.json()

    async def polled(self, path: str, trigger: str) -> Any:
        """Polls an operation as the operator does, until it has ended."""
        route = f"GET {path}/{trigger}"
        while (answer := await self(route))["status"] != {"id": "COMPLETED"}:
            assert answer["status"] == {"id": "IN_PROGRESS"}
            await asyncio.sleep(0)
        return answer["operation"]


@dataclass
class Served:
    client: Client
    dispatcher: StubDispatcher


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    dispatcher, server = StubDispatcher(), new_server(())
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(dispatcher, server)  # type: ignore[no-untyped-call]
    gateway = Gateway(FixedLeader(bind(server, HOST, 0)), None)
    await server.start()
    rest = RestServer(gateway, None, Programs(tmp_path, Configuration()))
    await rest.start(socket.create_server((HOST, 0)))
    yield Served(Client(rest.address), dispatcher)
    await rest.stop()
    await server.stop(grace=None)


def fields(answer: Any, path: str = "") -> dict[str, Any]:
    """Returns the leaves of an answer by their paths; of lists, those of the first element."""
    match answer:
        case dict() if answer:
            parts = [fields(value, f"{path}.{name}") for name, value in answer.items()]
            return {name: value for part in parts for name, value in part.items()}
        case [first, *_]:
            return fields(first, f"{path}[]")
        case _:
            return {path.lstrip("."): answer}


# By call: the fields that the operator reads, with their values or types.
READ: dict[str, dict[str, Any]] = {
    "GET /config": {"flink-version": "2.3.0", "flink-revision": str},
    "GET /jobs/overview": {
        "jobs[].jid": JOB,
        "jobs[].name": "job",
        "jobs[].state": "RUNNING",
        "jobs[].start-time": 500,
        "jobs[].end-time": -1,
        "jobs[].duration": int,
        "jobs[].last-modification": int,
        "jobs[].tasks.total": 2,
        "jobs[].tasks.running": 2,
        "jobs[].pending-operators": int,
    },
    f"GET /jobs/{JOB}/execution-result": {"status.id": "IN_PROGRESS"},
    "GET /taskmanagers": {"taskmanagers[].id": EXECUTOR, "taskmanagers[].slotsNumber": 2},
    f"GET /jobs/{JOB}/exceptions?maxExceptions=5": {
        "exceptionHistory.entries[].exceptionName": "ValueError",
        "exceptionHistory.entries[].stacktrace": "Traceback ...",
        "exceptionHistory.entries[].timestamp": 3000,
        "exceptionHistory.entries[].taskName": "Map (1/1)",
        "exceptionHistory.entries[].failureLabels": {},
        "exceptionHistory.truncated": False,
    },
    f"GET /jobs/{JOB}/checkpoints": {
        "counts.in_progress": int,
        "counts.completed": int,
        "latest.completed.id": 1,
        "latest.completed.external_path": CHECKPOINT,
        "latest.completed.trigger_timestamp": 5000,
        "latest.savepoint.external_path": SAVEPOINT,
    },
    f"GET /jobs/{JOB}/checkpoints/details/2": {
        "id": 2,
        "status": "COMPLETED",
        "is_savepoint": True,
        "external_path": SAVEPOINT,
    },
    f"GET /jobs/{JOB}/checkpoints/details/3": {"id": 3, "status": "IN_PROGRESS"},
    f"GET /jobs/{JOB}/metrics?get=numRestarts": {"[].id": "numRestarts", "[].value": str},
    # The autoscaler
    f"GET /jobs/{JOB}": {
        "jid": JOB,
        "state": "RUNNING",
        "timestamps.RUNNING": 1000,
        "maxParallelism": 128,
        "vertices[].id": SOURCE,
        "vertices[].slotSharingGroupId": re.compile("[0-9a-f]{32}"),
        "vertices[].maxParallelism": 128,
        "vertices[].parallelism": 1,
        "vertices[].status": "RUNNING",
        "vertices[].metrics.read-records": int,
        "vertices[].metrics.write-records": int,
        "plan.jid": JOB,
        "plan.nodes[].id": SOURCE,
        "plan.nodes[].description": str,
    },
    f"GET /jobs/{JOB}/vertices/{SINK}/subtasks/metrics": {"[].id": str},
    f"GET /jobs/{JOB}/vertices/{SINK}/subtasks/metrics?get=busyTimeMsPerSecond": {
        "[].id": "busyTimeMsPerSecond",
        "[].min": float,
        "[].max": float,
        "[].avg": float,
        "[].sum": float,
    },
    "GET /jobmanager/metrics?get=taskSlotsTotal,taskSlotsAvailable": {
        "[].id": "taskSlotsTotal",
        "[].value": "2",
    },
    "GET /taskmanagers/metrics?get=Status.JVM.Memory.Heap.Used": {
        "[].id": "Status.JVM.Memory.Heap.Used",
    },
    f"GET /jobs/{JOB}/resource-requirements": {f"{SOURCE}.parallelism.upperBound": 1},
}


@pytest.mark.parametrize("call", READ)
async def test_the_operator_finds_the_fields_that_it_reads(served: Served, call: str) -> None:
    found = fields(await served.client(call))
    for name, expected in READ[call].items():
        assert name in found, (name, sorted(found))
        value = found[name]
        if isinstance(expected, re.Pattern):
            assert expected.fullmatch(value), name
        elif isinstance(expected, type):
            assert isinstance(value, expected if expected is not float else (int, float)), name
            assert not isinstance(value, bool), name
        else:
            assert value == expected, name


async def test_inputs_of_the_plan_name_their_vertices(served: Served) -> None:
    nodes = (await served.client(f"GET /jobs/{JOB}"))["plan"]["nodes"]
    (sink,) = [node for node in nodes if node["id"] == SINK]
    assert [(each["id"], each["ship_strategy"]) for each in sink["inputs"]] == [(SOURCE, "HASH")]


async def test_the_operator_takes_a_savepoint_and_stops_with_one(served: Served) -> None:
    client = served.client
    body = {
        "target-directory": "s3://savepoints",
        "cancel-job": False,
        "formatType": "CANONICAL",
        "triggerId": TRIGGER,
    }
    answer = await client(f"POST /jobs/{JOB}/savepoints", body, 202)
    assert answer == {"request-id": TRIGGER}
    operation = await client.polled(f"/jobs/{JOB}/savepoints", TRIGGER)
    assert operation == {"location": SAVEPOINT}
    stop = {"targetDirectory": "s3://savepoints", "drain": True, "formatType": "CANONICAL"}
    trigger = (await client(f"POST /jobs/{JOB}/stop", stop, 202))["request-id"]
    assert re.fullmatch("[0-9a-f]{32}", trigger)
    operation = await client.polled(f"/jobs/{JOB}/savepoints", trigger)
    assert operation == {"location": SAVEPOINT}
    taken, stopped = served.dispatcher.received
    assert (taken.savepoint, taken.directory, taken.stop) == (True, "s3://savepoints", False)
    assert (stopped.savepoint, stopped.stop, stopped.drain) == (True, True, True)


@pytest.mark.parametrize("route", ["/jobs/{}/savepoints", "/jobs/{}/stop"])
async def test_a_savepoint_without_a_directory_is_refused(served: Served, route: str) -> None:
    answer = await served.client(f"POST {route.format(JOB)}", {}, 400)
    assert "there is no directory for the savepoint" in answer["errors"][0]
    assert not served.dispatcher.received


async def test_the_operator_reads_why_a_savepoint_failed(served: Served) -> None:
    body = {"target-directory": "s3://savepoints", "cancel-job": False, "triggerId": FAILING}
    await served.client(f"POST /jobs/{JOB}/savepoints", body, 202)
    operation = await served.client.polled(f"/jobs/{JOB}/savepoints", FAILING)
    assert set(operation["failure-cause"]) == {"class", "stack-trace", "serialized-throwable"}
    assert "the disk is full" in operation["failure-cause"]["stack-trace"]


async def test_the_operator_takes_a_checkpoint_and_finds_its_path(served: Served) -> None:
    client = served.client
    body = {"checkpointType": "FULL", "triggerId": TRIGGER}
    await client(f"POST /jobs/{JOB}/checkpoints", body, 202)
    operation = await client.polled(f"/jobs/{JOB}/checkpoints", TRIGGER)
    assert operation == {"checkpointId": 2}
    (taken,) = served.dispatcher.received
    assert (taken.savepoint, taken.full) == (False, True)


async def test_the_operator_disposes_of_a_savepoint_and_cancels_the_job(served: Served) -> None:
    client = served.client
    body = {"savepoint-path": SAVEPOINT}
    trigger = (await client("POST /savepoint-disposal", body, 202))["request-id"]
    await client.polled("/savepoint-disposal", trigger)
    await client(f"PATCH /jobs/{JOB}?mode=cancel", status=202)
    disposed, cancelled = served.dispatcher.received
    assert (disposed.path, cancelled.job_id) == (SAVEPOINT, JOB)


async def test_the_operator_uploads_and_deletes_a_program(served: Served) -> None:
    form = aiohttp.FormData()
    form.add_field("jarfile", b"x = 1", filename="job.py", content_type="application/java-archive")
    url = f"http://{served.client._address}/v1/jars/upload"
    async with aiohttp.ClientSession() as session, session.post(url, data=form) as answer:
        uploaded = await answer.json()
    assert uploaded["status"] == "success"
    jar = uploaded["filename"].rpartition("/")[2]
    listed = fields(await served.client("GET /jars"))
    assert (listed["files[].id"], listed["files[].name"]) == (jar, "job.py")
    assert await served.client(f"DELETE /jars/{jar}") == {}


def bounds(lower: int, upper: int) -> dict[str, Any]:
    return {SOURCE: {"parallelism": {"lowerBound": lower, "upperBound": upper}}}


async def test_the_autoscaler_changes_the_parallelism(served: Served) -> None:
    route = f"PUT /jobs/{JOB}/resource-requirements"
    assert await served.client(route, bounds(1, 2)) == {}
    (request,) = served.dispatcher.received
    assert (dict(request.by_vertex), dict(request.lower_bounds)) == ({SOURCE: 2}, {SOURCE: 1})
    refused = await served.client(route, bounds(1, 3), status=409)
    assert "1 more slot" in refused["errors"][0]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (bounds(2, 1), "lowerBound <= upperBound"),
        (bounds(0, 1), "expected 1 <="),
        ({"f" * 32: bounds(1, 1)[SOURCE]}, "no vertex"),
        ({SOURCE: 2}, "parallelism"),
        ({}, "names no vertex"),
    ],
)
async def test_bad_resource_requirements_are_explained(
    served: Served, body: Any, problem: str
) -> None:
    route = f"PUT /jobs/{JOB}/resource-requirements"
    refused = await served.client(route, body, status=400)
    assert problem in refused["errors"][0]

"""Deploying 20,000 tasks (two vertices of 10,000, ALL_TO_ALL) to 100 stub TaskExecutors of 100
slots each.

The JobMaster is the real one: core, gRPC service, messages. The TaskExecutors are stubs in a
separate process, each with a real stream; they offer slots, answer Analyze, and report every
deployed task INITIALIZING, then RUNNING. Measured in the JobMaster, from the time when it has all
slots until all tasks are RUNNING.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import structlog

from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    job_master_pb2,
    job_master_pb2_grpc,
    resource_manager_pb2_grpc,
    tasks_pb2,
)
from firesteel.common.ids import AllocationId, ExecutorId, IdSource, stable_id
from firesteel.common.rpc.convert import JOB_GRAPH, PROFILE
from firesteel.common.rpc.server import aio_channel, bind, new_server
from firesteel.common.service.platform import SYSTEM
from firesteel.common.states import ExecutionState
from jobmaster.core import commands
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.settings import JobSettings
from jobmaster.paths import list_files
from jobmaster.servicer import JobMasterServicer
from jobmaster.shell import RunningJob
from tests.job_master import SLOT_PROFILE, job, vertex

TASK_EXECUTORS = 100
SLOTS = 100
EPOCH = 1
GOAL_S = 2.0
TIMEOUT_S = 60.0


class _StubResourceManager(resource_manager_pb2_grpc.ResourceManagerServicer):
    """Ignores the requirements: TaskExecutors offer their slots without a request."""

    async def ConnectJobMaster(self, request_iterator: Any, context: Any) -> None:
        async for _ in request_iterator:
            pass


class _Timed(RunningJob):
    """Records when all slots are available (analysis starts then), and the first deployment."""

    slots_at = deploy_at = 0.0

    def execute(self, command: commands.Command) -> None:
        if isinstance(command, commands.AnalyzeJob):
            self.slots_at = time.perf_counter()
        elif isinstance(command, commands.DeployTasks) and not self.deploy_at:
            self.deploy_at = time.perf_counter()
        super().execute(command)


async def measure(task_executors: int = TASK_EXECUTORS, slots: int = SLOTS) -> tuple[float, float]:
    """Returns the seconds from all slots to the first deployment, and until all tasks are
    RUNNING.
    """
    parallelism = task_executors * slots
    graph = job(vertex("producer", parallelism), vertex("consumer", parallelism))
    server = new_server([])
    servicer = JobMasterServicer()
    job_master_pb2_grpc.add_JobMasterServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(  # type: ignore[no-untyped-call]
        _StubResourceManager(), server
    )
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    start = dispatcher_pb2.StartJob(
        job_graph=JOB_GRAPH.encode(graph),
        epoch=EPOCH,
        resource_manager_address=address,
    )
    running = _Timed(
        start,
        graph,
        JobSettings(),
        Recovery(epoch=EPOCH),
        sessions=servicer.sessions,
        address=address,
        report=lambda _: None,
        exit_process=lambda: None,
        platform=SYSTEM,
        ids=IdSource(),
        list_paths=list_files,
    )
    gc.freeze()  # as `python -m jobmaster` does
    servicer.job = running
    running_task = asyncio.create_task(running.run())
    argv = [
        sys.executable,
        "-m",
        "benchmarks.deploy",
        address,
        graph.job_id,
        str(task_executors),
        str(slots),
    ]
    stubs = await asyncio.create_subprocess_exec(
        *argv, cwd=Path(__file__).parent.parent, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while running.core.graph.count(ExecutionState.RUNNING) < 2 * parallelism:
            if time.monotonic() > deadline or running_task.done() or stubs.returncode is not None:
                raise RuntimeError(f"not all tasks are RUNNING: {running.core.graph}")
            await asyncio.sleep(0.002)
        done_at = time.perf_counter()
    finally:
        goodbye = job_master_pb2.JobMasterToTaskExecutor(goodbye=job_master_pb2.Goodbye())
        for task_executor_id in list(servicer.sessions.by_id):
            servicer.sessions.dismiss(task_executor_id, goodbye)
        try:
            await asyncio.wait_for(stubs.wait(), 5.0)
        except TimeoutError:
            stubs.kill()
            await stubs.wait()
        running_task.cancel()
        await asyncio.gather(running_task, return_exceptions=True)
        await server.stop(2.0)
    return running.deploy_at - running.slots_at, done_at - running.slots_at


async def stub_task_executor(address: str, job_id: str, number: int, slots: int) -> None:
    def message(**fields: Any) -> job_master_pb2.TaskExecutorToJobMaster:
        return job_master_pb2.TaskExecutorToJobMaster(
            job_id=job_id, job_master_epoch=EPOCH, **fields
        )

    who = f"stub-{number}"
    offers = [
        job_master_pb2.SlotOffer(
            allocation_id=AllocationId(stable_id(who, str(slot))),
            slot_index=slot,
            profile=PROFILE.encode(SLOT_PROFILE),
            executor_id=ExecutorId(stable_id(who, "executor", str(slot))),
            data_address=f"127.0.{number}.{slot}:40000",
        )
        for slot in range(slots)
    ]
    async with aio_channel(address) as channel:
        stream = job_master_pb2_grpc.JobMasterStub(channel).ConnectTaskExecutor()  # type: ignore[no-untyped-call]
        hello = job_master_pb2.TaskExecutorHello(task_executor_id=who, host="127.0.0.1")
        await stream.write(message(hello=hello))
        await stream.write(message(offer_slots=job_master_pb2.OfferSlots(slots=offers)))
        async for received in stream:
            match received.WhichOneof("message"):
                case "analyze":
                    await stream.write(message(analyze_result=analysis(received.analyze)))
                case "submit":
                    for state in (common_pb2.TASK_INITIALIZING, common_pb2.TASK_RUNNING):
                        await stream.write(message(task_states=all_in(received.submit, state)))


def analysis(request: tasks_pb2.Analyze) -> tasks_pb2.AnalyzeResult:
    operators = [operator for vertex in request.job_graph.vertices for operator in vertex.operators]
    return tasks_pb2.AnalyzeResult(
        job_id=request.job_id,
        schemas=[
            tasks_pb2.OperatorSchema(operator_id=o.operator_id, schema=b"schema", repeatable=True)
            for o in operators
        ],
    )


def all_in(submit: tasks_pb2.SubmitTasks, state: Any) -> tasks_pb2.TaskStateChanges:
    changes = [
        tasks_pb2.TaskStateChange(attempt_id=task.attempt_id, state=state) for task in submit.tasks
    ]
    return tasks_pb2.TaskStateChanges(job_id=submit.job_id, updates=changes)


async def stubs(address: str, job_id: str, task_executors: int, slots: int) -> None:
    await asyncio.gather(
        *(stub_task_executor(address, job_id, number, slots) for number in range(task_executors))
    )


def run() -> list[dict[str, Any]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    analyzed_s, all_s = sorted(
        (asyncio.run(measure()) for _ in range(3)), key=lambda times: times[1]
    )[1]  # the median
    return [
        {
            "name": "deploy 20,000 tasks to 100 stub TaskExecutors: all slots -> all RUNNING",
            "ours": round(all_s, 2),
            "unit": f"s (analysis {analyzed_s:.3f} s of it)",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_S:g} s",
            "met": all_s <= GOAL_S,
        }
    ]


if __name__ == "__main__":
    if len(sys.argv) == 5:
        asyncio.run(stubs(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    else:
        for row in run():
            print(row)

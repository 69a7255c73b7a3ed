"""Measures the CPU time to convert between messages and domain types: a JobGraph of 200 vertices,
the deployment of 10,000 subtasks and the states that they report, and the keyed state of one
subtask.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable
from typing import Any

from firesteel._proto import common_pb2, job_graph_pb2, job_master_pb2, tasks_pb2
from firesteel.common.checkpoints.metadata import decode_snapshots, encode_snapshots
from firesteel.common.checkpoints.state import (
    KeyedHandle,
    KeyGroupSlice,
    OperatorSnapshot,
    StateFile,
)
from firesteel.common.config import Configuration
from firesteel.common.ids import AllocationId, AttemptId, OperatorId, TaskExecutorId, stable_id
from firesteel.common.rpc.convert import JOB_GRAPH
from jobmaster import convert as jobmaster
from jobmaster.core import commands
from taskexecutor import convert as taskexecutor
from taskexecutor.executor import convert as executor
from tests.job_master import job, vertex

SUBTASKS = 10_000
VERTICES = 200
RUNS = 15


def fastest_ms(function: Callable[[], Any]) -> float:
    times = []
    for _ in range(RUNS):
        gc.collect()
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
    return min(times) * 1000


def job_graph_ms() -> tuple[float, float]:
    graph = job(*(vertex(f"vertex {n}", 4) for n in range(VERTICES)))
    content = JOB_GRAPH.encode(graph).SerializeToString()
    return (
        fastest_ms(lambda: JOB_GRAPH.encode(graph).SerializeToString()),
        fastest_ms(lambda: JOB_GRAPH.decode(job_graph_pb2.JobGraph.FromString(content))),
    )


def deployment_ms() -> tuple[float, float, float]:
    """Returns the times in the JobMaster, in the TaskExecutor, and in the slot's process."""
    graph = job(vertex("producer", SUBTASKS), vertex("consumer", SUBTASKS))
    result = commands.ResultLocations(
        result_id=graph.edges[0].result_id,
        addresses=tuple(f"10.0.0.{n}:40000" for n in range(100)),
        address_index=array("I", [n % 100 for n in range(SUBTASKS)]),
        attempts=array("I", [0] * SUBTASKS),
    )
    consumer = graph.vertices[1].vertex_id
    command = commands.DeployTasks(
        task_executor_id=TaskExecutorId(stable_id("task executor")),
        tasks=tuple(
            commands.TaskToDeploy(
                attempt_id=AttemptId(stable_id("attempt", str(n))),
                vertex_id=consumer,
                subtask=n,
                attempt=0,
                allocation_id=AllocationId(stable_id("allocation", str(n // 100))),
            )
            for n in range(SUBTASKS)
        ),
        vertices=(consumer,),
        locations=(result,),
        schemas={},
    )

    def encode() -> bytes:
        messages = jobmaster.TaskExecutorMessages(
            JOB_GRAPH.encode(graph), graph.edges, 1, dispatcher_address="dispatcher:6123"
        )
        return messages.convert(command).SerializeToString()

    content = encode()
    decoded = job_master_pb2.JobMasterToTaskExecutor.FromString(content)
    conf = Configuration({})
    return (
        fastest_ms(encode),
        fastest_ms(lambda: taskexecutor.from_job_master(decoded, conf)),
        fastest_ms(lambda: executor.task_configs(decoded.submit, decoded.submit.tasks[:2])),
    )


def states_ms() -> float:
    changes = [
        tasks_pb2.TaskStateChange(
            attempt_id=stable_id("attempt", str(n)), state=common_pb2.TASK_RUNNING
        )
        for n in range(SUBTASKS)
    ]
    message = job_master_pb2.TaskExecutorToJobMaster(
        task_states=tasks_pb2.TaskStateChanges(updates=changes)
    )
    return fastest_ms(
        lambda: jobmaster.from_task_executor(TaskExecutorId(stable_id("task executor")), message)
    )


def state_ms() -> tuple[float, float]:
    snapshot = OperatorSnapshot(
        operator_id=OperatorId(stable_id("operator")),
        keyed=(
            KeyedHandle(
                file=StateFile(path="chk-1/a", size_bytes=1, checksum=stable_id("file")),
                slices=tuple(
                    KeyGroupSlice(n, n * 100, 100, stable_id("slice", str(n))) for n in range(4096)
                ),
            ),
        ),
    )
    content = encode_snapshots((snapshot,))
    return (
        fastest_ms(lambda: encode_snapshots((snapshot,))),
        fastest_ms(lambda: decode_snapshots(content)),
    )


def run() -> list[dict[str, Any]]:
    graph, deployment, state = job_graph_ms(), deployment_ms(), state_ms()
    measured = {
        f"JobGraph of {VERTICES} vertices: encode": graph[0],
        f"JobGraph of {VERTICES} vertices: decode": graph[1],
        f"deployment of {SUBTASKS:,} subtasks: encode in the JobMaster": deployment[0],
        f"deployment of {SUBTASKS:,} subtasks: decode in the TaskExecutor": deployment[1],
        "the same for two tasks in a slot's process": deployment[2],
        f"states of {SUBTASKS:,} subtasks: decode in the JobMaster": states_ms(),
        "state in 4,096 key groups: encode": state[0],
        "state in 4,096 key groups: decode": state[1],
    }
    return [
        {
            "name": name,
            "ours": round(value, 2),
            "unit": "ms of CPU time",
            "peers": {},
            "ratio": None,
            "goal": "",
            "met": True,
        }
        for name, value in measured.items()
    ]


if __name__ == "__main__":
    for row in run():
        print(f"{row['ours']:8.2f} {row['unit']}  {row['name']}")

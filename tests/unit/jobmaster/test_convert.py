"""Messages of the JobMaster about a job's configuration, and to operators about their
alignment group.
"""

from __future__ import annotations

from random import Random

import pytest

from firesteel._proto import job_graph_pb2, job_master_pb2, tasks_pb2
from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.ids import AllocationId, AttemptId, OperatorId, TaskExecutorId, VertexId
from firesteel.common.operator_messages import WatermarkLimit, WatermarkReported
from firesteel.common.rpc.errors import MessageTooLarge, RemoteProtocolError
from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US
from jobmaster import convert
from jobmaster.core import commands, events


def test_only_what_a_process_must_be_started_with_is_its_environment() -> None:
    config = {
        "spark.driver.extraJavaOptions": "-Dx=y",
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.extensions": "org.example.Extensions",
        "python.executable": "/opt/python",
        "parallelism.default": "2",
    }
    declared = convert.declaration(
        commands.DeclareRequirements(sequence=3, requirements=()), convert.environment(config)
    )
    assert declared.sequence == 3
    assert dict(declared.environment) == {
        "spark.driver.extraJavaOptions": "-Dx=y",
        "spark.sql.extensions": "org.example.Extensions",
        "python.executable": "/opt/python",
    }


@pytest.mark.parametrize(
    "time_us", [MIN_TIMESTAMP_US, -1, 0, 1_700_000_000_000_000, MAX_TIMESTAMP_US]
)
def test_watermarks_come_in_and_limits_go_out_whatever_the_time(time_us: int) -> None:
    report = tasks_pb2.OperatorEvent(
        report_watermark=tasks_pb2.WatermarkReported(watermark_us=time_us, idle=True)
    )
    who = TaskExecutorId("te")
    reported = convert.from_task_executor(
        who, job_master_pb2.TaskExecutorToJobMaster(operator_event=report)
    )
    assert isinstance(reported, events.OperatorMessageReceived)
    assert reported.message == WatermarkReported(watermark_us=time_us, idle=True)
    event = convert.TO_TASK_EXECUTOR.encode(
        commands.SendOperatorMessage(
            task_executor_id=who,
            operator_id=OperatorId("source"),
            subtask=3,
            attempt_id=AttemptId("attempt"),
            message=WatermarkLimit(limit_us=time_us),
        ),
        job_id="job",
        job_master_epoch=1,
    ).operator_event
    assert (event.WhichOneof("message"), event.align_watermark.limit_us, event.subtask) == (
        "align_watermark",
        time_us,
        3,
    )


def test_an_operator_does_not_send_what_its_coordinator_says() -> None:
    limit = tasks_pb2.OperatorEvent(align_watermark=tasks_pb2.WatermarkLimit(limit_us=1))
    message = job_master_pb2.TaskExecutorToJobMaster(operator_event=limit)
    with pytest.raises(RemoteProtocolError, match="an operator sent WatermarkLimit to its"):
        convert.from_task_executor(TaskExecutorId("te"), message)


def test_a_task_without_its_place_is_named() -> None:
    task = tasks_pb2.TaskStateChange(attempt_id="a")
    hello = job_master_pb2.TaskExecutorHello(task_executor_id="te", tasks=[task])
    with pytest.raises(RemoteProtocolError, match="attempt 'a' is in only one of tasks and places"):
        convert.connected(hello, 1)


def test_a_task_state_that_does_not_exist_is_named() -> None:
    change = tasks_pb2.TaskStateChange.FromString(b"\x10\x63")  # field 2: 99
    states = tasks_pb2.TaskStateChanges(updates=[change])
    message = job_master_pb2.TaskExecutorToJobMaster(task_states=states)
    with pytest.raises(
        RemoteProtocolError, match="TaskStateChange.state: 99 is not a value of ExecutionState"
    ):
        convert.from_task_executor(TaskExecutorId("te"), message)


def deployment(*state_bytes: int) -> commands.DeployTasks:
    """One task per size of restored state, each of a separate vertex."""
    return commands.DeployTasks(
        task_executor_id=TaskExecutorId("te"),
        tasks=tuple(
            commands.TaskToDeploy(
                attempt_id=AttemptId(f"attempt-{number}"),
                vertex_id=VertexId(f"vertex-{number}"),
                subtask=0,
                attempt=0,
                allocation_id=AllocationId("a"),
                restored=(
                    OperatorSnapshot(
                        operator_id=OperatorId("o"),
                        broadcasts={"rules": Random(number).randbytes(size_bytes)},
                    ),
                ),
            )
            for number, size_bytes in enumerate(state_bytes)
        ),
        vertices=tuple(VertexId(f"vertex-{number}") for number in range(len(state_bytes))),
        locations=(),
        schemas={},
    )


def test_a_deployment_that_restores_much_is_sent_in_parts() -> None:
    vertices = [
        job_graph_pb2.JobVertex(vertex_id=f"vertex-{n}", name=f"vertex {n}") for n in range(3)
    ]
    graph = job_graph_pb2.JobGraph(job_id="job", vertices=vertices)
    messages = convert.TaskExecutorMessages(graph, (), 1, dispatcher_address="d:1")

    def parts(*state_bytes: int) -> list[tuple[list[str], list[str]]]:
        return [
            (
                [task.attempt_id for task in message.submit.tasks],
                [part.vertex.vertex_id for part in message.submit.vertices],
            )
            for message in messages.deployments(deployment(*state_bytes), limit_bytes=10_000)
        ]

    whole = ["attempt-0", "attempt-1", "attempt-2"], ["vertex-0", "vertex-1", "vertex-2"]
    assert parts(100, 100, 100) == [whole]
    assert parts(9_700, 300, 100) == [
        (["attempt-0"], ["vertex-0"]),
        (["attempt-1", "attempt-2"], ["vertex-1", "vertex-2"]),
    ]
    with pytest.raises(
        MessageTooLarge,
        match=r"the deployment of subtask 0 of 'vertex 1', .* has 11,\d\d\d bytes, and the limit is",
    ):
        parts(100, 11_000, 100)

"""Messages of the JobMaster about a job's configuration, and to operators about their
alignment group.
"""

from __future__ import annotations

from random import Random

import pytest

from firesteel._proto import job_graph_pb2, tasks_pb2
from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.ids import AllocationId, AttemptId, OperatorId, TaskExecutorId, VertexId
from firesteel.common.operator_messages import WatermarkLimit, WatermarkReported
from firesteel.common.rpc.limits import MessageTooLarge
from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US
from jobmaster import convert
from jobmaster.core import commands


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
    assert convert.operator_message(report) == WatermarkReported(watermark_us=time_us, idle=True)
    event = convert.operator_event(
        "job",
        commands.SendOperatorMessage(
            task_executor_id=TaskExecutorId("te"),
            operator_id=OperatorId("source"),
            subtask=3,
            attempt_id=AttemptId("attempt"),
            message=WatermarkLimit(limit_us=time_us),
        ),
    )
    assert (event.WhichOneof("message"), event.align_watermark.limit_us, event.subtask) == (
        "align_watermark",
        time_us,
        3,
    )


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

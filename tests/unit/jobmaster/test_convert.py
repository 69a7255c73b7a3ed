"""What the JobMaster sends its peers about a job's configuration, and its operators about their
alignment group.
"""

from __future__ import annotations

import pytest

from firesteel._proto import tasks_pb2
from firesteel.common.ids import AttemptId, OperatorId, TaskExecutorId
from firesteel.common.operator_messages import WatermarkLimit, WatermarkReported
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
        report_watermark=tasks_pb2.ReportWatermark(watermark_us=time_us, idle=True)
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
    assert (event.WhichOneof("event"), event.align_watermark.limit_us, event.subtask) == (
        "align_watermark",
        time_us,
        3,
    )

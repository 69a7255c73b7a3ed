"""The warnings that a program prints when its job has FINISHED."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firesteel.client.job_details import Subtask
from firesteel.client.job_output import say_what_was_dropped
from firesteel.common.states import ExecutionState
from firesteel.common.task_metrics import TaskMetrics

from .test_render import attempt, details


@pytest.mark.parametrize(
    ("dropped", "message"),
    [((0, 0), ""), ((1200, 34), "[1] Source: [numbers] -> Map has dropped 1,234 late records")],
)
def test_late_records_are_summed_over_the_subtasks(
    dropped: tuple[int, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    subtasks = tuple(
        Subtask(
            index=index,
            attempts=(
                replace(
                    attempt(ExecutionState.FINISHED),
                    metrics=TaskMetrics(records_in=5000, late_records_dropped=late),
                ),
            ),
        )
        for index, late in enumerate(dropped)
    )
    job = details()
    say_what_was_dropped(replace(job, vertices=(replace(job.vertices[0], subtasks=subtasks),)))
    assert message in capsys.readouterr().err if message else not capsys.readouterr().err


def test_the_jobs_warnings_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    say_what_was_dropped(replace(details(), warnings=("/in/a is a socket; it is skipped",)))
    assert capsys.readouterr().err == "Warning: /in/a is a socket; it is skipped\n"

"""The bottleneck of a job: one story per rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dispatcher.rest.firesteel.bottleneck import Bottleneck, diagnose
from firesteel.client.job_details import Activity, Attempt, JobDetails, Subtask, Vertex
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.task_metrics import TaskMetrics

DOCS = Path(__file__).parents[3] / "docs"


def vertex(name: str, *inputs: str, state_bytes: int | None = None, **activity: float) -> Vertex:
    """`activity` fills up with an idle vertex of four subtasks."""
    idle = dict.fromkeys(
        ("records_in", "records_out", "bytes_in", "bytes_out", "busy", "back_pressured", "idle"),
        0.0,
    )
    idle |= dict.fromkeys(("spark", "python", "exchange", "planning", "gc", "busiest"), 0.0)
    known = {**idle, "busiest_subtask": 0, "largest_subtask": 0, "largest": 0.25, **activity}
    return Vertex(
        vertex_id=name,
        name=name,
        parallelism=4,
        max_parallelism=128,
        slot_sharing_group="",
        operators=(),
        subtasks=(),
        input_vertex_ids=inputs,
        activity=Activity(**known),
        state_bytes=state_bytes,
    )


def job(*vertices: Vertex, **configuration: str) -> JobDetails:
    return JobDetails(
        job_id="j",
        name="n",
        status=JobStatus.RUNNING,
        start_ms=0,
        vertices=vertices,
        configuration={name.replace("_", "."): text for name, text in configuration.items()},
    )


def diagnosed(details: JobDetails) -> Bottleneck:
    bottleneck = diagnose(details)
    assert bottleneck is not None
    page, _, anchor = bottleneck.page.partition("#")
    headings = [
        line.lstrip("# ").lower().replace(" ", "-").strip()
        for line in (DOCS / page).read_text().splitlines()
        if line.startswith("#")
    ]
    assert anchor in headings
    return bottleneck


def test_the_vertex_downstream_of_back_pressure_is_the_bottleneck():
    limit = diagnosed(
        job(
            vertex("source", back_pressured=0.8, busy=0.2, busiest=0.2),
            vertex("map", "source", back_pressured=0.7, busy=0.3, busiest=0.9),
            vertex("window", "map", busy=0.95, busiest=0.96, spark=0.9),
            vertex("sink", "window", busy=0.1, busiest=0.1),
        )
    )
    assert limit.vertex_id == "window"
    assert limit.sentence == "The bottleneck is window, because its 4 subtasks cannot do more."
    assert "source waits for its consumers 80% of the time" in limit.evidence
    assert "map waits for its consumers 70% of the time" in limit.evidence


def test_a_busy_vertex_elsewhere_is_not_the_bottleneck():
    limit = diagnosed(
        job(
            vertex("a", back_pressured=0.5),
            vertex("slow", "a", busy=0.8, busiest=0.8, spark=0.8),
            vertex("other", busy=0.99, busiest=0.99, spark=0.9),
        )
    )
    assert limit.vertex_id == "slow"


def test_a_skewed_subtask():
    limit = diagnosed(
        job(
            vertex("a", back_pressured=0.5),
            vertex(
                "sum",
                "a",
                busy=0.3,
                busiest=0.98,
                busiest_subtask=2,
                largest=0.71,
                largest_subtask=2,
            ),
        )
    )
    assert (
        limit.sentence
        == "The bottleneck is sum, because its subtask 2 receives 71% of the records."
    )
    assert limit.evidence[:2] == ("subtask 2 is busy 98% of the time", "an even share is 25%")


def test_python_functions():
    limit = diagnosed(job(vertex("map", busy=0.9, busiest=0.95, python=0.83)))
    assert "Python functions take 92% of its busy time" in limit.sentence


def test_garbage_collection():
    window = vertex("window", busy=0.9, busiest=0.95, spark=0.8, gc=0.31)
    limit = diagnosed(job(window))
    assert (
        limit.sentence
        == "The bottleneck is window, because the JVMs of its slots collect garbage 31% of the time."
    )
    assert (
        "garbage"
        not in diagnosed(job(replace(window, activity=replace(window.activity, gc=0.1)))).sentence
    )


def test_spark_planning():
    limit = diagnosed(job(vertex("map", busy=1.0, busiest=1.0, spark=0.9, planning=0.41)))
    assert "Spark plans its bundles for 41% of its busy time" in limit.sentence


def test_state_on_disk():
    window = vertex("window", busy=0.9, busiest=0.9, state_bytes=3 * 2**30)
    limit = diagnosed(job(window, state_backend_type="rocksdb"))
    assert "its state on disk" in limit.sentence
    assert "3" in limit.evidence[1]
    assert "its state on disk" not in diagnosed(job(window)).sentence


def test_a_sink():
    limit = diagnosed(
        job(
            vertex("source", back_pressured=0.9),
            vertex("sink", "source", busy=0.9, busiest=0.9, records_in=1234.0),
        )
    )
    assert (
        limit.sentence
        == "The bottleneck is sink, because its sink accepts no more rows per second."
    )
    assert "it receives 1,234 records per second" in limit.evidence


def test_an_idle_source_holds_back_the_watermark():
    def subtask(index: int, **metrics: int) -> Subtask:
        attempt = Attempt(
            attempt_id=str(index),
            number=0,
            state=ExecutionState.RUNNING,
            host="",
            task_executor_id="",
            slot_index=0,
            entered_ms={},
            metrics=TaskMetrics(**metrics),
            error=None,
        )
        return Subtask(index=index, attempts=(attempt,))

    source = replace(vertex("source"), subtasks=(subtask(0, records_out=9), subtask(1)))
    window = replace(vertex("window", "source"), subtasks=(subtask(0, records_in=9),))
    limit = diagnosed(job(source, window))
    assert "1 of its 2 subtasks have read no rows" in limit.sentence
    reached = replace(window, subtasks=(subtask(0, records_in=9, watermark_us=5),))
    assert diagnose(job(source, reached)) is None


@pytest.mark.parametrize("status", [s for s in JobStatus if s is not JobStatus.RUNNING])
def test_only_running_jobs_have_one(status: JobStatus):
    assert diagnose(replace(job(vertex("map", busy=1.0, busiest=1.0)), status=status)) is None


def test_a_job_that_keeps_up_has_none():
    assert diagnose(job(vertex("a", busy=0.3, busiest=0.5, idle=0.7))) is None
    assert diagnose(job(replace(vertex("a"), activity=None))) is None

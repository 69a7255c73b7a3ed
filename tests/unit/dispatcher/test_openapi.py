"""The OpenAPI document, and whether answers have the shapes that it declares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.rest.answers import encoded
from dispatcher.rest.firesteel.checkpoints import checkpoint_with_subtasks, checkpoints
from dispatcher.rest.firesteel.jobs import exceptions, job, jobs, series
from dispatcher.rest.firesteel.vertices import page
from dispatcher.rest.openapi.document import FILES, document
from dispatcher.rest.openapi.routes import DESCRIBED
from dispatcher.rest.openapi.shapes import maybe, schema
from firesteel._proto import job_master_pb2
from firesteel.client.job_details import (
    Activity,
    JobDetails,
    JobOverview,
    OperatorDetails,
    StatusChange,
    Subtask,
    SubtaskCheckpoint,
)
from firesteel.common.security.access import ROUTES
from firesteel.common.states import JobStatus
from firesteel.common.task_metrics import Choice, TaskMetrics
from firesteel.errors import ErrorInfo
from tests.job_details import attempt, checkpoint, vertex

_PYTHON = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def problems(schema: dict[str, Any], value: Any, where: str = "") -> Iterator[str]:
    """The places at which a value does not have the schema, as far as our documents use them."""
    if "anyOf" in schema:
        if all(list(problems(each, value, where)) for each in schema["anyOf"]):
            yield f"{where} is {value!r}"
        return
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    is_bool = isinstance(value, bool) and "boolean" not in types
    if is_bool or not isinstance(value, tuple(_PYTHON[name] for name in types)):
        yield f"{where} is {value!r}, not {schema['type']}"
    elif isinstance(value, list):
        for each in value:
            yield from problems(schema["items"], each, f"{where}[]")
    elif isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{where}.{name} is missing"
        for name, each in value.items():
            of = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if of:
                yield from problems(of, each, f"{where}.{name}")


def answer_schema(route: str) -> dict[str, Any]:
    return schema(DESCRIBED[f"GET /firesteel/v1/{route}"].answer)


ERROR = ErrorInfo(summary="x", timestamp_ms=3, task_name="map (1/1)#0")
CHECKPOINT = checkpoint(
    savepoint=True,
    subtasks=(
        SubtaskCheckpoint(
            task="m", size_bytes=1, start_delay_ms=1.0, alignment_ms=1.0, sync_ms=1.0, async_ms=1.0
        ),
    ),
    path="/s",
)
ATTEMPT = attempt(metrics=TaskMetrics(watermark_us=5_000, busy_ms=1.0), error=ERROR)
VERTEX = vertex(
    vertex_id="v",
    parallelism=2,
    operators=(
        OperatorDetails(
            operator_id="o",
            uid="",
            name="map",
            kind="Transform",
            runs_on_spark=True,
            plan="plan",
            choice=Choice("", "Python", ""),
        ),
    ),
    subtasks=(Subtask(index=0, attempts=(ATTEMPT,)), Subtask(index=1, attempts=())),
    input_vertex_ids=("v",),
    activity=Activity(
        **dict.fromkeys(
            ("records_in", "records_out", "bytes_in", "bytes_out", "back_pressured", "idle"), 0.0
        ),
        **dict.fromkeys(("spark", "exchange", "planning", "gc"), 0.0),
        busy=0.5,
        python=0.4,
        busiest_subtask=0,
        busiest=0.9,
        largest_subtask=0,
        largest=0.9,
    ),
)
DETAILS = JobDetails(
    job_id="j",
    name="n",
    status=JobStatus.RUNNING,
    start_ms=1,
    entered_ms=(StatusChange(JobStatus.RUNNING, 1),),
    vertices=(VERTEX,),
    exceptions=(ERROR,),
    checkpoints=(CHECKPOINT,),
)
OVERVIEW = JobOverview(
    job_id="j",
    name="n",
    status=JobStatus.RUNNING,
    start_ms=1,
    end_ms=0,
    tasks_by_state={"RUNNING": 1},
)
SERIES = job_master_pb2.JobSeries(
    step_ms=5_000,
    times_ms=[1],
    vertices={
        "v": job_master_pb2.VertexSeries(
            rows={"busy": job_master_pb2.SeriesRow(values=[float("nan")])}
        )
    },
)


@pytest.mark.parametrize(
    ("route", "answer"),
    [
        ("jobs", jobs([OVERVIEW], 5)),
        ("jobs/{job}", job(DETAILS, 5)),
        ("jobs/{job}/exceptions", exceptions(DETAILS)),
        ("jobs/{job}/checkpoints", checkpoints(DETAILS)),
        ("jobs/{job}/checkpoints/{checkpoint}", checkpoint_with_subtasks(CHECKPOINT)),
        ("jobs/{job}/vertices/{vertex}", page(VERTEX, 0, 9, "index", False)),
        ("jobs/{job}/series", series(SERIES)),
    ],
)
def test_answers_have_their_declared_shape(route: str, answer: Any):
    assert list(problems(answer_schema(route), json.loads(encoded(answer)))) == []


def test_every_route_is_described():
    own = {route for route in ROUTES if " /firesteel/" in route}
    assert DESCRIBED.keys() == own
    paths = document()["paths"]
    described = {f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs}
    assert described == {route for route in ROUTES if not FILES.match(route)}


def test_operations_name_their_parameters_roles_and_errors():
    operation = document()["paths"]["/firesteel/v1/jobs/{job}/vertices/{vertex}"]["get"]
    assert [p["name"] for p in operation["parameters"] if p["required"]] == ["job", "vertex"]
    assert operation["description"].startswith("For viewer, operator")
    assert "default" in operation["responses"]


def test_a_shape_that_does_not_fit_is_a_problem():
    shape = schema({"a": maybe(int), "b": [{str: float}]})
    assert list(problems(shape, {"a": None, "b": [{"x": 1.5}]})) == []
    assert list(problems(shape, {"a": "1", "b": [{"x": True}]})) == [
        ".a is '1', not ['integer', 'null']",
        ".b[].x is True, not number",
    ]
    assert list(problems(shape, {"a": 1})) == [".b is missing"]

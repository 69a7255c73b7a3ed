"""Inspections of running tasks: flame graphs, rows and thread dumps, through the client and REST."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from firesteel import Environment
from firesteel.client.job_details import JobDetails, Vertex
from firesteel.common.inspections import FlameGraph
from firesteel.common.security.roles import Role
from firesteel.errors import FiresteelError
from tests.credentials import folder
from tests.waiting import eventually

from .conftest import Session, firesteel, running
from .jobs import unbounded
from .test_faults import busy_slot, in_spark

pytestmark = pytest.mark.usefixtures("shipped_module")


def hot(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            sum(range(100))
        yield batch.slice(0, 3)


def submit_hot(session: Session) -> tuple[str, JobDetails]:
    env = Environment(parallelism=1)
    unbounded(env).rebalance().map_in_arrow(hot, name="Hot").rebalance().print()
    job_id = session.submit(env)
    flows = session.wait_until(
        job_id, lambda details: running(details) and details.vertices[1].metrics.records_out > 0
    )
    return job_id, flows


def named(details: JobDetails, name: str) -> Vertex:
    return next(vertex for vertex in details.vertices if name in vertex.name)


def heaviest(graph: FlameGraph) -> list[str]:
    """The names of the path with the most samples, from the outermost call."""
    path, caller = [], -1
    while True:
        below = [(f.on_cpu, i) for i, f in enumerate(graph.frames) if f.caller == caller]
        if not below or max(below)[0] < graph.samples / 4:
            return path
        caller = max(below)[1]
        path.append(graph.frames[caller].name)


def call(session: Session, verb: str, path: str, body: Any = None, role: Role = Role.ADMIN) -> Any:
    """Calls a route of the cluster's REST server as a person of this role."""
    token = folder().issuer().issue(f"a {role.value}", role, valid_s=60)
    request = urllib.request.Request(
        f"{session.client.dashboard_url().rstrip('/')}{path}",
        method=verb,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_flame_graphs_show_the_hot_function_and_rows_are_those_of_the_job(
    session: Session,
) -> None:
    job_id, details = submit_hot(session)
    task = named(details, "Hot")
    graph = session.client.sample_stacks(job_id, task.vertex_id, seconds=1)
    path = heaviest(graph)
    assert path[-1].startswith("hot ("), path
    assert any(name.startswith("StreamTask.run") for name in path), path

    rows = session.client.sample_rows(job_id, task.vertex_id, count=6)
    assert [(column.name, column.type) for column in rows.columns] == [("value", "int64")]
    values = [json.loads(row)[0] for row in rows.rows]
    assert len(values) == 6
    assert values[1] == values[0] + 1 and values[2] == values[0] + 2, "the first of a batch"

    printed = firesteel(
        "inspect", job_id, "--vertex", "Hot", "--rows", "2", "-m", session.address
    ).stdout.splitlines()
    assert [json.loads(line).keys() for line in printed] == [{"value"}] * 2

    below = f"/firesteel/v1/jobs/{job_id}"
    body = {"vertex": task.vertex_id, "subtask": 0}
    answer = call(session, "POST", f"{below}/flamegraph", {**body, "seconds": 0.5})
    assert answer["samples"] > 0 and "hot (" in json.dumps(answer["root"])
    answer = call(session, "POST", f"{below}/rows", {**body, "count": 2}, Role.OPERATOR)
    assert answer["columns"] == [{"name": "value", "type": "int64"}]
    assert len(answer["rows"]) == 2
    for path_ in (f"{below}/rows", f"{below}/flamegraph"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            call(session, "POST", path_, body, Role.VIEWER)

    as_flink = f"/jobs/{job_id}/vertices/{task.vertex_id}/flamegraph?type=on_cpu"
    answers = [call(session, "GET", as_flink)]
    assert answers == [{"endTimestamp": -3, "data": None, "graphType": "ON_CPU"}], "it waits"

    def sampled() -> bool:
        answers.append(call(session, "GET", as_flink))
        return answers[-1]["data"] is not None

    eventually(sampled, "the flame graph of the vertex is sampled")
    assert answers[-1]["endTimestamp"] > 0 and "hot (" in json.dumps(answers[-1]["data"])

    with pytest.raises(FiresteelError, match="it ends with a sink"):
        session.client.sample_rows(job_id, details.vertices[-1].vertex_id)
    with pytest.raises(FiresteelError, match="has no subtask 7: expected 0 to 0"):
        session.client.sample_rows(job_id, task.vertex_id, 7)
    with pytest.raises(FiresteelError, match=r"seconds=31: expected more than 0, at most 30"):
        session.client.sample_stacks(job_id, task.vertex_id, seconds=31)


def test_frames_of_spark_stand_below_those_of_python(session: Session) -> None:
    job_id = session.submit(in_spark().rebalance().print()._program)
    details = session.wait_until(
        job_id, lambda details: running(details) and details.vertices[0].metrics.records_out > 0
    )

    def sampled() -> FlameGraph | None:
        """The JVM may not run Spark's code in the very moments of the samples."""
        graph = session.client.sample_stacks(job_id, details.vertices[0].vertex_id, seconds=2)
        of_spark = any("org.apache.spark.sql" in frame.name for frame in graph.frames)
        return graph if of_spark else None

    graph = eventually(sampled, "frames of Spark")
    in_jvm = [frame for frame in graph.frames if frame.kind == "jvm"]
    above = {graph.frames[frame.caller].kind for frame in in_jvm if frame.caller >= 0}
    assert "python" in above, "the JVM's frames stand below those of Python"
    python = [frame.name for frame in graph.frames if frame.kind == "python"]
    assert not any("send_command (py4j.clientserver" in name for name in python)


def test_an_inspection_ends_with_an_error_when_its_slot_is_killed(session: Session) -> None:
    job_id, details = submit_hot(session)
    victim, _ = busy_slot(session, job_id)
    sink = details.vertices[0]
    kill = threading.Timer(0.5, victim.kill)
    kill.start()
    with pytest.raises(FiresteelError, match=r"#0 (became|is) (FAILED|CANCELED|CANCELING)"):
        session.client.sample_stacks(job_id, sink.vertex_id, seconds=20)
    kill.join()


def test_threads_of_slots_and_masters_are_dumped(session: Session) -> None:
    job_id, _ = submit_hot(session)
    busy = session.client.job_details(job_id).vertices[0].subtasks[0].current
    assert busy is not None
    answer = call(session, "GET", f"/taskmanagers/{busy.task_executor_id}/thread-dump")
    threads = {each["threadName"]: each["stringifiedThreadInfo"] for each in answer["threadInfos"]}
    assert f"slot-{busy.slot_index}: MainThread" in threads, list(threads)
    assert any("stream_task.py" in text for text in threads.values())
    assert any(" JVM: " in name for name in threads)
    answer = call(session, "GET", "/jobmanager/thread-dump")
    names = {each["threadName"].split(":")[0].split()[0] for each in answer["threadInfos"]}
    assert names == {"Dispatcher", "ResourceManager", "JobMaster"}


def test_machines_report_what_their_slots_use(session: Session) -> None:
    job_id, details = submit_hot(session)
    busy = details.vertices[0].subtasks[0].current
    assert busy is not None

    def slot() -> Any:
        machines = call(session, "GET", "/firesteel/v1/machines", role=Role.VIEWER)
        (machine,) = (m for m in machines["task_executors"] if m["id"] == busy.task_executor_id)
        assert len(machines["task_executors"]) == 2
        return next((s for s in machine["slots"] if s["index"] == busy.slot_index), {})

    eventually(lambda: slot().get("job_id") == job_id, "the usage of the slot is reported")
    shown = slot()
    memory = shown["memory"]
    assert shown["job_name"] == "job"
    assert 0 < memory["jvm_heap"]["used"] <= memory["jvm_heap"]["committed"]
    assert 0 < memory["python"] < memory["total"] <= memory["limit"]
    assert shown["threads"] > 10

"""Jobs and processes as Flink's REST API shows them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp.test_utils import make_mocked_request

from dispatcher.rest.flink.checkpoints import checkpoint_config, checkpoints, subtask_checkpoints
from dispatcher.rest.flink.jobs import exceptions, job, job_metrics
from dispatcher.rest.flink.shown import aggregated_answer, answer, metrics_answer
from dispatcher.rest.flink.task_managers import task_manager
from dispatcher.rest.flink.task_metrics import Rates, task_metrics
from dispatcher.rest.flink.vertices import (
    attempt_details,
    back_pressure,
    subtask_times,
    task_managers,
    vertex_details,
    watermarks,
)
from dispatcher.rest.requests import Refusal
from firesteel._proto import process_info_pb2 as pb
from firesteel.client.job_details import (
    Attempt,
    CheckpointDetails,
    JobDetails,
    StatusChange,
    Subtask,
    SubtaskCheckpoint,
    TaskExecutorOverview,
    Vertex,
)
from firesteel.common.config import Configuration
from firesteel.common.config.redaction import REDACTED, redacted
from firesteel.common.metrics import Registry
from firesteel.common.resources import ResourceProfile
from firesteel.common.rpc.process_info import ProcessInfo
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.task_metrics import TaskMetrics
from firesteel.errors import ErrorInfo
from tests import job_details

NOW_MS = 100_000


def attempt(index: int, **changes: Any) -> Attempt:
    made = job_details.attempt(
        attempt_id=f"{index:032x}",
        number=1,
        task_executor_id="e1",
        slot_index=index,
        entered_ms={
            ExecutionState.CREATED: 1000,
            ExecutionState.DEPLOYING: 3000,
            ExecutionState.RUNNING: 4000,
        },
        metrics=TaskMetrics(records_in=100 * (index + 1), busy_ms=800, idle_ms=1200),
    )
    return replace(made, **changes)


def vertex(*attempts: Attempt, **changes: Any) -> Vertex:
    inputs = {"input_vertex_ids": ("a" * 32,), "input_partitioners": ("HASH",)}
    return job_details.vertex(*attempts, **(inputs | changes))


def details(*vertices: Vertex, **changes: Any) -> JobDetails:
    made = JobDetails(
        job_id="f" * 32,
        name="job",
        status=JobStatus.RUNNING,
        start_ms=500,
        vertices=vertices,
        entered_ms=(
            StatusChange(JobStatus.CREATED, 500),
            StatusChange(JobStatus.RUNNING, 1000),
            StatusChange(JobStatus.RESTARTING, 3000),
            StatusChange(JobStatus.RUNNING, 4000),
        ),
    )
    return replace(made, **changes)


def test_edges_of_the_plan_name_their_partitioner() -> None:
    (node,) = job(details(vertex(attempt(0))), NOW_MS)["plan"]["nodes"]
    (edge,) = node["inputs"]
    assert (edge["id"], edge["ship_strategy"]) == ("a" * 32, "HASH")
    older = vertex(attempt(0), input_partitioners=())  # stored by an earlier release
    (node,) = job(details(older), NOW_MS)["plan"]["nodes"]
    assert node["inputs"][0]["ship_strategy"] == ""


def test_a_vertex_shows_its_subtasks_and_their_distribution() -> None:
    made = vertex(attempt(0), attempt(1), attempt(2))
    shown = vertex_details(made, NOW_MS)
    assert [subtask["taskmanager-id"] for subtask in shown["subtasks"]] == ["e1"] * 3
    durations = shown["subtasks"][0]["status-duration"]
    assert (durations["CREATED"], durations["SCHEDULED"]) == (2000, -1)
    assert (durations["DEPLOYING"], durations["RUNNING"]) == (1000, NOW_MS - 4000)
    records = shown["aggregated"]["metrics"]["read-records"]
    assert (records["min"], records["max"], records["sum"], records["median"]) == (
        100,
        300,
        600,
        200,
    )


def test_an_attempt_without_a_slot_is_unassigned() -> None:
    waiting = attempt(0, host="", task_executor_id="", state=ExecutionState.SCHEDULED)
    shown = attempt_details(Subtask(index=0, attempts=(waiting,)), waiting, NOW_MS)
    assert (shown["endpoint"], shown["taskmanager-id"]) == ("(unassigned)", "(unassigned)")
    assert shown["end-time"] == -1


def test_subtasks_are_grouped_by_task_manager() -> None:
    ended = {ExecutionState.CREATED: 1000, ExecutionState.FINISHED: 9000}
    done = attempt(2, task_executor_id="e2", state=ExecutionState.FINISHED, entered_ms=ended)
    first, second = task_managers(vertex(attempt(0), attempt(1), done), NOW_MS)["taskmanagers"]
    assert (first["taskmanager-id"], first["status-counts"]["RUNNING"]) == ("e1", 2)
    assert (second["status"], second["end-time"], second["duration"]) == ("FINISHED", 9000, 8000)


def test_times_of_subtasks_start_when_they_are_created() -> None:
    (subtask,) = subtask_times(vertex(attempt(0)), NOW_MS)["subtasks"]
    assert (subtask["duration"], subtask["timestamps"]["RUNNING"]) == (NOW_MS - 1000, 4000)


def test_a_missing_watermark_is_the_least_long() -> None:
    known = attempt(1, metrics=TaskMetrics(watermark_us=5_000_000))
    assert watermarks(vertex(attempt(0), known)) == [
        {"id": "0.currentInputWatermark", "value": str(-(2**63))},
        {"id": "1.currentInputWatermark", "value": "5000"},
    ]
    assert watermarks(vertex(attempt(0), input_vertex_ids=())) == []


def test_rates_are_those_between_two_descriptions() -> None:
    rates = Rates()
    first = attempt(0)
    of = rates.of(details(vertex(first)), 10.0)[first.attempt_id]
    assert of["busyTimeMsPerSecond"] == 400  # since its start
    later = replace(first, metrics=TaskMetrics(records_in=700, busy_ms=3800, idle_ms=2200))
    for _ in range(2):  # viewers at the same time
        of = rates.of(details(vertex(later)), 14.0)[first.attempt_id]
        assert (of["numRecordsInPerSecond"], of["busyTimeMsPerSecond"]) == (150, 750)
    assert task_metrics(later, of)["numRecordsIn"] == 700
    ended = replace(later, state=ExecutionState.FINISHED)
    assert set(rates.of(details(vertex(ended)), 20.0)[first.attempt_id].values()) == {0}


@pytest.mark.parametrize(("ms", "level"), [(0, "ok"), (100, "ok"), (300, "low"), (800, "high")])
def test_back_pressure_has_flinks_levels(ms: float, level: str) -> None:
    waiting = attempt(0, metrics=TaskMetrics(back_pressured_ms=ms, busy_ms=1000 - ms))
    made = vertex(waiting)
    shown = back_pressure(made, Rates().of(details(made), 1.0), NOW_MS)
    assert (shown["backpressure-level"], shown["subtasks"][0]["ratio"]) == (level, ms / 1000)


def test_metrics_of_a_job_follow_from_its_statuses() -> None:
    metrics = job_metrics(details(), NOW_MS)
    assert (metrics["numRestarts"], metrics["uptime"], metrics["downtime"]) == (1, NOW_MS - 4000, 0)
    assert (metrics["runningTime"], metrics["restartingTime"]) == (2000 + NOW_MS - 4000, 1000)


def test_exceptions_name_the_task_executor_of_the_task() -> None:
    failed = ErrorInfo(summary="ValueError: bad", task_name="Map (2/2)#1", location="somewhere")
    shown = exceptions(details(vertex(attempt(0), attempt(1)), exceptions=(failed,)), 5)
    (entry,) = shown["exceptionHistory"]["entries"]
    assert (entry["exceptionName"], entry["taskManagerId"]) == ("ValueError", "e1")
    assert entry["endpoint"] == "worker:1"


def test_an_exception_is_named_by_its_class() -> None:
    of_user = ErrorInfo(
        summary="job.py, line 7: ValueError: bad",
        user_traceback="Traceback (most recent call last):\n  ...\npkg.Broken: bad",
    )
    shown = exceptions(details(exceptions=(of_user,)), 5)
    assert shown["exceptionHistory"]["entries"][0]["exceptionName"] == "pkg.Broken"


def checkpoint(**changes: Any) -> CheckpointDetails:
    times = {"start_delay_ms": 1.0, "alignment_ms": 2.0, "sync_ms": 3.0, "async_ms": 4.0}
    part = SubtaskCheckpoint(
        task="Map (2/2)#1", size_bytes=10, vertex_id="b" * 32, subtask=1, **times
    )
    made = job_details.checkpoint(
        checkpoint_id=7,
        state="COLLECTING",
        duration_ms=20,
        size_bytes=10,
        tasks=2,
        subtasks=(part,),
        **times,
    )
    return replace(made, **changes)


def test_checkpoints_show_the_parts_of_vertices_and_subtasks() -> None:
    of = details(vertex(attempt(0), attempt(1)), checkpoints=(checkpoint(),))
    (shown,) = checkpoints(of)["history"]
    assert (shown["status"], shown["className"]) == ("IN_PROGRESS", "in_progress")
    assert shown["tasks"]["b" * 32]["num_acknowledged_subtasks"] == 1
    subtasks = subtask_checkpoints(checkpoint(), of.vertices[0])["subtasks"]
    assert [subtask["status"] for subtask in subtasks] == ["pending_or_failed", "completed"]
    assert (subtasks[1]["end_to_end_duration"], subtasks[1]["alignment"]["duration"]) == (10, 2)


def test_the_configuration_of_checkpoints_is_in_milliseconds() -> None:
    shown = checkpoint_config(Configuration({"execution.checkpointing.interval": "2 s"}))
    assert (shown["interval"], shown["mode"]) == (2000, "exactly_once")


def test_a_silent_task_manager_shows_zeros() -> None:
    total = ResourceProfile(cpu_cores=2, heap_bytes=2**30)
    executor = TaskExecutorOverview(
        task_executor_id="e1",
        address="worker:1",
        host="worker",
        pid=1,
        slots=2,
        slots_free=1,
        slots_warm=1,
        total=total,
    )
    shown = task_manager(executor, None, NOW_MS)
    assert shown["hardware"]["cpuCores"] == 0
    assert shown["totalResource"]["taskHeapMemory"] == 1024


# ---- answers


def of_request(query: str) -> Any:
    return make_mocked_request("GET", f"/?{query}")


def test_metrics_are_listed_unless_they_are_named() -> None:
    values = {"a": 1, "b": float("nan")}
    assert _json(metrics_answer(of_request(""), values)) == [{"id": "a"}, {"id": "b"}]
    shown = _json(metrics_answer(of_request("get=b,c&get=a"), values))
    assert shown == [{"id": "b", "value": "0.0"}, {"id": "a", "value": "1"}]


def test_metrics_are_aggregated() -> None:
    parts = [{"a": 1}, {"a": 3}, {}]
    (shown,) = _json(aggregated_answer(of_request("get=a,b"), parts))
    assert shown == {"id": "a", "min": 1, "max": 3, "avg": 2, "sum": 4, "skew": 50}
    assert _json(aggregated_answer(of_request("get=a&agg=sum"), parts)) == [{"id": "a", "sum": 4}]
    with pytest.raises(Refusal, match="agg='last'"):
        aggregated_answer(of_request("get=a&agg=last"), parts)


def test_not_a_number_never_reaches_json() -> None:
    shown = _json(answer({"a": [float("nan"), float("-inf")], "b": 1.5}))
    assert shown == {"a": [0, 0], "b": 1.5}


def _json(response: Any) -> Any:
    return json.loads(response.text, parse_constant=pytest.fail)


# ---- processes


def test_secrets_are_redacted() -> None:
    shown = redacted(
        {
            "s3.secret-key": "hush",
            "spark.hadoop.fs.s3a.secret.key": "hush",
            "spark.my.password": "hush",
            "execution.checkpointing.dir": "s3://user:hush@host/x",
            "security.token-file": "/path",
        }
    )
    assert "hush" not in str(shown)
    assert shown["s3.secret-key"] == REDACTED
    assert shown["security.token-file"] == "/path"


class Aborted(Exception):
    pass


class Context:
    async def abort(self, code: grpc.StatusCode, *details: object) -> None:
        raise Aborted(code)


async def test_log_files_are_looked_up_and_never_joined_to_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "own.log").write_bytes(b"one\nstdout: printed\nstdout vertex=A subtask=1: 2> two\n")
    (folder / "own.log.1").write_bytes(b"older")
    (tmp_path / "secret").write_bytes(b"hush")
    info = ProcessInfo(Configuration({}), Registry(), lambda: [folder / "own.log"])
    described = await info.describe()
    assert [file.name for file in described.log_files] == ["own.log", "own.log.1"]

    async def read(name: str, *, output: bool = False) -> bytes:
        request = pb.ReadLogFileRequest(name=name, output=output)
        return b"".join([chunk.data async for chunk in info.read_log_file(request, Context())])

    assert await read("own.log.1") == b"older"
    assert await read("own.log", output=True) == b"printed\n2> two\n"
    for name in ("../secret", "..%2fsecret", str(tmp_path / "secret"), "log/own.log", "", "."):
        with pytest.raises(Aborted):
            await read(name)

"""The routes of /firesteel/v1, as pure functions and at a real Dispatcher."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from dispatcher.rest.answers import encoded
from dispatcher.rest.firesteel import logs
from dispatcher.rest.firesteel.cluster import cluster, worth_reading
from dispatcher.rest.firesteel.jobs import exceptions, job
from dispatcher.rest.firesteel.logs import LogView
from dispatcher.rest.firesteel.savepoints import SavepointFiles, savepoints
from dispatcher.rest.firesteel.vertices import page
from firesteel._proto import job_logs_pb2
from firesteel.client.job_details import (
    JOB_DETAILS,
    Attempt,
    ClusterOverview,
    JobDetails,
    JobOverview,
    MasterOverview,
    StatusChange,
    Subtask,
    Vertex,
)
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.task_metrics import PartitionProgress, TaskMetrics, TopicProgress
from firesteel.errors import ErrorInfo
from tests import job_details

JOB = "a" * 32


def attempt(state: ExecutionState = ExecutionState.RUNNING, **metrics: Any) -> Attempt:
    return job_details.attempt(state=state, entered_ms={state: 1}, metrics=TaskMetrics(**metrics))


def vertex(*attempts: Attempt, vertex_id: str = "v") -> Vertex:
    return job_details.vertex(*attempts, vertex_id=vertex_id)


def details(*vertices: Vertex, **changes: object) -> JobDetails:
    whole = {
        "job_id": JOB,
        "name": "<script>alert(1)</script>",
        "status": JobStatus.RUNNING,
        "start_ms": 1,
        "vertices": vertices,
    }
    return JobDetails(**{**whole, **changes})


def test_masters_are_listed_by_office_and_standbys_last():
    def master(office: str, address: str, epoch: int = 0, **more: str) -> MasterOverview:
        return MasterOverview(office=office, address=address, epoch=epoch, leads=epoch > 0, **more)

    overview = ClusterOverview(
        version="1",
        resource_manager_address="rm:1",
        resource_manager_problem="it does not answer",
        **dict.fromkeys(("slots_total", "slots_free", "slots_warm", "slots_missing"), 0),
        **dict.fromkeys(("jobs_running", "jobs_finished", "jobs_canceled", "jobs_failed"), 0),
        masters=(
            master("job_master", "jm:1", 7, job_id=JOB, job_name="sales"),
            master("dispatcher", "standby:1"),
            master("dispatcher", "leader:1", 3),
            replace(master("resource_manager", "rm:1"), leads=True),
        ),
    )
    shown = cluster(overview, [], [])["masters"]
    assert [(each["address"], each["leads"], each["epoch"]) for each in shown] == [
        ("leader:1", True, 3),
        ("standby:1", False, None),
        ("rm:1", False, None),
        ("jm:1", True, 7),
    ]
    assert [each["problem"] for each in shown] == [None, None, "it does not answer", None]
    assert (shown[3]["job_id"], shown[3]["job_name"]) == (JOB, "sales")
    vacant = replace(overview, resource_manager_address="", masters=overview.masters[:3])
    assert cluster(vacant, [], [])["masters"][-1]["problem"] == "it does not answer"


def test_shares_are_of_the_lifetime_and_unknown_without_one():
    shown = job(details(vertex(attempt(busy_ms=30, idle_ms=60, back_pressured_ms=10))), 5)
    assert shown["vertices"][0]["time"] == {
        "busy": 0.3,
        "idle": 0.6,
        "back_pressured": 0.1,
        "spark": 0.0,
        "python": 0.0,
        "exchange": 0.0,
    }
    assert set(job(details(vertex(attempt())), 5)["vertices"][0]["time"].values()) == {None}


def test_the_watermark_lags_only_while_the_job_runs_and_its_input_has_not_ended():
    def lag_ms(watermark_us: int | None, **changes: object) -> object:
        running = vertex(attempt(watermark_us=watermark_us))
        return job(details(running, **changes), 100)["vertices"][0]["watermark_lag_ms"]

    assert lag_ms(60_000) == 40
    assert lag_ms(200_000) == 0  # clocks differ
    assert lag_ms(None) is None
    assert lag_ms(2**63 - 1) is None
    assert lag_ms(60_000, status=JobStatus.FINISHED) is None


def test_numbers_that_json_does_not_have_are_null():
    assert json.loads(encoded({"a": [math.nan, {"b": math.inf}, 1.5]})) == {
        "a": [None, {"b": None}, 1.5]
    }


@pytest.mark.parametrize(
    ("sort", "descending", "indexes"),
    [
        ("index", False, [1, 2]),
        ("index", True, [2, 1]),
        ("busy", True, [3, 0]),
        ("records_in", False, [3, 0]),
    ],
)
def test_subtasks_are_sorted_before_the_page_is_cut(sort, descending, indexes):
    attempts = [
        attempt(records_in=records, busy_ms=busy_ms, idle_ms=10 - busy_ms)
        for records, busy_ms in [(10, 5.0), (20, 9.0), (5, 1.0), (7, 7.0)]
    ]
    shown = page(vertex(*attempts), 1, 2, sort, descending)
    assert shown["total"] == 4
    assert [each["index"] for each in shown["subtasks"]] == indexes


def test_a_failure_says_whether_the_job_ran_again():
    failure = ErrorInfo(summary="ValueError: x", timestamp_ms=10)

    def restarted(*statuses: JobStatus) -> object:
        entered = tuple(StatusChange(s, 10 + i) for i, s in enumerate(statuses))
        whole = details(
            exceptions=(failure,), entered_ms=(StatusChange(JobStatus.RUNNING, 5), *entered)
        )
        return exceptions(whole)["exceptions"][0]["restarted"]

    assert restarted() is None
    assert restarted(JobStatus.RESTARTING) is True
    assert restarted(JobStatus.FAILING, JobStatus.FAILED) is False


def test_the_newest_jobs_are_read_for_the_overview():
    def overview(number: int, status: JobStatus) -> JobOverview:
        return JobOverview(
            job_id=str(number),
            name="",
            status=status,
            start_ms=number,
            end_ms=number,
            tasks_by_state={},
        )

    jobs = [overview(n, JobStatus.RUNNING if n % 2 else JobStatus.FAILED) for n in range(100)]
    read = worth_reading([*jobs, overview(101, JobStatus.FINISHED)])
    assert [job.job_id for job in read[:2]] == ["99", "97"]
    assert [job.job_id for job in read[20:]] == [str(n) for n in range(98, 79, -2)]


def batch(*texts: str, complete_us: int = 0) -> job_logs_pb2.JobLogLines:
    lines = [job_logs_pb2.JobLogLine(time_us=1_000, process="slot-0[7]", text=t) for t in texts]
    return job_logs_pb2.JobLogLines(lines=lines, complete_us=complete_us)


def ours(level: str, event: str) -> str:
    return f"timestamp=2026-01-01T00:00:00.0Z level={level} process=slot-0[7] event={event}"


def test_a_view_of_logs_opens_with_the_last_lines_and_continues():
    view = LogView(lines=2, least="debug", text="", opened_us=50)
    assert view.add(batch(ours("info", "a"), ours("info", "b"), complete_us=10)) == []
    opened = view.add(batch(ours("error", "c"), complete_us=60))
    assert [line["text"] for line in opened] == ["event=b", "event=c"]
    assert [line["text"] for line in view.add(batch(ours("info", "d")))] == ["event=d"]


def test_lines_are_filtered_by_level_and_text_and_tracebacks_keep_the_level_of_theirs():
    view = LogView(lines=9, least="warning", text="T", opened_us=0)
    lines = view.add(
        batch(
            ours("info", "test"),
            ours("error", "test"),
            "  Traceback",
            "printed text",
            "2026-01-01T00:00:00.1Z WARN Task",
        )
    )
    assert [(line["level"], line["text"]) for line in lines] == [
        ("error", "event=test"),
        ("error", "  Traceback"),
        ("warning", "2026-01-01T00:00:00.1Z WARN Task"),
    ]


async def test_a_quiet_log_shows_what_it_has(monkeypatch):
    monkeypatch.setattr(logs, "QUIET_S", 0.0)
    more = asyncio.Event()

    async def batches():
        yield batch("first")
        await more.wait()
        yield batch("second")

    read = logs._or_nothing(batches())
    assert (await anext(read)).lines[0].text == "first"
    assert await anext(read) is None
    more.set()
    assert [each.lines[0].text async for each in read if each] == ["second"]


def test_sums_of_messages_are_those_of_what_they_describe():
    topic = TopicProgress.of(
        [PartitionProgress(topic="t", partition=1, current_offset=3, end_offset=9)]
    )
    whole = details(
        vertex(
            attempt(records_in=3, busy_ms=2.5, watermark_us=70, topics={"o": topic}),
            attempt(ExecutionState.FINISHED, records_in=4, last_bundle_records=9, watermark_us=50),
            attempt(last_bundle_records=7, topics={"o": topic}),
        )
    )
    (received,) = JOB_DETAILS.decode(JOB_DETAILS.encode(whole)).vertices
    (described,) = whole.vertices
    assert received.metrics == described.metrics
    assert received.metrics.topics["o"].pending_records == 12
    assert received.states == described.states
    assert received == described
    for sort in ("index", "busy", "records_in"):
        assert page(received, 1, 2, sort, True) == page(described, 1, 2, sort, True)
    without = replace(described, subtasks=(Subtask(index=0, attempts=()),))
    assert page(without, 0, 1, "busy", False)["subtasks"] == [{"index": 0, "attempts": []}]


async def test_savepoints_name_the_jobs_that_started_from_them_and_whether_they_exist(tmp_path):
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    kept.mkdir()
    (kept / "_metadata").touch()
    taken = [
        job_details.checkpoint(checkpoint_id=n, savepoint=True, path=str(path), triggered_ms=n)
        for n, path in enumerate((kept, gone), 1)
    ]
    of = {"execution.state-recovery.path": f"{kept}/_metadata"}
    jobs = [details(checkpoints=tuple(taken)), details(job_id="b" * 32, configuration=of)]
    exist = await SavepointFiles().exist([str(kept), str(gone), "nosuch://bucket"])
    assert exist == {str(kept): True, str(gone): False, "nosuch://bucket": None}
    newest, oldest = savepoints(jobs, exist)["savepoints"]
    assert (newest["path"], newest["disposed"], newest["restored_by"]) == (str(gone), True, [])
    assert (oldest["path"], oldest["disposed"]) == (str(kept), False)
    assert [each["job_id"] for each in oldest["restored_by"]] == ["b" * 32]

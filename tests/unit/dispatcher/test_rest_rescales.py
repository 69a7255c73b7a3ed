"""The changes of a job's parallelism in Flink's JSON."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.rest.flink.rescales import history, overview, rescale, rescales_summary
from firesteel.client.job_details import JobDetails
from firesteel.common.rescales import Outcome, Rescale, StageEntered, TriggerCause
from firesteel.common.states import JobStatus
from tests import job_details

VERTEX = job_details.vertex()
V = VERTEX.vertex_id
DONE = Rescale(
    rescale_id="a" * 32,
    number=1,
    trigger=TriggerCause.UPDATE_REQUIREMENT,
    before={V: 2},
    after={V: 4},
    lower={V: 1},
    upper={V: 8},
    stages=(StageEntered("SLOTS", 1000), StageEntered("CHECKPOINT", 1400)),
    end_ms=2000,
    outcome=Outcome.SUCCEEDED,
    reason="autoscaler: more records arrive",
)
FAILED = replace(
    DONE,
    rescale_id="b" * 32,
    number=2,
    end_ms=4000,
    outcome=Outcome.EXCEPTION_OCCURRED,
    problem="no slots",
)
OPEN = replace(DONE, rescale_id="c" * 32, number=3, end_ms=0, outcome=Outcome.IN_PROGRESS)
DETAILS = JobDetails(
    job_id="f" * 32,
    name="job",
    status=JobStatus.RUNNING,
    start_ms=500,
    vertices=(VERTEX,),
    rescales=(OPEN, FAILED, DONE),
)


def test_a_rescale_has_its_vertices_slots_and_states() -> None:
    shown = rescale(DONE, DETAILS, stages=True)
    assert (shown["terminalState"], shown["terminatedReason"]) == ("COMPLETED", "SUCCEEDED")
    assert shown["vertices"][V] | {"jobVertexName": "", "slotSharingGroupId": ""} == {
        "jobVertexId": V,
        "jobVertexName": "",
        "slotSharingGroupId": "",
        "slotSharingGroupName": VERTEX.slot_sharing_group,
        "desiredParallelism": 8,
        "sufficientParallelism": 1,
        "preRescaleParallelism": 2,
        "postRescaleParallelism": 4,
    }
    slots = shown["slots"][VERTEX.slot_sharing_group]
    assert (slots["preRescaleSlots"], slots["postRescaleSlots"]) == (2, 4)
    assert [state["durationInMillis"] for state in shown["schedulerStates"]] == [400, 600]


def test_a_failed_rescale_keeps_its_parallelism_and_says_why() -> None:
    shown = rescale(FAILED, DETAILS, stages=True)
    assert shown["terminalState"] == "FAILED"
    assert shown["vertices"][V]["postRescaleParallelism"] == 2
    assert shown["schedulerStates"][-1]["stringifiedException"] == "no slots"


def test_the_overview_counts_and_has_the_latest_of_each_state() -> None:
    shown = overview(DETAILS)
    counts = {"inProgress": 1, "completed": 1, "failed": 1, "ignored": 0}
    assert shown["rescalesCounts"] == counts == rescales_summary(DETAILS)["rescalesCounts"]
    assert shown["latest"]["completed"]["rescaleAttemptId"] == 1
    assert shown["latest"]["ignored"] is None
    assert rescales_summary(DETAILS)["failedRescalesDurationStatsInMillis"]["max"] == 3000
    open_rescale, *_ = history(DETAILS)
    assert open_rescale["endTimestampInMillis"] is None and not open_rescale["schedulerStates"]

"""Refusals of masters that were replaced: all are counted, and the first of each is logged."""

from __future__ import annotations

from structlog.testing import capture_logs

from firesteel.common.fencing import Refusals


def test_all_are_counted_and_the_first_of_each_master_is_logged() -> None:
    refusals = Refusals()
    with capture_logs() as logged:
        for job_id in ("a", "a", "b"):
            refusals.refuse(
                "TasksSubmitted", sender="JobMaster", epoch=1, in_force=2, job_id=job_id
            )
        refusals.refuse("answer to ListJobs", sender="Dispatcher", epoch=1, in_force=0)
    assert [(line["sender"], line.get("job_id"), line.get("in_force")) for line in logged] == [
        ("JobMaster", "a", 2),
        ("JobMaster", "b", 2),
        ("Dispatcher", None, None),
    ]
    samples = refusals.samples("flink_taskmanager_", {"host": "here"})
    assert [(sample.name, sample.labels["sender"], sample.value) for sample in samples] == [
        ("flink_taskmanager_numFencedMessages", "JobMaster", 3),
        ("flink_taskmanager_numFencedMessages", "Dispatcher", 1),
    ]

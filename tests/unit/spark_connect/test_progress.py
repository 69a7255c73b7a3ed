"""The progress of queries, from details of jobs as the cluster sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from firesteel.client.job_details import (
    Attempt,
    CheckpointDetails,
    JobDetails,
    OperatorDetails,
    Subtask,
    Vertex,
)
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.task_metrics import PartitionProgress, TaskMetrics, TopicProgress
from firesteel.spark_connect import progress
from firesteel.spark_connect.progress import Batch, Idle, ProgressReporter, QueryIds

START_MS = 1_700_000_000_000
IDS = QueryIds(
    query_id="11111111-1111-1111-1111-111111111111",
    run_id="22222222-2222-2222-2222-222222222222",
    name="counts",
)


def vertex(
    kind: str,
    inputs: tuple[str, ...] = (),
    state: ExecutionState = ExecutionState.RUNNING,
    state_bytes: int | None = None,
    **metrics: Any,
) -> Vertex:
    attempt = Attempt(
        attempt_id="a",
        number=0,
        state=state,
        host="here",
        task_executor_id="t",
        slot_index=0,
        entered_ms={},
        metrics=TaskMetrics(**metrics),
        error=None,
    )
    return Vertex(
        vertex_id=kind,
        name=kind,
        parallelism=1,
        max_parallelism=128,
        slot_sharing_group="default",
        operators=(
            OperatorDetails(
                operator_id=kind,
                uid="",
                name=f"The {kind}",
                kind=kind,
                runs_on_spark=False,
                plan="",
                state_bytes=state_bytes,
            ),
        ),
        subtasks=(Subtask(index=0, attempts=(attempt,)),),
        input_vertex_ids=inputs,
        state_bytes=state_bytes,
    )


def details(
    *vertices: Vertex,
    checkpoints: int = 0,
    status: JobStatus = JobStatus.RUNNING,
    read: Mapping[int, Mapping[str, int]] | None = None,
) -> JobDetails:
    """`checkpoints` are complete; number n was triggered n seconds after the start. `read`: rows by
    checkpoint and vertex.
    """
    return JobDetails(
        job_id="j",
        name="counts",
        status=status,
        start_ms=START_MS,
        end_ms=START_MS + 60_000 if status.globally_terminal else 0,
        vertices=vertices,
        checkpoints=tuple(
            CheckpointDetails(
                checkpoint_id=number,
                savepoint=False,
                state="COMPLETED",
                triggered_ms=START_MS + number * 1000,
                duration_ms=20,
                size_bytes=1,
                acknowledged=1,
                tasks=1,
                failure="",
                start_delay_ms=0,
                alignment_ms=0,
                sync_ms=0,
                async_ms=0,
                records_read=(read or {}).get(number, {}),
            )
            for number in range(checkpoints, 0, -1)
        ),
    )


@pytest.fixture
def reporter() -> ProgressReporter:
    return ProgressReporter(IDS, sources=["files"], sink="console", first_batch=7)


def seen(reporter: ProgressReporter, job: JobDetails, at_s: float) -> dict[str, Any] | None:
    """The progress that the details complete."""
    news = reporter.update(job, START_MS + round(at_s * 1000))
    assert not isinstance(news, Idle)
    if news is not None:
        reporter.publish(news)
    return json.loads(news.progress) if news is not None else None


def test_a_batch_is_what_was_read_between_two_checkpoints(reporter: ProgressReporter) -> None:
    def job(read: int, written: int, checkpoints: int) -> JobDetails:
        source = vertex("Source", records_read=read, busy_ms=read * 10)
        return details(
            source, vertex("Sink", ("Source",), records_in=written), checkpoints=checkpoints
        )

    assert seen(reporter, job(10, 2, 0), 0.5) is None
    first = seen(reporter, job(30, 5, 1), 1.5)
    assert first is not None
    assert (first["batchId"], first["numInputRows"], first["sink"]["numOutputRows"]) == (7, 30, 5)
    assert first["timestamp"] == "2023-11-14T22:13:20.000Z"
    assert first["durationMs"] == {"triggerExecution": 20}
    assert first["batchDuration"] == 1020
    assert first["inputRowsPerSecond"] == round(30 / 1.02, 3)
    assert first["processedRowsPerSecond"] == 100.0
    assert seen(reporter, job(30, 5, 2), 2.5) is None  # nothing was read
    second = seen(reporter, job(36, 6, 4), 4.5)
    assert second is not None
    assert (second["batchId"], second["numInputRows"], second["sources"][0]["numInputRows"]) == (
        8,
        6,
        6,
    )
    assert [batch.number for batch in reporter.recent] == [7, 8]


def test_a_batch_has_the_rows_that_its_checkpoint_counts(reporter: ProgressReporter) -> None:
    exact = {1: {"Source": 10}, 2: {"Source": 20}, 3: {"Source": 0}, 4: {}, 5: {"Source": 5}}

    def rows(counted: int, checkpoints: int) -> int | None:
        source = vertex("Source", records_read=counted)
        found = seen(reporter, details(source, checkpoints=checkpoints, read=exact), checkpoints)
        return None if found is None else int(found["numInputRows"])

    assert rows(17, 1) == 10  # 7 rows have come after its barrier
    assert rows(30, 2) == 20
    assert rows(33, 3) is None  # none before the barrier
    assert rows(34, 4) == 4  # another JobMaster does not know: all that have come since
    assert rows(50, 5) == 5
    assert rows(3, 5) is None  # read again after a failure


def test_a_restarted_task_counts_from_zero(reporter: ProgressReporter) -> None:
    seen(reporter, details(vertex("Source", records_read=100), checkpoints=1), 1)
    again = seen(reporter, details(vertex("Source", records_read=40), checkpoints=2), 2)
    assert again is not None
    assert again["numInputRows"] == 40


def test_the_rest_of_a_finite_input_is_a_batch(reporter: ProgressReporter) -> None:
    finished = vertex("Source", records_read=3, state=ExecutionState.FINISHED)
    last = seen(reporter, details(finished, status=JobStatus.FINISHED), 61)
    assert last is not None
    assert last["numInputRows"] == 3
    assert reporter.status.message == progress.STOPPED


def test_a_run_without_rows_has_one_progress(reporter: ProgressReporter) -> None:
    source = vertex("Source", records_read=0)
    assert seen(reporter, details(source, checkpoints=1), 2) is None
    news = reporter.update(details(source, status=JobStatus.FINISHED), START_MS + 3_000)
    assert isinstance(news, Batch)
    assert news.rows == 0
    found = json.loads(news.progress)
    assert (found["batchId"], found["numInputRows"]) == (7, 0)


def test_a_run_with_rows_has_no_progress_of_its_end(reporter: ProgressReporter) -> None:
    source = vertex("Source", records_read=3)
    assert seen(reporter, details(source, checkpoints=1), 2) is not None
    assert seen(reporter, details(source, checkpoints=1, status=JobStatus.FINISHED), 3) is None


def test_offsets_of_kafka(reporter: ProgressReporter) -> None:
    def job(offset: int, checkpoints: int) -> JobDetails:
        topic = TopicProgress.of([PartitionProgress("orders", 0, offset, end_offset=50)])
        source = vertex("Source", topics={"op": topic}, records_read=offset - 5)
        return details(source, checkpoints=checkpoints)

    first = seen(reporter, job(6, 1), 1)
    second = seen(reporter, job(20, 2), 2)
    assert first is not None
    assert second is not None
    assert first["sources"][0]["endOffset"] == {"orders": {"0": 6}}
    assert second["sources"][0]["startOffset"] == {"orders": {"0": 6}}
    assert second["sources"][0]["endOffset"] == {"orders": {"0": 20}}
    assert second["sources"][0]["latestOffset"] == {"orders": {"0": 50}}
    assert (first["numInputRows"], second["numInputRows"]) == (1, 14)


def test_the_first_batch_starts_where_an_earlier_run_has_ended() -> None:
    earlier = {"orders": {"0": 4}}
    reporter = ProgressReporter(IDS, sources=["Kafka"], sink="s", first_batch=3, starts=[earlier])
    topic = TopicProgress.of([PartitionProgress("orders", 0, 6, end_offset=50)])
    source = vertex("Source", topics={"op": topic}, records_read=2)
    batch = reporter.update(details(source, checkpoints=1), START_MS)
    assert isinstance(batch, Batch)
    assert json.loads(batch.progress)["sources"][0]["startOffset"] == earlier
    assert batch.ends == ({"orders": {"0": 6}},)


def test_state_operators_and_the_watermark(reporter: ProgressReporter) -> None:
    job = details(
        vertex("Source", records_read=1, state_bytes=10),
        vertex(
            "RunningAggregate",
            ("Source",),
            state_bytes=99,
            watermark_us=START_MS * 1000,
            late_records_dropped=4,
        ),
        checkpoints=1,
    )
    batch = seen(reporter, job, 1)
    assert batch is not None
    assert batch["eventTime"] == {"watermark": "2023-11-14T22:13:20.000Z"}
    [state] = batch["stateOperators"]
    assert state["operatorName"] == "The RunningAggregate"
    assert (state["memoryUsedBytes"], state["numRowsDroppedByWatermark"]) == (99, 4)


def test_late_rows_are_those_of_the_first_operator_with_state(reporter: ProgressReporter) -> None:
    job = details(
        vertex("Source", records_read=1, state_bytes=10),
        vertex("EventTimeWatermark", ("Source",), state_bytes=8, late_records_dropped=3),
        vertex("DropDuplicates", ("EventTimeWatermark",), state_bytes=9, late_records_dropped=1),
        vertex("RunningAggregate", ("DropDuplicates",), state_bytes=9, late_records_dropped=5),
        vertex("Batches", ("RunningAggregate",), state_bytes=8),
        checkpoints=1,
    )
    batch = seen(reporter, job, 1)
    assert batch is not None
    assert "eventTime" not in batch
    assert [
        (state["operatorName"], state["numRowsDroppedByWatermark"])
        for state in batch["stateOperators"]
    ] == [("The DropDuplicates", 4), ("The RunningAggregate", 5)]


def test_an_idle_query_says_so_every_ten_seconds(reporter: ProgressReporter) -> None:
    news = [
        reporter.update(details(vertex("Source"), checkpoints=at_s), START_MS + at_s * 1000)
        for at_s in range(1, 25)
    ]
    assert [each for each in news if each] == [
        Idle(START_MS + 10_000),
        Idle(START_MS + 20_000),
    ]


@pytest.mark.parametrize(
    ("job", "status"),
    [
        (details(vertex("Source", records_read=1)), (progress.PROCESSING, True, True)),
        (details(vertex("Source")), (progress.WAITING, False, False)),
        (
            details(vertex("Source", state=ExecutionState.DEPLOYING)),
            (progress.INITIALIZING, False, False),
        ),
        (details(status=JobStatus.RESTARTING), (progress.RESTARTING, False, False)),
        (details(status=JobStatus.CANCELED), (progress.STOPPED, False, False)),
    ],
)
def test_the_status(reporter: ProgressReporter, job: JobDetails, status: Any) -> None:
    reporter.update(job, START_MS)
    shown = reporter.status
    assert (shown.message, shown.is_data_available, shown.is_trigger_active) == status


def test_only_the_last_hundred_batches_are_kept(reporter: ProgressReporter) -> None:
    for number in range(1, 150):
        seen(reporter, details(vertex("Source", records_read=number), checkpoints=number), number)
    assert [batch.number for batch in reporter.recent] == list(range(56, 156))


def test_metrics_of_several_checkpoints_are_several_batches(reporter: ProgressReporter) -> None:
    job = details(vertex("Source", records_read=3), checkpoints=2)
    batch = reporter.update(job, START_MS)
    assert isinstance(batch, Batch)
    first = reporter.publish(batch, {"seen": {"n": 1}})
    second = reporter.publish(batch, {"seen": {"n": 2}}, again=True)
    events = [
        QueryProgressEvent.fromJson(json.loads(progress.progress_event(each))).progress
        for each in (first, second)
    ]
    assert [each.observedMetrics["seen"].n for each in events] == [1, 2]
    assert [each.numInputRows for each in events] == [3, 0]
    assert [each.sources[0].numInputRows for each in events] == [3, 0]
    assert [each.batchId for each in events] == [first.number, first.number + 1]
    assert reporter.recent == [first, second]


def test_pyspark_reads_the_events(reporter: ProgressReporter) -> None:
    batch = reporter.update(details(vertex("Source", records_read=1), checkpoints=1), START_MS)
    assert isinstance(batch, Batch)
    event = QueryProgressEvent.fromJson(json.loads(progress.progress_event(batch)))
    assert event.progress.name == "counts"
    assert str(event.progress.id) == IDS.query_id
    assert event.progress.sources[0].description == "files"
    started = QueryStartedEvent.fromJson(json.loads(progress.started_event(IDS, START_MS)))
    assert (str(started.runId), started.name) == (IDS.run_id, "counts")
    QueryIdleEvent.fromJson(json.loads(progress.idle_event(IDS, Idle(START_MS))))
    ended = QueryTerminatedEvent.fromJson(json.loads(progress.terminated_event(IDS, "why")))
    assert ended.exception == "why"

"""Sinks of streaming queries on a cluster, with the streams of ordinary programs as input."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.connect.proto.commands_pb2 import WriteStreamOperationStart
from pyspark.sql.types import LongType, StructType

from firesteel import Environment
from firesteel.client.job_details import JobDetails
from firesteel.common.states import JobStatus
from firesteel.connectors import FileSource, SequenceSource
from firesteel.spark_connect.available_now import stop_when_read
from firesteel.spark_connect.locations import Location, RunningQuery, open_location, still_runs
from firesteel.spark_connect.planner import PlannedStream
from firesteel.spark_connect.sinks import sink_of
from firesteel.spark_connect.triggers import trigger_of
from tests.e2e.conftest import Session
from tests.waiting import eventually


@dataclass
class Query:
    """A running query."""

    session: Session
    location: Location
    job_id: str

    def stop(self) -> None:
        self.session.client.stop(self.job_id, self.location.savepoints)
        self.session.client.wait(self.job_id)
        self.location.ended()
        self.location.close()


def started(session: Session, request: WriteStreamOperationStart, rate_per_s: int = 500) -> Query:
    """Starts a query over the numbers from 0 on."""
    trigger = trigger_of(request)
    sink = sink_of(request, trigger)
    location = open_location(
        request,
        required=sink.needs_location,
        runs=lambda query: still_runs(query, session.client),
    )
    env = Environment(
        parallelism=2, configuration={**trigger.configuration(), **location.configuration()}
    )
    numbers = env.from_source(
        SequenceSource(0, column="n", rate_per_s=rate_per_s), uid="numbers"
    ).set_parallelism(1)
    planned = PlannedStream(
        environment=env, stream=numbers, schema=StructType().add("n", LongType())
    )
    sink.add_to(planned, location.completed)
    job_id = session.submit(env, "numbers")
    location.started(RunningQuery(job_id, "numbers", session.client.address))
    return Query(session, location, job_id)


def request_of(location: Path, **fields: Any) -> WriteStreamOperationStart:
    options = {"checkpointLocation": str(location), **fields.pop("options", {})}
    return WriteStreamOperationStart(
        options=options, processing_time_interval="300 milliseconds", **fields
    )


def test_foreach_batch_continues_after_a_restart(session: Session, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def note(frame: Any, batch_id: int) -> None:
        with open(calls, "a") as file:
            file.write(json.dumps([batch_id, [row.n for row in frame.collect()]]) + "\n")

    request = request_of(tmp_path / "state")
    request.foreach_batch.python_function.command = cloudpickle.dumps(note)

    def noted() -> list[Any]:
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [json.loads(line) for line in lines]

    ids = set()
    for runs in (1, 2, 3):
        before = len(noted())
        query = started(session, request)
        ids.add(query.location.query_id)
        eventually(lambda before=before: len(noted()) > before + 1, "two batches")
        query.stop()
        found = noted()
        assert [batch_id for batch_id, _ in found] == list(range(len(found))), f"{runs} runs"
        values = sorted(n for _, numbers in found for n in numbers)
        assert values == list(range(len(values))), f"each number once after {runs} runs"
    assert len(ids) == 1


def test_partitioned_files_continue_after_a_restart(session: Session, tmp_path: Path) -> None:
    out = tmp_path / "out"
    request = request_of(
        tmp_path / "state",
        format="parquet",
        path=str(out),
        partitioning_column_names=["third"],
    )
    seen = 0
    for _ in range(2):
        query = started_with_thirds(session, request)
        files = len(list(out.glob("third=*/part-*")))
        eventually(lambda n=files: len(list(out.glob("third=*/part-*"))) > n, "more files")
        query.stop()
        table = pq.read_table(out)
        numbers = sorted(table["n"].to_pylist())
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > seen
        seen = len(numbers)
        assert all(row["n"] % 3 == row["third"] for row in table.to_pylist())


def test_available_now_reads_each_file_once_and_ends(session: Session, tmp_path: Path) -> None:
    """Each run is one batch with all rows of the files that are there."""
    files, calls = tmp_path / "files", tmp_path / "calls"
    files.mkdir()

    def note(frame: Any, batch_id: int) -> None:
        with open(calls, "a") as file:
            file.write(json.dumps([batch_id, sorted(row.n for row in frame.collect())]) + "\n")

    request = WriteStreamOperationStart(
        options={"checkpointLocation": str(tmp_path / "state")}, available_now=True
    )
    request.foreach_batch.python_function.command = cloudpickle.dumps(note)
    expected = []
    for run, (begin, end) in enumerate([(0, 40), (40, 45), (45, 45), (45, 90)]):
        for number in range(begin, end):
            pq.write_table(pa.table({"n": [number]}), files / f"{number}.parquet")
        if end > begin:
            expected.append([len(expected), list(range(begin, end))])
        details = available_now(session, request, files)
        assert details.status is JobStatus.FINISHED, run
        assert [json.loads(line) for line in calls.read_text().splitlines()] == expected


def available_now(session: Session, request: WriteStreamOperationStart, files: Path) -> JobDetails:
    trigger = trigger_of(request)
    sink = sink_of(request, trigger)
    location = open_location(request, required=False, runs=lambda _: False)
    env = Environment(
        parallelism=2, configuration={**trigger.configuration(), **location.configuration()}
    )
    source = FileSource(str(files), format="parquet", schema="n LONG", watch="10 s")
    planned = PlannedStream(
        environment=env,
        stream=env.from_source(source, uid="files"),
        schema=StructType().add("n", LongType()),
    )
    sink.add_to(planned, location.completed)
    try:
        return stop_when_read(session.client, session.submit(env, "now"), location.savepoints)
    finally:
        location.close()


def started_with_thirds(session: Session, request: WriteStreamOperationStart) -> Query:
    trigger = trigger_of(request)
    sink = sink_of(request, trigger)
    location = open_location(request, required=True, runs=lambda _: False)
    env = Environment(
        parallelism=2, configuration={**trigger.configuration(), **location.configuration()}
    )
    numbers = env.from_source(
        SequenceSource(0, column="n", rate_per_s=500), uid="numbers"
    ).set_parallelism(1)
    thirds = (
        numbers.rebalance().transform(lambda df: df.selectExpr("n", "n % 3 AS third")).uid("thirds")
    )
    schema = StructType().add("n", LongType()).add("third", LongType())
    sink.add_to(PlannedStream(environment=env, stream=thirds, schema=schema), location.completed)
    return Query(session, location, session.submit(env, "thirds"))

"""PySpark's Python DataSource as source and sink, on the operators alone."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from firesteel import Environment, Watermarks
from firesteel.common.job_graph import JobGraph, Operator
from firesteel.connectors import PythonSink, PythonSource
from firesteel.connectors.python_sink import PythonCommit
from firesteel.connectors.python_source import PartitionPlan
from firesteel.elements import MIN_TIMESTAMP_US, Watermark
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.operator import StreamOperator, TaskCancelled
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.python.data_source import (
    MESSAGE_SCHEMA,
    PARTITION_SCHEMA,
    check_sink,
    check_source,
)
from taskexecutor.executor.connectors.runtime import sink_runtime, source_runtime
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import create_operator
from taskexecutor.executor.state import RestoredOperatorState

SCHEMA = StructType([StructField("n", LongType()), StructField("text", StringType())])
ARROW = pa.schema([("n", pa.int64()), ("text", pa.string())])
calls: list[Any] = []  # what was called on the user's classes, in order


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


# -- reading


class Range(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class Reader(DataSourceStreamReader):
    """Plans 10 more numbers per call, in partitions of 4, up to 25."""

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"n": min(25, start["n"] + 10)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Range]:
        return [Range(n, min(n + 4, end["n"])) for n in range(start["n"], end["n"], 4)]

    def read(self, partition: Range) -> Iterator[Any]:  # type: ignore[override]
        for n in range(partition.start, partition.end):
            yield (n, f"{n}") if n % 2 else Row(n=n, text=f"{n}")

    def commit(self, end: dict[str, int]) -> None:
        calls.append(("commit", end))

    def stop(self) -> None:
        calls.append("stop")


class BoundedReader(Reader):
    def isFinished(self, end: dict[str, int]) -> bool:
        return end["n"] == 25


class OlderReader(Reader):
    def __init__(self) -> None:
        self.latest = 0

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        self.latest += 7
        return {"n": min(25, self.latest)}


class ArrowReader(Reader):
    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        context = TaskContext.get()
        assert context is not None
        numbers = list(range(partition.start, partition.end))
        yield pa.record_batch(
            [numbers, [f"in {context.partitionId()}" for _ in numbers]], schema=ARROW
        )


class SimpleNumbers(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        end = min(5, start["n"] + 3)
        return ((n, str(n)) for n in range(start["n"], end)), {"n": end}


class Numbers(DataSource):
    reader_class: type[Any] = BoundedReader

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> Any:
        return self.reader_class()


def numbers(reader: type[Any]) -> PythonSource:
    return PythonSource(type("Numbers", (Numbers,), {"reader_class": reader}))


class Simple(DataSource):
    def schema(self) -> StructType:
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleNumbers()


def build(source: PythonSource | PartitionPlan) -> StreamOperator:
    return source_runtime(source).operator([])


def plan(harness: OperatorHarness, polls: int = 10) -> list[Range]:
    for _ in range(polls):
        if not harness.poll():
            break
    return [cloudpickle.loads(row["partition"]) for row in harness.rows()]


@pytest.mark.parametrize("reader", [Reader, BoundedReader, OlderReader])
def test_partitions_are_planned_once_each_in_one_subtask(reader: type[Any]) -> None:
    planner = OperatorHarness(build(PartitionPlan(numbers(reader))), []).open()
    planned = plan(planner)
    covered = [n for partition in planned for n in range(partition.start, partition.end)]
    assert covered == list(range(25))
    assert all(batch.num_rows == 1 for batch in planner.batches), "so that they are spread evenly"
    assert planner.operator.waiting is (reader is not BoundedReader)  # type: ignore[attr-defined]
    planner.close()
    assert calls == ["stop"]
    other = OperatorHarness(
        build(PartitionPlan(numbers(reader))), [], subtask=1, parallelism=2
    ).open()
    assert not other.poll()


def test_a_reader_that_never_ends_is_refused_in_batch_mode() -> None:
    def planner(reader: type[Any]) -> OperatorHarness:
        config = {"execution.runtime-mode": "BATCH"}
        return OperatorHarness(build(PartitionPlan(numbers(reader))), [], config=config)

    planner(BoundedReader).open()
    with pytest.raises(FiresteelError, match=r"give Reader a method isFinished\(end\)"):
        planner(Reader).open()


@pytest.mark.parametrize("reader", [Reader, ArrowReader])
def test_partitions_are_read_as_rows_or_as_batches(reader: type[Any]) -> None:
    planner = OperatorHarness(build(PartitionPlan(numbers(reader))), []).open()
    plan(planner)
    operator = build(numbers(reader))
    harness = OperatorHarness(
        operator, [PARTITION_SCHEMA], output_schema=ARROW, subtask=1, parallelism=2
    ).open()
    for batch in planner.batches:
        harness.process(batch)
    assert TaskContext.get() is None, "this is not a worker: a Spark could be started here"
    texts = (str(n) if reader is Reader else "in 1" for n in range(25))
    assert harness.rows() == [
        {"n": n, "text": text} for n, text in zip(range(25), texts, strict=True)
    ]


def test_an_offset_is_kept_and_committed_when_its_checkpoint_is_complete() -> None:
    planner = OperatorHarness(build(PartitionPlan(numbers(Reader))), []).open()
    plan(planner, polls=1)
    planner.operator.snapshot_state(1)
    assert planner.operator.position()["offset"] == {"n": 10}  # type: ignore[attr-defined]
    plan(planner, polls=1)
    planner.operator.snapshot_state(2)
    plan(planner, polls=1)
    planner.operator.snapshot_state(3)
    assert calls == []
    planner.operator.notify_checkpoint_complete(2)
    planner.operator.notify_checkpoint_complete(1)  # was subsumed
    assert calls == [("commit", {"n": 20})]
    planner.operator.notify_checkpoint_aborted(3)
    planner.operator.notify_checkpoint_complete(3)
    assert len(calls) == 1


def test_a_planner_resumes_after_the_checkpoint_and_commits_it_again() -> None:
    planner = OperatorHarness(build(PartitionPlan(numbers(Reader))), []).open()
    plan(planner, polls=2)
    position = planner.operator.position()  # type: ignore[attr-defined]
    planner.close()
    calls.clear()
    again = OperatorHarness(build(PartitionPlan(numbers(BoundedReader))), []).open()
    again.operator.restore(position)  # type: ignore[attr-defined]
    assert calls == [("commit", {"n": 20})], "it may have failed before the notice arrived"
    assert not again.poll()
    reader = OperatorHarness(build(numbers(Reader)), [PARTITION_SCHEMA], output_schema=ARROW).open()
    for partition in again.batches:
        reader.process(partition)
    assert [row["n"] for row in reader.rows()] == list(range(20, 25))
    assert reader.operator.not_checkpointed == ""


def test_a_simple_reader_plans_and_reads_in_one_call() -> None:
    source = PythonSource(Simple)
    assert source.is_simple
    harness = OperatorHarness(build(source), [], output_schema=ARROW).open()
    for _ in range(3):
        assert harness.poll()
    assert [row["n"] for row in harness.rows()] == list(range(5))
    assert harness.operator.waiting  # type: ignore[attr-defined]
    assert harness.operator.poll_interval_s == pytest.approx(0.1)  # type: ignore[attr-defined]


class Long(SimpleNumbers):
    """Two reads of many rows each."""

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        end = {"n": min(50, start["n"] + 25)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return ((n, str(n)) for n in range(start["n"], end["n"]))


class Forgetful(Long):
    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return iter([])


def simple(reader: type[Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[], OperatorHarness]:
    """Polls read a few rows each."""
    monkeypatch.setattr("taskexecutor.executor.connectors.python.data_source.BATCH_ROWS", 4)
    monkeypatch.setattr("taskexecutor.executor.connectors.python.source.TARGET_S", 1e-9)

    class Made(Simple):
        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            made: SimpleDataSourceStreamReader = reader()
            return made

    return lambda: OperatorHarness(build(PythonSource(Made)), [], output_schema=ARROW)


def test_a_simple_reader_resumes_in_the_middle_of_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simple(Long, monkeypatch)
    harness = made().open()
    rows_at: list[tuple[int, Any]] = []
    while not harness.operator.waiting:  # type: ignore[attr-defined]
        harness.operator.snapshot_state(1)
        position = harness.operator.position()  # type: ignore[attr-defined]
        rows_at.append((len(harness.rows()), json.loads(json.dumps(position))))
        harness.poll()
    whole = harness.rows()
    assert [row["n"] for row in whole] == list(range(50))
    assert len(rows_at) > 14, "it gives way within a read"
    for emitted, kept in rows_at:
        other = made().open()
        other.operator.restore(kept)  # type: ignore[attr-defined]
        while not other.operator.waiting:  # type: ignore[attr-defined]
            other.poll()
        assert whole[:emitted] + other.rows() == whole
        counter = other.operator.context.counter("numRecordsIn")
        assert counter.value == len(whole) - emitted


def test_rows_that_cannot_be_read_again_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = simple(Long, monkeypatch)().open()
    harness.poll()
    position = harness.operator.position()  # type: ignore[attr-defined]
    other = simple(Forgetful, monkeypatch)().open()
    other.operator.restore(position)  # type: ignore[attr-defined]
    with pytest.raises(
        FiresteelError, match=r"returned 0 rows, but 4 had been read .* same rows again"
    ):
        other.poll()


def test_an_offset_that_does_not_advance_behind_its_rows_is_an_error() -> None:
    class Stuck(SimpleNumbers):
        def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
            return iter([(1, "x")]), start

    class StuckSource(Simple):
        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            return Stuck()

    harness = OperatorHarness(build(PythonSource(StuckSource)), [], output_schema=ARROW).open()
    with pytest.raises(FiresteelError, match="would be read repeatedly"):
        harness.poll()


class Topic(DataSourceStreamReader):
    """Returns each of `plans` immediately; its partitions are lists of times, all of them within
    the same ten microseconds.
    """

    plans: ClassVar[list[list[list[int]]]] = []

    def initialOffset(self) -> dict[str, int]:
        return {"plan": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"plan": min(start["plan"] + 1, len(self.plans))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [
            InputPartition([10 * start["plan"] + time for time in partition])
            for partition in self.plans[start["plan"]]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        for at in partition.value:
            yield pa.record_batch([pa.array([at], US)], schema=TIMES)


US = pa.timestamp("us", "UTC")
TIMES = pa.schema([("at", US)])


class Topics(DataSource):
    def schema(self) -> StructType:
        return StructType([StructField("at", TimestampType())])

    def streamReader(self, schema: StructType) -> Any:
        return Topic()


def harnesses(graph: JobGraph, **schemas: pa.Schema) -> dict[str, Callable[[], OperatorHarness]]:
    """By name, what makes an operator as it stands in the graph."""

    def opened(operator: Operator) -> OperatorHarness:
        spec, schema = (
            cloudpickle.loads(operator.spec),
            schemas.get(operator.name.split()[-1], TIMES),
        )
        inputs = [PARTITION_SCHEMA if "Source" in operator.name else TIMES] * bool(operator.inputs)
        return OperatorHarness(
            create_operator([OpenedOperator(operator, spec, schema)]), inputs, output_schema=schema
        ).open()

    return {
        o.name: functools.partial(opened, o) for vertex in graph.vertices for o in vertex.operators
    }


def flow(elements: Sequence[Any], into: OperatorHarness) -> None:
    for element in elements:
        if isinstance(element, Watermark):
            into.watermark(element.timestamp_us)
        else:
            into.process(element)


@given(
    st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=5), max_size=4),
    st.integers(1, 3),
)
def test_no_row_of_a_partition_is_late_because_another_was_read_before(
    plans: list[list[list[int]]], readers: int
) -> None:
    Topic.plans = plans
    env = Environment(parallelism=readers)
    env.from_source(PythonSource(Topics), watermarks=Watermarks.bounded("at"), uid="topics").print()
    made = harnesses(env.job_graph(), plan=PARTITION_SCHEMA)
    planner = made["Source: topics plan"]()
    plan(planner, polls=len(plans))
    assert planner.watermarks_us == list(range(1, len(plans) + 1)), "a watermark after each plan"
    turn = itertools.cycle(range(readers))
    dealt: list[list[Any]] = [[] for _ in range(readers)]
    for element in planner.elements:
        for reader in range(readers) if isinstance(element, Watermark) else (next(turn),):
            dealt[reader].append(element)
    for elements in dealt:
        reader, teller = made["Source: topics"](), made["Watermarks"]()
        flow(elements, reader)
        flow(reader.elements, teller)
        reached_us, times_us = MIN_TIMESTAMP_US, []
        for out in teller.elements:
            if isinstance(out, Watermark):
                reached_us = out.timestamp_us
            else:
                times_us += out["at"].cast(pa.int64()).to_pylist()
                assert times_us[-1] > reached_us, "not late"
        assert not times_us or reached_us == max(times_us) - 1, (
            "with the last mark, all of it has been read"
        )


def test_simple_readers_tell_event_time_with_each_batch() -> None:
    env = Environment()
    watermarks = Watermarks.custom(
        lambda batch: datetime.fromtimestamp(batch["n"][-1].as_py(), UTC)
    )
    env.from_source(PythonSource(Simple), watermarks=watermarks, uid="simple").print()
    made = harnesses(env.job_graph(), simple=ARROW, Watermarks=ARROW)
    reader, teller = made["Source: simple"](), made["Watermarks"]()
    for _ in range(2):
        reader.poll()
    flow(reader.elements, teller)
    assert teller.watermarks_us == [2_000_000 - 1, 4_000_000 - 1]


def test_without_watermarks_no_plan_is_marked() -> None:
    planner = OperatorHarness(build(PartitionPlan(numbers(Reader))), []).open()
    plan(planner)
    assert planner.watermarks_us == []


def test_what_is_no_stream_source_is_refused() -> None:
    class Batch(DataSource):
        pass

    with pytest.raises(InvalidProgram, match="neither streamReader"):
        PythonSource(Batch)
    with pytest.raises(InvalidProgram, match="takes a subclass of"):
        PythonSource(Simple({}))  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match="does not implement streamWriter"):
        PythonSink(Batch)
    with pytest.raises(InvalidProgram, match="poll_interval"):
        PythonSource(Simple, poll_interval="0 s")

    class NoSchema(Simple):
        def schema(self) -> Any:
            return DataSource.schema(self)

    with pytest.raises(FiresteelError, match="give PythonSource a schema"):
        check_source(PythonSource(NoSchema))
    assert check_source(PythonSource(NoSchema, schema=SCHEMA)) == ARROW

    class Wrong(Numbers):
        reader_class = object

    with pytest.raises(FiresteelError, match="returned a object to read the stream"):
        check_source(PythonSource(Wrong))


def test_a_program_has_a_planner_and_a_committer_of_one_subtask() -> None:
    env = Environment(parallelism=3)
    env.from_source(numbers(Reader), uid="numbers").sink_to(PythonSink(Memory), uid="memory")
    graph = env.job_graph("python")
    assert {(v.name, v.parallelism) for v in graph.vertices} == {
        ("Source: numbers plan", 1),
        ("Source: numbers -> Sink: Memory", 3),
        ("Sink: Memory commit", 1),
    }
    env = Environment(parallelism=3)
    env.from_source(PythonSource(Simple)).print()
    assert {v.parallelism for v in env.job_graph("simple").vertices} == {1, 3}


# -- writing


@dataclass
class Written(WriterCommitMessage):
    partition: int
    rows: list[Any]


class Memory(DataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return Writer(self.options.get("lot", "none"))


class Writer(DataSourceStreamWriter):
    def __init__(self, lot: str) -> None:
        self.lot = lot

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        return Written(context.partitionId(), [row.asDict() for row in iterator])

    def commit(self, messages: list[Any], batchId: int) -> None:
        calls.append(("commit", self.lot, batchId, [(m.partition, m.rows) for m in messages]))

    def abort(self, messages: list[Any], batchId: int) -> None:
        calls.append(("abort", batchId, [m.partition for m in messages]))


class ArrowMemory(DataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        class ArrowWriter(DataSourceStreamArrowWriter):
            def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
                return Written(0, [batch.num_rows for batch in iterator])

            commit = Writer.commit
            lot = "arrow"

        return ArrowWriter()


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([list(numbers), [str(n) for n in numbers]], schema=ARROW)


def writer(
    sink: PythonSink, subtask: int = 0, parallelism: int = 1, **options: Any
) -> OperatorHarness:
    schema = check_sink(sink, ARROW)
    return OperatorHarness(
        sink_runtime(sink).operator(),
        [ARROW],
        output_schema=schema,
        subtask=subtask,
        parallelism=parallelism,
        **options,
    ).open()


def committer(sink: PythonSink, **options: Any) -> OperatorHarness:
    return OperatorHarness(
        sink_runtime(PythonCommit(sink)).operator(), [check_sink(sink, ARROW)], **options
    ).open()


def test_all_subtasks_write_and_one_commits() -> None:
    sink = PythonSink(Memory, {"LOT": 7})
    writers = [writer(sink, subtask, 2) for subtask in range(2)]
    commits = committer(sink)
    for n in range(20):
        writers[n % 2].process(batch(n))
    for harness in reversed(writers):
        harness.end()
        assert harness.batches[0].schema.equals(MESSAGE_SCHEMA)
        commits.process(harness.batches[0])
    assert calls == []
    commits.end()
    rows = [
        (subtask, [{"n": n, "text": str(n)} for n in range(subtask, 20, 2)]) for subtask in range(2)
    ]
    assert calls == [("commit", "7", 0, rows)]


def test_with_an_interval_rows_are_committed_while_more_come() -> None:
    sink = PythonSink(Memory, commit_interval="10 s")
    subtask, commits = writer(sink), committer(sink)

    def due_ms() -> int | None:
        return subtask._task_timers.next_due_ms

    passed_on = 0

    def commit() -> None:
        nonlocal passed_on
        for messages in subtask.batches[passed_on:]:
            commits.process(messages)
            passed_on += 1
        commits.flush()

    assert due_ms() is None, "nothing to commit yet"
    before_ms = int(time.time() * 1000)
    for n in (1, 2):
        subtask.process(batch(n))
    first_ms = due_ms()
    assert first_ms is not None
    assert before_ms + 10_000 <= first_ms <= time.time() * 1000 + 10_000
    commit()
    assert calls == []
    subtask.processing_time(first_ms)
    commit()
    assert calls == [("commit", "none", 0, [(0, [{"n": 1, "text": "1"}, {"n": 2, "text": "2"}])])]
    assert due_ms() is None
    subtask.process(batch(3))
    subtask.end()
    commit()
    commits.end()
    assert calls[1:] == [("commit", "none", 1, [(0, [{"n": 3, "text": "3"}])])]
    with pytest.raises(InvalidProgram, match="commit_interval is '0 s'; it must be positive"):
        PythonSink(Memory, commit_interval="0 s")


def test_each_checkpoint_is_a_batch_that_a_failure_redelivers() -> None:
    sink = PythonSink(Memory, commit_interval="10 s")
    subtask, commits = (make(sink, checkpoints=True) for make in (writer, committer))

    def checkpoint(number: int) -> RestoredOperatorState:
        before = len(subtask.batches)
        subtask.checkpoint(number)
        for messages in subtask.batches[before:]:
            commits.process(messages)
        return commits.checkpoint(number)

    def committed(batch_id: int, n: int) -> tuple[Any, ...]:
        return ("commit", "none", batch_id, [(0, [{"n": n, "text": str(n)}])])

    subtask.process(batch(1))
    checkpoint(3)
    commits.flush()
    assert calls == [], "the checkpoint is not complete"
    subtask.process(batch(2))
    checkpoint(4)  # is given up: it is committed with the next
    checkpoint(5)  # has no rows
    commits.complete(3)
    assert calls == [committed(3, 1)]
    commits.complete(5)
    assert calls[1:] == [committed(4, 2)]
    subtask.process(batch(3))
    restored = checkpoint(6)  # is complete, and the task fails before it hears of it
    subtask.process(batch(4))
    subtask.checkpoint(7)
    commits.process(subtask.batches[-1])
    for harness in (subtask, commits):
        harness.close()
    assert calls[2:] == [("abort", 7, [0])], "only what no checkpoint holds"
    calls.clear()
    again = committer(sink, checkpoints=True, restored=restored, attempt=1)
    assert calls == [committed(6, 3)]
    again.complete(8)
    again.end()
    assert len(calls) == 1


def test_with_checkpoints_every_subtask_writes_even_without_rows() -> None:
    sink = PythonSink(Memory)
    subtask = writer(sink, checkpoints=True)
    commits = committer(sink, checkpoints=True)
    subtask.finish()
    for messages in subtask.batches:
        commits.process(messages)
    commits.finish()
    commits.checkpoint(1, finished=True)
    commits.complete(1)
    for harness in (subtask, commits):
        harness.close()
    assert calls == [("commit", "none", 1, [(0, [])])]


def test_what_is_not_committed_when_an_endless_job_is_cancelled_is_aborted() -> None:
    sink = PythonSink(Memory, commit_interval="10 s")
    subtask, commits = writer(sink), committer(sink)
    for n in (1, 2):
        subtask.process(batch(n))
        due_ms = subtask._task_timers.next_due_ms
        assert due_ms is not None
        subtask.processing_time(due_ms)
        commits.process(subtask.batches[-1])
        if n == 1:
            commits.flush()
    subtask.close()
    commits.close()
    assert [call[:2] for call in calls] == [("commit", "none"), ("abort", 1)]


def test_an_arrow_writer_gets_batches_even_in_a_subtask_without_rows() -> None:
    sink = PythonSink(ArrowMemory)
    commits = committer(sink)
    for batches in ([batch(1, 2), batch(3)], []):
        harness = writer(sink)
        for rows in batches:
            harness.process(rows)
        harness.end()
        commits.process(harness.batches[0])
    commits.end()
    assert calls == [("commit", "arrow", 0, [(0, [2, 1]), (0, [])])]


def test_what_a_failed_job_wrote_is_aborted() -> None:
    sink = PythonSink(Memory)
    harness, commits = writer(sink), committer(sink)
    harness.process(batch(1))
    harness.end()
    commits.process(harness.batches[0])
    commits.close()
    assert calls == [("abort", 0, [0])]


def test_a_write_that_raises_fails_the_task_with_its_error() -> None:
    class Broken(Writer):
        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            for row in iterator:
                raise ValueError(f"no {row.text}")
            raise AssertionError

    class BrokenMemory(Memory):
        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return Broken("x")

    harness = writer(PythonSink(BrokenMemory))

    def process_some() -> None:
        for _ in range(100):
            harness.process(batch(1))

    with pytest.raises(ValueError, match="no 1"):
        process_some()
    harness.close()


def test_a_write_may_stop_early_but_must_return_a_message() -> None:
    class First(Writer):
        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            return Written(0, [next(iterator).n]) if self.lot == "first" else None  # type: ignore[return-value]

    class FirstMemory(Memory):
        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return First(self.options["lot"])

    harness = writer(PythonSink(FirstMemory, {"lot": "first"}))
    for n in range(100):
        harness.process(batch(n))
    harness.end()
    assert cloudpickle.loads(harness.rows()[0]["message"]).rows == [0]
    with pytest.raises(FiresteelError, match="write\\(\\) returned NoneType"):
        writer(PythonSink(FirstMemory, {"lot": "none"})).end()


STUCK = threading.Event()


class StuckWriter(Writer):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        STUCK.wait(60)
        return Written(0, [])


class StuckMemory(Memory):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StuckWriter("stuck")


def test_a_cancelled_task_does_not_wait_for_a_write_that_is_behind() -> None:
    harness = writer(PythonSink(StuckMemory))
    harness.cancel()
    with pytest.raises(TaskCancelled):
        harness.process(batch(1))
    STUCK.set()
    harness.close()


class BusyWriter(Writer):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        while True:
            with contextlib.suppress(Exception):  # which does not keep it alive
                time.sleep(0.01)


class BusyMemory(Memory):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return BusyWriter("busy")


def test_a_write_that_never_ends_is_interrupted_when_its_task_has_ended() -> None:
    before = set(threading.enumerate())
    harness = writer(PythonSink(BusyMemory))
    started = set(threading.enumerate()) - before
    (thread,) = [t for t in started if t.name.startswith("write operator")]
    harness.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_writer_that_cannot_be_copied_is_found_before_data_flows() -> None:
    class Locked(Writer):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    class LockedMemory(Memory):
        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return Locked()

    with pytest.raises(FiresteelError, match="cannot be pickled"):
        check_sink(PythonSink(LockedMemory), ARROW)

"""Whole programs of streams that part and meet, run by their real tasks at any parallelism, against
lists of rows.

Tasks run in threads, with channels that hold few batches, so any interleaving may happen; rows have
columns of any types, batches any sizes, also none.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from firesteel import CoProcessFunction, Environment
from firesteel.common.ids import AttemptId, stable_id
from firesteel.common.job_graph import JobGraph, JobVertex
from firesteel.common.states import ExecutionState
from firesteel.common.time_zones import SESSION_TIME_ZONE
from firesteel.connectors import DiscardSink, PythonSource
from firesteel.connectors.python_source import PartitionPlan
from firesteel.datastream import DataStream
from firesteel.errors import ErrorInfo
from firesteel.operator import StreamOperator
from firesteel.operators import SourceSpec
from firesteel.testing import MemoryExchange
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.connectors.python.data_source import PARTITION_SCHEMA
from taskexecutor.executor.operators.registry import create_operator
from taskexecutor.executor.task import StreamTask, TaskConfig, TaskServices
from tests.long import fewer
from tests.unit.operators.test_odd_schemas import rows, streams, texts

Rows = list[dict[str, Any]]
generated: dict[str, list[pa.RecordBatch]] = {}  # what each source reads
seen: dict[str, list[tuple[int, pa.RecordBatch]]] = defaultdict(
    list
)  # what each `Seen` has had, and in which subtask
ended: list[str] = []  # of which `Seen` a subtask has finished


class Generated(DataSource):
    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return GeneratedReader(self.options["name"])


class GeneratedReader(DataSourceStreamReader):
    def __init__(self, name: str) -> None:
        self.batches = generated[name]

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"batch": min(len(self.batches), start["batch"] + 2)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(index) for index in range(start["batch"], end["batch"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield self.batches[partition.value]

    def isFinished(self, end: dict[str, int]) -> bool:
        return end["batch"] == len(self.batches)


class Seen(StreamOperator):
    """Passes everything on, and remembers it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        seen[self.name].append((self.context.task.subtask, batch))
        self.output.emit(batch)

    def finish(self) -> None:
        ended.append(self.name)


class Failing(StreamOperator):
    """Fails in one subtask with its first rows."""

    def __init__(self, subtask: int) -> None:
        self.subtask = subtask

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if self.context.task.subtask == self.subtask:
            raise ValueError("no more rows, please")
        self.output.emit(batch)


class Split(StreamOperator):
    """Rows with an odd key, and those without any, go to the side output."""

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        even = pc.fill_null(pc.equal(pc.bit_wise_and(batch["key"], 1), 0), False)
        self.output.emit_side("others", batch.filter(pc.invert(even)))
        self.output.emit(batch.filter(even))


class Sides(CoProcessFunction):
    """Rows of the first stream are yielded, those of the second go to a side output."""

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value

    def process_element2(self, value: Any, ctx: Any) -> None:
        ctx.output("second", value)


def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 2)
        yield batch.slice(0, 0)
        yield batch.slice(2)


class Program:
    """Draws a program and, beside it, the rows that each of its streams has."""

    def __init__(
        self, data: st.DataObject, schema: pa.Schema, batches: Sequence[pa.RecordBatch]
    ) -> None:
        self.env = Environment()
        self.keyed: list[str] = []  # `Seen`s in whose subtasks keys must not be parted
        self._data = data
        self._schema = schema
        self._batches = list(batches)
        self._names = (f"{number}" for number in itertools.count())

    def stream(self, depth: int) -> tuple[DataStream, Rows]:
        kinds = (
            [self._source]
            if depth == 0
            else [
                self._mapped,
                self._seen_by_key,
                self._union,
                self._connected,
                self._both,
                self._split,
            ]
        )
        return self._draw(st.sampled_from(kinds))(depth - 1)

    def _draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self._data.draw(strategy)

    def _parallelism(self) -> int:
        parallelism: int = self._draw(st.integers(1, 3))
        return parallelism

    def _source(self, depth: int) -> tuple[DataStream, Rows]:
        name = next(self._names)
        generated[name] = self._draw(st.lists(st.sampled_from(self._batches), max_size=4))
        stream = self.env.from_source(
            PythonSource(
                Generated, {"name": name}, schema=to_spark(self._schema), poll_interval="1 ms"
            )
        )
        return stream.set_parallelism(self._parallelism()), rows(generated[name])

    def _sent(self, depth: int, parallelism: int) -> tuple[DataStream, Rows]:
        """Any stream, on its way to an operator of that parallelism."""
        stream, expected = self.stream(depth)
        how = self._draw(st.sampled_from(["", "rebalance", "rescale", "broadcast", "key_by"]))
        if how == "key_by":
            return stream.key_by("key"), expected
        return getattr(stream, how)() if how else stream, expected * (
            parallelism if how == "broadcast" else 1
        )

    def _mapped(self, depth: int) -> tuple[DataStream, Rows]:
        parallelism = self._parallelism()
        stream, expected = self._sent(depth, parallelism)
        return stream.map_in_arrow(cut).set_parallelism(parallelism), expected

    def _seen_by_key(self, depth: int) -> tuple[DataStream, Rows]:
        stream, expected = self.stream(depth)
        name = next(self._names)
        self.keyed.append(name)
        return stream.key_by("key").operator(name, partial(Seen, name)).set_parallelism(
            self._parallelism()
        ), expected

    def _union(self, depth: int) -> tuple[DataStream, Rows]:
        (first, rows_1), (second, rows_2) = self.stream(depth), self.stream(depth)
        return (
            (first.union(second), rows_1 + rows_2)
            if self._draw(st.booleans())
            else (first.union(first), rows_1 * 2)
        )

    def _connected(self, depth: int) -> tuple[DataStream, Rows]:
        parallelism = self._parallelism()
        (first, rows_1), (second, rows_2) = (
            self._sent(depth, parallelism),
            self._sent(depth, parallelism),
        )
        both = first.connect(second).map_in_arrow(cut, lambda batches: batches, self._schema)
        return both.set_parallelism(parallelism), rows_1 + rows_2

    def _both(self, depth: int) -> tuple[DataStream, Rows]:
        (first, rows_1), (second, rows_2) = self.stream(depth), self.stream(depth)
        connected = first.connect(second).key_by("key", "key")
        main = connected.co_process(Sides(), self._schema, side_outputs={"second": self._schema})
        side = main.set_parallelism(self._parallelism()).side_output("second")
        return main.union(side.rebalance()), rows_1 + rows_2

    def _split(self, depth: int) -> tuple[DataStream, Rows]:
        stream, expected = self.stream(depth)
        main = stream.operator("split", Split, side_outputs={"others": None})
        match self._draw(st.sampled_from(["both", "main", "side"])):
            case "both":
                return main.union(main.side_output("others")), expected
            case "main":
                return main, [
                    row for row in expected if row["key"] is not None and row["key"] % 2 == 0
                ]
            case _:
                return main.side_output("others"), [
                    row for row in expected if row["key"] is None or row["key"] % 2
                ]


def run(graph: JobGraph, schema: pa.Schema, capacity: int) -> None:
    """All tasks, each in a thread, to their end; a failure of one ends the others."""
    exchange = MemoryExchange(capacity, await_consumers=True)
    failures: list[ErrorInfo] = []
    tasks: list[tuple[str, StreamTask]] = []  # names may repeat

    def report(
        attempt_id: str, state: ExecutionState, error: ErrorInfo | None, metrics: Any
    ) -> None:
        if error is not None:
            failures.append(error)
            for _, task in tasks:
                task.cancel()

    services = TaskServices(exchange, None, create_operator, report, lambda event: None)
    for vertex in graph.vertices:
        for config in configs(graph, vertex, schema):
            tasks.append((config.info.task_name_with_subtask, StreamTask(config, services)))
    threads = [threading.Thread(target=task.run, name=name) for name, task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0].traceback


def configs(graph: JobGraph, vertex: JobVertex, schema: pa.Schema) -> Iterator[TaskConfig]:
    vertices = {other.vertex_id: other for other in graph.vertices}
    in_edges = [edge for edge in graph.edges if edge.target_vertex_id == vertex.vertex_id]
    out_edges = [edge for edge in graph.edges if edge.source_vertex_id == vertex.vertex_id]

    def schema_of(made_by: JobVertex, index: int) -> pa.Schema:
        spec = cloudpickle.loads(made_by.operators[index].spec)
        planned = isinstance(spec, SourceSpec) and isinstance(spec.source, PartitionPlan)
        return PARTITION_SCHEMA if planned else schema

    for subtask in range(vertex.parallelism):
        targets = [vertices[edge.target_vertex_id] for edge in out_edges]
        yield TaskConfig(
            job_id=graph.job_id,
            job_name=graph.name,
            vertex=vertex,
            subtask=subtask,
            attempt=0,
            attempt_id=AttemptId(stable_id(vertex.vertex_id, str(subtask))),
            in_edges=[
                (edge, vertices[edge.source_vertex_id].parallelism, None) for edge in in_edges
            ],
            out_edges=[
                (edge, t.parallelism, t.max_parallelism)
                for edge, t in zip(out_edges, targets, strict=True)
            ],
            output_schemas=[schema_of(vertex, index) for index in range(len(vertex.operators))],
            input_schemas=[
                schema_of(vertices[edge.source_vertex_id], edge.source_operator)
                for edge in in_edges
            ],
            config={SESSION_TIME_ZONE: "UTC"},  # there is no SparkSession to read it from
        )


@settings(max_examples=fewer(60))
@given(
    batches=streams(), depth=st.integers(1, 3), capacity=st.sampled_from([1, 2, 16]), data=st.data()
)
def test_streams_that_part_and_meet_lose_double_and_change_nothing(
    batches: list[pa.RecordBatch], depth: int, capacity: int, data: st.DataObject
) -> None:
    generated.clear(), seen.clear(), ended.clear()
    schema = to_arrow(to_spark(batches[0].schema))  # as everywhere between tasks
    program = Program(data, schema, [batch.cast(schema) for batch in batches])
    stream, expected = program.stream(depth)
    parallelism = data.draw(st.integers(1, 3))
    last = stream.operator("all", partial(Seen, "all")).set_parallelism(parallelism)
    last.sink_to(DiscardSink()).set_parallelism(parallelism)
    run(program.env.job_graph(), schema, capacity)
    found = [batch for _, batch in seen["all"]]
    assert all(batch.schema.equals(schema) for batch in found)
    assert texts(rows(found)) == texts(expected)
    assert ended.count("all") == parallelism
    for name in program.keyed:
        owners: dict[Any, set[int]] = defaultdict(set)
        for subtask, batch in seen[name]:
            for key in batch["key"].to_pylist():
                owners[key].add(subtask)
        assert all(len(subtasks) == 1 for subtasks in owners.values()), (
            f"a key in several subtasks: {owners}"
        )


@pytest.mark.parametrize("subtask", [0, 1])
def test_the_failure_of_a_task_ends_the_run_with_its_error(subtask: int) -> None:
    """The other tasks wait for input, or for credit."""
    generated.clear()
    schema = pa.schema([("key", pa.int64())])
    generated["0"] = [pa.record_batch([[n] * 10], schema=schema) for n in range(100)]
    env = Environment()
    source = env.from_source(PythonSource(Generated, {"name": "0"}, schema=to_spark(schema)))
    failing = source.rebalance().operator("failing", partial(Failing, subtask)).set_parallelism(2)
    failing.rebalance().operator("after", partial(Seen, "after")).sink_to(DiscardSink())
    with pytest.raises(AssertionError, match="no more rows, please"):
        run(env.job_graph(), schema, capacity=1)

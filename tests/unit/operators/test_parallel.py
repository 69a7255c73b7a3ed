"""Keyed operators at any parallelism: several producers, several subtasks, any interleaving of the
rows in flight.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.common.job_graph import Partitioner
from firesteel.elements import Watermark
from firesteel.operator import StreamOperator
from firesteel.operators import (
    RunningAggregateSpec,
    SessionSpec,
    SlidingSpec,
    TransformWithStateSpec,
    TumblingSpec,
    WindowAggregateSpec,
    WindowSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.exchange.partitioning.routing import make_routing
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from taskexecutor.executor.operators.transform_with_state import TransformWithState
from taskexecutor.executor.operators.windows import window_operator
from taskexecutor.executor.task.chain import NodeTarget
from tests.long import fewer
from tests.unit.operators import stateful_processors as examples

TIME = pa.timestamp("us", "UTC")
Row = tuple[str | None, int]  # key, time
Element = list[Row] | int  # rows of one batch, or by how much event time may be held back


@st.composite
def _flows(draw: st.DrawFn) -> Flows:
    producers, consumers = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    row = st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.integers(0, 60))
    element = st.lists(row, max_size=5) | st.integers(0, 10)
    streams = [draw(st.lists(element, max_size=8)) for _ in range(producers)]
    turns = draw(
        st.lists(
            st.tuples(st.integers(0, producers - 1), st.integers(0, consumers - 1)), max_size=60
        )
    )
    return Flows(streams, consumers, turns)


class Flows:
    """The data of producers, and the order in which channels are read."""

    def __init__(
        self, streams: list[list[Element]], consumers: int, turns: list[tuple[int, int]]
    ) -> None:
        self.streams = streams
        self.consumers = consumers
        self.turns = turns

    def __repr__(self) -> str:
        return f"Flows({self.streams}, {self.consumers}, {self.turns})"

    @property
    def rows(self) -> list[Row]:
        return [
            row
            for stream in self.streams
            for element in stream
            if isinstance(element, list)
            for row in element
        ]

    def through(
        self,
        make: Callable[[], StreamOperator],
        batch_of: Callable[[list[Row]], pa.RecordBatch],
        output: pa.Schema,
    ) -> list[dict[str, Any]]:
        """All rows that the operator's subtasks emit. Watermarks are true: no producer sends a row
        behind its own.
        """
        schema = batch_of([]).schema
        subtasks = [
            OperatorHarness(
                make(), [schema], output_schema=output, subtask=index, parallelism=self.consumers
            ).open()
            for index in range(self.consumers)
        ]
        channels = [
            [
                (deque[Any](), each._inputs[0] if producer == 0 else NodeTarget(each._node, 0))
                for each in subtasks
            ]
            for producer in range(len(self.streams))
        ]
        for producer, stream in enumerate(self.streams):
            self._send(stream, producer, [queue for queue, _ in channels[producer]], batch_of)
        rest = [
            (producer, consumer)
            for producer in range(len(self.streams))
            for consumer in range(self.consumers)
        ] * 9
        for producer, consumer in (*self.turns, *rest):
            queue, target = channels[producer][consumer]
            if queue:
                element = queue.popleft()
                target.event(element) if isinstance(element, Watermark) else target.batch(element)
        for subtask in subtasks:
            subtask.end()
        return [row for subtask in subtasks for row in subtask.rows()]

    def _send(
        self,
        stream: Sequence[Element],
        producer: int,
        queues: list[deque[Any]],
        batch_of: Callable[[list[Row]], pa.RecordBatch],
    ) -> None:
        routing = make_routing(
            Partitioner.HASH,
            producer=producer,
            producers=len(self.streams),
            consumers=self.consumers,
            max_parallelism=128,
            key_columns=("key",),
            batch_rows=65536,
        )
        for index, element in enumerate(stream):
            if isinstance(element, list):
                for consumer, piece in routing.route(batch_of(element)):
                    queues[consumer].append(piece)
                continue
            coming = [
                time for later in stream[index:] if isinstance(later, list) for _, time in later
            ]
            for queue in queues:
                queue.append(Watermark(min(coming, default=100) - 1 - element))


ITEMS = parse_aggregates(["count(*) AS n", "sum(x) AS total", "collect_list(x) AS xs"])
PARTIALS = [
    ("_p0_count", pa.int64()),
    ("_p1_sum", pa.int64()),
    ("_p2_collect_list", pa.list_(pa.int64())),
    ("_rows", pa.int64()),
]
RESULTS = [("n", pa.int64()), ("total", pa.int64()), ("xs", pa.list_(pa.int64()))]
WINDOWED = [("window_start", TIME), ("window_end", TIME)]


def partials(window: WindowSpec | None) -> Callable[[list[Row]], pa.RecordBatch]:
    """Returns rows as the upstream half sends them, each a separate partial result; x is the time."""
    schema = pa.schema([("key", pa.string()), *(WINDOWED if window else []), *PARTIALS])

    def batch(rows: list[Row]) -> pa.RecordBatch:
        found: list[dict[str, Any]] = []
        for key, time in rows:
            match window:
                case SessionSpec():
                    start, end = time, time + window.gap_us
                case TumblingSpec() | SlidingSpec():
                    start = time - time % window.pane_us
                    end = start + window.pane_us
                case None:
                    start = end = 0
            found.append(
                dict(zip(["key", "window_start", "window_end"], [key, start, end], strict=True))
            )
            found[-1] |= {"_p0_count": 1, "_p1_sum": time, "_p2_collect_list": [time], "_rows": 1}
        return pa.RecordBatch.from_pylist(found, schema=schema)

    return batch


def expected_windows(
    rows: list[Row], window: WindowSpec
) -> dict[tuple[str | None, int, int], list[int]]:
    found: dict[tuple[str | None, int, int], list[int]] = defaultdict(list)
    if isinstance(window, SessionSpec):
        by_key: dict[str | None, list[int]] = defaultdict(list)
        for key, time in rows:
            by_key[key].append(time)
        for key, times in by_key.items():
            session: list[int] = []
            for time in [*sorted(times), None]:
                if session and (time is None or time > session[-1] + window.gap_us):
                    found[key, session[0], session[-1] + window.gap_us] = session
                    session = []
                session = [*session, time]  # type: ignore[list-item]
        return found
    for key, time in rows:
        for start in range(time - time % window.slide_us, time - window.size_us, -window.slide_us):
            found[key, start, start + window.size_us].append(time)
    return found


@pytest.mark.parametrize(
    "window",
    [
        TumblingSpec(size_us=10),
        SlidingSpec(size_us=12, slide_us=4),
        SlidingSpec(size_us=5, slide_us=3),
        SessionSpec(gap_us=6),
    ],
    ids=["tumbling", "sliding", "sliding unevenly", "session"],
)
@settings(max_examples=fewer(60))
@given(flows=_flows())
def test_windows(window: WindowSpec, flows: Flows) -> None:
    spec = WindowAggregateSpec(key_columns=("key",), window=window, aggregates=ITEMS)
    output = pa.schema([("key", pa.string()), *WINDOWED, *RESULTS])
    rows = flows.through(lambda: window_operator(spec), partials(window), output)
    found = {(row["key"], _us(row["window_start"]), _us(row["window_end"])): row for row in rows}
    assert len(found) == len(rows), "each window fires once: nothing is late"
    expected = expected_windows(flows.rows, window)
    assert {key: sorted(row["xs"]) for key, row in found.items()} == {
        key: sorted(times) for key, times in expected.items()
    }
    assert all(row["n"] == len(row["xs"]) and row["total"] == sum(row["xs"]) for row in rows)


def _us(time: Any) -> int:
    return round(time.timestamp() * 1e6)


@settings(max_examples=fewer(60))
@given(flows=_flows())
def test_running_aggregates(flows: Flows) -> None:
    spec = RunningAggregateSpec(key_columns=("key",), aggregates=ITEMS)
    output = pa.schema([("key", pa.string()), *RESULTS])
    rows = flows.through(lambda: RunningAggregate(spec), partials(None), output)
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for key, time in flows.rows:
        by_key[key].append(time)
    latest = {row["key"]: row for row in rows}  # a key's updates are of one subtask, in their order
    assert {key: (row["n"], row["total"], sorted(row["xs"])) for key, row in latest.items()} == {
        key: (len(times), sum(times), sorted(times)) for key, times in by_key.items()
    }
    numbers = [(row["key"], row["n"]) for row in rows]
    assert len(set(numbers)) == len(numbers), "updates only for changed rows"


@settings(max_examples=fewer(60))
@given(flows=_flows())
def test_stateful_processors(flows: Flows) -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    output = pa.schema([("key", pa.string()), ("count", pa.int64())])

    def subtask() -> StreamOperator:
        spec = TransformWithStateSpec(
            processor=examples.RunningCount(), key_columns=("key",), output_schema=output
        )
        return TransformWithState(spec)

    def batch(rows: list[Row]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(
            [{"key": key, "value": ""} for key, _ in rows], schema=schema
        )

    rows = flows.through(subtask, batch, output)
    counts: dict[str | None, int] = defaultdict(int)
    for key, _ in flows.rows:
        counts[key] += 1
    assert {row["key"]: row["count"] for row in rows} == counts
    assert all(
        before < after
        for key in counts
        for before, after in pairwise(r["count"] for r in rows if r["key"] == key)
    )

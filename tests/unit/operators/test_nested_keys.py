"""Keys that are arrays or structs: operators take those for equal that Spark does."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from firesteel.elements import MAX_TIMESTAMP_US
from firesteel.operator import StreamOperator
from firesteel.operators import (
    DropDuplicatesSpec,
    JoinSpec,
    TopNSpec,
    TransformWithStateSpec,
)
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.drop_duplicates import DropDuplicates
from taskexecutor.executor.operators.joins.stream_join import StreamJoin
from taskexecutor.executor.operators.top_n import TopN
from taskexecutor.executor.operators.transform_with_state import TransformWithState
from tests.backends import creator, databases

NAN = float("nan")
(OTHER_NAN,) = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))
# Six keys: all but the empty one are there twice.
ARRAYS: list[list[float | None] | None] = [[0.0], [-0.0], [NAN], [OTHER_NAN], [None], [None]]
ARRAYS += [None, None, [], [1.0, 0.0], [1.0, -0.0]]
EQUAL = (0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 5)
ARRAY = pa.list_(pa.float64())
STRUCT = pa.struct([("x", ARRAY), ("y", pa.struct([("z", pa.string()), ("d", pa.float64())]))])
KEYS: dict[pa.DataType, list[Any]] = {
    ARRAY: ARRAYS,
    STRUCT: [
        None if a is None else {"x": a, "y": {"z": "z", "d": a[0] if a else None}} for a in ARRAYS
    ],
}
TIME = pa.timestamp("us", "UTC")


@pytest.fixture(params=list(KEYS), ids=["arrays", "structs"])
def kind(request: pytest.FixtureRequest) -> pa.DataType:
    kind: pa.DataType = request.param
    return kind


@pytest.fixture(params=[1, 100], ids=["one by one", "together"])
def size(request: pytest.FixtureRequest) -> int:
    size: int = request.param
    return size


def schema(kind: pa.DataType, side: int = 0) -> pa.Schema:
    more = "2" * side
    return pa.schema(
        [("k", kind), ("n" + more, pa.int64()), ("at" + more, TIME), ("other" + more, pa.int64())]
    )


def batches(kind: pa.DataType, size: int, side: int) -> Iterator[pa.RecordBatch]:
    numbers = range(len(ARRAYS))
    columns = [pa.array(KEYS[kind], kind), pa.array(numbers), pa.array(numbers, TIME)]
    columns.append(pa.array([1] * len(ARRAYS)))
    whole = pa.RecordBatch.from_arrays(columns, schema=schema(kind, side))
    return (whole.slice(start, size) for start in range(0, whole.num_rows, size))


def run(
    operator: StreamOperator, kind: pa.DataType, size: int, inputs: int = 1, **more: Any
) -> list[dict[str, Any]]:
    harness = OperatorHarness(
        operator, [schema(kind, side) for side in range(inputs)], **more
    ).open()
    for index in range(inputs):
        for batch in batches(kind, size, index):
            harness.process(batch, index)
    harness.flush()
    found = harness.rows()
    harness.end()
    return found


@pytest.mark.parametrize("within_us", [0, MAX_TIMESTAMP_US // 2])
@pytest.mark.parametrize("columns", [("k",), ("k", "other")], ids=str)
def test_duplicates(kind: pa.DataType, size: int, within_us: int, columns: tuple[str, ...]) -> None:
    spec = DropDuplicatesSpec(key_columns=columns, time_column="at", within_us=within_us)
    kept = [row["n"] for row in run(DropDuplicates(spec), kind, size)]
    assert kept == [EQUAL.index(key) for key in range(6)]


def test_first_rows(kind: pa.DataType, size: int) -> None:
    spec = TopNSpec(key_columns=("k",), n=1, by=("n",), ascending=(True,))
    found = run(TopN(spec), kind, size)
    assert sorted(row["n"] for row in found) == [EQUAL.index(key) for key in range(6)]


def test_joined_rows(kind: pa.DataType, size: int) -> None:
    spec = JoinSpec(left_keys=("k",), right_keys=("k",))
    found = run(StreamJoin(spec), kind, size, 2)
    assert len(found) == 4 * 4 + 1, "the two without a key match nothing"


class Counting(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n INT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            given = repr(key[0]).replace("-0.0", "0.0")
            assert given == repr(row.k).replace("-0.0", "0.0"), "as PySpark gives it"
            count = (self.count.get() or (0,))[0] + 1
            self.count.update((count,))
            yield Row(n=count)

    def close(self) -> None: ...


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_processors(kind: pa.DataType, size: int, backend: str) -> None:
    spec = TransformWithStateSpec(
        processor=Counting(), key_columns=("k",), output_schema=pa.schema([("n", pa.int32())])
    )
    with databases() as folder:
        create = creator(backend, folder)
        found = run(TransformWithState(spec), kind, size, create_keyed_state=create)
    assert sorted(row["n"] for row in found) == [1] * 6 + [2] * 5

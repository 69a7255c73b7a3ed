"""Arrow to Rows, by key, and back: the same as in PySpark's workers."""

from __future__ import annotations

import copy
import datetime
import decimal
import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkValueError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from firesteel.errors import FiresteelError
from firesteel.operators import TransformWithStateSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.python_rows.rows import row_maker, to_python
from taskexecutor.executor.operators.transform_with_state import TransformWithState
from taskexecutor.executor.operators.transform_with_state.grouping import by_key
from tests.long import fewer

UTC = datetime.UTC
COLUMNS: list[pa.Array] = [
    pa.array([1, None, -3], pa.int8()),
    pa.array([2**63 - 1, None, -(2**63)], pa.int64()),
    pa.array([2**64 - 1, None, 0], pa.uint64()),
    pa.array([1.5, None, -0.0], pa.float64()),
    pa.array([1.5, 2.5, 3.5], pa.float32()),
    pa.array([True, None, False]),
    pa.array(["a", None, ""]),
    pa.array([b"a", None, b""]),
    pa.array([datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]),
    pa.array(
        [datetime.datetime(2024, 1, 1, tzinfo=UTC), None, datetime.datetime(1, 1, 1, tzinfo=UTC)],
        pa.timestamp("us", "UTC"),
    ),
    pa.array(
        [datetime.datetime(2024, 1, 1), None, datetime.datetime(9999, 12, 31)], pa.timestamp("us")
    ),
    pa.array(
        [datetime.datetime(2024, 7, 1, tzinfo=UTC), None, None], pa.timestamp("us", "Europe/Berlin")
    ),
    pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2")], pa.decimal128(10, 2)),
    pa.array([[1, None], None, []], pa.list_(pa.int32())),
    pa.array(
        [{"x": 1, "y": None}, None, {"x": None, "y": "z"}],
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
    ),
    pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
    pa.array([None, None, None], pa.null()),
    pa.array([datetime.timedelta(days=1), None, datetime.timedelta(0)], pa.duration("us")),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_values_are_arrows_own(column: pa.Array) -> None:
    for part in (
        column,
        column.slice(1),
        column.slice(0, 0),
        pa.concat_arrays([column, column]).slice(2, 3),
    ):
        ours, arrows = to_python(part), part.to_pylist()
        assert ours == arrows
        assert [type(value) for value in ours] == [type(value) for value in arrows]
        assert [str(getattr(value, "tzinfo", None)) for value in ours] == [
            str(getattr(v, "tzinfo", None)) for v in arrows
        ]


def test_rows_are_pysparks_rows() -> None:
    row = row_maker(["id", "count", "a b", "id"])((7, 3, "x", 8))
    plain = Row("id", "count", "a b", "id")(7, 3, "x", 8)
    assert isinstance(row, Row)
    assert row == plain
    assert repr(row) == repr(plain)
    assert row.asDict() == plain.asDict()
    assert (row.id, row["count"], row["a b"], row[0], row[-1], row[1:3]) == (
        7,
        3,
        "x",
        7,
        8,
        (3, "x"),
    )
    assert getattr(row, "a b") == "x"
    assert callable(row.count), "as with every Row: tuple has a method of this name"
    assert "id" in row
    assert "nope" not in row
    for copied in (pickle.loads(pickle.dumps(row)), copy.deepcopy(row)):
        assert copied == row
        assert copied.asDict() == row.asDict()
    with pytest.raises(AttributeError):
        _ = row.nope
    with pytest.raises(PySparkValueError):
        row["nope"]
    with pytest.raises(IndexError):
        row[9]


keys = st.one_of(st.none(), st.integers(-3, 3))
floats = st.sampled_from([0.0, -0.0, 1.5, math.nan, None])


@given(
    st.lists(st.tuples(keys, st.sampled_from(["x", "y", None]), floats), min_size=1, max_size=60),
    st.integers(1, 3),
)
def test_grouping_keeps_every_row_in_its_order(rows: list[tuple[Any, ...]], width: int) -> None:
    kinds = [pa.int64(), pa.string(), pa.float64()]
    columns = [
        pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)
    ]
    batch = pa.record_batch([*columns, pa.array(range(len(rows)))], names=["a", "b", "c", "n"])
    keyed = by_key(batch, batch.schema.names[:width])

    def same(value: Any) -> Any:
        return "nan" if isinstance(value, float) and math.isnan(value) else value

    expected: dict[Any, list[int]] = {}
    for n, row in enumerate(rows):
        expected.setdefault(tuple(map(same, row[:width])), []).append(n)
    numbers = keyed.batch.column(3).to_pylist()
    starts = [0, *keyed.ends[:-1]]
    found = {
        tuple(map(same, k)): numbers[a:b]
        for k, a, b in zip(keyed.keys, starts, keyed.ends, strict=True)
    }
    assert found == expected
    assert list(found) == list(expected), "keys in the order of their first rows"
    assert len(set(keyed.keys)) == len(keyed.keys)
    again = by_key(batch, batch.schema.names[:width])
    assert set(again.keys) == set(keyed.keys), "equal keys are equal across batches, also NaN"
    assert set(pickle.loads(pickle.dumps(keyed.keys))) == set(keyed.keys), "and across restarts"


# -- out


class Yielding(StatefulProcessor):
    def __init__(self, *results: Any) -> None:
        self.results = results

    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter(self.results)


IN = pa.schema([("key", pa.string())])
OUT = pa.schema([("id", pa.string()), ("n", pa.int32())])


def yielded(*results: Any, output: pa.Schema = OUT, pandas: bool = False) -> list[dict[str, Any]]:
    processor = Yielding(*results)
    spec = TransformWithStateSpec(
        processor=processor, key_columns=("key",), output_schema=output, pandas=pandas
    )
    harness = OperatorHarness(
        TransformWithState(spec), [IN], output_schema=output, name="yields"
    ).open()
    harness.process(pa.record_batch([["k"]], schema=IN))
    harness.end()
    assert all(batch.schema == output for batch in harness.batches)
    return harness.rows()


def test_columns_are_matched_by_name() -> None:
    assert yielded(
        Row(id="a", n=1), Row(n=2, id="b"), Row("n", "id")(3, None), Row("d", 4), ("e", np.int64(5))
    ) == [
        {"id": "a", "n": 1},
        {"id": "b", "n": 2},
        {"id": None, "n": 3},
        {"id": "d", "n": 4},
        {"id": "e", "n": 5},
    ]
    frames = [
        pd.DataFrame({"n": [1, 2], "id": ["a", None]}),
        pd.DataFrame(),
        pd.DataFrame([["c", 3]]),
    ]
    assert yielded(*frames, pandas=True) == [
        {"id": "a", "n": 1},
        {"id": None, "n": 2},
        {"id": "c", "n": 3},
    ]


def test_nested_values() -> None:
    kind = pa.struct([("x", pa.int32()), ("m", pa.map_(pa.string(), pa.list_(pa.float64())))])
    output = pa.schema([("s", kind), ("l", pa.list_(kind))])
    value = {"x": 1, "m": {"k": [1.0]}}
    plain = {"x": 1, "m": [("k", [1.0])]}
    rows = yielded(
        Row(s=Row(x=1, m={"k": [1.0]}), l=[Row(m={"k": [1.0]}, x=1), None]),
        Row(s=value, l=[(1, {"k": [1.0]}), None]),
        Row(s=None, l=None),
        output=output,
    )
    assert rows == [{"s": plain, "l": [plain, None]}] * 2 + [{"s": None, "l": None}]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            Row(id="a"),
            "yielded another schema than it declares: expected id string, n int32; got id str",
        ),
        (Row(id="a", n=1, m=2), "expected id string, n int32; got id str, n int, m int"),
        (
            Row(id="a", n="x"),
            "expected id string, n int32; got id str, n str; "
            "column 'n' is int32 and cannot hold 'x'",
        ),
        (Row(id=1, n=1), "column 'id' is string and cannot hold 1"),
        (Row(id="a", n=2**40), "column 'n' is int32 and cannot hold 1099511627776"),
        (Row("a"), "yielded a row of 1 values; expected id string, n int32"),
        ({"id": "a", "m": 1}, "yielded another schema .*; got id str, m int"),
        ("an", r"yielded a str; it must be a Row\(id, n\), a dictionary or a tuple"),
        (None, "yielded a NoneType"),
    ],
)
def test_rows_of_another_schema_name_the_key(result: Any, message: str) -> None:
    with pytest.raises(
        FiresteelError, match=r"yields: handleInputRows for key \('k',\).*" + message
    ):
        yielded(Row(id="fine", n=0), result)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (pd.DataFrame({"id": ["a"]}), "expected id string, n int32; got id object"),
        (
            pd.DataFrame({"id": ["a"], "n": ["x"]}),
            "expected id string, n int32; got id object, n object",
        ),
        (Row(id="a", n=1), r"yielded a Row; it must yield a pandas\.DataFrame"),
    ],
)
def test_frames_of_another_schema_name_the_key(result: Any, message: str) -> None:
    with pytest.raises(
        FiresteelError, match=r"yields: handleInputRows for key \('k',\).*" + message
    ):
        yielded(result, pandas=True)


def test_what_is_no_iterator_is_an_error() -> None:
    processor = Yielding()
    processor.handleInputRows = lambda key, rows, times: None  # type: ignore[method-assign]
    spec = TransformWithStateSpec(processor=processor, key_columns=("key",), output_schema=OUT)
    harness = OperatorHarness(
        TransformWithState(spec), [IN], output_schema=OUT, name="yields"
    ).open()
    with pytest.raises(
        FiresteelError, match=r"for key \('k',\): it returned NoneType; it must return an iterator"
    ):
        harness.process(pa.record_batch([["k"]], schema=IN))
    harness.close()


class Echo(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "payload BINARY")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.last.update((row.payload,))
            yield Row(key=key[0], payload=self.last.get()[0])


@settings(max_examples=fewer(30))
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 5))
def test_a_flood_of_output_leaves_in_batches(floods: list[int], limit: int) -> None:
    """However many rows are held back, the order stays."""

    class Flood(StatefulProcessor):
        def init(self, handle: Any) -> None: ...

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            for row in rows:
                for i in range(row.n):
                    yield Row(key=row.key, i=i)

    schema = pa.schema([("key", pa.int64()), ("n", pa.int64())])
    output = pa.schema([("key", pa.int64()), ("i", pa.int64())])
    operator = TransformWithState(
        TransformWithStateSpec(processor=Flood(), key_columns=("key",), output_schema=output)
    )
    harness = OperatorHarness(operator, [schema], output_schema=output).open()
    operator._collector.expect = lambda rows, size_bytes: setattr(
        operator._collector, "limit", limit
    )  # type: ignore[method-assign]
    harness.process(pa.record_batch([list(range(len(floods))), floods], schema=schema))
    harness.end()
    assert harness.rows() == [{"key": k, "i": i} for k, n in enumerate(floods) for i in range(n)]
    assert max((batch.num_rows for batch in harness.batches), default=0) <= limit


def test_a_row_of_200_mb() -> None:
    schema = pa.schema([("key", pa.string()), ("payload", pa.binary())])
    spec = TransformWithStateSpec(processor=Echo(), key_columns=("key",), output_schema=schema)
    harness = OperatorHarness(TransformWithState(spec), [schema], output_schema=schema).open()
    large = bytes(200 << 20)
    harness.process(pa.record_batch([["a", "b", "a"], [b"small", large, b"small"]], schema=schema))
    harness.end()
    sizes = [len(payload.as_buffer()) for batch in harness.batches for payload in batch.column(1)]
    assert sizes == [5, 5, len(large)]

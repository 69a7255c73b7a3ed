"""Columns as NumPy's arrays: what pyarrow's own conversion gives."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskexecutor.executor.numbers import as_numpy

NUMBERS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
)
OTHERS = (pa.string(), pa.timestamp("us"), pa.date32(), pa.decimal128(5, 2), pa.list_(pa.int64()))


def assert_as_pyarrow(column: pa.Array | pa.ChunkedArray) -> None:
    found, expected = as_numpy(column), column.to_numpy(zero_copy_only=False)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@given(
    kind=st.sampled_from(NUMBERS),
    values=st.lists(st.sampled_from([0, 1, None]) | st.sampled_from([0, 1]), max_size=30),
    start=st.integers(0, 20),
    cut=st.integers(0, 30),
    nulls=st.booleans(),
)
def test_numbers_are_as_pyarrow_has_them(
    kind: pa.DataType, values: list[int | None], start: int, cut: int, nulls: bool
) -> None:
    if not nulls:
        values = [value or 0 for value in values]
    column = pa.array(values, pa.float32()).cast(kind)[start:]
    assert_as_pyarrow(column)
    assert_as_pyarrow(pa.chunked_array([column[:cut], column[cut:]]))
    assert_as_pyarrow(pa.chunked_array([column]))
    assert_as_pyarrow(pa.chunked_array([], kind))


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_other_columns_are_as_pyarrow_has_them(kind: pa.DataType) -> None:
    assert_as_pyarrow(pa.nulls(3, kind))
    assert_as_pyarrow(pa.nulls(0, kind))


WITHOUT_PANDAS = """
import sys
import numpy as np
import pyarrow as pa
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.interpreter import keep_pyarrow_from_pandas

keep_pyarrow_from_pandas()
numbers = np.arange(3)
flags = pa.array(numbers == 1)
for column in (pa.array(numbers), pa.array(numbers, mask=numbers == 1).fill_null(0), flags):
    as_numpy(column), as_numpy(pa.chunked_array([column]))
pa.table({"numbers": pa.array(numbers)}).filter(flags).to_pylist()
assert "pandas" not in sys.modules

import pandas as pd
assert pa.array(pd.Series([1, 2], dtype="Int64")).to_pylist() == [1, 2]
assert pa.array([pd.NaT, pd.Timedelta(1)], from_pandas=True).null_count == 1
assert pa.table({"n": [1]}).to_pandas()["n"].tolist() == [1]
print("done")
"""


def test_pyarrow_knows_pandas_once_that_is_imported_and_not_before() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True)
    assert ran.stdout == "done\n", ran.stderr

"""Rows grouped as columns, compared with the same in Python, value by value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskexecutor.executor.columnar.grouping.row_partials import RowPartials, Values

_LEAST, _MOST = -(2**63), 2**63 - 1
_VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "close": (pa.int64(), st.integers(-3, 3)),
    "far": (pa.int64(), st.sampled_from([_LEAST, -1, 0, _MOST])),
    "sparse": (pa.int64(), st.integers(-(2**45), 2**45)),
    "narrow": (pa.int8(), st.integers(-128, 127)),
    "days": (pa.date32(), st.dates(date(2024, 1, 1), date(2024, 1, 9))),
    "texts": (pa.string(), st.sampled_from(["", "a", "\u00fc", "b"])),
    "many_texts": (pa.string(), st.text(max_size=3)),
    "flags": (pa.bool_(), st.booleans()),
}


@pytest.mark.parametrize("kind", _VALUES)
@settings(max_examples=25)
@given(st.data())
def test_each_value_is_once_in_the_lists_whose_conditions_it_meets(kind: str, data: Any) -> None:
    arrow, values = _VALUES[kind]
    keys = st.sampled_from([0, 1, 5, _MOST])
    rows = data.draw(st.lists(st.tuples(keys, st.none() | values, st.integers(0, 7)), max_size=40))
    grouped = _grouped(rows, arrow, {"a": "set", "b": "set", "c": "set"}, lists=True)
    expected: dict[Any, list[set[Any]]] = defaultdict(lambda: [set(), set(), set()])
    for key, value, bits in rows:
        for bit, found in enumerate(expected[key]):
            if value is not None and bits & (1 << bit):
                found.add(value)
    assert len(grouped) == len(expected)
    for row in grouped:
        for name, found in zip("abc", expected[row["key"]], strict=True):
            assert len(row[name]) == len(found)
            assert set(row[name]) == found


@pytest.mark.parametrize("kind", _VALUES)
@pytest.mark.parametrize(("how", "chosen"), [("min", min), ("max", max)])
@settings(max_examples=25)
@given(st.data())
def test_extremes_are_those_of_each_group(
    kind: str, how: str, chosen: Callable[[list[Any]], Any], data: Any
) -> None:
    arrow, values = _VALUES[kind]
    rows = data.draw(st.lists(st.tuples(st.integers(0, 2), st.none() | values, st.just(0))))
    found = {row["key"]: row["a"] for row in _grouped(rows * 5, arrow, {"a": how}, lists=False)}
    expected: dict[Any, list[Any]] = defaultdict(list)
    for key, value, _ in rows:
        expected[key] += [] if value is None else [value]
    assert found == {key: chosen(each) if each else None for key, each in expected.items()}


def _grouped(
    rows: list[tuple[int, Any, int]], kind: pa.DataType, merges: dict[str, str], *, lists: bool
) -> list[dict[str, Any]]:
    keys, values, bits = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(keys, pa.int64()), pa.array(values, kind), pa.array(bits, pa.int32())]
    types = [pa.field(name, pa.list_(kind) if lists else kind) for name in merges]
    grouping = RowPartials(
        schema=pa.schema([("key", pa.int64()), *types, ("_rows", pa.int64())]),
        keys=1,
        pane_us=0,
        offset_us=0,
        merges=merges,
        plain=() if lists else tuple((name, 1) for name in merges),
        values=(Values(1, tuple(zip(merges, range(3), strict=True)), 2),) if lists else (),
    )
    found: list[dict[str, Any]] = grouping.grouped(
        pa.RecordBatch.from_arrays(columns, ["0", "1", "2"])
    ).to_pylist()
    return found

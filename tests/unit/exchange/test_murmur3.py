"""Key hashes: equal to mmh3's, and golden values, because they locate state for ever."""

from __future__ import annotations

import datetime
import math
import struct
from decimal import Decimal

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.key_groups import key_hash
from taskexecutor.executor.columnar.grouping.grouping import group
from taskexecutor.executor.exchange.errors import UnsupportedKey
from taskexecutor.executor.exchange.partitioning import murmur3
from taskexecutor.executor.exchange.partitioning.murmur3 import hash_array, hash_columns
from taskexecutor.executor.nested_keys import comparable
from taskexecutor.executor.operators.transform_with_state.grouping import by_key


def h(key: bytes) -> int:
    return mmh3.hash(key, 0, signed=False)


def q(value: int) -> int:
    return h(struct.pack("<q", value))


def d(value: float) -> int:
    return h(struct.pack("<d", value))


NAN = h(struct.pack("<Q", 0x7FF8000000000000))
OTHER_NAN = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]

CASES = [
    *[(pa.array([1, 0, 127, None], kind), [q(1), q(0), q(127), 0]) for kind in (
        pa.int8(), pa.int16(), pa.int32(), pa.int64(),
        pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())],
    (pa.array([-5, -(2**63)], pa.int64()), [q(-5), q(-(2**63))]),
    (pa.array([2**64 - 1], pa.uint64()), [q(-1)]),
    (pa.array([True, False, None]), [h(b"\x01"), h(b"\x00"), 0]),
    (pa.array([0.0, -0.0, float("nan"), OTHER_NAN, 1.5, None]),
     [d(0.0), d(0.0), NAN, NAN, d(1.5), 0]),
    (pa.array([-0.0, 1.5, None], pa.float32()), [d(0.0), d(1.5), 0]),
    (pa.array([np.float16(1.5)], pa.float16()), [d(1.5)]),
    *[(pa.array(["a", "é", None, "", "a"], kind), [h(b"a"), h("é".encode()), 0, 0, h(b"a")])
      for kind in (pa.string(), pa.large_string(), pa.string_view())],
    *[(pa.array([b"ab", None, b"\xff\x00"], kind), [h(b"ab"), 0, h(b"\xff\x00")])
      for kind in (pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view())],
    *[(pa.array([datetime.date(2020, 1, 1), None, datetime.date(1969, 12, 31)], kind),
       [q(18262), 0, q(-1)])
      for kind in (pa.date32(), pa.date64())],
    (pa.array([5, None], pa.timestamp("s", tz="Europe/Oslo")), [q(5_000_000), 0]),
    (pa.array([5, None], pa.timestamp("ms")), [q(5_000), 0]),
    (pa.array([5, None], pa.timestamp("us")), [q(5), 0]),
    (pa.array([-1, 1999, None], pa.timestamp("ns")), [q(-1), q(1), 0]),
    (pa.array([5, None], pa.time32("s")), [q(5_000_000), 0]),
    (pa.array([5], pa.time64("us")), [q(5)]),
    (pa.array([5], pa.duration("ms")), [q(5_000)]),
    (pa.array([Decimal("1.50"), Decimal("0.00"), None, Decimal("-1200.00")]),
     [h(b"1.5"), h(b"0"), 0, h(b"-1200")]),
    (pa.array([Decimal("1.5"), Decimal(10) ** 46], pa.decimal256(50, 3)),
     [h(b"1.5"), h(b"1" + 46 * b"0")]),
    (pa.array(["x", None, "y", "x"]).dictionary_encode(), [h(b"x"), 0, h(b"y"), h(b"x")]),
    (pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array([5, None])),
     [q(5), 0, 0]),
    (pa.nulls(2), [0, 0]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("array", "expected"),
    CASES,
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_each_type_hashes_its_documented_bytes(array: pa.Array, expected: list[int]) -> None:
    assert hash_array(array).tolist() == expected
    assert hash_array(array.slice(1)).tolist() == expected[1:], "offsets of sliced arrays"
    assert hash_array(array.slice(0, 0)).tolist() == []


def test_golden_values_never_change() -> None:
    assert hash_array(pa.array([0, 1, -1, 42, 2**40])).tolist() == GOLDEN_INTS
    assert hash_array(pa.array(["", "EWR", "JFK", "LGA", "ü"])).tolist() == GOLDEN_STRINGS
    assert hash_array(pa.array([0.0, 1.5, float("nan")])).tolist() == GOLDEN_FLOATS
    assert hash_array(pa.array([True, False, None])).tolist() == GOLDEN_BOOLS
    assert hash_array(pa.array([Decimal("1.50")])).tolist() == GOLDEN_DECIMALS
    assert hash_columns([pa.array(["EWR", None]), pa.array([1, 2])]).tolist() == GOLDEN_PAIRS


GOLDEN_INTS = [1669671676, 1392991556, 1651860712, 1871679806, 2851483426]
GOLDEN_STRINGS = [0, 2135352488, 3171249640, 1790852291, 2017519274]
GOLDEN_FLOATS = [1669671676, 4034560987, 1428788237]
GOLDEN_BOOLS = [3831157163, 1364076727, 0]
GOLDEN_DECIMALS = [4025916689]
GOLDEN_PAIRS = [2972245764, 1936466597]


def test_several_columns_hash_their_hashes() -> None:
    hashes = hash_columns([pa.array([1, None]), pa.array(["a", "b"]), pa.array([True, None])])
    assert hashes.tolist() == [
        h(struct.pack("<III", q(1), h(b"a"), h(b"\x01"))),
        h(struct.pack("<III", 0, h(b"b"), 0)),
    ]


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=50))
def test_integers_agree_with_mmh3(values: list[int | None]) -> None:
    assert hash_array(pa.array(values, pa.int64())).tolist() == [
        0 if v is None else q(v) for v in values
    ]


@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=50))
def test_strings_agree_with_mmh3(values: list[str | None]) -> None:
    assert hash_array(pa.array(values, pa.string())).tolist() == [
        0 if v is None else h(v.encode()) for v in values
    ]


@given(
    st.lists(st.none() | st.binary(max_size=9) | st.binary(min_size=60, max_size=70), max_size=20),
    st.integers(0, 5),
    st.sampled_from([0, 4, 1_000]),
)
def test_binaries_agree_with_mmh3_block_by_block_and_one_by_one(
    values: list[bytes | None], start: int, short_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(murmur3, "_SHORT_BYTES", short_bytes)
        found = hash_array(pa.array(values, pa.binary()).slice(start))
    assert found.tolist() == [0 if v is None else h(v) for v in values[start:]]


def test_a_type_without_hash_is_a_clear_error() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    for array in (pa.array([[("a", 1)]], kind), pa.array([], pa.list_(kind)), pa.array([], kind)):
        with pytest.raises(UnsupportedKey, match=r"a column of type map<.*> cannot be a key"):
            hash_array(array)


def test_arrays_and_structs_hash_the_hashes_of_their_parts() -> None:
    lists = pa.array([None, [1, None], [], [2]], pa.list_(pa.int64()))
    expected = [h(struct.pack("<II", q(1), 0)), h(b""), h(struct.pack("<I", q(2)))]
    assert hash_array(lists).tolist() == [0, *expected]
    assert hash_array(lists.slice(1)).tolist() == expected
    structs = pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}])
    expected = [h(struct.pack("<II", q(1), h(b"a"))), 0, h(struct.pack("<II", 0, h(b"b")))]
    assert hash_array(structs).tolist() == expected
    assert hash_array(structs.slice(2)).tolist() == expected[2:]


REALS = st.floats(width=64) | st.sampled_from([0.0, -0.0, math.nan]) | st.none()
KINDS = {
    pa.list_(pa.float64()): st.lists(REALS, max_size=3),
    pa.large_list(pa.list_(pa.string())): st.lists(st.lists(st.text(max_size=2)) | st.none()),
    pa.struct([("x", pa.float64()), ("l", pa.list_(pa.float64()))]): st.fixed_dictionaries(
        {"x": REALS, "l": st.lists(REALS, max_size=2)}
    ),
}


@given(st.data(), st.sampled_from(list(KINDS)), st.integers(0, 2))
def test_equal_arrays_and_structs_are_one_key_everywhere(
    data: st.DataObject, kind: pa.DataType, start: int
) -> None:
    values = data.draw(st.lists(st.none() | KINDS[kind], min_size=3, max_size=8))
    array = pa.array(values, kind).slice(start)
    keys = [comparable(value) for value in array.to_pylist()]
    hashes, codes = hash_array(array).tolist(), group([array]).codes.tolist()
    found = by_key(pa.record_batch({"k": array}), ["k"])
    assert [len(set(each)) for each in (codes, zip(keys, codes, strict=True))] == [
        len(set(keys)),
        len(set(keys)),
    ]
    assert len(found.keys) == len(set(keys))
    by_hash = dict(zip(keys, hashes, strict=True))
    assert all(by_hash[comparable(key)] == key_hash((key,)) for (key,) in found.keys)

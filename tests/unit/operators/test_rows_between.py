"""Aggregates of the rows around each row, against an oracle that sorts the rows again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import FiresteelError
from firesteel.operators import RowsBetweenSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators import changelog_rows, rows_between
from taskexecutor.executor.operators.rows_between import RowsBetween
from tests.long import fewer

ITEMS = parse_aggregates(["sum(x) AS s", "max(x) AS m", "count(DISTINCT x) AS d", "avg(x) AS a"])
GIVEN = {name: item.of_row[name] for item in ITEMS for name in item.merge}
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("at", pa.int64()),
        ("n", pa.int64()),
        ("x", pa.int64()),
        *(
            (name, pa.float64() if each.value.startswith("double") else pa.int64())
            for name, each in GIVEN.items()
        ),
    ]
)
CHANGES = SCHEMA.append(pa.field("row_kind", pa.string()))

Row = tuple[int, int, int, int | None]  # key, at, number, x


def batch(rows: list[tuple[Row, str]], schema: pa.Schema = CHANGES) -> pa.RecordBatch:
    found = []
    for (key, at, number, x), kind in rows:
        one: dict[str, Any] = {"key": f"k{key}", "at": at, "n": number, "x": x, "row_kind": kind}
        for name, each in GIVEN.items():
            one[name] = int(x is not None) if each.value == "1L" else x
        found.append(one)
    return pa.RecordBatch.from_pylist(found, schema)


def opened(
    start: int, end: int, schema: pa.Schema, restored: Any = None, **config: str
) -> OperatorHarness:
    spec = RowsBetweenSpec(
        key_columns=("Key",), by=("AT",), ascending=(True,), start=start, end=end, aggregates=ITEMS
    )
    kinds = {"s": pa.int64(), "m": pa.int64(), "d": pa.int64(), "a": pa.float64()}
    return OperatorHarness(
        RowsBetween(spec),
        [schema],
        output_schema=pa.schema(kinds),
        restored=restored,
        config={key.replace("__", ".").replace("_", "-"): value for key, value in config.items()},
    ).open()


def expected(rows: list[Row], start: int, end: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for key in {row[0] for row in rows}:
        mine = sorted((row for row in rows if row[0] == key), key=lambda row: (row[1], row[2]))
        for place, row in enumerate(mine):
            near = mine[max(0, place + start) : place + end + 1]
            xs = [x for *_, x in near if x is not None]
            results = {
                "s": sum(xs) if xs else None,
                "m": max(xs, default=None),
                "d": len(set(xs)),
                "a": sum(xs) / len(xs) if xs else None,
            }
            found[repr((f"k{key}", *row[1:], *results.values()))] += 1
    return found


ROWS = st.tuples(st.integers(0, 1), st.integers(0, 6), st.none() | st.integers(0, 3))
FLOWS = st.lists(
    st.lists(ROWS | st.integers(0, 100), min_size=1, max_size=6) | st.none(), max_size=8
)


@settings(max_examples=fewer(30))
@given(flow=FLOWS, start=st.integers(-3, 0), end=st.integers(0, 2), changes=st.booleans())
def test_each_row_has_the_results_of_those_around_it(
    flow: list[list[Any] | None], start: int, end: int, changes: bool
) -> None:
    schema = CHANGES if changes else SCHEMA
    harness = opened(start, end, schema)
    rows: list[Row] = []
    there: Counter[str] = Counter()
    numbers = 0
    for bundle in flow:
        if bundle is None:
            state = harness.checkpoint(1)
            harness.close()
            harness = opened(start, end, schema, state)
            continue
        given_rows: list[tuple[Row, str]] = []
        for one in bundle:
            if not isinstance(one, int):
                rows.append((one[0], one[1], numbers, one[2]))
                numbers += 1
                given_rows.append((rows[-1], "insert"))
            elif rows and changes:
                given_rows.append((rows.pop(one % len(rows)), "delete"))
        if not given_rows:
            continue
        before = len(harness.rows())
        harness.process(batch(given_rows, schema))
        harness.flush()
        emitted = harness.rows()[before:]
        for key in {row["key"] for row in emitted}:
            kinds = [row["row_kind"] for row in emitted if row["key"] == key]
            assert kinds == sorted(kinds), "what goes, goes first"
        assert len({repr({**row, "row_kind": ""}) for row in emitted}) == len(emitted)
        for row in emitted:
            shown = repr(tuple(row[name] for name in ("key", "at", "n", "x", "s", "m", "d", "a")))
            there[shown] += 1 if row["row_kind"] == "insert" else -1
        assert +there == expected(rows, start, end)
        assert not -there
    harness.close()


@settings(max_examples=fewer(30))
@given(
    rows=st.lists(ROWS | st.integers(0, 100), max_size=20),
    start=st.integers(-3, 0),
    end=st.integers(0, 2),
    part_rows=st.integers(1, 4),
)
def test_in_a_batch_each_row_comes_once_at_the_end(
    rows: list[Any], start: int, end: int, part_rows: int
) -> None:
    harness = opened(start, end, CHANGES, execution__runtime_mode="BATCH")
    there: list[Row] = []
    for number, one in enumerate(rows):
        if not isinstance(one, int):
            there.append((one[0], one[1], number, one[2]))
            harness.process(batch([(there[-1], "insert")]))
        elif there:
            harness.process(batch([(there.pop(one % len(there)), "delete")]))
        if number % 3 == 0:
            harness.flush()
    assert not harness.rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changelog_rows, "PART_ROWS", part_rows)
        patch.setattr(rows_between, "AT_ONCE", part_rows)
        harness.end()
    found = Counter[str]()
    for row in harness.rows():
        assert row["row_kind"] == "insert"
        found[repr(tuple(row[name] for name in ("key", "at", "n", "x", "s", "m", "d", "a")))] += 1
    assert found == expected(there, start, end)


def test_results_are_made_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_between, "AT_ONCE", 4)
    monkeypatch.setattr(changelog_rows, "BUNDLE_ROWS", 3)
    monkeypatch.setattr(rows_between, "PART_ROWS", 3)
    harness = opened(-2, 0, SCHEMA)
    rows: list[Row] = [(0, at, at, at % 3) for at in range(20)]
    for row in (*rows[10:], *rows[:10]):
        harness.process(batch([(row, "insert")], SCHEMA))
    harness.flush()
    there = Counter[str]()
    for row in harness.rows():
        shown = repr(tuple(row[name] for name in ("key", "at", "n", "x", "s", "m", "d", "a")))
        there[shown] += 1 if row["row_kind"] == "insert" else -1
    assert +there == expected(rows, -2, 0)


@pytest.mark.parametrize("first", [[], [((0, 1, 1, 1), "insert")]])
def test_a_row_that_is_not_there_cannot_go(first: list[tuple[Row, str]]) -> None:
    harness = opened(-1, 0, CHANGES)
    harness.process(batch([*first, ((0, 1, 1, 2), "delete")]))
    with pytest.raises(FiresteelError, match="a row that does not exist: .*'n': 1, 'x': 2}; an"):
        harness.flush()

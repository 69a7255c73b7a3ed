"""The first rows of keys, as changes, against an oracle that sorts all rows again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.errors import FiresteelError
from firesteel.operators import TopNSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.grouping import ranked_rows
from taskexecutor.executor.operators import changelog_rows
from taskexecutor.executor.operators.top_n import TopN

SCHEMA = pa.schema([("key", pa.float64()), ("by", pa.float64()), ("n", pa.int64())])
NAN = float("nan")
KEYS = [1.0, NAN, None, -0.0, 0.0]
SAME = {4: 3}  # of the keys, by their places
VALUES = [None, 1.0, 2.0, NAN]  # in Spark's order

Row = tuple[int, int]  # the places of its key and its value
FLOWS = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=8), max_size=8
)


def opened(n: int, **settings: Any) -> OperatorHarness:
    spec = TopNSpec(key_columns=("KEY",), n=n, **settings)
    return OperatorHarness(TopN(spec), [SCHEMA]).open()


def batch(rows: list[Row], first: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "key": [KEYS[key] for key, _ in rows],
            "by": [VALUES[value] for _, value in rows],
            "n": list(range(first, first + len(rows))),
        },
        schema=SCHEMA,
    )


def changes(harness: OperatorHarness) -> Counter[tuple[int, int]]:
    """Rows that are there now, (number, rank), of all that have come; each goes once at most."""
    there: Counter[tuple[int, int]] = Counter()
    for row in harness.rows():
        one = row["n"], row.get("rank", 0)
        there[one] += 1 if row["row_kind"] == "insert" else -1
        assert there[one] in (0, 1), row
    return +there


@given(
    flow=FLOWS,
    n=st.integers(1, 3),
    ascending=st.booleans(),
    ranked=st.booleans(),
    latest_first=st.booleans(),
)
def test_what_is_there_is_what_is_first(
    flow: list[list[Row]], n: int, ascending: bool, ranked: bool, latest_first: bool
) -> None:
    harness = opened(
        n, by=("by",), ascending=(ascending,), ranked=ranked, latest_first=latest_first
    )
    rows: list[Row] = []
    for bundle in flow:
        harness.process(batch(bundle, len(rows)))
        before = len(harness.rows())
        harness.flush()
        rows += bundle
        expected: Counter[tuple[int, int]] = Counter()
        for key in range(4):
            mine = [i for i, (of_key, _) in enumerate(rows) if SAME.get(of_key, of_key) == key]
            mine = mine[::-1] if latest_first else mine
            mine.sort(key=lambda i: rows[i][1], reverse=not ascending)
            expected.update((i, rank if ranked else 0) for rank, i in enumerate(mine[:n], 1))
        assert changes(harness) == expected
        kinds = [row["row_kind"] for row in harness.rows()[before:]]
        assert kinds == sorted(kinds), "deletes come first"
        new = [tuple(row.items()) for row in harness.rows()[before:]]
        assert len(new) == len({repr(row) for row in new})


# Each bundle: rows that arrive (the places of key and value), or the removal of an existing row.
FLOWS_OF_CHANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)) | st.integers(0, 9), max_size=8),
    max_size=8,
)


@given(
    flow=FLOWS_OF_CHANGES,
    n=st.integers(1, 3),
    ascending=st.booleans(),
    ranked=st.booleans(),
    latest_first=st.booleans(),
)
def test_rows_that_go_make_room_for_others(
    flow: list[list[Row | int]], n: int, ascending: bool, ranked: bool, latest_first: bool
) -> None:
    spec = TopNSpec(
        key_columns=("KEY",),
        n=n,
        by=("by",),
        ascending=(ascending,),
        ranked=ranked,
        latest_first=latest_first,
    )
    harness = OperatorHarness(TopN(spec), [CHANGES]).open()
    rows: list[Row] = []
    present: list[int] = []
    for bundle in flow:
        for change in bundle:
            for row in told(change, rows, present):
                harness.process(row)
        before = len(harness.rows())
        harness.flush()
        expected: Counter[tuple[int, int]] = Counter()
        for key in range(4):
            mine = [i for i in present if SAME.get(rows[i][0], rows[i][0]) == key]
            mine = mine[::-1] if latest_first else mine
            mine.sort(key=lambda i: rows[i][1], reverse=not ascending)
            expected.update((i, rank if ranked else 0) for rank, i in enumerate(mine[:n], 1))
        assert changes(harness) == expected
        new = [repr(row) for row in harness.rows()[before:]]
        assert len(new) == len(set(new))
        kinds = [row["row_kind"] for row in harness.rows()[before:]]
        assert kinds == sorted(kinds), "deletes come first"
        shown = [{**row, "row_kind": ""} for row in harness.rows()[before:]]
        assert len(shown) == len({repr(row) for row in shown}), "unchanged rows are not sent again"


@given(
    flow=FLOWS_OF_CHANGES,
    n=st.integers(1, 3),
    ranked=st.booleans(),
    latest_first=st.booleans(),
    part_rows=st.integers(1, 4),
)
def test_in_a_batch_what_is_first_comes_once_at_the_end(
    flow: list[list[Row | int]], n: int, ranked: bool, latest_first: bool, part_rows: int
) -> None:
    spec = TopNSpec(
        key_columns=("key",),
        n=n,
        by=("by",),
        ascending=(True,),
        ranked=ranked,
        latest_first=latest_first,
    )
    of_changes = any(isinstance(one, int) for bundle in flow for one in bundle)
    schema = CHANGES if of_changes else SCHEMA
    stream = OperatorHarness(TopN(spec), [schema]).open()
    batch_mode = {"execution.runtime-mode": "BATCH"}
    of_batch = OperatorHarness(TopN(spec), [schema], config=batch_mode).open()
    rows: list[Row] = []
    present: list[int] = []
    for bundle in flow:
        for change in bundle:
            for row in told(change, rows, present):
                for harness in (stream, of_batch):
                    harness.process(row if of_changes else row.drop_columns(["row_kind"]))
        for harness in (stream, of_batch):
            harness.flush()
    assert not of_batch.rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changelog_rows, "PART_ROWS", part_rows)
        for harness in (stream, of_batch):
            harness.end()
    assert changes(of_batch) == changes(stream)
    assert all(row["row_kind"] == "insert" for row in of_batch.rows())


CHANGES = SCHEMA.append(pa.field("row_kind", pa.string()))


def told(change: Row | int, rows: list[Row], present: list[int]) -> list[pa.RecordBatch]:
    """The change of `rows`, of which `present` are there; none if no row is there that could go."""
    if isinstance(change, tuple):
        present.append(len(rows))
        rows.append(change)
        return [change_of(rows, present[-1], "insert")]
    if present:
        return [change_of(rows, present.pop(change % len(present)), "delete")]
    return []


def change_of(rows: list[Row], number: int, kind: str) -> pa.RecordBatch:
    one = batch([rows[number]], number)
    return one.append_column("row_kind", pa.array([kind]))


def test_a_row_that_goes_must_be_there() -> None:
    spec = TopNSpec(key_columns=("key",), n=1, by=("n",), ascending=(True,))
    harness = OperatorHarness(TopN(spec), [CHANGES]).open()
    harness.process(change_of([(0, 1)], 0, "delete"))
    with pytest.raises(FiresteelError, match="a row that does not exist: {'key': 1.0, 'by'"):
        harness.flush()


def test_of_equal_rows_the_earlier_stays_or_the_later_comes() -> None:
    for latest_first, last in ((False, 0), (True, 3)):
        harness = opened(1, by=(), ascending=(), ranked=False, latest_first=latest_first)
        for first in (0, 2):
            harness.process(batch([(0, 1), (0, 1)], first))
            harness.flush()
        assert list(changes(harness)) == [(last, 0)]


def test_many_outdated_rows_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked_rows, "LOG_ROWS", 10)
    monkeypatch.setattr(changelog_rows, "BUNDLE_ROWS", 4)
    harness = opened(2, by=("n",), ascending=(False,))
    for first in range(0, 400, 4):
        harness.process(batch([(0, 1), (1, 1), (2, 1), (3, 1)], first))
    log = harness.operator._rows._log  # type: ignore[attr-defined]
    assert sum(piece.num_rows for piece in log.pieces) <= 2 * 8 + 10 + 8
    expected = {(n, rank) for rank, first in ((1, 396), (2, 392)) for n in range(first, first + 4)}
    assert set(changes(harness)) == expected

"""Running aggregates of rows that come and go, against an oracle that aggregates what is there."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import FiresteelError
from firesteel.operators import RunningAggregateSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.grouping import retraction, value_counts
from taskexecutor.executor.columnar.grouping.retraction import kept_of
from taskexecutor.executor.columnar.grouping.value_counts import SortedRuns
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from tests.long import fewer

EXPRESSIONS = (
    "count(*) AS n",
    "sum(x) AS s",
    "sum(d) AS e",
    "avg(x) AS a",
    "min(x) AS least",
    "max(t) AS most",
    "count(DISTINCT t) AS different",
    "max_by(x, t) AS latest",
    "count(x) FILTER (WHERE t = 'b') AS of_b",
)
ITEMS = parse_aggregates(EXPRESSIONS)
TEXTS = [None, "a", "b", "cc"]
KEYS = [None, 1.5, float("nan"), -2.0]

Row = tuple[int, int | None, int]  # the place of its key, x, the place of its text


def given_by(row: Row) -> dict[str, Any]:
    """Returns the row as Spark computes it: its key, and its input to the partial columns."""
    key, x, t = row
    text = TEXTS[t]
    by_sql = {
        "1L": 1, "x": x, "d": None if x is None else Decimal(x) / 4, "t": text,
        "double(x)": None if x is None else float(x),
    }  # fmt: skip
    met = {"": True, "(x) IS NOT NULL": x is not None}
    met["(x) IS NOT NULL AND (t = 'b')"] = x is not None and text == "b"
    found: dict[str, Any] = {"key": KEYS[key]}
    for item in ITEMS:
        for name in item.merge:
            each = item.of_row[name]
            found[name] = by_sql[each.value] if met[each.condition] else int(each.otherwise[0])
    return found


def kind_of(name: str) -> pa.DataType:
    (of_row,) = (item.of_row[name] for item in ITEMS if name in item.merge)
    kinds = {"t": pa.string(), "d": pa.decimal128(20, 2), "double(x)": pa.float64()}
    return kinds.get(of_row.value, pa.int64())


SCHEMA = pa.schema(
    [
        ("key", pa.float64()),
        *((name, kind_of(name)) for item in ITEMS for name in item.merge),
        ("row_kind", pa.string()),
    ]
)
OUTPUT = pa.schema(
    [
        ("key", pa.float64()),
        ("n", pa.int64()),
        ("s", pa.int64()),
        ("e", pa.decimal128(20, 2)),
        ("a", pa.float64()),
        ("least", pa.int64()),
        ("most", pa.string()),
        ("different", pa.int64()),
        ("latest", pa.int64()),
        ("of_b", pa.int64()),
        ("row_kind", pa.string()),
    ]
)


def expected(rows: list[Row]) -> Counter[str]:
    found: Counter[str] = Counter()
    for key in {key for key, _, _ in rows}:
        mine = [row for row in rows if row[0] == key]
        xs = [x for _, x, _ in mine if x is not None]
        texts = [t for _, _, t in mine if t]
        result = {
            "key": KEYS[key],
            "n": len(mine),
            "s": sum(xs) if xs else None,
            "e": Decimal(sum(xs)).quantize(Decimal("0.01")) / 4 if xs else None,
            "a": sum(xs) / len(xs) if xs else None,
            "least": min(xs, default=None),
            "most": TEXTS[max(texts)] if texts else None,
            "different": len(set(texts)),
            "of_b": sum(x is not None and t == 2 for _, x, t in mine),
        }
        found[shown(result)] += 1
    return found


def shown(row: dict[str, Any]) -> str:
    """`latest` may be of any row of the greatest t."""
    return repr({name: value for name, value in row.items() if name not in ("latest", "row_kind")})


def opened(restored: Any = None, **settings: Any) -> OperatorHarness:
    spec = RunningAggregateSpec(key_columns=("KEY",), aggregates=ITEMS)
    return OperatorHarness(
        RunningAggregate(spec), [SCHEMA], output_schema=OUTPUT, restored=restored, **settings
    ).open()


def batch(changes: list[tuple[Row, str]]) -> pa.RecordBatch:
    rows = [given_by(row) | {"row_kind": kind} for row, kind in changes]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


ROWS = st.tuples(st.integers(0, 3), st.none() | st.integers(-3, 3), st.integers(0, 3))
# A row that comes, the place of one that goes, or a restart from a checkpoint.
FLOWS = st.lists(
    st.lists(ROWS | st.integers(0, 100), min_size=1, max_size=8) | st.none(), max_size=8
)


@settings(max_examples=fewer(40))
@given(flow=FLOWS)
def test_what_is_there_is_aggregated(flow: list[list[Row | int] | None]) -> None:
    harness = opened()
    rows: list[Row] = []
    there: Counter[str] = Counter()
    latest: dict[str, Any] = {}
    for bundle in flow:
        if bundle is None:
            state = harness.checkpoint(1)
            harness.close()
            harness = opened(state)
            continue
        changes: list[tuple[Row, str]] = []
        for one in bundle:
            if not isinstance(one, int):
                rows.append(one)
                changes.append((one, "insert"))
            elif rows:
                changes.append((rows.pop(one % len(rows)), "delete"))
        if not changes:
            continue
        before = len(harness.rows())
        harness.process(batch(changes))
        harness.flush()
        emitted = harness.rows()[before:]
        kinds = [row["row_kind"] for row in emitted]
        assert kinds == sorted(kinds), "deletes come first"
        for row in emitted:
            one_row = repr({**row, "row_kind": ""})
            if row["row_kind"] == "insert":
                latest[repr(row["key"])] = one_row
                there[shown(row)] += 1
            else:
                assert latest.pop(repr(row["key"])) == one_row, "it goes as it came"
                there[shown(row)] -= 1
        assert +there == expected(rows)
        for text in latest.values():
            row = eval(text, {"nan": float("nan"), "Decimal": Decimal})
            mine = [each for each in rows if repr(KEYS[each[0]]) == repr(row["key"])]
            most = max(t for _, _, t in mine)
            assert row["latest"] in ([x for _, x, t in mine if t == most] if most else [None])
    harness.close()


def test_a_bundle_that_changes_nothing_emits_nothing() -> None:
    harness = opened()
    row = (1, 5, 2)
    harness.process(batch([(row, "insert")]))
    harness.flush()
    assert len(harness.rows()) == 1
    harness.process(batch([((1, 7, 1), "insert"), ((1, 7, 1), "delete")]))
    harness.flush()
    assert len(harness.rows()) == 1


def test_a_row_that_is_not_there_cannot_go() -> None:
    for row in ((1, 6, 2), (2, 5, 2)):
        harness = opened()
        harness.process(batch([((1, 5, 2), "insert")]))
        harness.process(batch([(row, "delete")]))
        with pytest.raises(
            FiresteelError,
            match="cannot delete a row that does not exist: .*; an upstream operator",
        ):
            harness.flush()


def test_what_cannot_be_subtracted_is_not_added() -> None:
    harness = opened()
    rows = batch([((1, 5, 2), "insert")])
    place = SCHEMA.get_field_index(next(iter(ITEMS[3].merge)))
    assert SCHEMA.field(place).type == pa.float64()
    rows = rows.set_column(place, SCHEMA.field(place), pa.array([float("inf")]))
    harness.process(rows)
    with pytest.raises(FiresteelError, match="cannot add the value inf, .*FILTER"):
        harness.flush()


def test_a_batch_has_one_row_per_key() -> None:
    harness = opened(config={"execution.runtime-mode": "BATCH"})
    harness.process(batch([((1, 5, 2), "insert"), ((3, 1, 1), "insert")]))
    harness.process(batch([((1, 7, 2), "insert"), ((3, 1, 1), "delete")]))
    harness.end()
    assert [(row["key"], row["n"], row["s"], row["row_kind"]) for row in harness.rows()] == [
        (1.5, 2, 12, "insert")
    ]


def test_a_key_that_has_changed_and_changes_back() -> None:
    spec = RunningAggregateSpec(
        key_columns=("k",), aggregates=parse_aggregates(["max(x) AS x"]), changes=True
    )
    schema = pa.schema([("k", pa.int64()), ("_p0_max", pa.int64()), ("_rows", pa.int64())])
    harness = OperatorHarness(RunningAggregate(spec), [schema]).open()
    for x in (3, 2, 5):
        harness.process(pa.RecordBatch.from_pydict({"k": [1], "_p0_max": [x], "_rows": [1]}))
        harness.flush()
    assert [(row["x"], row["row_kind"]) for row in harness.rows()] == [
        (3, "insert"), (3, "delete"), (5, "insert"),
    ]  # fmt: skip


def test_many_outdated_values_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_counts, "_LEAST_PAIRS", 10)
    monkeypatch.setattr(retraction, "_OUTDATED_ROWS", 10)
    harness = opened()
    for x in range(300):
        changes = [((1, x, 1), "insert")] + ([((1, x - 1, 1), "delete")] if x else [])
        harness.process(batch(changes))
        harness.flush()
    assert harness.rows()[-1]["least"] == 299
    operator: Any = harness.operator
    assert all(counts._pairs <= 24 for counts in operator._changes._values.values())
    assert operator._last._log_rows <= 14


@pytest.mark.parametrize("expression", ["stddev(x)", "collect_list(x)", "any_value(x)"])
def test_what_cannot_be_taken_back_is_refused(expression: str) -> None:
    with pytest.raises(FiresteelError, match="cannot be retracted; aggregates that can: count,"):
        kept_of(parse_aggregates([expression]))


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9), max_size=9))
def test_runs_have_all_numbers_of_a_key(bundles: list[list[int]]) -> None:
    runs, pairs = SortedRuns(), set()
    for bundle in bundles:
        numbers = np.arange(len(pairs), len(pairs) + len(bundle))
        runs.add(np.array(bundle), numbers)
        pairs |= set(zip(bundle, numbers.tolist(), strict=True))
    keys, numbers = runs.find(np.array([1, 3]))
    assert set(zip(keys.tolist(), numbers.tolist(), strict=True)) == {
        pair for pair in pairs if pair[0] in (1, 3)
    }

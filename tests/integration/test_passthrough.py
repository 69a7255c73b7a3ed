"""Columns that only pass through a plan do not enter Spark, nor do texts that repeat: the rows are
those of a fresh plan, whatever the plan, the rows and the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from firesteel.operators import TransformSpec
from taskexecutor.executor.columnar.cached_plans import passthrough
from taskexecutor.executor.columnar.columns import distinct
from taskexecutor.executor.columnar.columns.bundles import ColumnBundles
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import BundleLoader, collect
from taskexecutor.executor.columnar.runners.bundle_plans import BundlePlans
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.string()),
        ("a.b", pa.string()),
        ("Firesteel.Place", pa.int32()),
        ("x", pa.binary()),
        ("o", pa.bool_()),
        ("d", pa.decimal128(20, 3)),
        ("t", pa.timestamp("us", "UTC")),
        ("r", pa.struct([("p", pa.int64()), ("q", pa.list_(pa.string()))])),
        ("m", pa.map_(pa.string(), pa.float64())),
    ]
)
TEXTS = ["", "1", "22", "a/b/c", "a/é", "x" * 50]
Function = Callable[[DataFrame], DataFrame]


def row(number: int) -> dict[str, Any]:
    """By the number, null in some columns."""
    values = {
        "n": number,
        "s": TEXTS[number % len(TEXTS)],
        "a.b": TEXTS[number % 4] * 2,
        "Firesteel.Place": -number,
        "x": bytes([number % 7]),
        "o": number % 3 == 0,
        "d": Decimal(number) / 8,
        "t": datetime(2020, 1, 1, tzinfo=UTC) + timedelta(hours=number),
        "r": {"p": number, "q": [str(number), None]},
        "m": [("k", number / 2)],
    }
    return {
        name: None if number % (11 + place) == 5 else value
        for place, (name, value) in enumerate(values.items())
    }


# Each program, with the columns of a bundle that Spark receives.
PROGRAMS: dict[str, tuple[Function, set[str]]] = {
    "all of them": (lambda df: df, set()),
    "chosen, renamed, twice": (
        lambda df: df.select(df.s.alias("z"), "n", "r", df.s, df.n.alias("N2"), "`a.b`"),
        set(),
    ),
    "projected": (lambda df: df.selectExpr("n + 1 AS more", "*", "upper(s) AS up"), {"n", "s"}),
    "overwritten": (lambda df: df.withColumn("n", df.n % 5).withColumn("S", F.col("n") + 1), {"n"}),
    "chosen rows": (lambda df: df.where("n % 3 = 1"), {"n"}),
    "rows and columns": (
        lambda df: (
            df.where("n % 3 = 1")
            .selectExpr("s", "n AS id", "d * 2 AS twice", "m", "x", "o")
            .where("id > 4 AND twice IS NOT NULL")
            .selectExpr("twice", "s AS text", "id", "m", "x", "o", "text AS again")
        ),
        {"n", "d"},
    ),
    "no rows": (lambda df: df.where("n < 0"), {"n"}),
    "a name": (lambda df: df.alias("one").where("one.n > 7").select("one.s", "one.t"), {"n"}),
    "parts": (lambda df: df.selectExpr("r", "r.p", "r.q[0] AS q", "m['k'] AS k"), {"r", "m"}),
    "texts": (
        lambda df: df.selectExpr("n", "split(s, '/')[0] AS head", "length(s) AS size", "s", "r"),
        {"s"},
    ),
    "some texts": (
        lambda df: df.selectExpr("n", "regexp_extract(s, '([a-z]+)', 1) AS w").where("w <> ''"),
        {"s"},
    ),
    "two texts": (
        lambda df: df.selectExpr("t", "concat_ws('-', s, `a.b`) AS both", "hex(x) AS h"),
        {"s", "a.b", "x"},
    ),
    "texts of two, some": (
        lambda df: df.where("s <> `a.b` OR s IS NULL").selectExpr("n", "concat(s, `a.b`) AS both"),
        {"s", "a.b"},
    ),
    "guarded": (
        lambda df: df.where("s RLIKE '^[0-9]+$'").selectExpr("CAST(s AS INT) AS i", "n", "x"),
        {"s"},
    ),
    "guarded by a case": (
        lambda df: df.selectExpr("CASE WHEN s < '3' THEN length(s) / 0.5 END AS e", "d"),
        {"s"},
    ),
    "random": (lambda df: df.selectExpr("n", "s", "rand(3) < 2 AS sure").where("sure"), set()),
    "by number": (lambda df: df.selectExpr("s", "monotonically_increasing_id() AS i"), set()),
    "to many": (
        lambda df: df.selectExpr("n", "s", "explode(array(n, d)) AS e"),
        {"n", "s", "d"},
    ),
    "only computed": (lambda df: df.selectExpr("upper(s) AS u"), {"s"}),
    "only computed, some": (lambda df: df.selectExpr("upper(s) AS u").where("u > 'A'"), {"s"}),
    "constants": (lambda df: df.selectExpr("1 AS one", "s", "'c' AS c"), set()),
}


class Program:
    def __init__(self, engine: SparkEngine, function: Function, schema: pa.Schema = SCHEMA) -> None:
        self._engine = engine
        self._function = function
        self._schema = schema
        self._plans = BundlePlans(
            engine, schema, [TransformSpec(function=function)], PlanMeter(TaskClock())
        )
        self._plans.make()
        assert isinstance(self._plans._plan, ColumnBundles)
        self.columns = self._plans._plan
        assert self._plans.frame is not None
        self.schema = to_arrow(self._plans.frame.schema)
        self.given = 0  # rows to Spark
        if self.columns._plan is not None:
            run = self.columns._plan.run

            def counted(batches: list[pa.RecordBatch], *rest: Any) -> Any:
                self.given += sum(batch.num_rows for batch in batches)
                return run(batches, *rest)

            self.columns._plan.run = counted  # type: ignore[method-assign, assignment]

    def rows(self, batches: list[pa.RecordBatch]) -> pa.Table:
        found = pa.Table.from_batches(
            list(self._plans.run(batches, self.schema, "test")), self.schema
        )
        found.validate(full=True)
        return found

    def rows_of_dictionaries(self, batches: list[pa.RecordBatch]) -> pa.Table:
        """As readers give texts."""
        table = pa.Table.from_batches(
            [
                pa.RecordBatch.from_arrays(
                    [
                        each.dictionary_encode() if pa.types.is_string(each.type) else each
                        for each in batch.columns
                    ],
                    batch.schema.names,
                )
                for batch in batches
            ]
        )
        found = self.columns.run(table, self.schema, "test", PlanMeter(TaskClock()))
        return pa.Table.from_batches(list(found), self.schema)

    def planned(self, batches: list[pa.RecordBatch]) -> pa.Table:
        """The oracle: runs a fresh plan."""
        with BundleLoader(self._engine.session, self._engine.bundles, self._schema).dataframe(
            batches
        ) as frame:
            frame = self._function(frame)
            meter = PlanMeter(TaskClock())
            return pa.Table.from_batches(list(collect(frame, self.schema, meter)), self.schema)

    def close(self) -> None:
        self._plans.close()


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest, engine: SparkEngine) -> Iterator[Program]:
    function, given = PROGRAMS[request.param]
    found = Program(engine, function)
    read = found.columns._plan.read if found.columns._plan is not None else []
    assert set(read) == given
    yield found
    found.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distinct, "_LEAST_ROWS", 1)
    monkeypatch.setattr(passthrough, "_SMALL_BATCH_ROWS", 3)


@pytest.mark.one_in(3)
@settings(
    deadline=None,
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    start=st.integers(0, 1000),
    different=st.sampled_from([1, 5, 1000]),
)
def test_the_rows_are_the_same(
    program: Program, sizes: list[int], start: int, different: int
) -> None:
    batches = []
    for size in sizes:
        rows = [row(start + number % different) for number in range(size + 2)]
        batches.append(pa.RecordBatch.from_pylist(rows, schema=SCHEMA).slice(2))
        start += size
    right = program.planned([batch for batch in batches if batch.num_rows] or batches[:1])
    assert program.rows(batches).equals(right)
    assert program.rows_of_dictionaries(batches).equals(right)


def bundle(rows: int, different: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([row(number % different) for number in range(rows)], SCHEMA)]


def test_what_passes_is_not_copied(engine: SparkEngine) -> None:
    program = Program(engine, lambda df: df.selectExpr("n + 1 AS n", "s AS t", "r"))
    (batch,) = bundle(100, 100)
    found = program.rows([batch])
    for name, source in (("t", "s"), ("r", "r")):
        (chunk,) = found.column(name).chunks
        sizes = [buffer.address for buffer in chunk.buffers() if buffer is not None]
        assert sizes == [each.address for each in batch.column(source).buffers() if each]
    program.close()


def test_texts_that_repeat_are_given_once(engine: SparkEngine) -> None:
    program = Program(engine, PROGRAMS["two texts"][0])
    batches = bundle(500, 12)
    right = program.planned(batches)
    for _ in range(2):
        assert program.rows(batches).equals(right)
    assert program.given == 12
    program.rows(bundle(500, 15))
    assert program.given == 15
    program.close()


@pytest.mark.parametrize(("limit", "value"), [("_MOST_TEXTS", 11), ("_MOST_BYTES", 400)])
def test_too_many_different_texts_are_forgotten(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(distinct, limit, value)
    program = Program(engine, PROGRAMS["two texts"][0])
    few, many = bundle(100, 3), bundle(100, 30)
    for batches in (few, many, few, few, few):
        assert program.rows(batches).equals(program.planned(batches))
    assert program.given > 2 * 100
    program.close()


def test_texts_that_do_not_repeat_are_searched_for_now_and_then(engine: SparkEngine) -> None:
    program = Program(engine, lambda df: df.selectExpr("n", "upper(s) AS u"))
    searches: list[int] = []
    search = distinct.Repeats._found

    def counted(*arguments: Any) -> Any:
        searches.append(len(searches))
        return search(*arguments)

    texts = pa.array([f"text {number}" for number in range(50)])
    batch = pa.RecordBatch.from_pylist([row(number) for number in range(50)], SCHEMA)
    batch = batch.set_column(1, SCHEMA.field("s"), texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct.Repeats, "_found", counted)
        for _ in range(20):
            program.rows([batch])
    assert program.given == 20 * 50
    assert len(searches) == 4
    program.close()


@pytest.mark.parametrize("rows", [1, 100])
def test_errors_are_those_of_rows_that_stay(engine: SparkEngine, rows: int) -> None:
    program = Program(
        engine, lambda df: df.where("s <> 'a/é'").selectExpr("n", "CAST(s AS INT) AS i")
    )
    good = bundle(rows * 3, 3)[0].filter(
        pa.array([number % 3 > 0 for number in range(rows * 3)])
    )  # "1" and "22"
    hidden = pa.RecordBatch.from_pylist([row(4)], SCHEMA)
    assert program.rows([good, hidden]).num_rows == rows * 2
    bad = pa.RecordBatch.from_pylist([row(3)], SCHEMA)
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        program.rows([good, bad])
    assert program.rows([good]).num_rows == rows * 2, "it goes on"
    program.close()


def test_long_results_are_not_taken_for_many_rows(engine: SparkEngine) -> None:
    program = Program(engine, lambda df: df.selectExpr("n", "repeat(s, 400000) AS long"))
    batches = bundle(120, 6)
    sizes = [each.nbytes for each in program._plans.run(batches, program.schema, "test")]
    assert len(sizes) > 1
    assert sum(sizes) > 40 * 2**20 > 3 * max(sizes)
    program.close()

"""Sequences that Spark generates, by cached plans and by new ones: the same rows as in plain
Python.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from firesteel import Environment
from firesteel.common.operator_messages import SplitAssigned
from firesteel.connectors import SequenceSource
from firesteel.datastream import DataStream
from firesteel.testing import OperatorHarness
from taskexecutor.executor.analyze import analyze
from taskexecutor.executor.columnar.cached_plans.reusable_plan import reusable_plan
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.connectors.sequences import ranges
from taskexecutor.executor.connectors.sequences.source import SequenceStage
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import create_operator
from tests.integration.conftest import Slot
from tests.integration.file_splits import read_split
from tests.slow_target import SlowTarget

START, SPLIT, SPLITS = -500, 2_000, 4
NUMBERS = range(START, START + SPLITS * SPLIT - 300)  # the last split is shorter
CALLS = itertools.count()


@pytest.fixture(scope="module", params=[1, 2], ids=["1 core", "2 cores"])
def engine(slot: Slot, request: pytest.FixtureRequest) -> SparkEngine:
    return slot.spark(cores=request.param)


def stage(
    engine: SparkEngine,
    program: Callable[[DataStream], DataStream],
    source: SequenceSource | None = None,
    *,
    checkpoints: bool = False,
    chained: bool = False,
) -> tuple[SequenceStage, OperatorHarness]:
    env = Environment(parallelism=1)
    source = source or SequenceSource(START, NUMBERS.stop, "n", split_rows=SPLIT)
    program(env.from_source(source)).print()
    graph = env.job_graph("numbers")
    schemas = [operator.schema for operator in analyze(graph, engine)]
    operators = [o for o in graph.vertices[0].operators if o.runs_on_spark]
    opened = [
        OpenedOperator(o, cloudpickle.loads(o.spec), s)
        for o, s in zip(operators, schemas, strict=False)
    ]
    operator = create_operator(opened)
    assert isinstance(operator, SequenceStage)
    harness = OperatorHarness(
        operator, [], spark=engine.session, checkpoints=checkpoints, chained=chained
    )
    return operator, harness.open()


def read(harness: OperatorHarness) -> list[dict[str, Any]]:
    for number in range(SPLITS):
        start = START + number * SPLIT
        split = f'{{"start": {start}, "end": {min(start + SPLIT, NUMBERS.stop)}}}'
        read_split(harness, number, split)
    return harness.rows()


def plan_is_cached(operator: SequenceStage) -> bool:
    return operator._ranges is not None and operator._ranges.frame is not None


def test_transforms_run_by_a_cached_plan(engine: SparkEngine) -> None:
    def odd(df: Any) -> Any:
        return df.where("n % 2 = 1").selectExpr("n * 2 AS d", "concat('n', n) AS text")

    operator, harness = stage(engine, lambda numbers: numbers.transform(odd))
    assert sorted(r["d"] for r in read(harness)) == [2 * n for n in NUMBERS if n >= 0 and n % 2]
    assert plan_is_cached(operator)
    counts = harness.metrics.plan_counts
    assert counts.cached_runs == harness.metrics.bundles - 1, "the last split is a shorter one"


def test_a_split_with_fewer_numbers_than_parts_ends(engine: SparkEngine) -> None:
    few = SequenceSource(0, 3, column="n")
    operator, harness = stage(engine, lambda numbers: numbers.filter("n > 1"), source=few)
    read_split(harness, 0, '{"start": 0, "end": 3}')
    assert harness.rows() == [{"n": 2}]
    assert plan_is_cached(operator)


def test_partial_aggregates_run_by_a_cached_plan(engine: SparkEngine) -> None:
    keyed = lambda df: df.selectExpr("pmod(n, 7) AS k", "n")  # noqa: E731
    operator, harness = stage(
        engine, lambda ns: ns.transform(keyed).key_by("k").aggregate("count(*) AS c", "avg(n) AS a")
    )
    counts: Counter[int] = Counter()
    for row in read(harness):
        counts[row["k"]] += row["_rows"]
    assert counts == Counter(n % 7 for n in NUMBERS)
    assert plan_is_cached(operator)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda df: df.where(f"n >= {df.count() * 0 + START}"), "a function reads its rows"),
        (lambda df: df.where("current_timestamp() IS NOT NULL"), "it contains the current time"),
        (lambda df: df.where(f"n > -{next(CALLS) + 10_000}"), "it differs from call to call"),
        (lambda df: df.orderBy(df.n % 10), "it contains a sort (SortExec)"),
        (lambda df: df.where("n <= (SELECT max(id) FROM range(100000))"), "a subquery"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_plans_that_may_not_be_cached(engine: SparkEngine, function: Any, reason: str) -> None:
    operator, harness = stage(engine, lambda ns: ns.transform(function, per_bundle=True))
    assert sorted(r["n"] for r in read(harness)) == list(NUMBERS)
    assert not plan_is_cached(operator)
    assert reason in harness.metrics.plan_counts.not_cached


def test_large_results_come_in_parts(engine: SparkEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "taskexecutor.executor.connectors.sequences.ranges.PART_BYTES", 8_000
    )  # of 16,000 per split
    operator, harness = stage(
        engine, lambda numbers: numbers.transform(lambda df: df.selectExpr("n"))
    )
    assert sorted(r["n"] for r in read(harness)) == list(NUMBERS)
    assert operator._ranges is not None
    assert operator._ranges._divided == 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [True, False], ids=["checkpoints", "none"])
def test_slow_results_come_in_parts_if_checkpoints_wait_for_them(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, *, checkpoints: bool
) -> None:
    monkeypatch.setattr(ranges, "_AGGREGATED_PART_S", 1e-9)
    operator, harness = stage(
        engine,
        lambda ns: (
            ns.transform(lambda df: df.selectExpr("n % 3 AS k"))
            .key_by("k")
            .aggregate("count(*) AS c")
        ),
        checkpoints=checkpoints,
    )
    assert sum(r["_rows"] for r in read(harness)) == len(NUMBERS)
    assert operator._ranges is not None
    assert operator._ranges._parts == (16 if checkpoints else 1)
    assert (harness.metrics.bundles > SPLITS) == checkpoints


def test_the_halves_of_an_aggregation_are_one(engine: SparkEngine) -> None:
    def program(numbers: DataStream) -> DataStream:
        return (
            numbers.transform(lambda df: df.selectExpr("n % 7 AS k", "n"))
            .key_by("k")
            .aggregate("count(*) AS c", "max(n) AS m")
        )

    operator, _ = stage(engine, program)
    leaf = engine.session.range(5).toDF("n")
    kept = reusable_plan(engine.session, leaf, leaf, operator._specs, ranges._ALLOWED)
    assert kept.physical.toString().count("HashAggregate") == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("keys", "larger"),
    [
        pytest.param(("nullif(pmod(n, 611), 5) AS k",), True, id="whole numbers and null"),
        pytest.param(
            ("IF(n % 3 = 0, DOUBLE('NaN'), CAST(pmod(n, 611) AS DOUBLE)) AS k",),
            True,
            id="not a number",
        ),
        pytest.param(
            ("IF(n % 3 = 0, -0.0D, CAST(pmod(n, 611) AS DOUBLE)) AS k",), True, id="doubles"
        ),
        pytest.param(
            ("date_add(DATE '2024-01-01', CAST(pmod(n, 611) AS INT)) AS k", "n % 2 = 0 AS l"),
            True,
            id="several",
        ),
        pytest.param(("concat('k', pmod(n, 611)) AS k",), False, id="texts"),
        pytest.param(("CAST(pmod(n, 611) AS DECIMAL(30, 2)) AS k",), False, id="decimals"),
    ],
)
def test_many_groups_are_found_in_a_larger_map(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...], larger: bool
) -> None:
    def program(numbers: DataStream) -> DataStream:
        values = (
            "nullif(n % 10, 3) AS v",
            "CAST(n AS DOUBLE) / 7 AS d",
            "CAST(n AS SMALLINT) AS s",
            "n > 0 AS b",
        )
        names = [key.rsplit(" ", 1)[1] for key in keys]
        aggregates = (
            "count(v) AS c",
            "sum(v) AS t",
            "min(v) AS m",
            "max(d) AS h",
            "avg(s) AS a",
            "stddev(d) AS e",
            "max(b) AS f",
        )
        return (
            numbers.transform(lambda df: df.selectExpr(*keys, *values))
            .key_by(*names)
            .aggregate(*aggregates)
        )

    usual, harness = stage(engine, program)
    expected = sorted(map(repr, read(harness)))
    monkeypatch.setattr(ranges, "_MAP_BITS", 7)  # so 256 of the 2,000 rows are looked at
    monkeypatch.setattr(ranges, "_LARGE", 4)
    operator, harness = stage(engine, program)
    assert sorted(map(repr, read(harness))) == expected
    assert usual._ranges is not None and operator._ranges is not None
    assert usual._ranges._map_bits == 16
    assert operator._ranges._map_bits is not None
    assert (operator._ranges._map_bits > 16) == larger
    assert engine.session.conf.get("spark.sql.codegen.aggregate.map.vectorized.enable") == "false"


def test_rows_for_a_slow_operator_come_in_small_pieces(engine: SparkEngine) -> None:
    source = SequenceSource(0, 10**7, "n", split_rows=10**6)
    slow = SlowTarget(2e-4)  # of a part of a cached plan, 12 s
    operator, harness = stage(engine, lambda ns: ns.select_expr("n"), source, chained=True)
    harness.add_target(slow)
    harness.deliver(SplitAssigned(number=0, split_json='{"start": 0, "end": 1000000}'))
    for _ in range(3):
        position = operator._next
        harness.poll()
        assert 0 < operator._next - position <= 10_000  # two seconds
    assert sum(slow.sizes) == operator._next
    assert [r["n"] for r in harness.rows()] == list(range(operator._next))


def test_a_fast_operator_gets_rows_of_a_cached_plan(engine: SparkEngine) -> None:
    source = SequenceSource(START, NUMBERS.stop, "n", split_rows=SPLIT)
    operator, harness = stage(engine, lambda ns: ns.select_expr("n"), source, chained=True)
    assert sorted(r["n"] for r in read(harness)) == list(NUMBERS)
    assert plan_is_cached(operator)
    assert harness.metrics.plan_counts.cached_runs >= SPLITS - 2

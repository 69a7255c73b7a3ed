"""Costly expressions that a condition refers to are evaluated once, and rows stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame

from firesteel.operators import PartialWindowAggregateSpec, TransformSpec
from taskexecutor.executor.columnar.cached_plans.common_expressions import evaluated_once
from taskexecutor.executor.columnar.cached_plans.reusable_plan import ROW_BY_ROW, reusable_plan
from taskexecutor.executor.columnar.columns import rows
from taskexecutor.executor.columnar.jvm.engine import SparkEngine

DIGITS = "regexp_extract(s, '([0-9]+)', 1)"


def rows_of(engine: SparkEngine) -> DataFrame:
    """Like a source's: the optimiser does not see the rows."""
    values = [(n, None if n % 11 == 0 else f"{'x' * (n % 3)}{n % 7 or ''}-{n}") for n in range(200)]
    return engine.session.createDataFrame(values, "n LONG, s STRING").repartition(1)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]


CASES: dict[str, tuple[Callable[[DataFrame], DataFrame], int]] = {
    "a later condition": (lambda df: df.selectExpr("n", f"{DIGITS} AS d").where("d <> ''"), 1),
    "another condition": (
        lambda df: df.selectExpr("n", "n % 5 AS m", f"{DIGITS} AS d").where("d <> '' AND m > 2"),
        1,
    ),
    "several projections": (
        lambda df: (
            df.withColumn("d", df.s)
            .selectExpr("*", f"{DIGITS} AS e")
            .selectExpr("*", "n + 1 AS more")
            .where("more > 7")
            .where("e > '2' OR e IS NULL")
            .select("e", "more")
        ),
        1,
    ),
    "consecutive conditions": (
        lambda df: (
            df.selectExpr("n", "s", f"{DIGITS} AS d")
            .where("d <> ''")
            .selectExpr("n", "d", "split(s, '-') AS parts")
            .where("parts[1] > '3'")
        ),
        1,
    ),
    "only the condition uses it": (
        lambda df: df.withColumn("d", df.s).selectExpr("n", f"{DIGITS} AS d").where("d = '3'"),
        1,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_in_the_plan_once_and_the_rows_are_the_same(engine: SparkEngine, case: str) -> None:
    function, times = CASES[case]
    before = function(rows_of(engine))
    after = evaluated_once(engine.session, before)
    assert after is not before
    assert plan_of(before).count("regexp_extract(") > times
    assert plan_of(after).count("regexp_extract(") == times
    assert after.schema == before.schema
    found = after.collect()
    assert found == before.collect()
    assert 0 < len(found) < 200


def test_a_condition_on_other_columns_is_still_evaluated_first(engine: SparkEngine) -> None:
    frame = rows_of(engine).selectExpr("n + 1 AS m", f"{DIGITS} AS d", "split(s, '-') AS parts")
    plan = plan_of(evaluated_once(engine.session, frame.where("m > 3 AND d <> ''")))
    operators = [line for line in plan.splitlines() if "Filter" in line or "Project" in line]
    first, second = (line for line in reversed(operators) if "Filter" in line)
    assert "+ 1) > 3" in first
    assert "regexp_extract" not in first
    assert "= )" in second
    split = next(line for line in operators if "split(" in line)
    assert operators.index(split) < operators.index(second), "only for the rows that stay"


def test_cached_plans_do_so(engine: SparkEngine) -> None:
    function, _ = CASES["a later condition"]
    chosen = TransformSpec(function=function)
    counted = PartialWindowAggregateSpec(
        key_columns=("d",), window=None, time_column="", aggregates=()
    )
    leaf = rows.frame(engine, rows_of(engine).schema)
    for specs in ([chosen], [chosen, counted]):
        plan = reusable_plan(
            engine.session, leaf, leaf, specs, ROW_BY_ROW | rows.LEAF
        ).physical.toString()
        assert str(plan).count("regexp_extract(") == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda df: df,
        lambda df: df.selectExpr("n", f"{DIGITS} AS d"),
        lambda df: df.selectExpr("n + 1 AS m", f"{DIGITS} AS d").where("m > 3"),
        lambda df: df.where(f"{DIGITS} <> ''"),
        lambda df: df.selectExpr("n", f"{DIGITS} AS d", "rand() AS r").where("d <> ''"),
        lambda df: df.selectExpr(f"{DIGITS} AS d").groupBy("d").count().where("d <> ''"),
    ],
)
def test_other_plans_stay_as_they_are(engine: SparkEngine, function: Any) -> None:
    frame = function(rows_of(engine))
    assert evaluated_once(engine.session, frame) is frame

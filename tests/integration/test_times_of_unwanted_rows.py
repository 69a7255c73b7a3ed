"""Rows that a condition drops do not enter Spark, but their event times count."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from firesteel.operators import TransformSpec, WatermarkSpec
from taskexecutor.executor.columnar.columns.bundles import ColumnBundles
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.runners.column_plans import ColumnPlans
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock
from tests.integration.conftest import Slot

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("t", pa.timestamp("us", "UTC"))])


@pytest.fixture(scope="module")
def engine(slot: Slot) -> SparkEngine:
    return slot.spark()


@pytest.mark.parametrize("least", [3, 9_990, 30_000])
def test_of_a_column_with_times(
    engine: SparkEngine, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []
    run: Any = ColumnBundles.run

    def counted(self: Any, table: pa.Table, *rest: Any) -> Any:
        entered.append(table.num_rows)
        return run(self, table, *rest)

    monkeypatch.setattr(ColumnBundles, "run", counted)
    numbers = range(10_000)
    rows = {
        "n": numbers,
        "text": [f"text {n}" for n in numbers],
        "t": [10_000 - n for n in numbers],
    }
    specs = [
        TransformSpec(
            function=lambda df: df.where(f"0.5 * n >= {least / 2}").selectExpr("n + 1 AS m", "text")
        )
    ]
    times = WatermarkSpec(column="t", max_out_of_orderness_us=0)
    plans = ColumnPlans(engine, to_spark(SCHEMA), specs, times, PlanMeter(TaskClock()))
    plan = plans.plan()
    assert plan is not None
    assert plan.wanted is None  # the reader has to read the times of all rows
    table = pa.table(rows, schema=SCHEMA)
    halves = pa.concat_tables([table.slice(0, 5_000), table.slice(5_000)])
    schema = to_arrow(plan.frame.schema)
    found = [row for each in plan.run(halves, schema, "test") for row in each.to_pylist()]
    assert found == [{"m": n + 1, "text": f"text {n}"} for n in numbers if n >= least]
    assert plan.latest_us == 10_000
    # Most rows of a batch are passed on unchanged.
    assert entered == [10_000 if least == 3 else max(0, 10_000 - least)]
    plans.close()

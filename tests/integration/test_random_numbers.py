"""Random numbers are others in each run of a plan, and in each subtask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from firesteel.connectors import ForeachBatchSink
from firesteel.plan import deferred_columns, frame_methods
from firesteel.plan.specs import TransformSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.foreach_batch import ForeachBatch
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.transform_stage import SparkTransformStage

deferred_columns.install()
# Columns of a program, which has no session: made before the engine starts.
UUID = F.uuid()
RAND = F.rand().cast("string")
NUMBERS = pa.schema([("n", pa.int64())])
DRAWN: dict[str, Callable[[Any], Any]] = {
    "a Column of the program": frame_methods.with_column("id", UUID),
    "one that a function refers to": lambda df: df.withColumn("id", RAND),
    "one of the function": lambda df: df.withColumn("id", F.rand().cast("string")),
    "SQL": frame_methods.selected_by_sql(["n", "randstr(20) AS id"]),
}


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": range(first, first + count)}, schema=NUMBERS)


@pytest.mark.parametrize("function", DRAWN.values(), ids=list(DRAWN))
def test_each_bundle_of_each_subtask_has_its_own(engine: SparkEngine, function: Any) -> None:
    shipped = cloudpickle.dumps(TransformSpec(function=function))
    ids = []
    for subtask in range(2):
        operator = SparkTransformStage([cloudpickle.loads(shipped)], None)
        harness = OperatorHarness(
            operator, [NUMBERS], spark=engine.session, subtask=subtask, parallelism=2
        ).open()
        for bundle in range(3):
            harness.process(numbers(bundle * 10, 10))
            harness.flush()
        harness.end()
        ids += [row["id"] for row in harness.rows()]
    assert len(ids) == len(set(ids)) == 60


def test_a_column_is_made_once_in_each_call_of_a_function(engine: SparkEngine) -> None:
    def twice(df: Any) -> Any:
        return df.withColumn("one", UUID).withColumn("other", UUID)

    operator = SparkTransformStage([TransformSpec(function=twice)], None)
    harness = OperatorHarness(operator, [NUMBERS], spark=engine.session).open()
    harness.process(numbers(0, 10))
    harness.end()
    assert all(row["one"] == row["other"] for row in harness.rows()), "as in PySpark"


def test_each_batch_of_foreach_batch_has_its_own(engine: SparkEngine) -> None:
    ids: list[str] = []

    def keep(df: Any, _: int) -> None:
        ids.extend(row.id for row in df.select(UUID.alias("id")).collect())

    harness = OperatorHarness(
        ForeachBatch(ForeachBatchSink(keep)), [NUMBERS], spark=engine.session
    ).open()
    for bundle in range(2):
        harness.process(numbers(bundle * 10, 10))
        harness.flush()
    harness.end()
    assert len(ids) == len(set(ids)) == 20

"""The smallest slot that can be requested: its Spark starts and does a job's usual work in bundles
far larger than its heap. And how little a slot imports before it has a job.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from firesteel.common.resources import MINIMUM_HEAP_BYTES
from firesteel.operators import TransformSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage
from tests.integration.conftest import Slot

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
ROWS = 200_000


def test_the_smallest_heap_filters_groups_and_sorts(slot: Slot) -> None:
    engine = slot.spark(heap_bytes=MINIMUM_HEAP_BYTES)
    numbers = np.arange(ROWS)
    batch = pa.record_batch([pa.array(numbers), pa.array(numbers.astype(str))], schema=SCHEMA)

    def work(df):  # type: ignore[no-untyped-def]
        return df.where("number % 2 = 0").groupBy("text").count().orderBy("text")

    output = to_arrow(work(engine.session.createDataFrame([], "number BIGINT, text STRING")).schema)
    operator = SparkTransformStage([TransformSpec(function=work)], output)
    harness = OperatorHarness(operator, [SCHEMA], output_schema=output, spark=engine.session).open()
    for _ in range(10):
        harness.process(batch)
        harness.flush()
    harness.end()
    assert sum(batch.num_rows for batch in harness.batches) == 10 * ROWS // 2
    assert engine.is_alive()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kept", [True, False], ids=["a cached plan", "a plan per bundle"])
def test_rows_of_any_size_fit_into_half_a_gigabyte(slot: Slot, kept: bool) -> None:
    """Rows of 10 kB to 1 MB in bundles of 64 MB: the heap never holds more than it has room for."""
    schema = pa.schema([("number", pa.int64()), ("text", pa.string())])
    engine = slot.spark()

    def work(df):  # type: ignore[no-untyped-def]
        if not kept:
            df = df.where("rand() >= 0")
        return df.where("number % 2 = 0").selectExpr("number", "concat(text, '!') AS text")

    operator = SparkTransformStage([TransformSpec(function=work)], schema)
    harness = OperatorHarness(operator, [schema], output_schema=schema, spark=engine.session).open()
    sizes = [10_000, 100_000, 1_000_000]
    found = []
    for size in sizes:
        rows = 100_000_000 // size
        for start in range(0, rows, 100):
            count = min(100, rows - start)
            texts = pa.array(["x" * size] * count)
            numbers = pa.array(np.arange(start, start + count))
            harness.process(pa.record_batch([numbers, texts], schema=schema))
            found += [batch.num_rows for batch in harness.batches]
            harness.elements.clear()
        harness.flush()
    harness.end()
    found += [batch.num_rows for batch in harness.batches]
    assert sum(found) == sum(100_000_000 // size // 2 for size in sizes)
    assert engine.is_alive()


IDLE = """
import gc
import sys
from py4j.finalizer import ThreadSafeFinalizer
import taskexecutor.executor.__main__
from taskexecutor.executor.slot_process import Host
from taskexecutor.executor.operators.registry import create_operator
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.warm_up import start_warm

engine = SparkEngine()
start_warm(engine, {}, cores=1)
held = len(ThreadSafeFinalizer.finalizers)
unreleased = len(engine.session._jvm._gateway_client.finalizer_deque)
gc.collect()
print(held - len(ThreadSafeFinalizer.finalizers) + unreleased)
engine.stop()
print(*sorted(name for name in sys.modules if "." not in name))
"""


def test_a_warm_slot_without_a_job_has_only_what_every_job_needs() -> None:
    """No modules for some jobs, and none of Java's objects that only garbage refers to."""
    ran = subprocess.run(
        [sys.executable, "-c", IDLE], check=True, stdout=subprocess.PIPE, text=True
    )
    garbage, modules = ran.stdout.splitlines()[-2:]
    assert garbage == "0"
    imported = set(modules.split())
    assert {"pyarrow", "pyspark", "taskexecutor"} <= imported
    assert not imported & {"pandas", "rich", "sqlglot", "unittest"}

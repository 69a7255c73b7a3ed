"""A slot's Spark for tests that run operators in their own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.warm_up import start_warm


@pytest.fixture(scope="module")
def engine() -> Iterator[SparkEngine]:
    engine = SparkEngine()
    start_warm(engine, {"spark.sql.session.timeZone": "UTC"}, cores=1, heap_bytes=512 * 2**20)
    yield engine
    engine.stop()

"""The stand-in for PySpark's test helpers."""

from __future__ import annotations

import importlib
import sys

from taskexecutor.executor.spark.jvm.gateway import _TEST_HELPERS, _TestHelpers


def test_the_test_helpers_are_imported_on_demand(monkeypatch) -> None:
    helpers = _TestHelpers(_TEST_HELPERS)
    monkeypatch.setitem(sys.modules, _TEST_HELPERS, helpers)
    assert importlib.import_module(_TEST_HELPERS).have_numpy
    assert sys.modules[_TEST_HELPERS] is helpers

    from pyspark.testing.utils import assertDataFrameEqual, have_numpy

    assert assertDataFrameEqual.__module__ == _TEST_HELPERS
    assert sys.modules[_TEST_HELPERS] is not helpers
    assert have_numpy

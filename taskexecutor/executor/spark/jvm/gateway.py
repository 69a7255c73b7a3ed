"""The Py4J gateway that PySpark uses to talk to a JVM that is already running."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

_TEST_HELPERS = "pyspark.testing.utils"


class _TestHelpers(ModuleType):
    """Stands in for pyspark.testing.utils, which PySpark asks for NumPy's presence with each value
    it sends to the JVM.

    The real module imports pandas and unittest, a quarter of this process' memory, so it is only
    imported when something else of it is used.
    """

    have_numpy = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system probes these
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def connect(process: subprocess.Popen[bytes], port: int, secret: str) -> Any:
    """Connects PySpark to the gateway server that `process` runs on `port`."""
    from pyspark.java_gateway import launch_gateway

    sys.modules.setdefault(_TEST_HELPERS, _TestHelpers(_TEST_HELPERS))
    # With these, PySpark joins a running JVM instead of launching one.
    os.environ.update(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret)
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway.proc = process
    return gateway


def forget(gateway: Any) -> None:
    """Makes PySpark drop its gateway, which a second engine in this process would reuse."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._gateway is not None and SparkContext._gateway is gateway:
        SparkSession._instantiatedSession = None  # a killed JVM cannot end its session
        with contextlib.suppress(Exception):
            SparkContext._gateway.shutdown()
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None

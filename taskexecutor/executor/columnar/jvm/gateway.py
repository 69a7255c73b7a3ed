"""Connects PySpark's Py4J gateway to a JVM that is already running."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

from firesteel.errors import FiresteelError
from firesteel.plan.java_calls import hasten
from firesteel.text import is_utf_8

_TEST_HELPERS = "pyspark.testing.utils"


class _TestHelpers(ModuleType):
    """Replaces pyspark.testing.utils, from which PySpark reads whether NumPy is available, for each
    value it sends to the JVM.

    The real module imports pandas and unittest, a quarter of this process's memory, so it is only
    imported when another of its attributes is used.
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
    # With these variables, PySpark joins a running JVM instead of launching one.
    os.environ.update(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret)
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway.proc = process
    hasten(gateway._gateway_client)
    _refuse_invalid_text(gateway._gateway_client)
    return gateway


def _refuse_invalid_text(client: Any) -> None:
    """Makes the client's error name a text that UTF-8 cannot encode. Py4J's own error gives no
    reason.
    """
    from py4j.protocol import STRING_TYPE

    send = client.send_command

    def send_valid(command: str, *args: Any, **kwargs: Any) -> Any:
        if not is_utf_8(command):
            text = next(line for line in command.split("\n") if not is_utf_8(line))
            raise FiresteelError(
                f"{text.removeprefix(STRING_TYPE)!r} is not valid UTF-8, so Spark cannot read it;"
                " correct the column name or the text of the expression"
            )
        return send(command, *args, **kwargs)

    client.send_command = send_valid


def without_conversion(method: Any) -> Any:
    """Returns a method of a Java object for calls with only strings, numbers and Java objects. In
    other calls, Py4J tries ten converters for each argument, which takes longer than the rest of
    the call.
    """
    method.converters = None
    return method


def forget(gateway: Any) -> None:
    """Makes PySpark drop its gateway, which a second engine in this process would reuse, and other
    references to a JVM that has ended.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    if SparkContext._gateway is not None and SparkContext._gateway is gateway:
        SparkSession._instantiatedSession = None
        SparkSession._activeSession = None
        SQLContext._instantiatedContext = None
        context = SparkContext._active_spark_context
        if context is not None and context._accumulatorServer is not None:
            context._accumulatorServer.shutdown()
        with contextlib.suppress(Exception):
            SparkContext._gateway.shutdown()
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None

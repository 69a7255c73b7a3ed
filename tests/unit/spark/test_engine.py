"""The end of a JVM, played by a process that is none."""

from __future__ import annotations

import subprocess
import sys

import pytest
from py4j.protocol import Py4JNetworkError

from taskexecutor.executor.spark.jvm.engine import SparkEngine, SparkLost
from taskexecutor.executor.spark.jvm.launch import Jvm

ENDING = [sys.executable, "-c", "import time; time.sleep(1); raise SystemExit(7)"]


def test_a_jvm_may_end_a_while_after_it_was_killed() -> None:
    with subprocess.Popen(ENDING) as process:
        engine = SparkEngine()
        engine._jvm = Jvm(process=process, gateway=None)
        assert str(engine.lost()).endswith(
            " is gone: it ended with code 7; the slot's log says why"
        )
        assert not engine.is_alive()


def test_a_jvm_may_end_a_while_after_it_has_broken_its_connections() -> None:
    with subprocess.Popen(ENDING) as process:
        engine = SparkEngine()
        engine._jvm = Jvm(process=process, gateway=None)
        with (
            pytest.raises(SparkLost, match=rf"\(pid {process.pid}\) is gone: it ended with code 7"),
            engine.raising_spark_lost(),
        ):
            raise Py4JNetworkError("Answer from Java side is empty")

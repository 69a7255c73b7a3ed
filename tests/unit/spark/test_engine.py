"""The end of a JVM, for which another program stands in."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError

from taskexecutor.executor.columnar.jvm.engine import SparkEngine, SparkLost
from taskexecutor.executor.columnar.jvm.launch import Jvm

ENDING = [sys.executable, "-c", "import time; time.sleep(1); raise SystemExit(7)"]
HANGING = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_jvm_may_end_a_while_after_it_was_killed() -> None:
    with subprocess.Popen(ENDING) as process:
        engine = SparkEngine()
        engine._jvm = Jvm(process=process, gateway=None)
        assert str(engine.lost()).endswith(
            " is gone: it ended with code 7; see the slot's log for the cause"
        )
        assert not engine.is_alive()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, r"its heap of 64 MiB is used up"),
        (52, r"its memory for Arrow buffers.* 64 MiB, is used"),
    ],
)
def test_a_jvm_that_is_out_of_memory_says_of_which(code: int, reason: str) -> None:
    with subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) as process:
        engine = SparkEngine()
        engine.heap_bytes = 64 * 2**20
        engine._jvm = Jvm(process=process, gateway=None)
        assert re.search(rf" is gone: {reason}", str(engine.lost()))


def test_a_jvm_may_end_a_while_after_it_has_broken_its_connections() -> None:
    with subprocess.Popen(ENDING) as process:
        engine = SparkEngine()
        engine._jvm = Jvm(process=process, gateway=None)
        with (
            pytest.raises(SparkLost, match=rf"\(pid {process.pid}\) is gone: it ended with code 7"),
            engine.raising_spark_lost(),
        ):
            raise Py4JNetworkError("Answer from Java side is empty")


def test_a_jvm_that_does_not_exit_is_killed_whatever_its_session_waits_for() -> None:
    def stop() -> None:
        pytest.fail("this returns when Spark has stopped, if ever")

    with subprocess.Popen(HANGING, stdin=subprocess.PIPE) as process:
        engine = SparkEngine()
        engine._jvm = Jvm(process=process, gateway=None)
        engine._session = SimpleNamespace(stop=stop)  # type: ignore[assignment]
        try:
            engine.stop(grace_s=0.1)
            assert process.returncode == -signal.SIGKILL
        finally:
            process.kill()
    assert not engine.is_alive()

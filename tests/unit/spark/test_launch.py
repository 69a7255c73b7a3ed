"""Waiting for a JVM, played by a process with a thread named like the JVM's compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm import launch
from taskexecutor.executor.columnar.jvm.launch import GatewayServer, await_gateway

# Names a thread as the JVM does. On request, it reports that thread's priority and writes the
# gateway's file.
_JVM = """
import os, pathlib, struct, sys, threading
path = pathlib.Path(sys.argv[1])
def compile():
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("C2 CompilerThre")
    asked.wait()
    print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), flush=True)
asked = threading.Event()
threading.Thread(target=compile).start()
sys.stdin.readline()
asked.set()
secret = b"secret"
path.with_suffix(".tmp").write_bytes(struct.pack(">ii", 4711, len(secret)) + secret)
path.with_suffix(".tmp").rename(path)
sys.stdin.readline()
"""


@pytest.fixture
def gateway_file(tmp_path: Path) -> Path:
    return tmp_path / "gateway"


@pytest.fixture
def jvm(gateway_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", _JVM, str(gateway_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def test_the_compiler_is_looked_for_until_it_is_found(
    jvm: subprocess.Popen[bytes], gateway_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []
    set_niceness = launch._set_compiler_niceness

    def lower_and_let_go_on(pid: int, niceness: int) -> bool:
        found.append(set_niceness(pid, niceness))
        if found[-1]:
            assert jvm.stdin is not None
            jvm.stdin.write(b"\n")
            jvm.stdin.flush()
        return found[-1]

    monkeypatch.setattr(launch, "_set_compiler_niceness", lower_and_let_go_on)
    assert await_gateway(jvm, gateway_file) == GatewayServer(4711, "secret")
    assert found.count(True) == 1
    assert found[-1]
    assert jvm.stdout is not None
    assert int(jvm.stdout.readline()) == launch._COMPILER_NICENESS


def test_other_processes_have_no_compiler() -> None:
    assert not launch._set_compiler_niceness(os.getpid(), launch._COMPILER_NICENESS)


@pytest.mark.parametrize("may_raise", [True, False])
def test_a_compiler_waits_only_if_it_can_be_called_back(
    *, may_raise: bool, jvm: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    if may_raise and not launch._may_raise_priority():
        pytest.skip("this process may not raise a priority")
    monkeypatch.setattr(launch, "_may_raise_priority", lambda: may_raise)
    while not launch._set_compiler_niceness(jvm.pid, launch._COMPILER_NICENESS):
        assert jvm.poll() is None
    with launch.compiler_waiting(jvm.pid):
        waiting = launch._WAITING_NICENESS if may_raise else launch._COMPILER_NICENESS
        assert _compiler_niceness(jvm) == waiting
    assert _compiler_niceness(jvm) == launch._COMPILER_NICENESS


def test_trying_to_raise_a_priority_leaves_that_of_the_process() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    launch._may_raise_priority()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def _compiler_niceness(jvm: subprocess.Popen[bytes]) -> int:
    (compiler,) = (
        thread
        for thread in Path(f"/proc/{jvm.pid}/task").iterdir()
        if (thread / "comm").read_text().startswith("C2")
    )
    return os.getpriority(os.PRIO_PROCESS, int(compiler.name))


def test_a_jvm_that_ends_while_it_starts_is_an_error(gateway_file: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process,
        pytest.raises(FiresteelError, match="ended with code 3 while it started"),
    ):
        await_gateway(process, gateway_file)

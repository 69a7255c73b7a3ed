"""Real children: small Python programs that the tests start and kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from firesteel.common.process import (
    Child,
    StartFailed,
    announce_ready,
    module_command,
    spawn,
    watch_lifeline,
)
from tests.small_disk import fill, small_disk
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 60.0  # on a busy machine; less than any child lives

SERVES = """
from firesteel.common.process import announce_ready, watch_lifeline
watch_lifeline()
import os, signal, subprocess, sys, time
{before}
announce_ready(pid=os.getpid(), {facts})
{after}
time.sleep(600)
"""

# A parent that starts a child, which starts a helper without a lifeline, as a JVM
# does not.
PARENT = """
import asyncio
from firesteel.common.process import announce_ready, spawn, watch_lifeline
watch_lifeline()
async def main():
    child = await spawn({argv!r}, lifeline={lifeline!r})
    announce_ready(**child.ready)
    await asyncio.sleep(600)
asyncio.run(main())
"""
HELPER = "helper = subprocess.Popen(['sleep', '600'])"
HOLDS_THE_INTERPRETER = """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
import ctypes; ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the GIL: no Python thread runs
"""


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def serves(*, before: str = "", facts: str = "", after: str = "") -> list[str]:
    return program(SERVES.format(before=before, facts=facts, after=after))


async def start(
    argv: list[str], *, log_path: Path | None = None, ready_timeout_s: float = 30.0
) -> Child:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return await spawn(argv, env=env, log_path=log_path, ready_timeout_s=ready_timeout_s)


async def gone(*pids: int) -> float:
    """Waits until none of these processes runs any more; how long that took, in seconds."""
    start_s = time.monotonic()
    await until(lambda: not any(map(_runs, pids)), f"{pids} have ended", patience_s=SOON_S)
    return time.monotonic() - start_s


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_child_announces_what_it_serves() -> None:
    child = await start(serves(facts="address='127.0.0.1:6123', ports=[1, 2]"))
    assert child.ready == {"pid": child.pid, "address": "127.0.0.1:6123", "ports": [1, 2]}
    assert child.returncode is None
    assert await child.stop() == -signal.SIGTERM
    assert child.returncode == -signal.SIGTERM


async def test_a_child_that_fails_to_start_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    with pytest.raises(StartFailed) as caught:
        await start(
            serves(before="print('x' * 10, flush=True); raise RuntimeError('no such port')"),
            log_path=log,
        )
    message = str(caught.value)
    assert "ended with code 1 before it was ready" in message
    assert str(log) in message
    assert message.endswith("RuntimeError: no such port")


async def test_only_the_end_of_a_long_log_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(StartFailed) as caught:
        await start(
            serves(before="[print(f'line {i}') for i in range(1000)]; sys.exit(3)"),
            log_path=tmp_path / "log",
        )
    assert "ended with code 3" in str(caught.value)
    assert "line 999" in str(caught.value)
    assert "line 900" not in str(caught.value)


async def test_a_child_that_could_not_log_why_it_ended_did_not_for_want_of_space(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        log = disk / "child.log"
        log.touch()
        fill(disk)
        with pytest.raises(StartFailed, match=f"no space is left in {disk}"):
            await spawn([sys.executable, "-c", "raise SystemExit(3)"], log_path=log)


async def test_a_program_that_does_not_exist() -> None:
    with pytest.raises(FileNotFoundError):
        await spawn(["/no/such/program"])


async def test_a_silent_child_is_ended_after_the_ready_timeout(tmp_path: Path) -> None:
    pipe = tmp_path / "open while it lives"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as alive:
        silent = ["sh", "-c", f"exec sleep 600 > '{pipe}'"]
        with pytest.raises(StartFailed, match=r"was not ready within 0\.5 s"):
            await start(silent, ready_timeout_s=0.5)
        os.set_blocking(alive.fileno(), True)
        assert await asyncio.to_thread(alive.read) == b"", "no process has it open"


async def test_a_helper_does_not_hide_that_its_child_died_before_it_was_ready() -> None:
    started = time.monotonic()
    with pytest.raises(StartFailed, match="ended with code 4"):
        await start(
            serves(before="subprocess.Popen(['sleep', '600'], close_fds=False); os._exit(4)")
        )
    assert time.monotonic() - started < SOON_S


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    silent = serves(before=f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    starting = asyncio.create_task(start(silent))
    await until(lambda: pid_file.exists() and pid_file.read_text(), "the process runs")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await gone(int(pid_file.read_text()))


async def test_one_that_ignores_sigterm_is_killed_with_its_helpers() -> None:
    child = await start(
        serves(
            before=f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {HELPER}",
            facts="helper=helper.pid",
        )
    )
    assert await child.stop(grace_s=0.2) == -signal.SIGKILL
    await gone(child.pid, child.ready["helper"])


async def test_an_exit_code_is_the_childs_own() -> None:
    codes = [await (await start(serves(after=f"sys.exit({code})"))).wait() for code in (0, 7)]
    assert codes == [0, 7]


async def test_what_a_child_leaves_behind_ends_with_it() -> None:
    for end in ("sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"):
        child = await start(serves(before=HELPER, facts="helper=helper.pid", after=end))
        await gone(child.ready["helper"])  # nothing waits for the child here
        await child.wait()


async def test_an_ended_process_is_not_killed_again_since_its_pid_may_be_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = await start(serves(after="sys.exit(3)"))
    assert await child.wait() == 3
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: killed.append(pid))
    child.kill()
    assert await child.stop() == 3
    assert killed == []


@pytest.mark.parametrize(
    "after", ["", HOLDS_THE_INTERPRETER], ids=["idle", "holds the interpreter, ignores signals"]
)
async def test_kill_9_of_a_parent_ends_child_and_grandchild(after: str) -> None:
    child_argv = serves(before=HELPER, facts="helper=helper.pid", after=after)
    parent = await start(program(PARENT.format(argv=child_argv, lifeline="own")))
    os.kill(parent.pid, signal.SIGKILL)
    await gone(parent.pid, parent.ready["pid"], parent.ready["helper"])
    await parent.wait()


async def test_an_inherited_lifeline_outlives_the_parent_but_not_who_holds_it() -> None:
    # The cluster starts a master, which starts a worker on the cluster's lifeline and says who is
    # who.
    master = PARENT.format(
        argv=serves(before=HELPER, facts="helper=helper.pid"), lifeline="inherit"
    )
    master = f"import os\n{master.replace('**child.ready', 'master=os.getpid(), **child.ready')}"
    cluster = await start(program(PARENT.format(argv=program(master), lifeline="own")))
    worker, helper = cluster.ready["pid"], cluster.ready["helper"]
    os.kill(cluster.ready["master"], signal.SIGKILL)
    await gone(cluster.ready["master"])
    await asyncio.sleep(0.2)
    assert _runs(worker)
    assert _runs(helper)
    os.kill(cluster.pid, signal.SIGKILL)
    await gone(worker, helper)
    await cluster.wait()


def test_a_child_outlives_the_thread_that_started_it() -> None:
    loop = asyncio.new_event_loop()
    started: list[Child] = []
    thread = threading.Thread(
        target=lambda: started.append(loop.run_until_complete(start(serves())))
    )
    thread.start()
    thread.join()
    [child] = started
    time.sleep(0.2)
    assert _runs(child.pid)
    loop.run_until_complete(child.stop())
    loop.close()


def test_without_a_parent_that_waits_both_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIRESTEEL_READY_FD", raising=False)
    monkeypatch.delenv("FIRESTEEL_LIFELINE_FD", raising=False)
    watch_lifeline()
    announce_ready(address="127.0.0.1:1")


def test_files_in_the_current_directory_shadow_no_modules(tmp_path: Path) -> None:
    for name in ("json.py", "queue.py", "firesteel.py"):
        (tmp_path / name).write_text("raise SystemExit(__file__)")
    command = module_command("firesteel.common.process.java")
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")

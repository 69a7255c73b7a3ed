"""Real processes: copies of a server that has imported a small service, or what goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from firesteel.common.process import StartFailed, module_command
from firesteel.common.process.forked import ForkServer

SOON_S = 60.0

SERVICE = """
import os, sys, time
print("imported", flush=True)

prepared = []

def prepare():
    prepared.append(os.getpid())

def main():
    from firesteel.common.process import announce_ready, watch_lifeline
    watch_lifeline()
    print("runs", *sys.argv[1:], file=sys.stderr, flush=True)
    print("prepared by the parent:", prepared == [os.getppid()], file=sys.stderr, flush=True)
    if "fails" in sys.argv:
        sys.exit(7)
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    announce_ready(pid=os.getpid(), parent=os.getppid())
    time.sleep(600)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    package = tmp_path / "small_service"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SERVICE)
    paths = [str(tmp_path), str(Path(__file__).resolve().parents[2])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return module_command("small_service", "--at", "127.0.0.1")


@pytest.fixture
async def server(service: list[str]) -> AsyncIterator[ForkServer]:
    server = ForkServer(service, "own")
    yield server
    server.stop()


async def test_processes_are_copies_of_one(server: ForkServer, tmp_path: Path) -> None:
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    first, second = await asyncio.gather(*(server.spawn(log_path=log) for log in logs))
    try:
        assert first.ready["pid"] == first.pid != second.pid == second.ready["pid"]
        assert first.ready["parent"] == second.ready["parent"] != os.getpid()
        for child, log in zip((first, second), logs, strict=True):
            # Only what it has done itself, with its arguments and in its log; the imports are made.
            said = ["runs --at 127.0.0.1", "prepared by the parent: True"]
            assert log.read_text().splitlines() == said
            process = psutil.Process(child.pid)
            command = [word for word in process.cmdline() if word]
            assert command == module_command("small_service", "--at", "127.0.0.1")
            assert os.getpgid(child.pid) == child.pid
            assert os.readlink(f"/proc/{child.pid}/fd/0") == os.devnull
        first.signal(signal.SIGTERM)
        assert await asyncio.wait_for(first.wait(), SOON_S) == 3
        assert first.returncode == 3
        assert second.returncode is None
    finally:
        second.kill()
    assert await asyncio.wait_for(second.wait(), SOON_S) == -signal.SIGKILL


async def test_one_that_ends_before_it_is_ready(service: list[str], tmp_path: Path) -> None:
    server = ForkServer([*service, "fails"], "own")
    log = tmp_path / "log"
    with pytest.raises(StartFailed, match="code 7 before it was ready") as failure:
        await server.spawn(log_path=log)
    assert "runs --at 127.0.0.1 fails" in str(failure.value)
    server.stop()


async def test_a_module_that_cannot_be_imported(service: list[str]) -> None:
    server = ForkServer(module_command("no_such_service"), "own")
    with pytest.raises(StartFailed, match="has ended"):
        await server.spawn()
    server.stop()


async def test_processes_outlive_their_server(server: ForkServer) -> None:
    child = await server.spawn()
    process = psutil.Process(child.ready["parent"])
    process.kill()
    await asyncio.to_thread(process.wait)
    other = await server.spawn()  # by another server
    try:
        assert other.ready["parent"] != child.ready["parent"]
        assert child.returncode is None
    finally:
        for each in (child, other):
            each.kill()
    assert await asyncio.wait_for(child.wait(), SOON_S) == 255
    assert await asyncio.wait_for(other.wait(), SOON_S) == -signal.SIGKILL


async def test_the_server_ends_with_its_starter(service: list[str], tmp_path: Path) -> None:
    """The server's processes end with their lifeline."""
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import asyncio, json, sys\n"
        "from firesteel.common.process.forked import ForkServer\n"
        "async def main():\n"
        f"    child = await ForkServer({service!r}, 'own').spawn()\n"
        "    print(json.dumps(child.ready), flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(starter), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    ready = json.loads(await process.stdout.readline())
    found = [psutil.Process(ready[key]) for key in ("pid", "parent")]
    process.kill()
    await process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, found, SOON_S)
    assert not alive

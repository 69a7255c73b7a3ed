"""The REST server as a separate process, without a Dispatcher."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from asyncio import to_thread
from pathlib import Path

from dispatcher.rest.process import RestProcess, listen

HOST = "127.0.0.1"


def _status(address: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}/jobs", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _pid(log: Path) -> int | None:
    """The process of the server that logs there, from /proc."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            try:
                if (
                    os.readlink(entry / "fd" / "1") == str(log)
                    and b"dispatcher.rest" in (entry / "cmdline").read_bytes()
                ):
                    return int(entry.name)
            except OSError:
                continue
    return None


async def test_it_starts_with_the_first_connection_and_after_its_death(tmp_path: Path) -> None:
    log = tmp_path / "rest.log"
    listener = listen(HOST, (0,))
    assert listener is not None
    arguments = ["--dir", str(tmp_path), "--dispatcher", "127.0.0.1:1", "-Dsecurity.enabled=false"]
    rest = RestProcess(listener, arguments, log)
    assert not log.exists()
    assert await to_thread(_status, rest.address) == 503
    first = _pid(log)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await to_thread(_status, rest.address) == 503
    second = _pid(log)
    assert second not in (None, first)
    await rest.stop()
    assert _pid(log) is None
    again = listen(HOST, (int(rest.address.rpartition(":")[2]),))
    assert again is not None
    again.close()

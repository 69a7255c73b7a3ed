"""Real processes: `service_main` sets up what belongs to a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.process import spawn
from firesteel.high_availability import check_address

SERVICE = """
import asyncio
import click
from firesteel.common.config import options
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.errors import FiresteelError

@service_main("greeter", directory="temporary", port=options.RM_PORT)
@click.option("--greeting", default="hello")
async def main(process: ServiceProcess, greeting: str) -> None:
    '''Greets.'''
    if greeting == "none":
        raise FiresteelError("nothing to say; give a --greeting")
    stopped = asyncio.Event()
    names = []
    process.on_stop(lambda name: (names.append(name), stopped.set()))
    metrics_address = process.serve_metrics(scope="jobmanager", labels={})
    process.announce_ready(
        greeting=greeting,
        host=process.host,
        port=str(process.port),
        directory=str(process.directory),
        metrics_address=metrics_address,
    )
    await stopped.wait()
    print("stopped by", names[0], flush=True)

main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SERVICE, *arguments], capture_output=True, text=True, timeout=60
    )


async def test_it_serves_until_a_signal_and_removes_its_temporary_directory(tmp_path: Path) -> None:
    log_path = tmp_path / "log"
    child = await spawn(
        [sys.executable, "-c", SERVICE, "--greeting", "good day", "--host", "localhost"],
        log_path=log_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert (child.ready["greeting"], child.ready["host"]) == ("good day", "localhost")
    assert child.ready["port"] == "0"  # resourcemanager.rpc.port
    assert child.ready["metrics_address"].startswith("localhost:")
    directory = Path(child.ready["directory"])
    assert directory.is_dir() and directory.parent == tmp_path
    child.signal(signal.SIGTERM)
    assert await child.wait() == 0
    assert "stopped by SIGTERM" in log_path.read_text()
    assert not directory.exists()


async def test_a_given_directory_stays(tmp_path: Path) -> None:
    child = await spawn(
        [sys.executable, "-c", SERVICE, "--dir", str(tmp_path / "new"), "-Dheartbeat.interval=1 s"],
        log_path=tmp_path / "log",
    )
    assert child.ready["directory"] == str(tmp_path / "new")
    assert await child.stop(grace_s=60.0) == 0
    assert (tmp_path / "new").is_dir()


def test_a_bad_value_ends_it_with_one_line_and_exit_code_2() -> None:
    ended = run("-D", "heartbeat.interval=soon")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("greeter: heartbeat.interval: 'soon' is not allowed")


def test_an_unknown_key_is_a_warning(tmp_path: Path) -> None:
    ended = run("-D", "heartbeat.intervall=1 s", "--greeting", "none")
    assert "level=warning" in ended.stderr and "did you mean heartbeat.interval?" in ended.stderr


def test_an_error_of_the_service_is_one_line_in_the_log_and_exit_code_1() -> None:
    ended = run("--greeting", "none")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "level=error" in line and "nothing to say; give a --greeting" in line


def test_help_teaches_the_same_options_everywhere() -> None:
    completed = run("--help")
    assert completed.returncode == 0
    for text in ("Greets.", "--host", "--port", "--dir", "--config", "-D KEY=VALUE", "--greeting"):
        assert text in completed.stdout


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6124", "host:0", "host:65536", "a:b"])
def test_a_wrong_address_of_a_fixed_leader_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--resource-manager '.*expected HOST:PORT"):
        check_address(Configuration(), "--resource-manager", address)
    check_address(Configuration(), "--resource-manager", "host:6124")
    check_address(Configuration(), "--resource-manager", "[::1]:6124")

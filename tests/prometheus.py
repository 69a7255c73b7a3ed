"""Debian's Prometheus and promtool."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.waiting import eventually

CACHE = Path.home() / ".cache" / "firesteel" / "prometheus"
PROGRAMS = ("prometheus", "promtool")
TIMEOUT_S = 30.0


class Programs(NamedTuple):
    prometheus: Path
    promtool: Path


@functools.cache
def programs() -> Programs:
    """Returns the programs in PATH or in the cache. Otherwise unpacks Debian's package into the
    cache, which installs nothing and starts no service; skips the test if that is impossible.
    """
    in_path = [shutil.which(program) for program in PROGRAMS]
    if all(in_path):
        return Programs(*(Path(str(path)) for path in in_path))
    if not all((CACHE / program).exists() for program in PROGRAMS):
        _unpack()
    return Programs(*(CACHE / program for program in PROGRAMS))


def _unpack() -> None:
    with tempfile.TemporaryDirectory() as folder:
        download = ["apt-get", "download", "-q", "prometheus"]
        try:
            for command in (download, ["apt-get", "update", "-q"], download):
                done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
                if done.returncode == 0 and command is download:
                    break
            (package,) = Path(folder).glob("prometheus_*.deb")
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        except (OSError, ValueError, subprocess.CalledProcessError):
            pytest.skip("there is no Prometheus here, and apt-get cannot download it")
        CACHE.mkdir(parents=True, exist_ok=True)
        for program in PROGRAMS:
            part = CACHE / f"{program}.{os.getpid()}"
            shutil.move(Path(folder) / "usr/bin" / program, part)
            part.replace(CACHE / program)


def promtool(*arguments: str | Path, cwd: Path) -> str:
    """Runs promtool; returns its output. Raises AssertionError with the output if it fails."""
    done = subprocess.run(
        [programs().promtool, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the series of an instant query, with labels in "metric"."""
        answer = self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        series: list[dict[str, Any]] = answer["data"]["result"]
        return series

    def firing(self) -> list[dict[str, str]]:
        """Returns the labels of the alerts that fire."""
        alerts = self._get("/api/v1/alerts")["data"]["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(self._url + path, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error


@contextmanager
def running(configuration: Path, directory: Path) -> Iterator[Prometheus]:
    """Runs Prometheus on a free port, with its data and its log in the directory."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                programs().prometheus,
                f"--config.file={configuration}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        prometheus = Prometheus(port)
        eventually(
            lambda: prometheus.is_ready() or process.poll() is not None, "Prometheus is ready"
        )
        assert process.poll() is None, (directory / "prometheus.log").read_text()
        yield prometheus
    finally:
        process.terminate()
        process.wait()

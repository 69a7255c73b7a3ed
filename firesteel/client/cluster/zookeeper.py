"""Runs ZooKeeper servers on this machine, from the jars in PySpark, for a cluster that elects its
masters without a configured ensemble: `python -m firesteel.client.cluster.zookeeper --dir DIR`.

They are for experiments, because they share one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import click
import pyspark

from firesteel.common.config import options
from firesteel.common.logs import get_logger
from firesteel.common.process.child import log_tail
from firesteel.common.process.java import java_home
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.errors import FiresteelError

log = get_logger(__name__)

START_TIMEOUT_S = 60.0
TICK_MS = 1_000  # a maximum; sessions may have 2 to 20
RESTART_PAUSE_S = 1.0
_HOST = "127.0.0.1"
_ANSWER_TIMEOUT_S = 1.0
_POLL_S = 0.05
_JARS = Path(pyspark.__file__).parent / "jars"
_NEEDED = (
    "zookeeper-*.jar",
    "slf4j-api-*.jar",
    "netty-*.jar",
    "metrics-core-*.jar",
    "snappy-*.jar",
)
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class LocalServers:
    """The servers of one ensemble, which run until `close`. `ports` has the ports for clients of
    each server, then two kinds of ports for its peers. The servers' data remains in `folder`.
    """

    def __init__(self, folder: Path, ports: Sequence[int], *, tick_ms: int = TICK_MS) -> None:
        self._folder = folder
        size = len(ports) // 3
        self._ports = ports[:size]
        self.servers = [f"{_HOST}:{port}" for port in self._ports]
        self.quorum = ",".join(self.servers)
        peers = [
            f"server.{number}={_HOST}:{ports[size + number - 1]}:{ports[2 * size + number - 1]}"
            for number in range(1, size + 1)
        ]
        for number in range(1, size + 1):
            data = self._home(number - 1) / "data"
            data.mkdir(parents=True, exist_ok=True)
            (data / "myid").write_text(f"{number}\n")
            lines = [
                f"tickTime={tick_ms}",
                "initLimit=50",
                "syncLimit=10",
                "autopurge.purgeInterval=1",
                f"dataDir={data}",
                f"clientPortAddress={_HOST}",
                f"clientPort={self._ports[number - 1]}",
                "admin.enableServer=false",
                "4lw.commands.whitelist=srvr",
                *(peers if size > 1 else []),
            ]
            (self._home(number - 1) / "zoo.cfg").write_text("\n".join(lines) + "\n")
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * size

    def start(self, index: int) -> None:
        """Starts a server. Does not wait until it serves."""
        jars = [str(path) for pattern in _NEEDED for path in sorted(_JARS.glob(pattern))]
        with open(self._home(index) / "log", "ab") as output:
            self.processes[index] = subprocess.Popen(
                [
                    *(f"{java_home()}/bin/java", "-Xmx128m"),
                    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"),
                    "-Dzookeeper.jmx.log4j.disable=true",
                    *("-cp", os.pathsep.join(jars), _MAIN, str(self._home(index) / "zoo.cfg")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def crash(self, *indexes: int) -> None:
        """Kills these servers. Returns when they have ended."""
        for index in indexes:
            if (process := self.processes[index]) is not None:
                process.kill()
                process.wait()
                self.processes[index] = None

    def leader(self) -> int | None:
        """Returns the index of the leading server, or of the only one."""
        for index, process in enumerate(self.processes):
            if process is not None and self._mode(index) in ("leader", "standalone"):
                return index
        return None

    def serving(self) -> bool:
        """Whether all running servers belong to a quorum."""
        return all(
            process is None or self._mode(index) for index, process in enumerate(self.processes)
        )

    def wait_until_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the ensemble serves. Raises FiresteelError, with the end of the logs."""
        deadline = time.monotonic() + timeout_s
        while not self.serving():
            ended = [p for p in self.processes if p is not None and p.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise FiresteelError(f"ZooKeeper did not start:\n{self.log()}")
            time.sleep(_POLL_S)

    def log(self) -> str:
        return "\n".join(log_tail(path) for path in sorted(self._folder.glob("*/log")))

    def close(self) -> None:
        self.crash(*range(len(self.processes)))

    def _home(self, index: int) -> Path:
        return self._folder / str(index + 1)

    def _mode(self, index: int) -> str:
        try:
            address = (_HOST, self._ports[index])
            with socket.create_connection(address, _ANSWER_TIMEOUT_S) as connection:
                connection.settimeout(_ANSWER_TIMEOUT_S)
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""
        modes = [line.partition(":")[2].strip() for line in answer.splitlines() if "Mode:" in line]
        return modes[0] if modes else ""


@service_main("zookeeper", directory="required")
@click.option(
    "--ports",
    required=True,
    metavar="PORT,...",
    help="Three ports per server: those for clients, then those for its peers.",
)
async def main(process: ServiceProcess, ports: str) -> None:
    """Runs ZooKeeper servers on this machine, for experiments with elections, and restarts those
    that end. `firesteel cluster start --masters 3` starts it.
    """
    session_ms = process.conf.get(options.ZOOKEEPER_SESSION_TIMEOUT) * 1000
    numbers = [int(port) for port in ports.split(",")]
    running = LocalServers(process.directory, numbers, tick_ms=min(TICK_MS, int(session_ms / 3)))
    stopping = asyncio.Event()
    process.on_stop(lambda signal_name: stopping.set())
    try:
        for index in range(len(running.servers)):
            running.start(index)
        await asyncio.to_thread(running.wait_until_serving)
        process.announce_ready(quorum=running.quorum)
        while not stopping.is_set():
            _start_those_that_ended(running)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), RESTART_PAUSE_S)
    finally:
        running.close()


def _start_those_that_ended(running: LocalServers) -> None:
    for index, server in enumerate(running.processes):
        if server is not None and server.poll() is not None:
            log.error(
                "restarting a ZooKeeper server",
                address=running.servers[index],
                exit_code=server.returncode,
            )
            running.start(index)


if __name__ == "__main__":
    main()

"""A ZooKeeper ensemble of its own, from the jars that PySpark brings: servers can crash, stop, go
on and come back.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pyspark

from firesteel.client.cluster.supervisor import reserved_port
from firesteel.common.process.java import java_home

PATIENCE_S = 60.0
_JARS = Path(pyspark.__file__).parent / "jars"
_NEEDED = (
    "zookeeper-*.jar",
    "slf4j-api-*.jar",
    "netty-*.jar",
    "metrics-core-*.jar",
    "snappy-*.jar",
)
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeper:
    """`size` servers on this machine, which run until `close`. `tick_ms`: sessions may have 2 to 20
    ticks.
    """

    def __init__(self, size: int = 3, *, tick_ms: int = 200) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fs-zk-"))
        reserved = [reserved_port("127.0.0.1") for _ in range(3 * size)]
        self._reserved = [held for held, _ in reserved]
        ports = [port for _, port in reserved]
        self._ports = ports[:size]
        self.servers = [f"127.0.0.1:{port}" for port in self._ports]
        self.quorum = ",".join(self.servers)
        peers = [
            f"server.{number}=127.0.0.1:{ports[size + number - 1]}:{ports[2 * size + number - 1]}"
            for number in range(1, size + 1)
        ]
        for number in range(1, size + 1):
            folder = self._folder / str(number)
            (folder / "data").mkdir(parents=True)
            (folder / "data" / "myid").write_text(f"{number}\n")
            lines = [
                f"tickTime={tick_ms}",
                "initLimit=50",
                "syncLimit=10",
                f"dataDir={folder / 'data'}",
                "clientPortAddress=127.0.0.1",
                f"clientPort={self._ports[number - 1]}",
                "admin.enableServer=false",
                "4lw.commands.whitelist=srvr",
                *(peers if size > 1 else []),
            ]
            (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * size
        try:
            for index in range(size):
                self.start(index)
            self.wait_until_serving()
        except BaseException:
            self.close()
            raise

    def start(self, index: int) -> None:
        """Does not wait until it serves."""
        folder = self._folder / str(index + 1)
        jars = [str(path) for pattern in _NEEDED for path in sorted(_JARS.glob(pattern))]
        with open(folder / "log", "ab") as log:
            self._processes[index] = subprocess.Popen(
                [
                    *(
                        f"{java_home()}/bin/java",
                        "-Xmx128m",
                        "-XX:TieredStopAtLevel=1",
                        "-XX:+UseSerialGC",
                    ),
                    "-Dzookeeper.jmx.log4j.disable=true",
                    *("-cp", os.pathsep.join(jars), _MAIN, str(folder / "zoo.cfg")),
                ],
                stdout=log,
                stderr=log,
            )

    def crash(self, *indexes: int) -> None:
        """They end at once. Returns when they have ended."""
        for index in indexes:
            if (process := self._processes[index]) is not None:
                process.kill()
                process.wait()
                self._processes[index] = None

    def pause(self, *indexes: int) -> None:
        self._signal(indexes, signal.SIGSTOP)

    def resume(self, *indexes: int) -> None:
        self._signal(indexes, signal.SIGCONT)

    def _signal(self, indexes: tuple[int, ...], number: int) -> None:
        for index in indexes:
            process = self._processes[index]
            assert process is not None, f"server {index} does not run"
            process.send_signal(number)

    def leader(self) -> int | None:
        """The index of the server that leads the others; of the only one."""
        for index, process in enumerate(self._processes):
            if process is not None and self._mode(index) in ("leader", "standalone"):
                return index
        return None

    def wait_until_serving(self) -> None:
        """Until all that run belong to a quorum."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(
            process is None or self._mode(index) for index, process in enumerate(self._processes)
        ):
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def _mode(self, index: int) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self._ports[index]), 1.0) as connection:
                connection.settimeout(1.0)
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""
        modes = [line.partition(":")[2].strip() for line in answer.splitlines() if "Mode:" in line]
        return modes[0] if modes else ""

    def log(self) -> str:
        return "\n".join(
            path.read_text(errors="replace")[-2000:] for path in sorted(self._folder.glob("*/log"))
        )

    def close(self) -> None:
        self.crash(*range(len(self._processes)))
        for held in self._reserved:
            held.close()
        shutil.rmtree(self._folder, ignore_errors=True)

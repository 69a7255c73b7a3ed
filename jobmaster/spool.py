"""The spool: what CollectSinks have sent, on disk, for clients to fetch from the Dispatcher.

One file per sink, <dir>/<operator id>.chunks: [8-byte little-endian length][one Arrow IPC stream],
again and again. Only whole chunks are ever left in it. Blocking I/O: call it in one thread.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


class SpoolProblem(Exception):
    """A chunk could not be kept; the message says why and what to do."""


class Spool:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, BinaryIO] = {}

    def create(self, operator_id: str) -> None:
        """Makes the sink's empty file, so that whoever fetches finds "no rows" instead of nothing."""
        with suppress(OSError):  # told when the first chunk cannot be written
            self._file(operator_id)

    def append(self, operator_id: str, ipc_stream: bytes) -> None:
        """Appends one chunk and hands it to the operating system. Raises SpoolProblem and leaves
        the file as it was.
        """
        path = self._path(operator_id)
        try:
            file = self._file(operator_id)
            end = os.fstat(file.fileno()).st_size
            try:
                file.write(len(ipc_stream).to_bytes(8, "little"))
                file.write(ipc_stream)
                file.flush()
            except OSError:
                self._forget(operator_id)
                with suppress(OSError):  # the first error is the one to tell
                    os.truncate(path, end)
                raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise SpoolProblem(
                    f"the disk is full: {path} cannot take the collected rows; free space and run again"
                ) from error
            raise SpoolProblem(
                f"the collected rows cannot be written to {path}: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        for operator_id in list(self._files):
            self._forget(operator_id)

    def _path(self, operator_id: str) -> Path:
        return self._directory / f"{operator_id}.chunks"

    def _file(self, operator_id: str) -> BinaryIO:
        file = self._files.get(operator_id)
        if file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = self._files[operator_id] = open(self._path(operator_id), "ab")  # noqa: SIM115 - kept open
        return file

    def _forget(self, operator_id: str) -> None:
        file = self._files.pop(operator_id)
        with suppress(OSError):  # what was buffered does not fit either
            file.close()


def open_spool(directory: str) -> Spool:
    return Spool(Path(directory))

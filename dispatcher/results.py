"""Reads collected results while a job still writes them: [8-byte little-endian length][bytes],
again and again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

_LENGTH_BYTES = 8


class ResultReader:
    """The complete chunks of one spool file, in order. A chunk that is still being written is not
    there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def skip(self, chunks: int) -> bool:
        """Passes over that many chunks; False if there are fewer (so far)."""
        return all(self._next(read=False) is not None for _ in range(chunks))

    def next(self) -> bytes | None:
        return self._next(read=True)

    def _next(self, *, read: bool) -> bytes | None:
        try:
            file = open(self._path, "rb")  # noqa: SIM115 - closed by the `with` below
        except FileNotFoundError:
            return None
        with file:
            size_bytes = os.fstat(file.fileno()).st_size
            file.seek(self._position)
            head = file.read(_LENGTH_BYTES)
            length = int.from_bytes(head, "little")
            end = self._position + _LENGTH_BYTES + length
            if len(head) < _LENGTH_BYTES or end > size_bytes:
                return None
            self._position = end
            return file.read(length) if read else b""


async def follow(
    path: Path, offset: int, *, ended: Callable[[], bool], wait: Callable[[], Awaitable[None]]
) -> AsyncIterator[tuple[int, bytes]]:
    """(index, chunk) from `offset` on, as they come, until `ended()` and all was read.

    `wait` returns when it may be worth looking again.
    """
    reader = ResultReader(path)
    index = 0
    while True:
        last_look = ended()  # asked before looking: what was written before the end is then seen
        while index < offset and await asyncio.to_thread(reader.skip, 1):
            index += 1
        if index >= offset:
            while (chunk := await asyncio.to_thread(reader.next)) is not None:
                yield index, chunk
                index += 1
        if last_look:
            return
        await wait()

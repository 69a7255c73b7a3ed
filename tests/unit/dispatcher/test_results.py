from __future__ import annotations

import asyncio
from pathlib import Path

from dispatcher.results import ResultReader, follow


def chunk(content: bytes) -> bytes:
    return len(content).to_bytes(8, "little") + content


def test_a_chunk_is_there_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    reader = ResultReader(path)
    assert reader.next() is None
    written = chunk(b"one") + chunk(b"") + chunk(b"three")
    chunks = []
    for end in range(len(written) + 1):
        path.write_bytes(written[:end])
        while (got := reader.next()) is not None:
            chunks.append((end, got))
    assert chunks == [(11, b"one"), (19, b""), (32, b"three")]


def test_following_from_an_offset_ends_with_the_job(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.write_bytes(chunk(b"zero") + chunk(b"one"))
    to_come = [chunk(b"two"), chunk(b"thr")[:-1], b"r" + chunk(b"four")]
    ended = False

    async def wait() -> None:
        nonlocal ended
        with path.open("ab") as file:
            file.write(to_come.pop(0))
        ended = not to_come

    async def collect() -> list[tuple[int, bytes]]:
        return [item async for item in follow(path, 1, ended=lambda: ended, wait=wait)]

    assert asyncio.run(collect()) == [(1, b"one"), (2, b"two"), (3, b"thr"), (4, b"four")]


def test_a_job_that_ended_without_results(tmp_path: Path) -> None:
    async def collect() -> list[tuple[int, bytes]]:
        return [
            item
            async for item in follow(
                tmp_path / "none", 3, ended=lambda: True, wait=asyncio.Event().wait
            )
        ]

    assert asyncio.run(collect()) == []

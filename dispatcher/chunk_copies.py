"""The chunks of collected rows in an object store, which cannot append: one object per chunk.

        JOB/SINK/GENERATION/0000000007-3     chunk 7, stored by the leader with epoch 3: the bytes
                                             that a ResultStore's file has of it
                            begun            marks the generation, which may have no chunk yet
        JOB/evicted                          why the job's rows were deleted

A Dispatcher that was replaced, and does not know it yet, may still store chunks under indexes that
its successor also writes. So each name includes the epoch of the Dispatcher that stored it. The
highest epoch wins for each index, and chunks of lower epochs after it are ignored (invariant 20).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from firesteel.common.checkpoints.storage import CheckpointStorage

EVICTED = "evicted"
_BEGUN = "begun"
_AT_ONCE = 64  # chunks in memory


class ChunkCopies:
    """Stores and fetches the copies. Every method raises StorageError."""

    def __init__(self, storage: CheckpointStorage, epoch: int) -> None:
        self._storage = storage
        self._epoch = epoch

    def begin(self, job_id: str, operator_id: str, generation: int) -> None:
        self._storage.write(f"{job_id}/{operator_id}/{generation}/{_BEGUN}", [])

    def store(
        self, job_id: str, operator_id: str, generation: int, index: int, record: bytes
    ) -> None:
        name = f"{index:010d}-{self._epoch}"
        self._storage.write(f"{job_id}/{operator_id}/{generation}/{name}", [record])

    def drop_generation(self, job_id: str, operator_id: str, generation: int) -> None:
        self._storage.delete_directory(f"{job_id}/{operator_id}/{generation}")

    def drop(self, job_id: str) -> None:
        self._storage.delete_directory(job_id)

    def evict(self, job_id: str, why: str) -> None:
        """Deletes the job's rows. Writes the reason before it deletes them."""
        self._storage.write(f"{job_id}/{EVICTED}", [why.encode()])
        for operator_id in self._storage.at(job_id).directories():
            self._storage.delete_directory(f"{job_id}/{operator_id}")

    def sizes(self) -> dict[str, int]:
        """Returns the size in bytes of each job's objects."""
        sizes: dict[str, int] = {}
        for path, size in self._storage.sizes().items():
            job_id = path.partition("/")[0]
            sizes[job_id] = sizes.get(job_id, 0) + size
        return sizes

    def fetch(self, job_id: str, folder: Path) -> None:
        """Recreates in `folder` the job's files: the newest generation of each sink."""
        storage = self._storage.at(job_id)
        paths = storage.files()
        generations: dict[str, dict[int, list[str]]] = {}
        for path in paths:
            if path == EVICTED:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / EVICTED).write_bytes(storage.read_unchecked(path))
                continue
            operator_id, generation, name = path.split("/")
            generations.setdefault(operator_id, {}).setdefault(int(generation), []).append(name)
        for operator_id, by_generation in generations.items():
            newest = max(by_generation)
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / f"{operator_id}-{newest}.chunks", "wb") as file:
                names = [f"{operator_id}/{newest}/{n}" for n in _counting(by_generation[newest])]
                for at in range(0, len(names), _AT_ONCE):
                    for record in storage.each(storage.read_unchecked, names[at : at + _AT_ONCE]):
                        file.write(record)


def _counting(names: list[str]) -> Iterator[str]:
    """Yields the names of the valid chunks in order."""
    latest: dict[int, int] = {}
    for name in names:
        if name != _BEGUN:
            index, epoch = map(int, name.split("-"))
            latest[index] = max(epoch, latest.get(index, 0))
    least = 0
    for index in itertools.count():
        if (epoch := latest.get(index, -1)) < least:
            return
        least = epoch
        yield f"{index:010d}-{epoch}"

"""The chunks of collected rows in an object store, which cannot append: one object a chunk.

    JOB/SINK/GENERATION/0000000007-3     chunk 7, stored by the leader with epoch 3: what a
                                         ResultStore's file has of it
                        begun            the generation is there, though it may have no chunk yet
    JOB/evicted                          why its rows were deleted

A Dispatcher that was replaced and does not know it yet may still store chunks that its successor
gets, too, or others. So each name has the epoch of who stored it; what counts of a chunk is what
the highest epoch has stored, and nothing after it that a lower one has (invariant 20).
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
    """Every method raises StorageError."""

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
        """The reason is there before the rows are gone."""
        self._storage.write(f"{job_id}/{EVICTED}", [why.encode()])
        for operator_id in self._storage.at(job_id).directories():
            self._storage.delete_directory(f"{job_id}/{operator_id}")

    def sizes(self) -> dict[str, int]:
        """In bytes, by job of which anything is there."""
        sizes: dict[str, int] = {}
        for path, size in self._storage.sizes().items():
            job_id = path.partition("/")[0]
            sizes[job_id] = sizes.get(job_id, 0) + size
        return sizes

    def fetch(self, job_id: str, folder: Path) -> None:
        """Makes `folder` what the job's ResultStore had: the newest generation of each sink."""
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
    """The chunks that count, in order."""
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

"""Measures incremental checkpoints of five million keys in RocksDB, 1 % of which change between two
checkpoints: the size of each checkpoint, and how long the task's thread is blocked. The database is
on disk.

The changes are random, one lookup and one update each, half of them while the previous checkpoint
is written. The thread is blocked while it takes the snapshot, and in its slowest update.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.checkpoints import jobs
from firesteel.common.checkpoints.state import DatabaseHandle
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.key_groups import KeyGroupRange, key_group
from taskexecutor.executor.state.keyed import KeyedStateSnapshot, SnapshotTarget
from taskexecutor.executor.state.rocksdb import RocksDbKeyedStateBackend, RocksDbMemory

KEYS = 5_000_000
CHANGED = 0.01
CHECKPOINTS = 20
MANAGED_BYTES = 102 << 20  # default of a slot
GROUPS = 128
GOAL_UPLOAD, GOAL_STALL_MS = 5.0, 50.0
_STATE = "user.count"


class Measured(NamedTuple):
    upload: float  # percent of the whole
    sync_ms: float
    slowest_ms: float  # update while the checkpoint is written


class Task:
    def __init__(self, path: Path, keys: int) -> None:
        self.backend = RocksDbKeyedStateBackend(
            KeyGroupRange(0, GROUPS),
            lambda key: key_group(key, GROUPS),
            memory=RocksDbMemory(MANAGED_BYTES),
            new_directory=lambda: path / "state",
        )
        self.storage = CheckpointStorage(str(path / "checkpoints"))
        for n in range(keys):
            self.backend.put(_STATE, (n,), (n, n * 1.5, "abc"))

    def write(self, snapshot: KeyedStateSnapshot, checkpoint_id: int) -> DatabaseHandle:
        """Writes the snapshot in another thread."""
        target = SnapshotTarget(
            storage=self.storage,
            checkpoint_id=checkpoint_id,
            name="task",
            base=checkpoint_id - 1,
            written=[],
        )
        (handle,) = snapshot.write(target)
        snapshot.release()
        return handle

    def change(self, keys: Sequence[int]) -> float:
        """Returns how many ms the slowest update took."""
        slowest = 0.0
        for n in keys:
            began = time.perf_counter()
            first, second, third = self.backend.get(_STATE, (n,))
            self.backend.put(_STATE, (n,), (first, second + 1, third))
            slowest = max(slowest, time.perf_counter() - began)
        return slowest * 1000

    def checkpoint(self, checkpoint_id: int, meanwhile: Sequence[int]) -> Measured:
        began = time.perf_counter()
        snapshot = self.backend.snapshot()
        sync_ms = (time.perf_counter() - began) * 1000
        handles: list[DatabaseHandle] = []
        writer = threading.Thread(
            target=lambda: handles.append(self.write(snapshot, checkpoint_id))
        )
        writer.start()
        slowest_ms = self.change(meanwhile)
        writer.join()
        (handle,) = handles
        whole_bytes = sum(file.size_bytes for file in handle.files)
        return Measured(handle.new_bytes / whole_bytes * 100, sync_ms, slowest_ms)


def measure(keys: int, checkpoints: int) -> list[Measured]:
    """Measures all checkpoints except the first, which writes everything."""
    with tempfile.TemporaryDirectory(prefix="bench-state-") as path:
        task = Task(Path(path), keys)
        chosen = random.Random(1)
        task.checkpoint(1, ())
        found = []
        for checkpoint_id in range(2, checkpoints + 2):
            changed = chosen.sample(range(keys), int(keys * CHANGED))
            half = len(changed) // 2
            task.change(changed[:half])
            found.append(task.checkpoint(checkpoint_id, changed[half:]))
        task.backend.close()
    return found


def run(share: float = 1.0) -> list[dict[str, Any]]:
    keys = jobs.scaled(KEYS, share, least=10_000)
    found = measure(keys, jobs.scaled(CHECKPOINTS, share, least=3))
    uploads = sorted(one.upload for one in found)
    stalls = sorted(one.sync_ms + one.slowest_ms for one in found)
    upload, stall_ms = statistics.mean(uploads), stalls[-1]
    what = f"RocksDB, {keys:,} keys, {CHANGED:.0%} changed"
    return [
        jobs.row(
            f"{what}: incremental upload",
            f"{upload:.1f}",
            f"% of the whole, on average (median {statistics.median(uploads):.1f},"
            f" max {uploads[-1]:.1f})",
            f"<= {GOAL_UPLOAD:g} %",
            met=upload <= GOAL_UPLOAD,
        ),
        jobs.row(
            f"{what}: stall of the task's thread",
            f"{stall_ms:.0f}",
            f"ms at most (median {statistics.median(stalls):.0f}; of this the snapshot"
            f" {max(one.sync_ms for one in found):.1f} at most)",
            f"<= {GOAL_STALL_MS:g} ms",
            met=stall_ms <= GOAL_STALL_MS,
        ),
    ]


if __name__ == "__main__":
    for measured in run():
        print(measured)

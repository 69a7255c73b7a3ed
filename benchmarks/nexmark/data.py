"""The benchmark's data: bids for checks and bids for timing, as Parquet and as CSV."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from benchmarks.nexmark.generator import FIRST_MS, Nexmark
from benchmarks.nexmark.protocol import CHECK, LAST, TIMED

BIDS = 10_000_000
NEXMARK = Nexmark()
CHECK_BIDS = 200_000
CHECK_NEXMARK = Nexmark(events_per_s=500)  # seven minutes, over midnight
_SIZE_BYTES_PER_BID = 400  # as Parquet, as CSV, and as a result
_LATER_MS = 3_600_000


def write(data: Path, bids: int) -> None:
    """Writes `data`/check and `data`/timed, each with parquet/bid, csv/bid and so on."""
    CHECK_NEXMARK.write(data / CHECK, CHECK_BIDS, file_bids=CHECK_BIDS // 4)
    later = Nexmark(first_ms=FIRST_MS + _LATER_MS)
    later.write(data / CHECK / LAST, 1)
    NEXMARK.write(data / TIMED, bids)
    later.write(data / TIMED / LAST, 1)


def shared_memory(bids: int = 0) -> str | None:
    """Returns the path of shared memory, if it has room for this many bids and their results."""
    shared = "/dev/shm"
    needed = 2**30 + bids * _SIZE_BYTES_PER_BID
    fits = os.path.isdir(shared) and shutil.disk_usage(shared).free > needed
    return shared if fits else None

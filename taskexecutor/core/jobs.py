"""A job with slots or results here: its JobMaster, and its files on this machine.

files:  UNKNOWN ─▶ PREPARING ─▶ READY ─▶ UNKNOWN
           ▲ └─────────│──────────▲
           └───────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from firesteel.common.ids import Epoch, JobId
from firesteel.common.results import ResultPartitionId, StoredPartition
from taskexecutor.core.commands import ToJobMaster


class FilesState(Enum):
    UNKNOWN = "unknown"
    PREPARING = "preparing"
    READY = "ready"


class FilesEvent(Enum):
    NONE_NEEDED = "the first deployment names none"
    NEEDED = "the first deployment names them"
    PREPARED = "they are on disk"
    FAILED = "they cannot be had; a later deployment tries again"
    REMOVED = "the job's last slot is free"


FILES_TRANSITIONS: dict[FilesState, dict[FilesEvent, FilesState]] = {
    FilesState.UNKNOWN: {
        FilesEvent.NONE_NEEDED: FilesState.READY,
        FilesEvent.NEEDED: FilesState.PREPARING,
    },
    FilesState.PREPARING: {
        FilesEvent.PREPARED: FilesState.READY,
        FilesEvent.FAILED: FilesState.UNKNOWN,
        FilesEvent.REMOVED: FilesState.UNKNOWN,
    },
    FilesState.READY: {FilesEvent.REMOVED: FilesState.UNKNOWN},
}


@dataclass(slots=True, kw_only=True)
class Job:
    """A job that has, or just had, slots here, and its JobMaster."""

    job_id: JobId
    address: str  # of its JobMaster
    epoch: Epoch  # of its JobMaster; lower ones are stale
    heard_at: float
    connected: bool = False
    closed: bool = False  # its JobMaster is given up; its last slots are being released
    recovers: bool = False  # another JobMaster follows when this one is lost
    disconnected_at: float | None = None  # since when nothing was heard after a break
    backlog: list[ToJobMaster] = field(default_factory=list)  # only while not connected
    files: FilesState = FilesState.UNKNOWN
    job_dir: str = ""
    python_paths: tuple[str, ...] = ()
    single_use: bool = False  # its processes cannot serve another job
    # Of its BLOCKING results, as finished tasks have left them.
    partitions: dict[ResultPartitionId, StoredPartition] = field(default_factory=dict)

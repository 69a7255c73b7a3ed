"""A job with slots or results on this machine: its JobMaster and its files.

files:  UNKNOWN ─▶ PREPARING ─▶ READY ─▶ UNKNOWN
           ▲ └─────────│──────────▲
           └───────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from firesteel.common.ids import Epoch, JobId
from firesteel.common.job_graph import ResultPartitionId, StoredPartition
from taskexecutor.core.commands import ToJobMaster


class FilesState(Enum):
    UNKNOWN = "unknown"
    PREPARING = "preparing"
    READY = "ready"


class FilesEvent(Enum):
    NONE_NEEDED = "the first deployment lists no files"
    NEEDED = "the first deployment lists files"
    PREPARED = "they are on disk"
    FAILED = "they cannot be downloaded or unpacked; a later deployment retries"
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
class HostedJob:
    """A job that has slots here, or had them a moment ago, and its JobMaster."""

    job_id: JobId
    address: str  # of its JobMaster
    epoch: Epoch  # of its JobMaster; messages with a lower epoch are stale
    heard_at: float
    connected: bool = False
    closed: bool = False  # its JobMaster is given up; its remaining slots are being released
    recovers: bool = False  # a successor follows when the JobMaster is lost
    disconnected_at: float | None = None  # when the stream broke, if nothing was heard since
    backlog: list[ToJobMaster] = field(default_factory=list)  # only while not connected
    files: FilesState = FilesState.UNKNOWN
    job_dir: str = ""
    python_paths: tuple[str, ...] = ()
    single_use: bool = False  # its processes cannot serve another job
    # Partitions of its BLOCKING results that finished tasks left here.
    partitions: dict[ResultPartitionId, StoredPartition] = field(default_factory=dict)

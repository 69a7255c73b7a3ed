"""The settings of a job's checkpoints: the options `execution.checkpointing.*`, typed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from firesteel.common.units import KIB


class Retention(Enum):
    """The ends of a job after which its checkpoints are kept. Values are those of the option."""

    NEVER = "NO_EXTERNALIZED_CHECKPOINTS"
    FAILED = "DELETE_ON_CANCELLATION"
    FAILED_OR_CANCELED = "RETAIN_ON_CANCELLATION"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """Defaults are those of firesteel.common.config.options."""

    enabled: bool = True  # otherwise there are no checkpoints, not even on request
    directory: str = ""  # contains the checkpoints of all jobs
    savepoint_directory: str = ""  # the default for savepoints
    interval_s: float | None = None  # None: only on request
    timeout_s: float = 600.0
    min_pause_s: float = 0.0  # from the end of one to the start of the next periodic one
    max_concurrent: int = 1
    tolerable_failures: int = 0  # consecutive failures; one more fails the job
    unaligned: bool = False
    aligned_timeout_s: float = 0.0  # how long they are aligned before they become unaligned
    at_least_once: bool = False
    incremental: bool = False  # a checkpoint may refer to files of an earlier one
    # Keyed state of a subtask's operator up to this size needs no file.
    inline_bytes: int = 20 * KIB
    num_retained: int = 1
    retention: Retention = Retention.NEVER
    after_tasks_finish: bool = True


NO_CHECKPOINTS = CheckpointSettings(enabled=False)

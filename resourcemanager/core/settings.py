"""The SlotManager's settings and time limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from firesteel.common.config import options
from firesteel.common.ids import Epoch
from resourcemanager.core.workers import WorkerSpec

HEARTBEATS_MISSED = 2  # in a row: then a JobMaster that found the TaskExecutor dead is believed
PROCESS_ENDED = "its process has ended: its address no longer has a listener"
RECONNECT_GRACE_S = 1.0  # a peer whose stream stays broken longer is dead
# The same after this process was paused for PAUSED_S or longer. Its peers have closed their streams
# meanwhile, and each may be between two attempts to connect (firesteel.common.rpc.link), which are
# seconds apart.
GRACE_AFTER_PAUSE_S = 6.0
PAUSED_S = 1.0
REQUEST_TIMEOUT_S = 5.0  # until an unanswered slot request is resent
REQUESTS_MAX = 3  # times that a slot request is sent before it is abandoned
# Until a slot whose request failed is retried, if no report clears it earlier.
UNCLEAR_PAUSE_S = 1.0
# From the start until the TaskExecutors of an earlier ResourceManager have registered.
REGISTRATION_S = 5.0
# Counts from the request or the start of the worker, until its TaskExecutor registers.
WORKER_START_TIMEOUT_S = options.REGISTRATION_TIMEOUT.default


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    epoch: Epoch  # of this ResourceManager's term as leader
    heartbeat_interval_s: float = 2.0
    heartbeat_timeout_s: float = 20.0
    spread: bool = True
    requirements_delay_s: float = 0.0
    idle_timeout_s: float = 30.0
    initial_workers: int = 0
    recovery_timeout_s: float = 10.0  # for workers of an earlier ResourceManager to register
    # Between the end of a worker's process and the driver's report, which has the reason.
    reason_patience_s: float = 0.0
    worker_start_timeout_s: float = WORKER_START_TIMEOUT_S
    max_slots: int = 0  # of all TaskExecutors together; 0: the initial workers only
    worker: WorkerSpec | None = None  # None: no driver


class Deadline(Enum):
    HEARTBEAT = "send heartbeats, look for silent peers"
    EXECUTOR_GRACE = "a TaskExecutor has not reconnected"
    JOB_GRACE = "a JobMaster has not reconnected"
    REQUEST = "a slot request was not answered"
    UNCLEAR = "a slot may be tried again"
    IDLE = "a TaskExecutor has been idle for long"
    HOLDERS = "the holders of a job's slots or results are sent to its JobMaster"
    WORKER_START = "a worker has not registered in time"
    DISCOVERY = "the driver does not know the workers of an earlier ResourceManager in time"
    SETTLE = "match gathered requirements, or start another worker after a failure"


class Timer(NamedTuple):
    kind: Deadline
    subject: str = ""  # an id
    slot_index: int = 0  # UNCLEAR alone

"""The SlotManager's settings, and the times that it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from firesteel.common.ids import Epoch
from resourcemanager.core.workers import WorkerSpec

HEARTBEATS_MISSED = 2  # in a row: a JobMaster that has found the TaskExecutor dead is right
PROCESS_ENDED = "its process has ended: nothing listens at its address any more"
RECONNECT_GRACE_S = 1.0  # a peer whose stream stays broken for longer is dead
REQUEST_TIMEOUT_S = 5.0  # until an unanswered slot request is sent again
REQUESTS_MAX = 3  # times that a slot request is sent before the slot is given up
UNCLEAR_PAUSE_S = 1.0  # until a slot whose request failed is tried again, if no report clears it
# After its start, until the TaskExecutors of an earlier ResourceManager have registered.
REGISTRATION_S = 5.0
WORKER_START_TIMEOUT_S = 120.0  # from its request to its TaskExecutor's registration


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    epoch: Epoch  # of this ResourceManager's leadership
    heartbeat_interval_s: float = 2.0
    heartbeat_timeout_s: float = 20.0
    spread: bool = True
    requirements_delay_s: float = 0.0
    idle_timeout_s: float = 30.0
    initial_workers: int = 0
    recovery_timeout_s: float = 10.0  # for workers of an earlier ResourceManager to register
    max_slots: int = 0  # of all TaskExecutors together; 0: the initial workers and no more
    worker: WorkerSpec | None = None  # None: no driver


class Deadline(Enum):
    HEARTBEAT = "send heartbeats, look for silent peers"
    EXECUTOR_GRACE = "a TaskExecutor has not reconnected"
    JOB_GRACE = "a JobMaster has not reconnected"
    REQUEST = "a slot request was not answered"
    UNCLEAR = "a slot may be tried again"
    IDLE = "a TaskExecutor has been idle for long"
    HOLDERS = "a JobMaster is told who holds slots or results of its job"
    WORKER_START = "a worker has not registered"
    SETTLE = "match gathered requirements, or start another worker after a failure"


class Timer(NamedTuple):
    kind: Deadline
    subject: str = ""  # an id
    slot_index: int = 0  # UNCLEAR alone

"""The phases of a job, a file each: what a phase knows, which events it answers, what follows it.

    Created ─▶ WaitingForSlots ─▶ Analyzing ─▶ Running ─▶ Ended
                      ▲    └──────(analysed)──▶  ▲
                      │                          │
                 Restarting ◀── Failing ◀── (any but Cancelling)
                                   └─▶ Ended
    (any) ─▶ Cancelling ─▶ Ended            (any) ─▶ Ended, suspended

A phase is finer than the job's status, which users see: a job is RUNNING from its start on, also
while it waits for slots. What any phase may meet (a failure, a cancel, a lost Dispatcher) the core
turns into Failing, Cancelling and Ended; so phases import only those that follow them, and there is
no circle. Analyzing returns to the phase that started it.
"""

from jobmaster.core.phases.analyzing import Analyzing
from jobmaster.core.phases.cancelling import Cancelling
from jobmaster.core.phases.created import Created
from jobmaster.core.phases.ended import Ended
from jobmaster.core.phases.failing import Failing
from jobmaster.core.phases.phase import Phase
from jobmaster.core.phases.restarting import Restarting
from jobmaster.core.phases.running import Running
from jobmaster.core.phases.waiting import WaitingForSlots

__all__ = [
    "Analyzing",
    "Cancelling",
    "Created",
    "Ended",
    "Failing",
    "Phase",
    "Restarting",
    "Running",
    "WaitingForSlots",
]

"""The phases of a job, one file each: the phase's state, the events it handles, and its successors.

    Created ─▶ WaitingForSlots ◀─▶ Analyzing (before the first deployment)
                      ▲   └──────▶ Running ─▶ Ended
                 Restarting
                      ▲
                   Failing ─▶ Ended
                      ▲
                    (any)      (any) ─▶ Cancelling ─▶ Ended      (any) ─▶ Ended, suspended

Running also handles tasks of a region that restarts while others continue.

Phases are finer than the job's status, which users see: a job is RUNNING from its start, even while
it waits for slots. The core turns events that can happen in any phase (a failure, a cancel, a new
JobMaster) into Failing, Cancelling and Ended. So a phase imports only the phases that follow it,
and Analyzing returns to the phase that it came from: there is no import cycle."""

from jobmaster.core.phases.analyzing import Analyzing
from jobmaster.core.phases.cancelling import Cancelling
from jobmaster.core.phases.created import Created
from jobmaster.core.phases.ended import Ended
from jobmaster.core.phases.ending import Ending
from jobmaster.core.phases.failing import Failing
from jobmaster.core.phases.phase import Phase
from jobmaster.core.phases.reconciling import Reconciling
from jobmaster.core.phases.restarting import Restarting
from jobmaster.core.phases.running import Running
from jobmaster.core.phases.waiting import WaitingForSlots

__all__ = [
    "Analyzing",
    "Cancelling",
    "Created",
    "Ended",
    "Ending",
    "Failing",
    "Phase",
    "Reconciling",
    "Restarting",
    "Running",
    "WaitingForSlots",
]

"""Sets how often threads of the process switch in the interpreter."""

from __future__ import annotations

import sys

# A checkpoint passes through several threads: the link's, the tasks', the exchange's and the
# writers'. Each may find another thread running and wait for up to Python's default of 5 ms.
# Together, these waits are a quarter of a small job's checkpoint.
SWITCH_INTERVAL_S = 0.001


def set_switch_interval() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)

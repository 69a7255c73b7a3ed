"""How often the threads of the process take turns in the interpreter."""

from __future__ import annotations

import sys

# A checkpoint passes from thread to thread: the link's, tasks', the exchange's, writers'. Each of
# them may find another one at work, and has waited up to 5 ms for it, which is Python's default:
# together, a quarter of a small job's checkpoint.
SWITCH_INTERVAL_S = 0.001


def take_turns_often() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)

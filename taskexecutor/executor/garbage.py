"""When the process looks for garbage: every task stops meanwhile."""

from __future__ import annotations

import gc

# Stateful processors create tens of thousands of Python objects per batch, and imports as many.
# Collecting garbage after every 700 of them, which is Python's default, takes as long as everything
# else.
NEW_OBJECTS_PER_COLLECTION = 50_000


def collect_rarely() -> None:
    gc.set_threshold(NEW_OBJECTS_PER_COLLECTION, 10, 10)


def keep_what_is_loaded() -> None:
    """All that exists by now stays as long as the process: collections no longer look through it.
    That is 70,000 objects when the modules are imported, or 40 ms of every full collection, of
    which there is at least one for each job.
    """
    gc.collect()
    gc.freeze()

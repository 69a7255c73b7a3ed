"""Decides which process fits which slot, by size and environment."""

from __future__ import annotations

import math
from dataclasses import dataclass

from firesteel.common.config import options
from firesteel.common.resources import ResourceProfile, environment_key
from firesteel.common.units import mib

# A warm process is reused for a smaller heap up to this factor. Beyond it, the process could use
# much more memory than its slot is charged for.
HEAP_SLACK = 1.25
CORES_SLACK = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Start options of a process, besides its size, that cannot change later."""

    spark: tuple[tuple[str, str], ...] = ()  # spark.* options set by the job, sorted
    python: str = ""  # python.executable set by the job; empty: the TaskExecutor's default

    @property
    def key(self) -> str:
        """The `environment_key` of the options."""
        python = ((options.PYTHON_EXECUTABLE.key, self.python),) if self.python else ()
        return environment_key(self.spark + python)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessShape:
    """The start options of a process."""

    heap_bytes: int  # -Xmx
    cores: int  # Spark threads
    environment: Environment


def shape_for(profile: ResourceProfile, environment: Environment) -> ProcessShape:
    return ProcessShape(
        heap_bytes=profile.heap_bytes,
        cores=max(1, math.ceil(profile.cpu_cores - 1e-9)),
        environment=environment,
    )


def fits(shape: ProcessShape, needed: ProcessShape) -> bool:
    """Returns whether a process of this shape can serve a slot that needs the other shape."""
    return (
        shape.environment == needed.environment
        and needed.heap_bytes <= shape.heap_bytes <= needed.heap_bytes * HEAP_SLACK
        and needed.cores <= shape.cores <= needed.cores * CORES_SLACK
    )


def over_limit_text(slot: str, used_bytes: int, profile: ResourceProfile) -> str:
    parts = " + ".join(
        f"{name} {mib(size)}"
        for name, size in (
            ("heap", profile.heap_bytes),
            ("off-heap", profile.off_heap_bytes),
            ("managed", profile.managed_bytes),
            ("network", profile.network_bytes),
        )
        if size
    )
    return (
        f"{slot} used {mib(used_bytes)}, its limit is {mib(profile.total_bytes)} ({parts}); raise "
        "taskmanager.slot.off-heap.size or the resources of the job's operators, or give the job "
        "more parallelism; if state is what grows (joins, windows, aggregates), "
        "state.backend.type: rocksdb keeps it on disk beyond its managed memory"
    )

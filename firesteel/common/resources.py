"""Resource profiles of slots and TaskExecutors, and the configured size of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.ids import AllocationId, JobId
from firesteel.common.units import MIB, mib

# The smallest heap of a slot. An idle session takes 60 MiB; bundles, shuffles and sorts need more.
MINIMUM_HEAP_BYTES = 192 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceProfile:
    """The resources of a slot or a request. `UNKNOWN` is resolved when the slot is allocated."""

    unknown: bool = False
    cpu_cores: float = 0.0
    heap_bytes: int = 0  # the slot's JVM heap (-Xmx)
    off_heap_bytes: int = 0  # the Python process and the JVM outside its heap
    managed_bytes: int = 0  # state backends
    network_bytes: int = 0  # exchange buffers

    @property
    def total_bytes(self) -> int:
        """The sum of all its memory."""
        return self.heap_bytes + self.off_heap_bytes + self.managed_bytes + self.network_bytes

    def fits_in(self, other: ResourceProfile) -> bool:
        """Whether `other` has at least as much of every resource. UNKNOWN fits anywhere."""
        if self.unknown:
            return True
        if other.unknown:
            return False
        # Sums and differences of fractions of a core are not exact.
        return self.cpu_cores <= other.cpu_cores + 1e-9 and all(
            getattr(self, name) <= getattr(other, name) for name in _BYTE_FIELDS
        )

    def __add__(self, other: ResourceProfile) -> ResourceProfile:
        """Returns the sum. UNKNOWN plus a known profile is the known one."""
        if self.unknown:
            return other
        if other.unknown:
            return self
        return replace(
            self,
            cpu_cores=self.cpu_cores + other.cpu_cores,
            **{name: getattr(self, name) + getattr(other, name) for name in _BYTE_FIELDS},
        )

    def __sub__(self, other: ResourceProfile) -> ResourceProfile:
        if self.unknown or other.unknown:
            raise ValueError("the UNKNOWN resource profile cannot be subtracted")
        return replace(
            self,
            cpu_cores=round(self.cpu_cores - other.cpu_cores, 9),
            **{name: getattr(self, name) - getattr(other, name) for name in _BYTE_FIELDS},
        )

    def __mul__(self, times: int) -> ResourceProfile:
        if self.unknown:
            return self
        return replace(
            self,
            cpu_cores=self.cpu_cores * times,
            **{name: getattr(self, name) * times for name in _BYTE_FIELDS},
        )

    def __str__(self) -> str:
        if self.unknown:
            return "ResourceProfile(UNKNOWN)"
        parts = [f"cpu={self.cpu_cores:g}"]
        parts += [
            f"{name.removesuffix('_bytes')}={getattr(self, name) / MIB:g} MiB"
            for name in _BYTE_FIELDS
        ]
        return f"ResourceProfile({', '.join(parts)})"


_BYTE_FIELDS = tuple(f.name for f in fields(ResourceProfile) if f.name.endswith("_bytes"))
UNKNOWN = ResourceProfile(unknown=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """A slot as its TaskExecutor sees and reports it."""

    slot_index: int
    profile: ResourceProfile  # UNKNOWN while free
    allocation_id: AllocationId | None = None  # None: free
    job_id: JobId | None = None  # set exactly when allocation_id is
    warm: bool = False  # its process is running with its SparkSession
    problem: str = ""  # the reason why its process cannot start; empty if none is known
    environment: str = ""  # the `environment_key` of its process


def environment_key(options: Iterable[tuple[str, str]]) -> str:
    """Returns a short text that is equal for equal start options of slots' processes; empty
    without any.
    """
    written = json.dumps(sorted(options))
    return hashlib.sha256(written.encode()).hexdigest()[:16] if written != "[]" else ""


class SlotResources(NamedTuple):
    slots: int
    total: ResourceProfile  # of the whole TaskExecutor
    default_slot: ResourceProfile  # of a slot whose job has no requirements


def slot_resources(conf: Configuration) -> SlotResources:
    """Computes the sizes. Raises ConfigurationError if a slot is too small for Spark.

    If taskmanager.memory.process.size is set, it is divided among the slots in the proportions of
    the options for a single slot.
    """
    slots = conf.get(options.TASK_SLOTS)
    heap_bytes = conf.get(options.SLOT_HEAP)
    slot = ResourceProfile(
        cpu_cores=(conf.get(options.TM_CPU_CORES) or slots) / slots,
        heap_bytes=heap_bytes,
        off_heap_bytes=conf.get(options.SLOT_OFF_HEAP),
        managed_bytes=int(heap_bytes * conf.get(options.MANAGED_FRACTION)),
        network_bytes=conf.get(options.SLOT_NETWORK),
    )
    if process_bytes := conf.get(options.TM_PROCESS_SIZE):
        scale = process_bytes / slots / slot.total_bytes
        slot = replace(
            slot,
            heap_bytes=int(slot.heap_bytes * scale),
            off_heap_bytes=int(slot.off_heap_bytes * scale),
            managed_bytes=int(slot.managed_bytes * scale),
            network_bytes=int(slot.network_bytes * scale),
        )
    if slot.heap_bytes < MINIMUM_HEAP_BYTES:
        raise ConfigurationError(
            f"a slot would have a heap of {mib(slot.heap_bytes)}, but Spark needs "
            f"{mib(MINIMUM_HEAP_BYTES)}; raise {options.TM_PROCESS_SIZE.key} or "
            f"{options.SLOT_HEAP.key}, or lower {options.TASK_SLOTS.key} ({slots})"
        )
    return SlotResources(slots, slot * slots, slot)

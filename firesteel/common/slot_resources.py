"""The configured size of a TaskExecutor and of its slots."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.resources import MINIMUM_HEAP_BYTES, ResourceProfile
from firesteel.common.units import mib


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

"""Watches the slot's JVM: whether it is alive, and its Status metrics."""

from __future__ import annotations

import os
import select
from typing import Any

from taskexecutor.executor.task import MetricSample

_PREFIX = "flink_taskmanager_Status_JVM_"


def await_end(jvm_pid: int) -> None:
    """Blocks in the kernel until the JVM has ended."""
    try:
        jvm = os.pidfd_open(jvm_pid)
    except ProcessLookupError:
        return
    waiting = select.poll()
    waiting.register(jvm, select.POLLIN)
    waiting.poll()
    os.close(jvm)


def status_samples(session: Any, slot: int) -> list[MetricSample]:
    """Returns the Status metrics of the slot's JVM, under Flink's names with the slot as an
    additional label; none if the JVM does not respond.
    """
    try:
        factory = session._jvm.java.lang.management.ManagementFactory
        heap = factory.getMemoryMXBean().getHeapMemoryUsage()
        collectors = list(factory.getGarbageCollectorMXBeans())
        values = {
            "Memory_Heap_Used": heap.getUsed(),
            "Memory_Heap_Committed": heap.getCommitted(),
            "Memory_Heap_Max": heap.getMax(),
            "Threads_Count": factory.getThreadMXBean().getThreadCount(),
            "GarbageCollector_All_Count": sum(c.getCollectionCount() for c in collectors),
            "GarbageCollector_All_Time": sum(c.getCollectionTime() for c in collectors),
        }
    except Exception:
        return []
    labels = {"slot": str(slot)}
    return [MetricSample(_PREFIX + name, labels, value) for name, value in values.items()]

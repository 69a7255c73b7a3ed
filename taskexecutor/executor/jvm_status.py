"""The Status metrics of a slot's JVM, under Flink's names with the slot as an additional label."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from taskexecutor.executor import JVM_STATUS
from taskexecutor.executor.task import MetricSample

# The generation that a collector collects, under the name of Flink's default collector, which
# public dashboards use.
_GENERATIONS = {
    "Copy": "G1 Young Generation",
    "PS Scavenge": "G1 Young Generation",
    "MarkSweepCompact": "G1 Old Generation",
    "PS MarkSweep": "G1 Old Generation",
}


class JvmStatus:
    """Reads the JVM's management beans. For one thread."""

    def __init__(self, session: Any, slot: int) -> None:
        self._session = session
        self._labels = {"slot": str(slot)}
        self._beans: _Beans | None = None
        self._gc_ms = 0.0

    def samples(self) -> list[MetricSample]:
        """Returns no samples if the JVM does not respond."""
        try:
            values = dict(self._connected().values())
        except Exception:
            return []
        return [MetricSample(JVM_STATUS + n, self._labels, value) for n, value in values.items()]

    def gc_ms(self) -> float:
        """Returns the time spent in garbage collection since the JVM has started; if it does not
        respond, as it was last read.
        """
        with suppress(Exception):
            self._gc_ms = self._connected().gc_ms()
        return self._gc_ms

    def _connected(self) -> _Beans:
        self._beans = self._beans or _Beans(self._session)
        return self._beans


class _Beans:
    def __init__(self, session: Any) -> None:
        factory = session._jvm.java.lang.management.ManagementFactory
        pool = session._jvm.java.lang.Class.forName("java.lang.management.BufferPoolMXBean")
        self._memory = factory.getMemoryMXBean()
        self._threads = factory.getThreadMXBean()
        self._direct = next(
            bean for bean in factory.getPlatformMXBeans(pool) if bean.getName() == "direct"
        )
        self._collectors = {bean.getName(): bean for bean in factory.getGarbageCollectorMXBeans()}

    def gc_ms(self) -> float:
        return float(sum(each.getCollectionTime() for each in self._collectors.values()))

    def values(self) -> Iterator[tuple[str, float]]:
        for name, usage in (
            ("Heap", self._memory.getHeapMemoryUsage()),
            ("NonHeap", self._memory.getNonHeapMemoryUsage()),
        ):
            yield f"Memory_{name}_Used", usage.getUsed()
            yield f"Memory_{name}_Committed", usage.getCommitted()
            yield f"Memory_{name}_Max", usage.getMax()
        yield "Memory_Direct_Count", self._direct.getCount()
        yield "Memory_Direct_MemoryUsed", self._direct.getMemoryUsed()
        yield "Memory_Direct_TotalCapacity", self._direct.getTotalCapacity()
        yield "Threads_Count", self._threads.getThreadCount()
        count = time_ms = 0
        for name, collector in self._collectors.items():
            own_count, own_ms = collector.getCollectionCount(), collector.getCollectionTime()
            for shown in {name, _GENERATIONS.get(name, name)}:
                yield f"GarbageCollector_{shown.replace(' ', '_')}_Count", own_count
                yield f"GarbageCollector_{shown.replace(' ', '_')}_Time", own_ms
            count += own_count
            time_ms += own_ms
        yield "GarbageCollector_All_Count", count
        yield "GarbageCollector_All_Time", time_ms

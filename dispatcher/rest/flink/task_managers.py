"""TaskExecutors, which Flink calls TaskManagers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from dispatcher.rest.flink.log_files import log_files, send_file, send_log, send_output
from dispatcher.rest.flink.shown import (
    Json,
    aggregated_answer,
    answer,
    metrics_answer,
    now_ms,
    selected,
)
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, Refusal
from firesteel._proto import process_info_pb2 as pb
from firesteel.client.job_details import TaskExecutorOverview
from firesteel.common.resources import ResourceProfile
from firesteel.common.rpc.convert import PROFILE
from firesteel.common.units import MIB

_ONE = "/taskmanagers/{task_manager}"
_AT_ONCE = 16  # TaskExecutors that are called at the same time


class TaskManagerRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /taskmanagers": self._task_managers,
            "GET /taskmanagers/metrics": self._all_metrics,
            f"GET {_ONE}": self._task_manager,
            f"GET {_ONE}/metrics": self._metrics,
            f"GET {_ONE}/log": self._log,
            f"GET {_ONE}/stdout": self._output,
            f"GET {_ONE}/logs": self._logs,
            f"GET {_ONE}/logs/{{file}}": self._file,
        }

    async def _task_managers(self, request: web.Request) -> web.Response:
        cluster = await self._gateway.cluster(request)
        described = await self._described(
            request, [e.task_executor_id for e in cluster.task_executors]
        )
        shown = [
            task_manager(executor, described.get(executor.task_executor_id), now_ms())
            for executor in cluster.task_executors
        ]
        return answer({"taskmanagers": shown})

    async def _task_manager(self, request: web.Request) -> web.Response:
        wanted = request.match_info["task_manager"]
        cluster = await self._gateway.cluster(request)
        for executor in cluster.task_executors:
            if executor.task_executor_id == wanted:
                description = await self._gateway.description(request, wanted)
                return answer(
                    {
                        **task_manager(executor, description, now_ms()),
                        "metrics": _metrics_of(description),
                        "allocatedSlots": [
                            {
                                "index": slot.slot_index,
                                "jobId": slot.job_id,
                                "resource": _resources(PROFILE.decode(slot.profile)),
                                "assignedTasks": slot.tasks,
                            }
                            for slot in description.allocated_slots
                        ],
                    }
                )
        raise Refusal(404, f"there is no TaskManager {wanted[:80]!r}")

    async def _metrics(self, request: web.Request) -> web.Response:
        return metrics_answer(request, (await self._description(request)).metrics)

    async def _all_metrics(self, request: web.Request) -> web.Response:
        wanted = selected(request, "taskmanagers")
        cluster = await self._gateway.cluster(request)
        ids = [e.task_executor_id for e in cluster.task_executors if wanted(e.task_executor_id)]
        described = await self._described(request, ids)
        return aggregated_answer(request, [each.metrics for each in described.values()])

    async def _log(self, request: web.Request) -> web.StreamResponse:
        return await send_log(self._gateway, request, request.match_info["task_manager"])

    async def _output(self, request: web.Request) -> web.StreamResponse:
        return await send_output(self._gateway, request, request.match_info["task_manager"])

    async def _logs(self, request: web.Request) -> web.Response:
        return answer(log_files(await self._description(request)))

    async def _file(self, request: web.Request) -> web.StreamResponse:
        task_manager, name = request.match_info["task_manager"], request.match_info["file"]
        return await send_file(self._gateway, request, task_manager, name)

    async def _description(self, request: web.Request) -> pb.ProcessDescription:
        return await self._gateway.description(request, request.match_info["task_manager"])

    async def _described(
        self, request: web.Request, ids: list[str]
    ) -> dict[str, pb.ProcessDescription]:
        """Returns the descriptions of the TaskExecutors that answer."""
        described: dict[str, pb.ProcessDescription] = {}
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            descriptions = await asyncio.gather(
                *(self._gateway.description(request, each) for each in part),
                return_exceptions=True,
            )
            described |= {
                id: description
                for id, description in zip(part, descriptions, strict=True)
                if not isinstance(description, BaseException)
            }
        return described


def task_manager(
    executor: TaskExecutorOverview, description: pb.ProcessDescription | None, now_ms: int
) -> Json:
    total, known = executor.total, description or pb.ProcessDescription()
    return {
        "id": executor.task_executor_id,
        "path": executor.address,
        "dataPort": 0,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": now_ms,
        "slotsNumber": executor.slots,
        "freeSlots": executor.slots_free,
        "totalResource": _resources(total),
        "freeResource": _resources(executor.remaining),
        "hardware": {
            "cpuCores": known.cpu_cores,
            "physicalMemory": known.memory_bytes,
            "freeMemory": total.heap_bytes,
            "managedMemory": total.managed_bytes,
        },
        "memoryConfiguration": {
            "frameworkHeap": 0,
            "taskHeap": total.heap_bytes,
            "frameworkOffHeap": 0,
            "taskOffHeap": total.off_heap_bytes,
            "networkMemory": total.network_bytes,
            "managedMemory": total.managed_bytes,
            "jvmMetaspace": 0,
            "jvmOverhead": 0,
            "totalFlinkMemory": total.total_bytes,
            "totalProcessMemory": total.total_bytes,
        },
        "assignedTasks": sum(slot.tasks for slot in known.allocated_slots),
        "blocked": False,
    }


def _resources(profile: ResourceProfile) -> Json:
    """Memory is in MiB, as in Flink."""
    return {
        "cpuCores": profile.cpu_cores,
        "taskHeapMemory": profile.heap_bytes // MIB,
        "taskOffHeapMemory": profile.off_heap_bytes // MIB,
        "managedMemory": profile.managed_bytes // MIB,
        "networkMemory": profile.network_bytes // MIB,
        "extendedResources": {},
    }


def _metrics_of(description: pb.ProcessDescription) -> Json:
    """Shows the metrics in the form of `TaskManagerMetricsInfo`; unknown ones are 0."""

    def value(name: str) -> int:
        return int(description.metrics.get(f"Status.{name}", 0))

    shown: Json = {
        f"{kind}{part}": value(f"JVM.Memory.{of}.{part}")
        for kind, of in (("heap", "Heap"), ("nonHeap", "NonHeap"))
        for part in ("Used", "Committed", "Max")
    }
    for kind in ("direct", "mapped"):
        prefix = f"JVM.Memory.{kind.title()}"
        shown |= {
            f"{kind}Count": value(f"{prefix}.Count"),
            f"{kind}Used": value(f"{prefix}.MemoryUsed"),
            f"{kind}Max": value(f"{prefix}.TotalCapacity"),
        }
    for part in ("Total", "Used", "Available"):
        shown |= {
            f"nettyShuffleMemory{part}": value(f"Shuffle.Netty.{part}Memory"),
            f"nettyShuffleMemorySegments{part}": value(f"Shuffle.Netty.{part}MemorySegments"),
        }
    collectors = {
        name.split(".")[3] for name in description.metrics if ".GarbageCollector." in name
    }
    shown["garbageCollectors"] = [
        {
            "name": name,
            "count": value(f"JVM.GarbageCollector.{name}.Count"),
            "time": value(f"JVM.GarbageCollector.{name}.Time"),
        }
        for name in sorted(collectors)
    ]
    return shown

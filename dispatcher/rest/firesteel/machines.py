"""Shows what machines, TaskExecutors and slots use, which they report every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from dispatcher.rest.firesteel.shown import Json
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler
from firesteel.client.job_details import TaskExecutorOverview
from firesteel.common.machines import SlotUsage


class MachineRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {"GET /firesteel/v1/machines": self._machines}

    async def _machines(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            cluster, jobs = await asyncio.gather(
                self._gateway.cluster(request), self._gateway.jobs(request)
            )
            names = {job.job_id: job.name for job in jobs}
            return {"task_executors": [machine(each, names) for each in cluster.task_executors]}

        return await self._gateway.answer(request, load)


def machine(executor: TaskExecutorOverview, job_names: Mapping[str, str]) -> Json:
    shown: Json = {
        "id": executor.task_executor_id,
        "host": executor.host,
        "cpu_cores": None,
        "cpu_load": None,
        "memory": None,
        "disk": None,
        "disks": [],
        "threads": None,
        "slots": [],
    }
    usage = executor.usage
    if usage is None:
        return shown
    fullest_first = sorted(usage.disks, key=lambda disk: disk.free_bytes / (disk.total_bytes or 1))
    disks = [
        {"path": disk.path, "total": disk.total_bytes, "free": disk.free_bytes}
        for disk in fullest_first
    ]
    return shown | {
        "cpu_cores": usage.cpu_cores,
        "cpu_load": usage.cpu_load,
        "memory": {"total": usage.memory_total_bytes, "used": usage.memory_used_bytes},
        "disk": disks[0] if disks else None,
        "disks": disks,
        "threads": usage.threads,
        "slots": [_slot(slot, job_names) for slot in usage.slots],
    }


def _slot(slot: SlotUsage, job_names: Mapping[str, str]) -> Json:
    return {
        "index": slot.slot_index,
        "executor_id": slot.executor_id,
        "job_id": slot.job_id,
        "job_name": job_names.get(slot.job_id or ""),
        "cpu_load": slot.cpu_load,
        "threads": slot.threads,
        "memory": {
            "limit": slot.limit_bytes or None,
            "total": slot.total_bytes,
            "jvm_heap": {
                "used": slot.jvm_heap_used_bytes,
                "committed": slot.jvm_heap_committed_bytes,
                "max": slot.jvm_heap_max_bytes,
            },
            "jvm_other": slot.jvm_other_bytes,
            "python": slot.python_bytes,
            "shared": slot.shared_bytes,
            "managed": {"used": slot.managed_used_bytes, "total": slot.managed_total_bytes},
        },
    }

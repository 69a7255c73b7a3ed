"""TaskExecutors, which Flink calls TaskManagers."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from dispatcher.rest.flink.shown import Json, now_ms
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler
from firesteel.client.job_details import ClusterOverview


class TaskManagerRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {"GET /taskmanagers": self._task_managers}

    async def _task_managers(self, request: web.Request) -> web.Response:
        return web.json_response(task_managers(await self._gateway.cluster(request), now_ms()))


def task_managers(cluster: ClusterOverview, now_ms: int) -> Json:
    return {
        "taskmanagers": [
            {
                "id": each.task_executor_id,
                "path": each.address,
                "dataPort": 0,
                "jmxPort": -1,
                "timeSinceLastHeartbeat": now_ms,
                "slotsNumber": each.slots,
                "freeSlots": each.slots_free,
                "totalResource": _no_resources(),
                "freeResource": _no_resources(),
                "hardware": {
                    "cpuCores": 0,
                    "physicalMemory": 0,
                    "freeMemory": 0,
                    "managedMemory": 0,
                },
                "memoryConfiguration": {},
                "blocked": False,
            }
            for each in cluster.task_executors
        ]
    }


def _no_resources() -> Json:
    return {
        "cpuCores": 0.0,
        "taskHeapMemory": 0,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": {},
    }

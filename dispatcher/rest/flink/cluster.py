"""The cluster as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

import firesteel
from dispatcher.rest.flink.shown import FLINK_VERSION, Json, answer
from dispatcher.rest.gateway import CALL_TIMEOUT_S, Gateway
from dispatcher.rest.requests import Handler
from firesteel._proto import dispatcher_pb2
from firesteel.client.job_details import ClusterOverview
from firesteel.common.config import options


class ClusterRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /config": self._config,
            "GET /overview": self._overview,
            "DELETE /cluster": self._shut_down,
        }

    async def _config(self, request: web.Request) -> web.Response:
        submits = self._gateway.conf.get(options.WEB_SUBMIT)
        return answer(configuration(firesteel.__version__, submits=submits))

    async def _shut_down(self, request: web.Request) -> web.Response:
        await self._gateway.dispatcher.ShutDownCluster(
            dispatcher_pb2.ShutDownClusterRequest(),
            timeout=CALL_TIMEOUT_S,
            metadata=self._gateway.metadata(request),
        )
        return answer({})

    async def _overview(self, request: web.Request) -> web.Response:
        return answer(overview(await self._gateway.cluster(request)))


def configuration(version: str, *, submits: bool) -> Json:
    return {
        "refresh-interval": 3000,
        "timezone-name": "UTC",
        "timezone-offset": 0,
        "flink-version": FLINK_VERSION,
        "flink-revision": f"firesteel {version}",
        "features": {
            "web-submit": submits,
            "web-cancel": True,
            "web-rescale": True,
            "web-history": False,
        },
    }


def overview(cluster: ClusterOverview) -> Json:
    return {
        "taskmanagers": len(cluster.task_executors),
        "slots-total": cluster.slots_total,
        "slots-available": cluster.slots_free,
        "taskmanagers-blocked": 0,
        "slots-free-and-blocked": 0,
        "jobs-running": cluster.jobs_running,
        "jobs-finished": cluster.jobs_finished,
        "jobs-cancelled": cluster.jobs_canceled,
        "jobs-failed": cluster.jobs_failed,
        "applications-running": cluster.jobs_running,
        "applications-finished": cluster.jobs_finished,
        "applications-cancelled": cluster.jobs_canceled,
        "applications-failed": cluster.jobs_failed,
        "flink-version": FLINK_VERSION,
        "flink-commit": f"firesteel {cluster.version}",
    }

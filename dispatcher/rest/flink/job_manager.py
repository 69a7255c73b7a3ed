"""The leading Dispatcher, which Flink calls JobManager."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from dispatcher.rest.flink.log_files import log_files, send_file, send_log, send_output
from dispatcher.rest.flink.shown import Json, answer, metrics_answer
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler
from firesteel._proto import process_info_pb2 as pb

_DISPATCHER = ""


class JobManagerRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /jobmanager/config": self._config,
            "GET /jobmanager/environment": self._environment,
            "GET /jobmanager/metrics": self._metrics,
            "GET /jobmanager/log": self._log,
            "GET /jobmanager/stdout": self._output,
            "GET /jobmanager/logs": self._logs,
            "GET /jobmanager/logs/{file}": self._file,
            "GET /jobs/{job}/jobmanager/config": self._config_of_job,
            "GET /jobs/{job}/jobmanager/environment": self._environment_of_job,
        }

    async def _config(self, request: web.Request) -> web.Response:
        description = await self._gateway.description(request)
        values = sorted(description.configuration.items())
        return answer([{"key": key, "value": value} for key, value in values])

    async def _environment(self, request: web.Request) -> web.Response:
        return answer(environment(await self._gateway.description(request)))

    async def _config_of_job(self, request: web.Request) -> web.Response:
        await self._gateway.details(request)  # an unknown job is refused
        return await self._config(request)

    async def _environment_of_job(self, request: web.Request) -> web.Response:
        await self._gateway.details(request)
        return await self._environment(request)

    async def _metrics(self, request: web.Request) -> web.Response:
        description = await self._gateway.description(request)
        cluster = await self._gateway.cluster(request)
        return metrics_answer(
            request,
            {
                **description.metrics,
                "numRunningJobs": cluster.jobs_running,
                "numRegisteredTaskManagers": len(cluster.task_executors),
                "taskSlotsTotal": cluster.slots_total,
                "taskSlotsAvailable": cluster.slots_free,
            },
        )

    async def _log(self, request: web.Request) -> web.StreamResponse:
        return await send_log(self._gateway, request, _DISPATCHER)

    async def _output(self, request: web.Request) -> web.StreamResponse:
        return await send_output(self._gateway, request, _DISPATCHER)

    async def _logs(self, request: web.Request) -> web.Response:
        return answer(log_files(await self._gateway.description(request)))

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return await send_file(self._gateway, request, _DISPATCHER, request.match_info["file"])


def environment(description: pb.ProcessDescription) -> Json:
    """Shows the Python interpreter in the place of the JVM."""
    return {
        "jvm": {
            "version": f"Python {description.python_version}",
            "arch": description.architecture,
            "options": list(description.arguments),
        },
        "classpath": list(description.module_path),
    }

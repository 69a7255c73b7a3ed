"""Log files of a process, over HTTP."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from dispatcher.rest.flink.shown import Json
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Refusal
from firesteel._proto import process_info_pb2 as pb


def log_files(description: pb.ProcessDescription) -> Json:
    return {
        "logs": [
            {"name": file.name, "size": file.size_bytes, "mtime": file.modified_ms}
            for file in description.log_files
        ]
    }


async def send_log(
    gateway: Gateway, request: web.Request, task_executor_id: str
) -> web.StreamResponse:
    """Sends the process's own log."""
    description = await gateway.description(request, task_executor_id)
    if not description.log_files:
        raise Refusal(404, "the process has no log file")
    name = description.log_files[0].name
    return await send_file(gateway, request, task_executor_id, name)


async def send_output(
    gateway: Gateway, request: web.Request, task_executor_id: str
) -> web.StreamResponse:
    """Sends what jobs have printed, from all log files of the process."""
    description = await gateway.description(request, task_executor_id)
    return await _send(
        gateway, request, task_executor_id, [f.name for f in description.log_files], output=True
    )


async def send_file(
    gateway: Gateway, request: web.Request, task_executor_id: str, name: str
) -> web.StreamResponse:
    return await _send(gateway, request, task_executor_id, [name], output=False)


async def _send(
    gateway: Gateway,
    request: web.Request,
    task_executor_id: str,
    names: Iterable[str],
    *,
    output: bool,
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    for name in names:
        async for data in gateway.log_file(request, task_executor_id, name, output=output):
            if not response.prepared:  # until then, an error has its own status
                await response.prepare(request)
            await response.write(data)
    if not response.prepared:
        await response.prepare(request)
    await response.write_eof()
    return response

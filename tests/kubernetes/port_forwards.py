"""Port-forwards to pods: `pods/NAME/portforward`, with the WebSockets that kubelets speak.

A pod has an address of this machine, at which its processes listen; in a cluster, the kubelet
connects to loopback inside the pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct

import aiohttp
from aiohttp import web

from tests.kubernetes.failure import bad_request
from tests.kubernetes.kinds import Object

PROTOCOL = "v4.channel.k8s.io"
_PIECE_BYTES = 32 * 1024
_CONTENT, _ERROR = b"\x00", b"\x01"


async def forwarded(request: web.Request, pod: Object) -> web.StreamResponse:
    """Serves one connection, until either side ends it."""
    if pod["status"]["phase"] != "Running":
        raise bad_request(f"pod is not running. Current status={pod['status']['phase']}")
    ports = request.query.getall("ports", [])
    if len(ports) != 1 or not ports[0].isdecimal():
        raise bad_request("query parameter 'ports' must name one port")
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise bad_request("unable to upgrade: missing upgrade headers in request")
    socket = web.WebSocketResponse(protocols=(PROTOCOL,), max_msg_size=0)
    await socket.prepare(request)
    port = struct.pack("<H", int(ports[0]))
    await socket.send_bytes(_CONTENT + port)
    await socket.send_bytes(_ERROR + port)
    try:
        reader, writer = await asyncio.open_connection(pod["status"]["podIP"], int(ports[0]))
    except OSError as error:
        message = f"failed to connect to localhost:{ports[0]} inside the pod: {error.strerror}"
        with contextlib.suppress(ConnectionError):  # the client is gone
            await socket.send_bytes(_ERROR + message.encode())
        await socket.close()
        return socket
    upstream = asyncio.create_task(_from_pod(reader, socket))
    try:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == _CONTENT:
                writer.write(message.data[1:])
                await writer.drain()
    except OSError:
        pass
    finally:
        upstream.cancel()
        await asyncio.gather(upstream, return_exceptions=True)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return socket


async def _from_pod(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):  # the process has died, or the client is gone
        while piece := await reader.read(_PIECE_BYTES):
            await socket.send_bytes(_CONTENT + piece)
    await socket.close()

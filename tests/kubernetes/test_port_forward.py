"""Port-forwards, to pods that run as processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import Forbidden, Invalid, NotFound
from firesteel.kubernetes.port_forward import PortForward
from firesteel.kubernetes.resources import PODS
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.conftest import pod
from tests.kubernetes.kubelet import Kubelet

PORT = 6123
# Answers each line in upper case, and ends a connection after "bye".
ECHO = """
import os, socketserver
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            if line == b"bye\\n":
                return
            self.wfile.write(line.upper())
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
print("serving", flush=True)
Server((os.environ["POD_IP"], 6123), Handler).serve_forever()
"""


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient(from_kubeconfig([api_server.kubeconfig])) as client:
        yield client


async def start_echo(api_server: ApiServer, client: KubernetesClient) -> None:
    manifest = pod("echo")
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    manifest["spec"]["containers"] = [
        {"name": "main", "image": "i", "command": [sys.executable, "-c", ECHO], "env": [address]}
    ]
    await client.create(PODS, manifest)

    async def serves() -> bool:
        (found,) = api_server.objects("Pod")
        return found["status"]["phase"] == "Running" and "serving" in await client.pod_log("echo")

    while not await serves():
        await asyncio.sleep(0.02)


async def ask(address: str, line: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
    writer.write(line)
    answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_connections_reach_the_pod(
    api_server: ApiServer, client: KubernetesClient, tmp_path: Path
) -> None:
    with Kubelet(api_server, tmp_path / "pods"):
        await start_echo(api_server, client)
        async with PortForward(client, "echo", PORT) as forward:
            lines = [b"a" * size + b"\n" for size in (1, 1_000, 300_000)]
            answers = await asyncio.gather(*(ask(forward.address, line) for line in lines))
            assert answers == [line.upper() for line in lines], "several at a time, of any size"
            assert await ask(forward.address, b"bye\n") == b"", "the pod has ended it"
            assert await ask(forward.address, b"b\n") == b"B\n", "others keep working"
        with pytest.raises(ConnectionRefusedError):
            await ask(forward.address, b"c\n")


async def test_a_closed_port_ends_the_connection(
    api_server: ApiServer, client: KubernetesClient, tmp_path: Path
) -> None:
    with Kubelet(api_server, tmp_path / "pods"):
        await start_echo(api_server, client)
        async with PortForward(client, "echo", PORT + 1) as forward:
            assert await ask(forward.address, b"a\n") == b""


async def test_open_connections_end_with_the_forward(
    api_server: ApiServer, client: KubernetesClient, tmp_path: Path
) -> None:
    with Kubelet(api_server, tmp_path / "pods"):
        await start_echo(api_server, client)
        async with PortForward(client, "echo", PORT) as forward:
            host, _, port = forward.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"a\n")
            assert await reader.readline() == b"A\n"
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_refused_forwards_say_why(
    api_server: ApiServer, client: KubernetesClient, tmp_path: Path
) -> None:
    with pytest.raises(NotFound):
        async with PortForward(client, "none", PORT):
            pass
    await client.create(PODS, pod("waiting"))
    with pytest.raises(Invalid):
        async with PortForward(client, "waiting", PORT):
            pass
    api_server.deny(resource="pods/portforward")
    with pytest.raises(Forbidden) as raised:
        async with PortForward(client, "waiting", PORT):
            pass
    assert 'resources: ["pods/portforward"]' in str(raised.value), "the Role that is missing"

"""The port at which a service answers health checks without TLS, as the probes of Kubernetes need."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from firesteel._proto import resource_manager_pb2, resource_manager_pb2_grpc
from firesteel.common.process import Child, StartFailed, spawn
from firesteel.common.security.keys import Keys

HOST = "127.0.0.1"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def resource_manager(folder: Path, port: int) -> AsyncIterator[Child]:
    Keys.open(folder / "security")
    values = {
        "security.tls": "always",
        "security.directory": str(folder / "security"),
        "health.port": str(port),
    }
    child = await spawn(
        [
            *(sys.executable, "-m", "resourcemanager", "--driver", "none", "--port", "0"),
            *("--dir", str(folder / "resourcemanager")),
            *(part for key, text in values.items() for part in ("-D", f"{key}={text}")),
        ],
        log_path=folder / "log",
    )
    try:
        yield child
    finally:
        child.signal(signal.SIGCONT)
        await child.stop()


async def check(port: int, timeout_s: float = 30.0) -> int:
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        return int(answer.status)


async def test_it_answers_until_the_service_hangs(tmp_path: Path, port: int) -> None:
    async with resource_manager(tmp_path, port) as child:
        assert await check(port) == health_pb2.HealthCheckResponse.SERVING
        child.signal(signal.SIGSTOP)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(port, timeout_s=1.0)
        assert refused.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        child.signal(signal.SIGCONT)
        assert await check(port) == health_pb2.HealthCheckResponse.SERVING


async def test_it_answers_nothing_else(tmp_path: Path, port: int) -> None:
    async with resource_manager(tmp_path, port) as child:
        for address, expected in (
            (f"{HOST}:{port}", grpc.StatusCode.UNIMPLEMENTED),
            (child.ready["address"], grpc.StatusCode.UNAVAILABLE),  # speaks TLS
        ):
            async with grpc.aio.insecure_channel(address) as channel:
                stub = resource_manager_pb2_grpc.ResourceManagerStub(channel)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.GetOverview(
                        resource_manager_pb2.ClusterOverviewRequest(), timeout=30
                    )
                assert refused.value.code() == expected


async def test_a_taken_port_ends_the_service_with_its_number(tmp_path: Path, port: int) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, port))
        taken.listen()
        with pytest.raises(StartFailed):
            async with resource_manager(tmp_path, port):
                pass
    assert f"cannot listen on {HOST}:{port}: Address already in use" in (
        tmp_path / "log"
    ).read_text(encoding="utf-8")

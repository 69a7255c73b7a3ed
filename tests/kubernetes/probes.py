"""Probes of containers: exec, HTTP, TCP and gRPC."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.kubernetes.kinds import Object


async def succeeds(
    probe: Object,
    *,
    address: str,
    ports: Mapping[str, int],
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
) -> bool:
    """`ports` are the container's by name; `command` is that of an exec probe, rewritten."""
    timeout_s = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        return await asyncio.to_thread(_run, command, environment, folder, timeout_s)
    if request := probe.get("httpGet"):
        host = request.get("host") or address
        port = _port(request["port"], ports)
        scheme = request.get("scheme", "HTTP").lower()
        url = f"{scheme}://{host}:{port}/{request.get('path', '/').lstrip('/')}"
        headers = {h["name"]: h["value"] for h in request.get("httpHeaders") or ()}
        return await asyncio.to_thread(_get, url, headers, timeout_s)
    if request := probe.get("tcpSocket"):
        host = request.get("host") or address
        return await asyncio.to_thread(_connect, host, _port(request["port"], ports), timeout_s)
    if request := probe.get("grpc"):
        target = f"{address}:{request['port']}"
        return await asyncio.to_thread(_check, target, request.get("service") or "", timeout_s)
    return True


def _port(port: int | str, ports: Mapping[str, int]) -> int:
    return ports[port] if isinstance(port, str) and not port.isdecimal() else int(port)


def _run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, timeout_s: float
) -> bool:
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _get(url: str, headers: Mapping[str, str], timeout_s: float) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False  # as kubelets do
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:
            return 200 <= answer.status < 400
    except (OSError, urllib.error.URLError):
        return False


def _connect(host: str, port: int, timeout_s: float) -> bool:
    try:
        with socket.create_connection((host, port), timeout_s):
            return True
    except OSError:
        return False


def _check(target: str, service: str, timeout_s: float) -> bool:
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

"""API servers, and clients of them in a namespace per test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import AlreadyExists
from firesteel.kubernetes.resources import NAMESPACES, SERVICE_ACCOUNTS, Object
from tests.kubernetes.api_server import ApiServer


@dataclass(frozen=True, slots=True)
class Server:
    """An API server that a test of the contract uses."""

    kubeconfig: Path


@pytest.fixture(scope="session")
def shared_api_server(
    no_leaks: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    """Serves tests that cause no faults. It has no controllers, as a single kube-apiserver."""
    with ApiServer(tmp_path_factory.mktemp("kubernetes")) as server:
        server.faults.controllers_stopped = True
        yield server


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[ApiServer]:
    """Belongs to one test, which may cause faults."""
    directory = tmp_path / "kubernetes"
    directory.mkdir()
    with ApiServer(directory, bookmark_interval_s=0.2) as server:
        yield server


@pytest.fixture(
    scope="session", params=["tests", pytest.param("real", marks=pytest.mark.kubernetes)]
)
def server(request: pytest.FixtureRequest) -> Server:
    if request.param == "tests":
        return Server(request.getfixturevalue("shared_api_server").kubeconfig)
    return Server(request.getfixturevalue("real_api_server"))


@pytest.fixture(scope="session")
def real_api_server(no_leaks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from tests.kubernetes.real import RealApiServer

    with RealApiServer(tmp_path_factory.mktemp("kube-apiserver")) as running:
        yield running.kubeconfig


@pytest.fixture
async def client(server: Server) -> AsyncIterator[KubernetesClient]:
    """Uses a new namespace, as its administrator."""
    namespace = f"test-{uuid.uuid4().hex[:10]}"
    access = from_kubeconfig([server.kubeconfig], namespace=namespace)
    async with KubernetesClient(access) as client:
        await prepare(client)
        yield client


async def prepare(client: KubernetesClient) -> None:
    """Creates the client's namespace, and the ServiceAccount that a controller would create."""
    await client.create(NAMESPACES, {"metadata": {"name": client.namespace}})
    try:
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}})
    except AlreadyExists:
        pass


def pod(name: str = "", **spec: object) -> Object:
    """Returns the manifest of a pod with one container."""
    container = {"name": "main", "image": "image:1", "command": ["true"]}
    metadata: Object = {"name": name} if name else {"generateName": "pod-"}
    return {"metadata": metadata, "spec": {"containers": [container]} | spec}

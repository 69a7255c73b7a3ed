"""The security of processes, over real connections."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.installation import service_environment
from firesteel.common.metrics import Registry
from firesteel.common.rpc.bearer import caller
from firesteel.common.rpc.server import aio_channel
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.security.client import ClientSecurity
from firesteel.common.security.credentials import TOKEN_VARIABLE
from firesteel.common.security.job_keys import InvalidJobToken
from firesteel.common.security.keys import Keys
from firesteel.common.security.listening import check_listens_securely, uses_tls
from firesteel.common.security.roles import Role
from firesteel.common.security.security import CERTIFICATE_VALID_S, Security
from firesteel.common.service.platform import GrpcTransport
from firesteel.errors import FiresteelError

HOST = "127.0.0.1"


class Clock:
    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


class Answers(dispatcher_pb2_grpc.DispatcherServicer):
    async def ListJobs(self, request, context):
        return dispatcher_pb2.ListJobsResponse(
            jobs=[dispatcher_pb2.JobOverview(name=str(caller()))]
        )

    async def AppendResults(self, request, context):
        return dispatcher_pb2.AppendResultsResponse()


@pytest.fixture
def folder(tmp_path: Path) -> Keys:
    return Keys.open(tmp_path / "security")


def _security(folder: Keys, role: Role, *, tls: bool, clock=time.time) -> Security:
    return Security(folder, subject=role.value, role=role, tls=tls, hosts=(HOST,), now_s=clock)


@contextlib.asynccontextmanager
async def _serving(security: Security) -> AsyncIterator[str]:
    transport = GrpcTransport(security)
    server = transport.server([dispatcher_pb2.DESCRIPTOR.services_by_name["Dispatcher"]])
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(Answers(), server)
    address = transport.bind(server, HOST, 0)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


async def _append(channel: grpc.aio.Channel) -> None:
    stub = dispatcher_pb2_grpc.DispatcherStub(channel)
    await stub.AppendResults(dispatcher_pb2.AppendResultsRequest(), timeout=20)


@pytest.mark.parametrize("tls", [False, True])
async def test_processes_prove_their_roles_to_each_other(tls: bool, folder) -> None:
    async with _serving(_security(folder, Role.DISPATCHER, tls=tls)) as address:
        job_master = GrpcTransport(_security(folder, Role.JOB_MASTER, tls=tls))
        async with job_master.channel(address) as channel:
            await _append(channel)
        task_executor = GrpcTransport(_security(folder, Role.TASK_EXECUTOR, tls=tls))
        async with task_executor.channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await _append(channel)
            assert reason_of(error.value) is Reason.NOT_ALLOWED


async def test_a_certificate_alone_proves_the_role(folder) -> None:
    async with _serving(_security(folder, Role.DISPATCHER, tls=True)) as address:
        own = _security(folder, Role.JOB_MASTER, tls=True).channel_credentials()
        async with aio_channel(address, own) as channel:
            await _append(channel)


async def test_the_certificate_of_a_person_gives_no_role(folder) -> None:
    """It cannot be revoked, unlike the token that comes with it."""
    async with _serving(_security(folder, Role.DISPATCHER, tls=True)) as address:
        own = _security(folder, Role.ADMIN, tls=True).channel_credentials()
        async with aio_channel(address, own) as channel:
            stub = dispatcher_pb2_grpc.DispatcherStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.ListJobs(dispatcher_pb2.ListJobsRequest(), timeout=20)
            assert reason_of(error.value) is Reason.NO_CREDENTIAL


async def test_tls_accepts_nobody_without_a_certificate_of_the_cluster(folder, tmp_path) -> None:
    async with _serving(_security(folder, Role.DISPATCHER, tls=True)) as address:
        other = Keys.open(tmp_path / "other")
        strangers = [
            None,
            grpc.ssl_channel_credentials(folder.authority().certificate),
            _security(other, Role.JOB_MASTER, tls=True).channel_credentials(),
        ]
        for credentials in strangers:
            async with aio_channel(address, credentials) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await _append(channel)
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_certificates_and_tokens_are_replaced_while_the_server_runs(folder) -> None:
    clock = Clock()
    security = _security(folder, Role.DISPATCHER, tls=True, clock=clock)
    seen = set()
    async with _serving(security) as address:
        for _ in range(3):
            host, _, port = address.rpartition(":")
            pem = ssl.get_server_certificate((host, int(port)), timeout=20)
            seen.add(pem)
            token = security.token()
            clock.now_s += CERTIFICATE_VALID_S / 2 + 1
            assert security.token() != token
            assert security.token() == security.token()
    assert len(seen) == 3


def test_a_client_finds_its_token(folder, monkeypatch, tmp_path) -> None:
    conf = Configuration({"security.directory": str(folder.path)})
    assert ClientSecurity(conf).token() == folder.token()
    named = tmp_path / "named.token"
    named.write_text("from the file\n")
    with_file = conf.with_overrides({"security.token-file": str(named)})
    assert ClientSecurity(with_file).token() == "from the file"
    monkeypatch.setenv(TOKEN_VARIABLE, "from the environment")
    assert ClientSecurity(with_file).token() == "from the environment"
    assert ClientSecurity(with_file, own_cluster=True).token() == folder.token()
    assert TOKEN_VARIABLE not in service_environment(os.environ)


def test_a_token_file_that_is_missing_is_named() -> None:
    conf = Configuration({"security.token-file": "/no/such/file"})
    with pytest.raises(FiresteelError, match=r"security\.token-file\): .*No such file"):
        ClientSecurity(conf).token()


@pytest.mark.parametrize(
    ("values", "tls"),
    [
        ({}, False),
        ({"taskmanager.bind-host": "localhost"}, False),
        ({"taskmanager.bind-host": "::1"}, False),
        ({"taskmanager.bind-host": "127.1.2.3"}, False),
        ({"taskmanager.bind-host": "0.0.0.0"}, True),
        ({"taskmanager.bind-host": "worker-1"}, True),
        ({"security.tls": "always"}, True),
        ({"taskmanager.bind-host": "::", "security.tls": "never"}, False),
    ],
)
def test_tls_is_used_beyond_loopback(values: dict[str, str], tls: bool) -> None:
    assert uses_tls(Configuration(values)) is tls


@pytest.mark.parametrize("unsafe", ["security.enabled", "security.tls"])
def test_a_process_does_not_listen_beyond_loopback_without_security(unsafe: str) -> None:
    value = "false" if unsafe == "security.enabled" else "never"
    conf = Configuration({unsafe: value})
    check_listens_securely(conf)
    open_to_all = conf.with_overrides({"taskmanager.bind-host": "0.0.0.0"})
    with pytest.raises(ConfigurationError, match="does not listen on 0.0.0.0") as error:
        check_listens_securely(open_to_all)
    assert "security.insecure-listen: true" in str(error.value)
    check_listens_securely(open_to_all.with_overrides({"security.insecure-listen": "true"}))


@contextlib.contextmanager
def _metrics(security: Security) -> Iterator[int]:
    registry = Registry()
    registry.gauge("measured").set(1)
    port = registry.serve(HOST, "0", security=security)
    try:
        yield port
    finally:
        registry.close()


def _scrape(port: int, token: str | None, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection = (
        http.client.HTTPConnection(HOST, port, timeout=20)
        if context is None
        else http.client.HTTPSConnection(HOST, port, timeout=20, context=context)
    )
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_metrics_are_for_viewers(folder) -> None:
    task_executor = _security(folder, Role.TASK_EXECUTOR, tls=False)
    with _metrics(task_executor) as port:
        assert _scrape(port, None)[0] == 401
        assert _scrape(port, "x")[0] == 401
        assert _scrape(port, task_executor.token())[0] == 401
        status, text = _scrape(port, folder.token("metrics.token"))
        assert (status, "measured 1.0" in text) == (200, True)


def test_metrics_are_not_for_revoked_tokens(folder) -> None:
    token = folder.issuer().issue("grafana", Role.VIEWER, valid_s=60)
    with _metrics(_security(folder, Role.TASK_EXECUTOR, tls=False)) as port:
        assert _scrape(port, token)[0] == 200
        dispatcher = _security(folder, Role.DISPATCHER, tls=False)
        dispatcher.revoke([dispatcher.verifier.verify(token).token_id])
        assert _scrape(port, token)[0] == 401
        assert _scrape(port, folder.token("metrics.token"))[0] == 200


def test_metrics_over_tls_are_for_clients_with_a_certificate(folder, tmp_path) -> None:
    own = _security(folder, Role.VIEWER, tls=True).certificate()
    chain = tmp_path / "client.pem"
    chain.write_bytes(own.certificate + own.key)
    context = ssl.create_default_context(cadata=own.authority.decode())
    with _metrics(_security(folder, Role.TASK_EXECUTOR, tls=True)) as port:
        with pytest.raises(OSError, match="(?i)certificate required|reset|EOF|closed"):
            _scrape(port, folder.token(), context)
        with pytest.raises((OSError, http.client.HTTPException)):
            _scrape(port, folder.token())
        context.load_cert_chain(chain)
        assert _scrape(port, None, context)[0] == 401
        assert _scrape(port, folder.token(), context)[0] == 200
        with socket.create_connection((HOST, port)):  # sends nothing, and delays no other client
            assert _scrape(port, folder.token(), context)[0] == 200


def test_a_task_executor_accepts_no_slot_of_an_earlier_epoch(folder) -> None:
    security = _security(folder, Role.TASK_EXECUTOR, tls=False)
    security.job_epochs["job"] = 2
    keys = security.job_keys("job")
    assert {security.find_job_key("job", 2, expiry) for expiry in keys.by_expiry} == set(
        keys.by_expiry.values()
    )
    with pytest.raises(InvalidJobToken, match="epoch 1 of the job job, which was replaced"):
        security.find_job_key("job", 1, min(keys.by_expiry))

"""Requests through a trusted proxy, over real TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dispatcher.rest.gateway import Gateway
from dispatcher.rest.people import People
from dispatcher.rest.programs import Programs
from dispatcher.rest.proxy import TrustedProxy
from dispatcher.rest.server import RestServer
from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.leader import FixedLeader
from firesteel.common.security.keys import Keys
from firesteel.common.security.roles import Role
from firesteel.common.security.security import Security

HOST = "127.0.0.1"
OPTIONS = {
    "rest.proxy.name": "login",
    "rest.proxy.addresses": HOST,
    "rest.roles": "ada=admin; @data=operator; @guests=viewer",
}


def _conf(folder: Path, **overrides: str) -> Configuration:
    own = {"security.directory": str(folder / "security"), "security.tls": "always"}
    return Configuration({**own, **OPTIONS, **overrides})


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[RestServer]:
    conf = _conf(tmp_path)
    security = Security.of_process(conf, Role.REST, HOST)
    server = RestServer(
        Gateway(FixedLeader("127.0.0.1:1"), security),
        security,
        Programs(tmp_path, conf),
        proxy=TrustedProxy(conf, security, People(conf, security)),
    )
    await server.start(socket.create_server((HOST, 0)))
    yield server
    await server.stop()


async def _me(
    rest: RestServer,
    folder: Path,
    headers: list[tuple[str, str]],
    *,
    certificate: str = "login",
    method: str = "GET",
    path: str = "/firesteel/v1/me",
) -> tuple[int, Any]:
    own = (
        Keys(folder / "security")
        .authority()
        .certify(certificate, Role.VIEWER, hosts=(), valid_s=600)
    )
    chain = folder / "client.pem"
    chain.write_bytes(own.certificate + own.key)
    context = ssl.create_default_context(cadata=own.authority.decode())
    context.load_cert_chain(chain)
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method, f"https://{rest.address}{path}", headers=headers, ssl=context
        ) as answer,
    ):
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("headers", "role"),
    [
        ([("X-Forwarded-User", "ada")], "admin"),
        ([("X-Forwarded-User", "bob"), ("X-Forwarded-Groups", "guests, data")], "operator"),
        ([("X-Forwarded-User", "bob"), ("X-Forwarded-Groups", "guests")], "viewer"),
    ],
)
async def test_the_proxy_names_a_person(headers, role, rest, tmp_path) -> None:
    status, me = await _me(rest, tmp_path, headers)
    assert (status, me["name"], me["role"]) == (200, headers[0][1], role)


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ([], 401, "carries no token"),
        ([("X-Forwarded-User", "eve")], 403, "eve has no role here (rest.roles)"),
        ([("X-Forwarded-User", "@data")], 400, "not the name of a person"),
        ([("X-Forwarded-User", "*")], 400, "not the name of a person"),
        ([("X-Forwarded-Groups", "data")], 400, "must name one person"),
        ([("X-Forwarded-User", "ada"), ("X-Forwarded-User", "bob")], 400, "one person"),
        ([("X-Forwarded-User", "ada"), ("Authorization", "Bearer x")], 400, "one person"),
        ([("X-Forwarded-User", "")], 400, "not the name of a person"),
        ([("X-Forwarded-User", "a" * 201)], 400, "not the name of a person"),
    ],
)
async def test_other_headers_of_the_proxy_are_refused(
    headers, status, message, rest, tmp_path
) -> None:
    answered, answer = await _me(rest, tmp_path, headers)
    assert (answered, message in answer["errors"][0]) == (status, True), answer


@pytest.mark.parametrize("header", ["X-Forwarded-User", "x-forwarded-user", "X-Forwarded-Groups"])
async def test_headers_of_other_clients_are_refused(header, rest, tmp_path) -> None:
    token = Keys(tmp_path / "security").token()
    for authorization in ([], [("Authorization", f"Bearer {token}")]):
        status, answer = await _me(
            rest, tmp_path, [(header, "ada"), *authorization], certificate="client"
        )
        assert (status, "only the proxy login may name" in answer["errors"][0]) == (403, True)
    own = [("Authorization", f"Bearer {token}")]
    assert (await _me(rest, tmp_path, own, certificate="client"))[0] == 200


async def test_only_the_dashboards_pages_change_something_by_the_proxy(rest, tmp_path) -> None:
    change = {"method": "POST", "path": "/jobs/x/stop"}
    ada = ("X-Forwarded-User", "ada")
    status, answer = await _me(rest, tmp_path, [ada], **change)
    assert (status, "own pages" in answer["errors"][0]) == (403, True)
    status, answer = await _me(rest, tmp_path, [ada, ("Origin", "https://evil.example")], **change)
    assert (status, "another site" in answer["errors"][0]) == (403, True)
    status, answer = await _me(rest, tmp_path, [ada, ("Sec-Fetch-Site", "same-origin")], **change)
    assert status not in (401, 403)


@pytest.mark.parametrize(
    "overrides",
    [
        {"security.tls": "auto"},
        {"rest.proxy.addresses": ""},
        {"rest.roles": "ada"},
        {"rest.roles": "ada=slot"},
    ],
)
def test_a_proxy_that_could_be_imitated_is_not_accepted(overrides, tmp_path) -> None:
    conf = _conf(tmp_path, **overrides)
    security = Security.of_process(conf, Role.REST, HOST)
    with pytest.raises(ConfigurationError, match=r"rest\."):
        TrustedProxy(conf, security, People(conf, security))

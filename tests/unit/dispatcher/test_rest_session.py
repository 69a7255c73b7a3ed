"""Browsers log in to the REST API, and read the dashboard's files."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from dispatcher.rest.firesteel import session
from dispatcher.rest.firesteel.session import LoginCodes
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.pages import Pages
from dispatcher.rest.programs import Programs
from dispatcher.rest.requests import Refusal
from dispatcher.rest.server import RestServer
from firesteel.common.config import Configuration
from firesteel.common.leader import FixedLeader
from firesteel.common.security.keys import Keys
from firesteel.common.security.roles import Role
from firesteel.common.security.security import Security
from firesteel.common.security.tokens import TokenIssuer

HOST = "127.0.0.1"
LOG_IN = "/firesteel/v1/session"
CODES = "/firesteel/v1/session/codes"  # a route that needs a credential


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.open(tmp_path / "security")


@pytest.fixture
async def rest(tmp_path: Path, keys: Keys) -> AsyncIterator[RestServer]:
    conf = Configuration({"security.directory": str(tmp_path / "security")})
    security = Security.of_process(conf, Role.REST, HOST)
    gateway = Gateway(FixedLeader("127.0.0.1:1"), security)
    server = RestServer(gateway, security, Programs(tmp_path, conf))
    folder = tmp_path / "dashboard"
    (folder / "app" / "pages").mkdir(parents=True)
    (folder / "index.html").write_text("<title>Firesteel</title>")
    (folder / "app" / "pages" / "job.js").write_text("export {}")
    (folder / "app" / "notes.md").write_text("private")
    server._pages = Pages(folder)
    await server.start(socket.create_server((HOST, 0)))
    yield server
    await server.stop()


@pytest.fixture
async def browser(rest: RestServer) -> AsyncIterator[aiohttp.ClientSession]:
    """Keeps cookies, and names the origin of its page, as browsers do."""
    async with aiohttp.ClientSession(
        f"http://{rest.address}",
        cookie_jar=aiohttp.CookieJar(unsafe=True),  # of an IP address
        headers={"Origin": f"http://{rest.address}", "Sec-Fetch-Site": "same-origin"},
    ) as client:
        yield client


async def test_a_token_becomes_a_cookie_that_scripts_cannot_read(browser, keys) -> None:
    token = keys.issuer().issue("ada", Role.VIEWER, valid_s=60)
    answer = await browser.post(LOG_IN, json={"token": token})
    assert answer.status == 204
    header = answer.headers["Set-Cookie"]
    assert "HttpOnly" in header and "SameSite=Strict" in header
    assert "Path" not in header and "Secure" not in header
    assert int(answer.cookies.popitem()[1]["max-age"]) in range(50, 61)
    assert (await browser.post(CODES)).status == 200
    assert (await browser.get("/jobs/overview")).status == 401  # below its path alone
    assert (await browser.delete(LOG_IN)).status == 204
    assert (await browser.post(CODES)).status == 401


@pytest.mark.parametrize("role", [Role.JOB_MASTER, Role.SLOT])
async def test_processes_do_not_log_in(role: Role, browser, keys) -> None:
    token = keys.issuer().issue("slot-1", role, valid_s=60)
    answer = await browser.post(LOG_IN, json={"token": token})
    assert (answer.status, "Set-Cookie" in answer.headers) == (403, False)


async def test_invalid_and_expired_tokens_are_refused(browser, keys) -> None:
    long_ago = TokenIssuer(keys.signing_key(), now_s=lambda: time.time() - 61)
    expired = long_ago.issue("ada", Role.ADMIN, valid_s=60)
    for body, message in (
        ({"token": expired}, "has expired; create a new one"),
        ({"token": "forged"}, "not one of this cluster"),
        ({}, "not one of this cluster"),
        ({"code": "forged"}, "run `firesteel dashboard` again"),
        ({"token": 1}, "must be a string"),
    ):
        answer = await browser.post(LOG_IN, json=body)
        assert answer.status in (400, 401)
        assert message in (await answer.json())["errors"][0]
        assert "Set-Cookie" not in answer.headers


async def test_a_code_logs_in_once(browser, keys) -> None:
    own = {"Authorization": f"Bearer {keys.token()}"}
    code = (await (await browser.post(CODES, headers=own)).json())["code"]
    assert (await browser.post(LOG_IN, json={"code": code})).status == 204
    assert (await browser.post(CODES)).status == 200
    assert (await browser.post(LOG_IN, json={"code": code})).status == 401


def test_a_code_expires_and_codes_are_few() -> None:
    now_s = 0.0
    codes = LoginCodes(now_s=lambda: now_s)
    code = codes.new("token")
    now_s = session.CODE_VALID_S
    with pytest.raises(Refusal, match="too old"):
        codes.take(code)
    for _ in range(session.MAX_CODES):
        codes.new("token")
    with pytest.raises(Refusal, match="too many"):
        codes.new("token")
    now_s *= 2
    assert codes.take(codes.new("token")) == "token"


async def test_a_browser_that_is_logged_in_to_another_cluster_is_told(rest, keys) -> None:
    cookie = {"Cookie": f"firesteel_session_0123456789ab={keys.token()}"}
    async with aiohttp.ClientSession() as client:
        answer = await client.post(f"http://{rest.address}{CODES}", headers=cookie)
        assert answer.status == 401
        assert "logged in to another cluster" in (await answer.json())["errors"][0]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_only_its_own_pages_change_something_with_a_cookie(headers, rest, keys) -> None:
    name = rest._sessions._cookie
    cookie = {"Cookie": f"{name}={keys.token()}"}
    async with aiohttp.ClientSession() as client:
        answer = await client.post(f"http://{rest.address}{CODES}", headers=cookie | headers)
        assert answer.status == 403


async def test_files_are_public_cached_and_compressed(browser) -> None:
    first = await browser.get("/")
    assert await first.text() == "<title>Firesteel</title>"
    assert first.headers["Content-Type"] == "text/html; charset=utf-8"
    assert first.headers["Content-Encoding"] == "gzip"
    assert first.headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert first.headers["X-Content-Type-Options"] == "nosniff"
    again = await browser.get("/", headers={"If-None-Match": first.headers["ETag"]})
    assert again.status == 304
    plain = await browser.get("/app/pages/job.js", headers={"Accept-Encoding": ""})
    assert await plain.text() == "export {}"
    assert plain.headers["Content-Type"] == "text/javascript; charset=utf-8"


@pytest.mark.parametrize(
    "path", ["/app/notes.md", "/app/none.js", "/app/..%2findex.html", "/app/%2e%2e/%2e%2e/pages.py"]
)
async def test_names_are_looked_up(path: str, rest) -> None:
    async with aiohttp.ClientSession() as client:
        answer = await client.get(URL(f"http://{rest.address}{path}", encoded=True))
        assert answer.status in (401, 404)
        assert "private" not in await answer.text()


async def test_a_link_on_another_site_opens_the_dashboard(rest) -> None:
    async with aiohttp.ClientSession(headers={"Sec-Fetch-Site": "cross-site"}) as client:
        answer = await client.get(f"http://{rest.address}/")
        assert answer.status == 200
        answer = await client.post(f"http://{rest.address}{LOG_IN}", json={"token": "x"})
        assert answer.status == 403

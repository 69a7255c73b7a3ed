"""The REST API at a real Dispatcher."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import aiohttp
import pytest

from dispatcher.core.records import JobAdded, JobEnded
from dispatcher.job_store import JobStore
from dispatcher.rest.flink.checkpoints import checkpoints
from dispatcher.rest.flink.jobs import exceptions, job
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.limits import Limits
from dispatcher.rest.programs import Programs
from dispatcher.rest.server import RestServer
from dispatcher.service import Dispatcher
from firesteel._proto import access_pb2
from firesteel.client.job_details import JobDetails
from firesteel.client.rest import RestClient, RestError
from firesteel.common.config import Configuration
from firesteel.common.ids import Epoch, JobId
from firesteel.common.leader import FixedLeader, Leader
from firesteel.common.metrics import Registry
from firesteel.common.security.access import ROUTES
from firesteel.common.security.keys import Keys
from firesteel.common.security.roles import PEOPLE, Role
from firesteel.common.security.security import Security
from firesteel.common.security.tokens import TokenIssuer
from firesteel.common.service.platform import SYSTEM, GrpcTransport
from firesteel.common.states import JobStatus
from tests.no_processes import NoProcesses

ENDED = JobId("e" * 32)
UNKNOWN = "0" * 32
HOST = "127.0.0.1"


@asynccontextmanager
async def _served(
    directory: Path, *, secured: bool, tls: str = "never"
) -> AsyncIterator[RestServer]:
    conf = Configuration({"security.directory": str(directory / "security"), "security.tls": tls})
    store = JobStore(JobStore.sqlite_url(directory))
    store.persist(
        [
            JobAdded(job_id=ENDED, name="<b>ended</b>", graph_id=store.put_graph(b""), start_ms=1),
            JobEnded(job_id=ENDED, status=JobStatus.FINISHED, end_ms=time.time_ns() // 10**6),
        ]
    )
    store.close()
    security = Security.of_process(conf, Role.DISPATCHER, HOST) if secured else None
    dispatcher = Dispatcher(
        conf,
        host=HOST,
        port=0,
        directory=directory,
        resource_manager="127.0.0.1:1",
        registry=Registry.from_configuration(conf),
        platform=replace(
            SYSTEM, transport=GrpcTransport(security), security=security, processes=NoProcesses()
        ),
    )
    await dispatcher.start()
    running = asyncio.create_task(dispatcher.run())
    rest_security = Security.of_process(conf, Role.REST, HOST) if secured else None
    rest = RestServer(
        Gateway(FixedLeader(dispatcher.address), rest_security),
        rest_security,
        Programs(directory, conf),
        limits=Limits(Configuration({"rest.limit.failures-per-second": "0"})),
    )
    await rest.start(socket.create_server((HOST, 0)))
    try:
        yield rest
    finally:
        await rest.stop()
        dispatcher.stop()
        await running


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[RestServer]:
    async with _served(tmp_path, secured=True) as server:
        yield server


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.open(tmp_path / "security")


async def _call(
    rest: RestServer,
    route: str,
    token: str | None,
    *,
    json: Any = None,
    data: bytes | io.BytesIO | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    method, path = route.split(" ", 1)
    own = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method,
            f"http://{rest.address}{path}",
            json=json,
            data=data,
            headers=own | (headers or {}),
        ) as answer,
    ):
        is_json = answer.content_type == "application/json"
        return answer.status, await (answer.json() if is_json else answer.text())


def _example(route: str) -> str:
    return re.sub(r"\{\w+\}", "1" * 32, route.replace("{job}", ENDED))


async def test_every_route_is_in_the_table_of_access() -> None:
    programs = Programs(Path("unused"), Configuration())
    server = RestServer(Gateway(FixedLeader("127.0.0.1:1"), None), None, programs)
    assert server.flink_handlers().keys() | server.handlers().keys() == ROUTES.keys()
    await server.stop()


def test_only_the_dashboards_files_and_the_log_in_are_public() -> None:
    assert {route for route, access in ROUTES.items() if access.public} == {
        "GET /",
        "GET /app.css",
        "GET /app/{file}",
        "GET /app/{folder}/{file}",
        "GET /favicon.svg",
        "GET /vendor/{file}",
        "POST /firesteel/v1/session",
        "DELETE /firesteel/v1/session",
    }


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_every_route_refuses_callers_without_a_valid_token(prefix, rest, keys) -> None:
    long_ago = TokenIssuer(keys.signing_key(), now_s=lambda: time.time() - 61)
    expired = long_ago.issue("ada", Role.ADMIN, valid_s=60)
    for route, access in ROUTES.items():
        if access.public:
            continue
        path = _example(route).replace(" ", f" {prefix}")
        for token in (None, "", "forged", keys.token() + "x", expired):
            status, answer = await _call(rest, path, token)
            assert status == 401, (route, token, answer)
            assert list(answer) == ["errors"]


@pytest.mark.parametrize("role", Role)
async def test_every_route_is_for_its_roles(role: Role, rest, keys) -> None:
    token = keys.issuer().issue("ada", role, valid_s=60)
    for route, access in ROUTES.items():
        if access.public:
            continue
        status, answer = await _call(rest, _example(route), token)
        allowed = role in PEOPLE and access.least is not None and role.includes(access.least)
        assert (status != 403) is allowed, (route, answer)


NAMELESS = {f"GET /jobs/{{job}}/jobmanager/{each} {{job}}" for each in ("config", "environment")}
HOSTILE = ("..%2F..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "%00", "%FF", "<script>", "a" * 4000)


@pytest.mark.parametrize("name", HOSTILE, ids=["path", "absolute", "nul", "bytes", "html", "long"])
async def test_no_route_looks_up_a_hostile_name(name: str, rest, keys) -> None:
    answers: dict[str, tuple[int, Any]] = {}
    for route in ROUTES:
        for field in re.findall(r"\{\w+\}", route):
            status, answer = await _call(rest, _example(route.replace(field, name)), keys.token())
            answers[f"{route} {field}"] = (status, answer)
    unexpected = {r: answer for r, (status, answer) in answers.items() if status == 500}
    assert all("ResourceManager" in str(answer) for answer in unexpected.values()), unexpected
    assert {route for route, (status, _) in answers.items() if status < 400} <= NAMELESS
    for status, answer in answers.values():
        assert status < 400 or list(answer) == ["errors"]
        assert "root:" not in str(answer)


BODIES = (
    b"null",
    b"[" * 5_000,
    b'{"a":' * 5_000,
    b'{"token": 1, "code": [], "path": {}, "directory": 1e999, "vertex": null, "subtask": -1}',
    b'{"seconds": -1, "count": 1e400, "subtask": "x", "vertex": "' + b"9" * 5_000 + b'"}',
    b'{"savepoint-path": 7, "target-directory": [], "triggerId": "\\u0000", "drain": "x"}',
    b"\xff\xfe{}",
    b"x" * 2_000_000,
)
QUERY = (
    "?offset=-1&limit=1e9&sort=%00&order=x&points=x&since_ms=-9&lines=99999999999&get=%FF&mode=x"
)


@pytest.mark.parametrize("number", range(len(BODIES)))
async def test_no_route_fails_over_a_malformed_request(number: int, rest, keys) -> None:
    for route in ROUTES:
        if route.startswith("GET ") and number:  # its query is the same
            continue
        path = _example(route) + QUERY
        status, answer = await _call(rest, path, keys.token(), data=io.BytesIO(BODIES[number]))
        assert status != 500 or "ResourceManager" in str(answer), (route, answer)


@pytest.mark.parametrize(
    ("route", "name"),
    [
        (f"POST /jobs/{ENDED}/stop", "drain"),
        (f"POST /jobs/{ENDED}/savepoints", "cancel-job"),
        (f"POST /firesteel/v1/jobs/{ENDED}/stop", "drain"),
    ],
)
async def test_text_is_not_taken_for_true(route: str, name: str, rest, keys) -> None:
    answer = await _call(rest, route, keys.token(), json={name: "false"})
    assert answer == (400, {"errors": [f"{name} must be true or false, not 'false'"]})


@pytest.mark.parametrize("route", ["POST /firesteel/v1/jobs", "POST /jars/upload"])
async def test_a_malformed_form_is_refused(route: str, rest, keys) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    form = io.BytesIO(b"--b\r\n[]--b--\r\n")
    status, answer = await _call(rest, route, keys.token(), data=form, headers=headers)
    assert (status, list(answer)) == (400, ["errors"])


async def test_jobs_are_shown_as_flink_shows_them(rest, keys) -> None:
    token = keys.token()
    status, answer = await _call(rest, "GET /v1/jobs/overview", token, json={})
    (job,) = answer["jobs"]
    assert status == 200
    assert (job["jid"], job["name"], job["state"]) == (ENDED, "<b>ended</b>", "FINISHED")
    assert job["end-time"] - job["start-time"] == job["duration"]
    assert job["tasks"]["total"] == 0
    assert await _call(rest, "GET /jobs", token) == (
        200,
        {"jobs": [{"id": ENDED, "status": "FINISHED"}]},
    )
    _, details = await _call(rest, f"GET /jobs/{ENDED}", token)
    assert details["timestamps"].keys() == {status.name for status in JobStatus}
    _, result = await _call(rest, f"GET /jobs/{ENDED}/execution-result", token)
    assert result["job-execution-result"]["application-status"] == "SUCCEEDED"
    _, configuration = await _call(rest, "GET /config", token)
    assert configuration["flink-version"] == "2.3.0"
    _, overview = await _call(rest, "GET /overview", token)
    assert overview["jobs-finished"] == 1


@pytest.mark.parametrize("page", ["", "/exceptions", "/checkpoints", "/plan", "/config", "/status"])
async def test_an_unknown_job_is_404(page: str, rest, keys) -> None:
    status, answer = await _call(rest, f"GET /jobs/{UNKNOWN}{page}", keys.token())
    assert status == 404
    assert UNKNOWN in answer["errors"][0]


async def test_jobs_are_shown_as_the_dashboard_shows_them(rest, keys) -> None:
    token, v1 = keys.token(), "GET /firesteel/v1"
    _, listed = await _call(rest, f"{v1}/jobs", token)
    assert [(job["id"], job["status"], job["tasks"]) for job in listed["jobs"]] == [
        (ENDED, "FINISHED", {})
    ]
    _, job = await _call(rest, f"{v1}/jobs/{ENDED}", token)
    assert (job["name"], job["vertices"], job["bottleneck"]) == ("<b>ended</b>", [], None)
    _, me = await _call(rest, f"{v1}/me", token)
    assert (me["name"], me["role"], set(me["may"].values())) == ("admin", "admin", {True})
    _, cluster = await _call(rest, f"{v1}/cluster", token)
    assert cluster["jobs"] == {"running": 0, "finished": 1, "canceled": 0, "failed": 0, "total": 1}
    assert [(each["office"], each["leads"]) for each in cluster["masters"]] == [
        ("dispatcher", True),
        ("resource_manager", False),
    ]
    _, audit = await _call(rest, f"{v1}/audit", token)
    assert audit == {"records": []}
    _, logs = await _call(rest, f"{v1}/jobs/{ENDED}/logs?follow=true", token)
    assert logs.endswith("event: end\ndata: {}\n\n")
    assert (await _call(rest, f"{v1}/jobs/{UNKNOWN}/logs", token))[0] == 404
    assert (await _call(rest, f"DELETE /firesteel/v1/jobs/{ENDED}", token))[0] == 204
    assert (await _call(rest, f"{v1}/jobs", token))[1]["jobs"] == []


async def test_the_failure_of_an_operation_is_polled(rest, keys) -> None:
    token = keys.token()
    _, started = await _call(rest, f"POST /firesteel/v1/jobs/{ENDED}/savepoints", token, json={})
    poll = f"GET /firesteel/v1/operations/{started['operation']}"
    while not (answer := (await _call(rest, poll, token))[1])["done"]:
        pass
    assert answer["result"] is None
    assert "FINISHED" in answer["error"]


async def test_the_python_client_calls_the_routes(rest, keys) -> None:
    client = RestClient(f"http://{rest.address}", keys.token())
    (listed,) = await asyncio.to_thread(client.jobs)
    assert (listed["id"], listed["status"]) == (ENDED, "FINISHED")
    assert (await asyncio.to_thread(client.job, ENDED))["name"] == "<b>ended</b>"
    with pytest.raises(RestError, match=UNKNOWN) as unknown:
        await asyncio.to_thread(client.job, UNKNOWN)
    assert unknown.value.status == 404
    with pytest.raises(RestError, match="FINISHED"):
        await asyncio.to_thread(client.savepoint, ENDED)
    await asyncio.to_thread(client.remove, ENDED)
    assert await asyncio.to_thread(client.jobs) == []
    with pytest.raises(RestError, match="does not answer"):
        await asyncio.to_thread(RestClient("http://127.0.0.1:1", "").jobs)


async def test_an_answer_that_did_not_change_is_304(rest, keys, monkeypatch) -> None:
    monkeypatch.setattr(rest._gateway, "answer", partial(rest._gateway.answer, kept_s=60.0))
    own = {"Authorization": f"Bearer {keys.token()}"}
    url = f"http://{rest.address}/firesteel/v1/jobs"
    async with aiohttp.ClientSession(headers=own) as session:
        async with session.get(url) as answer:
            etag = answer.headers["ETag"]
        async with session.get(url, headers={"If-None-Match": etag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")


async def test_an_ended_job_cannot_be_cancelled(rest, keys) -> None:
    for route in (f"PATCH /jobs/{ENDED}?mode=cancel", f"GET /jobs/{ENDED}/yarn-cancel"):
        status, answer = await _call(rest, route, keys.token())
        assert (status, list(answer)) == (409, ["errors"])


async def test_the_failure_of_a_savepoint_is_polled(rest, keys) -> None:
    token, trigger = keys.token(), "a" * 32
    body = {"target-directory": "/tmp/x", "cancel-job": False, "triggerId": trigger}
    for _ in range(2):  # the client repeats a call whose answer is lost
        status, answer = await _call(rest, f"POST /jobs/{ENDED}/savepoints", token, json=body)
        assert (status, answer) == (202, {"request-id": trigger})
    poll = f"GET /jobs/{ENDED}/savepoints/{trigger}"
    while (answer := await _call(rest, poll, token)) == (200, {"status": {"id": "IN_PROGRESS"}}):
        pass
    assert (answer[0], answer[1]["status"]) == (200, {"id": "COMPLETED"})
    assert "FINISHED" in answer[1]["operation"]["failure-cause"]["stack-trace"]


@pytest.mark.parametrize(
    ("route", "body", "message"),
    [
        (f"POST /jobs/{ENDED}/savepoints", b"{", "the body is not JSON"),
        (f"POST /jobs/{ENDED}/savepoints", b"[]", "not a JSON object"),
        (f"POST /jobs/{ENDED}/savepoints", b'{"target-directory": 1}', "must be a string, not 1"),
        (f"POST /jobs/{ENDED}/savepoints", b'{"target-directory": "here"}', "is a relative path"),
        ("POST /savepoint-disposal", b"{}", "savepoint-path is missing"),
        (f"POST /jobs/{ENDED}/savepoints", b'{"triggerId": "../x"}', "'../x' is not an id"),
        (
            f"POST /jobs/{ENDED}/savepoints",
            b'{"targetDirectory": "/x"}',
            "'targetDirectory' is unk",
        ),
        (f"POST /jobs/{ENDED}/savepoints", b'{"formatType": "X"}', "not one of CANONICAL, NATIVE"),
        (f"POST /jobs/{ENDED}/checkpoints", b'{"checkpointType": "XX"}', "'XX' is not one of"),
        (
            f"POST /firesteel/v1/jobs/{ENDED}/stop",
            b'{"drian": true}',
            "allowed are directory, drain",
        ),
        (f"PATCH /jobs/{ENDED}?mode=suspend", b"", "mode='suspend' is not allowed"),
        (f"GET /jobs/{ENDED}/exceptions?maxExceptions=-1", b"", "maxExceptions='-1'"),
    ],
)
async def test_bad_requests_say_why(route, body, message, rest, keys) -> None:
    status, answer = await _call(rest, route, keys.token(), data=body)
    assert status == 400
    assert message in answer["errors"][0]


@pytest.mark.parametrize(
    "route", ["GET /nothing", "DELETE /jobs", "GET /jobs/../../etc/passwd", "GET /v2/jobs"]
)
async def test_unknown_routes_are_errors(route: str, rest, keys) -> None:
    status, answer = await _call(rest, route, keys.token())
    assert status in (404, 405)
    assert list(answer) == ["errors"]
    assert (await _call(rest, route, None))[0] == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example"},
        {"Host": "evil.example:8081"},
    ],
)
async def test_pages_of_other_sites_are_refused(headers: dict[str, str], rest, keys) -> None:
    for route in ("GET /jobs/overview", f"GET /jobs/{ENDED}/yarn-cancel"):
        status, answer = await _call(rest, route, keys.token(), headers=headers)
        assert (status, list(answer)) == (403, ["errors"])


async def test_its_own_pages_are_allowed(rest, keys) -> None:
    port = rest.address.rpartition(":")[2]
    for host in (rest.address, f"localhost:{port}"):
        own = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        assert (await _call(rest, "GET /jobs", keys.token(), headers=own))[0] == 200


async def test_viewers_at_the_same_time_share_one_call(rest, keys, monkeypatch) -> None:
    calls = []
    original = rest._gateway.dispatcher.ListJobs

    async def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return await original(*args, **kwargs)

    monkeypatch.setattr(rest._gateway.dispatcher, "ListJobs", counted)
    answers = await asyncio.gather(
        *(_call(rest, "GET /jobs/overview", keys.token()) for _ in range(20))
    )
    assert {status for status, _ in answers} == {200}
    assert len(calls) < 5


async def test_the_audit_log_has_the_address_of_the_caller(rest, keys, tmp_path) -> None:
    await _call(
        rest, f"PATCH /jobs/{ENDED}", keys.token(), headers={"firesteel-caller-address": "x"}
    )
    (entry,) = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert entry["subject"] == "admin"
    assert entry["address"].startswith("ipv4:127.0.0.1:")
    assert not entry["address"].endswith(rest.address.rpartition(":")[2])


async def test_a_revoked_token_is_refused(rest, keys) -> None:
    access, own = rest._gateway.access, (("authorization", f"Bearer {keys.token()}"),)
    request = access_pb2.CreateTokenRequest(subject="ada", role="viewer", valid_s=60)
    created = await access.CreateToken(request, metadata=own)
    revoke = access_pb2.RevokeTokenRequest(token_id=created.description.token_id)
    await access.RevokeToken(revoke, metadata=own)
    status, answer = await _call(rest, "GET /jobs", created.token)
    assert status == 401
    assert "was revoked" in answer["errors"][0]


async def test_it_follows_the_leader(tmp_path: Path) -> None:
    async with _served(tmp_path, secured=False) as server:
        leaders: Any = server._gateway._retriever
        serving, leaders._leader = leaders._leader, None
        status, answer = await _call(server, "GET /jobs", None)
        assert (status, answer) == (503, {"errors": [ANY]})
        leaders._leader = Leader("127.0.0.1:1", Epoch(1))
        assert (await _call(server, "GET /jobs", None))[0] == 503
        leaders._leader = serving
        assert (await _call(server, "GET /jobs", None))[0] == 200


async def test_without_security_everybody_is_answered(tmp_path: Path) -> None:
    async with _served(tmp_path, secured=False) as open_to_all:
        assert (await _call(open_to_all, "GET /jobs/overview", None))[0] == 200


def test_numbers_are_present_for_a_job_without_anything() -> None:
    empty = JobDetails(job_id=UNKNOWN, name="", status=JobStatus.CREATED, start_ms=5)
    shown = job(empty, now_ms=7)
    assert (shown["duration"], shown["end-time"], shown["vertices"]) == (2, -1, [])
    assert checkpoints(empty)["summary"]["state_size"]["p999"] == 0
    assert exceptions(empty, 5)["root-exception"] is None


async def test_a_cluster_is_shut_down_by_its_supervisor(rest, keys, monkeypatch) -> None:
    status, answer = await _call(rest, "DELETE /cluster", keys.token())
    assert status == 400
    assert "end them where they were started" in answer["errors"][0]
    signals = []
    state = SimpleNamespace(supervisor_pid=os.getppid())
    monkeypatch.setattr("dispatcher.shell.ClusterDirectory.read", lambda directory: state)
    monkeypatch.setattr("dispatcher.shell.os.kill", lambda *sent: signals.append(sent))
    assert await _call(rest, "DELETE /cluster", keys.token()) == (200, {})
    assert signals == [(os.getppid(), signal.SIGTERM)]

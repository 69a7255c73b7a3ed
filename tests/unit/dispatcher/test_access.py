"""Tokens and the audit log, at a real Dispatcher."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dispatcher.service import Dispatcher
from firesteel.client.client import Client
from firesteel.common.config import Configuration
from firesteel.common.ids import JobId
from firesteel.common.metrics import Registry
from firesteel.common.security.credentials import TOKEN_VARIABLE
from firesteel.common.security.keys import Keys
from firesteel.common.security.roles import PEOPLE, Role
from firesteel.common.security.security import Security
from firesteel.common.service.platform import SYSTEM, GrpcTransport
from firesteel.errors import FiresteelError, JobNotFound
from tests.job_master import job, vertex
from tests.no_processes import NoProcesses

UNKNOWN_JOB = "0" * 32


@pytest.fixture
def conf(tmp_path: Path) -> Configuration:
    return Configuration({"security.directory": str(tmp_path / "security")})


@pytest.fixture
async def dispatcher(tmp_path: Path, conf: Configuration) -> AsyncIterator[Dispatcher]:
    async for dispatcher in _dispatcher(tmp_path, conf):
        yield dispatcher


async def _dispatcher(directory: Path, conf: Configuration) -> AsyncIterator[Dispatcher]:
    security = Security.of_process(conf, Role.DISPATCHER, "127.0.0.1")
    dispatcher = Dispatcher(
        conf,
        host="127.0.0.1",
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
    yield dispatcher
    dispatcher.stop()
    await running


async def _as(token: str | None, dispatcher: Dispatcher, conf: Configuration, call):
    """Makes a call of a client with the token, or of the administrator."""

    def calls():
        with pytest.MonkeyPatch.context() as patch:
            if token is not None:
                patch.setenv(TOKEN_VARIABLE, token)
            client = Client(dispatcher.address, conf=conf)
            try:
                return call(client)
            finally:
                client.close()

    return await asyncio.to_thread(calls)


@pytest.mark.parametrize("role", [role.value for role in PEOPLE])
async def test_a_created_token_has_its_role(role: str, dispatcher, conf) -> None:
    created = await _as(
        None, dispatcher, conf, lambda client: client.create_token("ada", role, valid_s=60)
    )
    assert await _as(created.token, dispatcher, conf, Client.who_am_i) == ("ada", role)
    assert (created.description.subject, created.description.created_by) == ("ada", "admin")


async def test_a_revoked_token_is_refused_also_by_the_next_dispatcher(
    dispatcher, conf, tmp_path
) -> None:
    created = await _as(
        None, dispatcher, conf, lambda client: client.create_token("ada", "viewer", valid_s=60)
    )
    token_id = created.description.token_id
    await _as(created.token, dispatcher, conf, Client.list_jobs)
    await _as(None, dispatcher, conf, lambda client: client.revoke_token(token_id))
    with pytest.raises(FiresteelError, match="was revoked"):
        await _as(created.token, dispatcher, conf, Client.list_jobs)
    (listed,) = await _as(None, dispatcher, conf, Client.tokens)
    assert listed.token_id == token_id
    assert listed.revoked_ms
    dispatcher.stop()
    async for successor in _dispatcher(tmp_path, conf):
        with pytest.raises(FiresteelError, match="was revoked"):
            await _as(created.token, successor, conf, Client.list_jobs)


@pytest.mark.parametrize(
    ("subject", "role", "valid_s", "message"),
    [
        ("", "viewer", 60, "'' is not the name"),
        ("a\nb", "viewer", 60, "is not the name"),
        ("ada", "slot", 60, "'slot' is not a role; allowed: viewer, operator, submitter, admin"),
        ("ada", "", 60, "'' is not a role"),
        ("ada", "viewer", 0, "cannot be valid for 0 s"),
        ("ada", "viewer", 10**12, "expected 1 s to five years"),
    ],
)
async def test_bad_requests_for_tokens_say_why(
    subject, role, valid_s, message, dispatcher, conf
) -> None:
    with pytest.raises(FiresteelError, match=message):
        await _as(
            None,
            dispatcher,
            conf,
            lambda client: client.create_token(subject, role, valid_s=valid_s),
        )


async def test_an_unknown_token_cannot_be_revoked(dispatcher, conf) -> None:
    with pytest.raises(FiresteelError, match="no token 'x' was created on this cluster"):
        await _as(None, dispatcher, conf, lambda client: client.revoke_token("x"))


async def test_a_token_for_own_jobs_acts_on_no_others(dispatcher, conf) -> None:
    graph, other = (replace(job(vertex("a", 1)), job_id=JobId(c * 32)) for c in "12")

    async def token(subject: str, role: str) -> str:
        made = await _as(
            None,
            dispatcher,
            conf,
            lambda client: client.create_token(subject, role, valid_s=60, own_jobs=True),
        )
        return str(made.token)

    ada, bob = await token("ada", "submitter"), await token("bob", "operator")
    await _as(ada, dispatcher, conf, lambda client: client.submit(graph))
    await _as(None, dispatcher, conf, lambda client: client.submit(other))
    owners = {
        each.job_id: each.owner for each in await _as(bob, dispatcher, conf, Client.list_jobs)
    }
    assert owners == {graph.job_id: "ada", other.job_id: "admin"}
    details = await _as(bob, dispatcher, conf, lambda client: client.job_details(graph.job_id))
    assert details.owner == "ada"
    acts = {
        "CancelJob": lambda client: client.cancel(graph.job_id),
        "RemoveJob": lambda client: client.remove(graph.job_id),
        "DisposeSavepoint": lambda client: client.dispose_savepoint("/tmp/savepoint"),
    }
    for act in acts.values():
        with pytest.raises(FiresteelError, match=r"bob \(operator of own jobs\) may not act on"):
            await _as(bob, dispatcher, conf, act)
    with pytest.raises(FiresteelError, match="which is admin's"):
        await _as(ada, dispatcher, conf, lambda client: client.cancel(other.job_id))
    await _as(ada, dispatcher, conf, acts["CancelJob"])
    with pytest.raises(FiresteelError, match="a token of a viewer cannot be limited"):
        await token("eve", "viewer")


async def test_the_audit_log_has_changes_and_refusals(dispatcher, conf, tmp_path) -> None:
    folder = Keys(tmp_path / "security")
    viewer = folder.token("metrics.token")
    await _as(None, dispatcher, conf, Client.list_jobs)  # changes nothing
    with pytest.raises(JobNotFound):
        await _as(None, dispatcher, conf, lambda client: client.cancel(UNKNOWN_JOB))
    with pytest.raises(FiresteelError, match="which is for: operator, submitter, admin"):
        await _as(viewer, dispatcher, conf, lambda client: client.cancel(UNKNOWN_JOB))
    with pytest.raises(FiresteelError, match="not one of this cluster"):
        await _as("forged", dispatcher, conf, Client.list_jobs)
    expected = [
        ("", "ListJobs", "", "CREDENTIAL_INVALID"),
        ("metrics", "CancelJob", UNKNOWN_JOB, "NOT_ALLOWED"),
        ("admin", "CancelJob", UNKNOWN_JOB, "NOT_FOUND"),
    ]
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    said = [(e["subject"], e["action"], e["job_id"], e["outcome"]) for e in lines]
    assert said == expected[::-1]
    assert all(line["address"].startswith("ipv4:127.0.0.1:") for line in lines)
    stored = []
    while len(stored) < len(expected):
        stored = await _as(None, dispatcher, conf, lambda client: client.audit(job_id=""))
    shown = [(e.subject, e.action, e.job_id, e.outcome) for e in stored]
    assert shown[-3:] == expected
    of_job = await _as(None, dispatcher, conf, lambda client: client.audit(job_id=UNKNOWN_JOB))
    assert {entry.action for entry in of_job} == {"CancelJob"}


async def test_tokens_are_not_stored(dispatcher, conf, tmp_path) -> None:
    created = await _as(
        None, dispatcher, conf, lambda client: client.create_token("ada", "admin", valid_s=60)
    )
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as database:
        dump = "\n".join(database.iterdump())
    assert created.description.token_id in dump
    assert created.token not in dump
    assert created.token not in (tmp_path / "audit.jsonl").read_text()

"""Programs that are submitted over HTTP, and their savepoints, on a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import textwrap
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from firesteel.client.cli import main
from firesteel.client.cluster import ClusterDirectory
from firesteel.common.security.roles import Role
from firesteel.common.states import JobStatus
from tests.credentials import folder
from tests.waiting import eventually

from .conftest import Session, running, services

WRITES = """
import sys
from pathlib import Path
from firesteel import Environment
from firesteel.connectors import FileSink
from prices.tax import with_tax

start = int((Path(__file__).parent / "start.txt").read_text())

def taxed(batches):
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"value": [with_tax(each) for each in batch["value"].to_pylist()]})

env = Environment()
env.from_sequence(start, start + 2).map_in_arrow(taxed).sink_to(FileSink(sys.argv[1], format="csv"))
env.execute("taxed")
"""
# A data file in the package says which tax is added.
MODULE = """
from pathlib import Path

def with_tax(cents):
    return cents + int((Path(__file__).parent / "tax.txt").read_text())
"""
COUNTS = """
import sys
from firesteel import Environment
from firesteel.connectors import DiscardSink

print("counting to", sys.argv[1])
for name in ("first", "second"):
    env = Environment()
    env.from_sequence(0, int(sys.argv[1])).sink_to(DiscardSink())
    env.execute(name)
"""


class Rest:
    """The REST API of the shared cluster."""

    def __init__(self, session: Session) -> None:
        self._url = f"http://{ClusterDirectory(session.cluster.directory).read().rest_address}"

    def __call__(
        self,
        route: str,
        *,
        role: Role = Role.SUBMITTER,
        json: Any = None,
        form: dict[str, str | tuple[str, bytes]] | None = None,
    ) -> tuple[int, Any]:
        return asyncio.run(self._call(route, role, json, form))

    async def _call(self, route: str, role: Role, json: Any, form: Any) -> tuple[int, Any]:
        method, path = route.split(" ", 1)
        token = folder().issuer().issue("ada", role, valid_s=600)
        data = None
        if form is not None:
            data = aiohttp.FormData()
            for name, value in form.items():
                if isinstance(value, tuple):
                    data.add_field(name, BytesIO(value[1]), filename=value[0])
                else:
                    data.add_field(name, value)
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as client,
            client.request(method, self._url + path, json=json, data=data, headers=headers) as got,
        ):
            return got.status, await got.json()

    def upload(self, text: str | bytes, name: str = "job.py", **options: Any) -> tuple[int, Any]:
        content = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
        return self("POST /jars/upload", form={"jarfile": (name, content)}, **options)


@pytest.fixture
def rest(session: Session) -> Rest:
    return Rest(session)


@pytest.fixture
def package(tmp_path: Path) -> bytes:
    """A package of the program, whose own folder is gone."""
    project = tmp_path / "project"
    (project / "prices").mkdir(parents=True)
    (project / "job.py").write_text(WRITES)
    (project / "prices" / "__init__.py").write_text("")
    (project / "prices" / "tax.py").write_text(MODULE)
    (project / "prices" / "tax.txt").write_text("100")
    (project / "start.txt").write_text("7")
    target = tmp_path / "job.zip"
    arguments = ["package", project / "job.py", "-o", target, "--files", project / "start.txt"]
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    project.rename(tmp_path / "elsewhere")
    return target.read_bytes()


def written(folder: Path) -> list[int]:
    lines = [line for part in folder.glob("*.csv") for line in part.read_text().splitlines()]
    return sorted(int(line) for line in lines if line.isdecimal())


def test_a_package_is_uploaded_planned_run_and_deleted(
    session: Session, rest: Rest, package: bytes, tmp_path: Path
) -> None:
    status, answer = rest.upload(package, "daily.zip")
    assert (status, answer["status"]) == (200, "success")
    jar = answer["filename"]
    (shown,) = [each for each in rest("GET /jars")[1]["files"] if each["id"] == jar]
    assert shown["name"] == "daily.zip"
    assert {"name": "job.py", "description": None} in shown["entry"]

    status, plan = rest(f"GET /jars/{jar}/plan?parallelism=2&program-args=/tmp/unused")
    assert status == 200, plan
    assert {node["parallelism"] for node in plan["plan"]["nodes"]} == {2}

    job_id, target = os.urandom(16).hex(), tmp_path / "rows"
    body = {"programArgsList": [str(target)], "parallelism": 2, "jobId": job_id}
    assert rest(f"POST /v1/jars/{jar}/run", json=body) == (
        200,
        {"jobid": job_id, "jobids": [job_id]},
    )
    details = session.client.wait(job_id)
    assert (details.name, details.status) == ("taxed", JobStatus.FINISHED)
    assert {vertex.parallelism for vertex in details.vertices} == {2}
    assert written(target) == [107, 108]

    assert rest(f"DELETE /jars/{jar}") == (200, {})
    assert rest(f"POST /jars/{jar}/run", json=body)[0] == 404


def test_a_program_comes_with_its_request_and_is_answered_with_its_output(
    session: Session, rest: Rest
) -> None:
    form = {
        "program": ("count.py", COUNTS.encode()),
        "arguments": '["3"]',
        "options": '{"parallelism.default": "1"}',
    }
    status, answer = rest("POST /firesteel/v1/jobs", form=form)
    assert status == 200, answer
    assert (answer["name"], answer["output"]) == ("first", "counting to 3")
    first, second = map(session.client.wait, answer["job_ids"])
    assert (first.job_id, first.name, second.name) == (answer["job_id"], "first", "second")
    assert rest("GET /jars")[1]["files"] == []


def test_the_job_is_the_callers_in_the_audit_log(session: Session, rest: Rest) -> None:
    form = {"program": ("count.py", COUNTS.encode()), "arguments": '["1"]'}
    job_id = rest("POST /firesteel/v1/jobs", form=form)[1]["job_id"]

    def actions() -> list[tuple[str, str]]:
        """The calls of the program's submitter, the newest first, down to the first job's."""
        entries = session.client.audit(limit=100)
        callers = [each for each in entries if (each.subject, each.role) == ("ada", "submitter")]
        return [(each.action, each.outcome) for each in callers if each.job_id in ("", job_id)]

    eventually(lambda: ("SubmitJob", "OK") in actions(), "the audit log has the job")
    assert ("RunProgram", "OK") in actions()


def test_a_failing_program_is_answered_with_the_users_lines_first(rest: Rest) -> None:
    jar = rest.upload("def ratio():\n    return 1 / 0\n\nratio()\n", "ratio.py")[1]["filename"]
    status, answer = rest(f"POST /jars/{jar}/run")
    assert status == 400
    (message,) = answer["errors"]
    assert "line 2, in ratio" in message
    assert "ZeroDivisionError" in message
    rest(f"DELETE /jars/{jar}")


REFUSED: dict[str, tuple[Callable[[Rest], tuple[int, Any]], int, str]] = {
    "a viewer's token": (
        lambda rest: rest.upload("x = 1", role=Role.VIEWER),
        403,
        "submitter, admin",
    ),
    "an operator's token": (
        lambda rest: rest(
            "POST /firesteel/v1/jobs",
            form={"program": ("job.py", b"x = 1")},
            role=Role.OPERATOR,
        ),
        403,
        "submitter, admin",
    ),
    "a job graph of Flink's command line": (
        lambda rest: rest("POST /v1/jobs", form={"request": ("r", b"{}")}),
        400,
        "firesteel package",
    ),
    "no file": (lambda rest: rest("POST /jars/upload", form={"x": ("y", b"z")}), 400, "jarfile"),
    "no form": (lambda rest: rest("POST /jars/upload", json={}), 400, "multipart/form-data"),
    "a file that is too large": (
        lambda rest: rest.upload(b"#" * (100 * 2**20 + 1)),
        413,
        "web.upload.max-size",
    ),
    "an id that is a path": (
        lambda rest: rest("POST /jars/..%2F..%2Fetc/run"),
        404,
        "no uploaded program",
    ),
}


@pytest.mark.parametrize("request_", REFUSED)
def test_a_bad_submission_is_refused(rest: Rest, request_: str) -> None:
    call, status, words = REFUSED[request_]
    answered, answer = call(rest)
    assert (answered, words in answer["errors"][0]) == (status, True), answer


def test_a_name_that_is_a_path_is_data(session: Session, rest: Rest) -> None:
    began_s = time.time()
    name = "../../../../tmp/firesteel-evil.py"
    status, answer = rest.upload("x = 1", name)
    assert status == 200
    (shown,) = [each for each in rest("GET /jars")[1]["files"] if each["id"] == answer["filename"]]
    assert shown["name"].endswith("firesteel-evil.py")
    assert not Path("/tmp/firesteel-evil.py").exists()
    created = [
        path
        for path in session.cluster.directory.rglob("*evil*")
        if path.stat().st_mtime >= began_s
    ]
    assert created == []
    rest(f"DELETE /jars/{answer['filename']}")


SLOW = """
import time
from firesteel import Environment
from firesteel.connectors import DiscardSink

def slow(batches):
    for batch in batches:
        time.sleep(3)  # longer than it takes to kill the Dispatcher: the barrier waits for it
        yield batch

env = Environment(parallelism=1)
env.from_sequence(0, 10**12).map_in_arrow(slow).sink_to(DiscardSink())
env.execute("slow")
"""


def test_a_savepoint_is_polled_through_the_next_dispatcher(
    session: Session, rest: Rest, tmp_path: Path
) -> None:
    directories = {
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "execution.checkpointing.interval": "1 h",
    }
    form = {"program": ("slow.py", SLOW.encode()), "options": json.dumps(directories)}
    job_id = rest("POST /firesteel/v1/jobs", form=form)[1]["job_id"]
    session.wait_until(job_id, running)
    body = {"target-directory": str(tmp_path / "savepoints")}
    trigger = rest(f"POST /jobs/{job_id}/savepoints", json=body)[1]["request-id"]
    poll = f"GET /jobs/{job_id}/savepoints/{trigger}"
    assert rest(poll) == (200, {"status": {"id": "IN_PROGRESS"}})
    (dispatcher,) = services(session, "dispatcher")
    dispatcher.kill()
    polled: list[Any] = []

    def complete() -> bool:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            polled.append(rest(poll))
        return bool(polled) and polled[-1][1].get("status") == {"id": "COMPLETED"}

    eventually(complete, "the savepoint is complete")
    assert list(polled[-1][1]["operation"]) == ["location"]
    assert Path(polled[-1][1]["operation"]["location"], "_metadata").exists()
    session.client.cancel(job_id)

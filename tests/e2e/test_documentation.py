"""The documentation and the examples work as they are shown."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from firesteel.client.cli.program import run_program
from firesteel.client.execution_context import ExecutionContext
from firesteel.common.states import JobStatus

from .conftest import ROOT, Session, firesteel

BROKER = "localhost:9092"  # on pages; tests use their broker


def snippets(page: str) -> str:
    """All Python of a page, as one program whose lines have the page's own numbers."""
    lines = (ROOT / page).read_text().splitlines()
    inside, code = False, []
    for line in lines:
        if line.startswith("```"):
            inside = line == "```python"
            line = ""
        code.append(line if inside else "")
    return "\n".join(code)


ELSEWHERE = ("tutorial", "kubernetes-guide")  # which other tests run
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (ROOT / "docs").rglob("*.md")
    if "\n```python\n" in page.read_text() and page.stem not in ELSEWHERE
)


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_runs(
    session: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    page: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    # The stream that most pages use, in a separate directory per page: modules are imported once.
    shutil.copy(ROOT / "examples" / "shop.py", tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    program = tmp_path / f"{Path(page).stem}.py"
    text = snippets(page)
    if BROKER in text:
        text = text.replace(BROKER, request.getfixturevalue("kafka").bootstrap)
    program.write_text(text)
    context = ExecutionContext(mode="remote", address=session.address)
    run_program(program, (), context)
    assert len(context.executed) == sum(
        text.count(f".{method}(") for method in ("execute", "execute_async", "execute_and_collect")
    )
    # Reading with a limit cancels a job that has not finished by then.
    limited = re.findall(r'\.execute_and_collect\("([^"]+)", limit=', text)
    jobs = {job.job_id: job for job in session.client.list_jobs()}
    for job_id in context.executed:
        status = jobs[job_id].status
        if jobs[job_id].name not in limited or status is not JobStatus.CANCELED:
            assert status is JobStatus.FINISHED, jobs[job_id]


def test_two_streams(session: Session, tmp_path: Path) -> None:
    run = firesteel(
        "run", "-m", session.address, "examples/two_streams.py", "--data", str(tmp_path)
    )
    assert run.returncode == 0, run.stdout + run.stderr
    rows = re.findall(r"2024-03-0(\d) 00:00:00\+00:00 +(\w+) +(-?\d+) +(\d+)", run.stdout)
    assert rows == [
        ("1", "flint", "97", "2"),
        ("1", "steel", "40", "1"),
        ("2", "flint", "-2", "1"),
        ("2", "steel", "53", "3"),
        ("3", "tinder", "510", "2"),
    ]

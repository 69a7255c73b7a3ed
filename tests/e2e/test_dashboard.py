"""The dashboard in a browser, at a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, expect

from firesteel.common.ids import random_id
from firesteel.common.security.roles import Role
from firesteel.errors import JobFailed
from tests.credentials import folder

from .browser import CHROMIUM, Dashboard, chromium
from .conftest import Session, firesteel, running, services
from .jobs import endless, failing

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")
NAME = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running_browser:
        yield running_browser


@pytest.fixture
def dashboard(browser: Browser, session: Session) -> Iterator[Dashboard]:
    """A browser that is logged in as the administrator."""
    opened = Dashboard(browser, session.client)
    opened.log_in()
    yield opened
    opened.close()
    assert opened.problems == []


def start(session: Session, checkpoints: Path, name: str = NAME) -> str:
    """Returns the id of a job whose tasks run, and that takes checkpoints."""
    job_id = session.submit(
        endless(),
        name,
        execution__checkpointing__interval="1 s",
        execution__checkpointing__dir=str(checkpoints),
    )
    session.wait_until(job_id, running)
    return job_id


def fail(session: Session) -> str:
    job_id = session.submit(failing(_divide, parallelism=1), "fails")
    with pytest.raises(JobFailed):
        session.client.wait(job_id)
    return job_id


def _divide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        print(batch.num_rows // 0)
        yield batch


def token(role: Role, *, valid_s: float = 600.0) -> str:
    return folder().issuer().issue(f"ada-{random_id()[:4]}", role, valid_s=valid_s)


def test_every_page_shows_its_data(browser: Browser, session: Session, tmp_path: Path) -> None:
    job, failed = start(session, tmp_path), fail(session)
    pages = {
        "/": NAME,
        f"/jobs/{job}": "Vertices",
        f"/jobs/{job}/checkpoints": "COMPLETED",
        f"/jobs/{job}/exceptions": "No exceptions",
        f"/jobs/{failed}/exceptions": "ZeroDivisionError",
        f"/jobs/{job}/logs": "task state",
        f"/jobs/{job}/flamegraph": "No samples yet",
        f"/jobs/{job}/rows": "No rows yet",
        "/machines": "JVM heap",
        "/savepoints": "Savepoints",
        "/submit": "runs as the user of the cluster",
        "/audit": "SubmitJob",
        "/nowhere": "There is no page /nowhere",
    }
    for colors, width in (("light", 1280), ("dark", 390)):
        tab = Dashboard(browser, session.client, colors=colors, width=width)  # type: ignore[arg-type]
        tab.log_in()
        for path, text in pages.items():
            tab.open(path)
            expect(tab.page.get_by_role("main")).to_contain_text(text)
            expect(tab.page.locator("h1")).to_have_count(1)
            assert tab.barriers() == [], (path, colors)
            assert tab.overflow() == 0, (path, width)
        tab.close()
        assert tab.problems == []


def test_an_operator_looks_into_a_task(
    dashboard: Dashboard, session: Session, tmp_path: Path
) -> None:
    page, job = dashboard.page, start(session, tmp_path)
    dashboard.open(f"/jobs/{job}/flamegraph")
    page.get_by_role("button", name="Sample").click()
    root = page.locator(".flame").first
    expect(root).to_be_visible()
    assert dashboard.barriers() == []
    page.get_by_label("Search functions").fill("StreamTask.run")
    expect(page.get_by_role("status").filter(has_text="Matches")).to_be_visible()
    root.focus()
    page.keyboard.press("ArrowDown")
    expect(root).not_to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Whole graph")).to_be_enabled()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Whole graph")).to_be_disabled()
    dashboard.open(f"/jobs/{job}/rows")
    page.get_by_role("button", name="Show rows").click()
    expect(page.get_by_role("columnheader", name="value")).to_be_visible()
    assert dashboard.barriers() == []


def test_a_browser_logs_in_and_out(browser: Browser, session: Session) -> None:
    tab = Dashboard(browser, session.client)
    page = tab.page
    tab.open("/machines")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert tab.barriers() == []
    page.get_by_label("Token").fill("forged")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not one of this cluster")
    page.get_by_label("Token").fill(token(Role.VIEWER))
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Machines")).to_be_visible()
    expect(page.locator(".who")).to_contain_text("viewer")
    (cookie,) = page.context.cookies(f"{tab.url}firesteel/v1/me")
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies(f"{tab.url}firesteel/v1/me") == []
    tab.close()


def test_the_command_logs_in_once(browser: Browser, session: Session) -> None:
    link = firesteel("dashboard", "--no-open", "-m", session.address).stdout.strip()
    tab = Dashboard(browser, session.client)
    page = tab.page
    page.goto(link)
    expect(page.locator(".who")).to_contain_text("admin")
    assert page.url == f"{tab.url}#/"
    page.go_back()
    assert "code" not in page.url
    tab.close()
    again = Dashboard(browser, session.client)
    again.page.goto(link)
    expect(again.page.get_by_role("alert")).to_contain_text("the log-in link was used")
    again.close()


def test_an_operator_stops_restores_and_removes(
    dashboard: Dashboard, session: Session, tmp_path: Path
) -> None:
    page, job = dashboard.page, start(session, tmp_path)
    dashboard.open(f"/jobs/{job}")
    page.get_by_role("button", name="Savepoint").click()
    page.get_by_label("Directory").fill(str(tmp_path))
    page.get_by_role("button", name="Take savepoint").click()
    expect(page.get_by_role("status").filter(has_text=str(tmp_path))).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_label("Directory").fill(str(tmp_path))
    page.get_by_role("button", name="Stop with savepoint").click()
    expect(page.locator("h1 + .badge")).to_have_text("FINISHED")
    assert session.client.job_details(job).status.name == "FINISHED"

    dashboard.open("/savepoints")
    row = page.get_by_role("row").filter(has_text=str(tmp_path)).first
    path = row.locator("code").inner_text()
    row.get_by_role("link", name="Restore").click()
    expect(page.get_by_label("Start from")).to_have_value(path)
    dashboard.open("/savepoints")
    row.get_by_role("button", name="Dispose").click()
    page.get_by_role("dialog").get_by_role("button", name="Dispose").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert not Path(path).exists()
    expect(row).to_contain_text("disposed")
    dashboard.open(f"/jobs/{job}/checkpoints")
    disposed = page.get_by_role("row").filter(has_text=path)
    expect(disposed).to_contain_text("disposed")

    dashboard.open(f"/jobs/{job}")
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove job").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_attached()
    assert job not in [each.job_id for each in session.client.list_jobs()]
    # The page may request the removed job.
    dashboard.problems = [each for each in dashboard.problems if "404" not in each]


PROGRAM = b"""
import sys
from firesteel import Environment
from firesteel.connectors import SequenceSource
env = Environment()
env.from_source(SequenceSource(0, rate_per_s=100)).print()
env.execute(" ".join(sys.argv[1:]))
"""


def test_a_program_is_submitted(dashboard: Dashboard, session: Session) -> None:
    page = dashboard.page
    dashboard.open("/submit")
    file = page.locator("input[type=file]")
    file.set_input_files({"name": "job.py", "mimeType": "text/x-python", "buffer": b"env ="})
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("invalid syntax")
    file.set_input_files({"name": "job.py", "mimeType": "text/x-python", "buffer": PROGRAM})
    page.get_by_label("Arguments").fill("from 'the  browser'")
    page.get_by_label("Options").fill("execution.checkpointing.timeout: 5 min")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="from the browser")).to_be_visible()
    assert "from the  browser" in {job.name for job in session.client.list_jobs()}
    dashboard.problems = [each for each in dashboard.problems if "400" not in each]


def test_a_job_is_cancelled_after_one_question(
    dashboard: Dashboard, session: Session, tmp_path: Path
) -> None:
    page, job = dashboard.page, start(session, tmp_path)
    dashboard.open(f"/jobs/{job}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("without a savepoint")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog.get_by_role("button", name="Cancel job").click()
    expect(page.locator("h1 + .badge")).to_have_text("CANCELED")


def test_a_viewer_may_change_nothing(browser: Browser, session: Session, tmp_path: Path) -> None:
    tab, job = Dashboard(browser, session.client), start(session, tmp_path)
    _log_in_with(tab, token(Role.VIEWER))
    tab.open(f"/jobs/{job}")
    for name in ("Savepoint", "Stop", "Cancel"):
        button = tab.page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_disabled()
        expect(button).to_have_attribute("title", "Your role, viewer, may not do this.")
    expect(tab.page.get_by_role("link", name="Submit")).to_have_count(0)
    expect(tab.page.get_by_role("link", name="Audit")).to_have_count(0)
    tab.close()


def test_a_token_expires_while_a_page_is_open(browser: Browser, session: Session) -> None:
    tab = Dashboard(browser, session.client)
    short = folder().issuer().issue("ada", Role.VIEWER, valid_s=4)
    _log_in_with(tab, short)
    expect(tab.page.get_by_label("Token")).to_be_visible()
    tab.close()


def _log_in_with(tab: Dashboard, own_token: str) -> None:
    tab.open("/login")
    tab.page.get_by_label("Token").fill(own_token)
    tab.page.get_by_role("button", name="Log in").click()
    expect(tab.page.locator(".who")).to_be_visible()


def test_a_job_ends_and_is_removed_while_its_page_is_open(
    dashboard: Dashboard, session: Session, tmp_path: Path
) -> None:
    page, job = dashboard.page, start(session, tmp_path, "ends")
    dashboard.open(f"/jobs/{job}/logs")
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    session.client.cancel(job)
    expect(page.locator("h1 + .badge")).to_have_text("CANCELED")
    expect(page.get_by_role("status").filter(has_text="complete")).to_be_visible()
    session.client.remove(job)
    expect(page.get_by_text("This job has been removed")).to_be_visible()
    dashboard.problems = [each for each in dashboard.problems if "404" not in each]


def test_the_dashboard_continues_with_the_next_dispatcher(
    dashboard: Dashboard, session: Session, tmp_path: Path
) -> None:
    page, job = dashboard.page, start(session, tmp_path)
    dashboard.open(f"/jobs/{job}")
    expect(page.locator("h1 + .badge")).to_have_text("RUNNING")
    (dispatcher,) = services(session, "dispatcher")
    dispatcher.kill()
    session.wait_until(job, running)
    session.client.cancel(job)
    expect(page.locator("h1 + .badge")).to_have_text("CANCELED")
    expect(page.locator(".banner")).to_have_count(0)
    dashboard.problems.clear()  # requests failed in between

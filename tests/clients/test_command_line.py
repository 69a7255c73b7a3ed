"""Flink's own command line lists, cancels and stops jobs, and takes savepoints and checkpoints."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from firesteel.common.states import JobStatus
from firesteel.errors import JobCanceled
from tests.clients import packages
from tests.clients.conftest import Jobs, numbers

pytestmark = pytest.mark.clients


def flink(jobs: Jobs, *arguments: str) -> str:
    """Runs a command; returns its output. Fails if the command does."""
    command, *others = arguments
    address = jobs.rest.removeprefix("http://")
    done = subprocess.run(
        ["bash", packages.flink_home() / "bin" / "flink", command, "-m", address, *others],
        env={**os.environ, "FLINK_REST_CLIENT_HEADERS": f"Authorization:Bearer {jobs.token}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def other(jobs: Jobs) -> str:
    """A running job with checkpoints, besides the shared ones."""
    return jobs.submit_numbers("other")


def test_it_lists_jobs(jobs: Jobs) -> None:
    listed = flink(jobs, "list", "-a")
    assert f"{jobs.running} : running (RUNNING)" in listed
    assert f"{jobs.restarting} : restarting (RESTARTING)" in listed
    assert f"{jobs.failed} : failed (FAILED)" in listed
    assert f"{jobs.finished} : finished (FINISHED)" in listed


def test_it_takes_checkpoints_and_stops_with_a_savepoint(
    jobs: Jobs, other: str, tmp_path: Path
) -> None:
    assert "checkpoint" in flink(jobs, "checkpoint", other)
    taken = flink(jobs, "savepoint", other, str(tmp_path / "savepoints"))
    (savepoint,) = (tmp_path / "savepoints").iterdir()
    assert str(savepoint) in taken
    assert "disposed" in flink(jobs, "savepoint", "-d", str(savepoint))
    assert not savepoint.exists()
    stopped = flink(jobs, "stop", "-p", str(tmp_path / "last"), other)
    (last,) = (tmp_path / "last").iterdir()
    assert str(last) in stopped
    assert jobs.session.client.wait(other).status is JobStatus.FINISHED


def test_it_cancels(jobs: Jobs, other: str) -> None:
    assert other in flink(jobs, "cancel", other)
    with pytest.raises(JobCanceled):
        jobs.session.client.wait(other)


def test_it_says_why_a_savepoint_fails(jobs: Jobs) -> None:
    plain = jobs.session.submit(numbers(10**15), name="without checkpoints")
    with pytest.raises(AssertionError, match="takes no checkpoints"):
        flink(jobs, "savepoint", plain)
    flink(jobs, "cancel", plain)

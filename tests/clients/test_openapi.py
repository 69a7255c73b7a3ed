"""Schemathesis, from PyPI, tries every route of the OpenAPI description with made-up requests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from firesteel.common.security.roles import Role
from tests import credentials
from tests.clients import packages
from tests.clients.conftest import Jobs

pytestmark = pytest.mark.clients

CHECKS = (
    "not_a_server_error",
    "response_schema_conformance",
    "content_type_conformance",
    "ignored_auth",
)
CONFIGURATION = """
[parameters]
"path.job" = "{job_id}"

[[operations]]
include-path = "/cluster"
include-method = "DELETE"
enabled = false
"""


@pytest.mark.parametrize("role", [Role.VIEWER, Role.ADMIN])
def test_no_request_makes_the_server_fail(role: Role, jobs: Jobs, tmp_path: Path) -> None:
    """The path names a job that has finished, so that no request ends a job of other tests."""
    token = credentials.folder().issuer().issue("schemathesis", role, valid_s=3600)
    configuration = tmp_path / "schemathesis.toml"
    configuration.write_text(CONFIGURATION.format(job_id=jobs.submit_finished()))
    done = subprocess.run(
        [
            *(packages.PYTHON, "-m", "schemathesis.cli", "--config-file", configuration, "run"),
            *("--checks", ",".join(CHECKS), "--max-examples", "10", "--seed", "1"),
            *("--phases", "examples,coverage,fuzzing", "--continue-on-failure"),
            *("--request-timeout", "30", "--suppress-health-check", "all"),
            *("-H", f"Authorization: Bearer {token}"),
            *("--url", jobs.rest, f"{jobs.rest}/firesteel/v1/openapi.json"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

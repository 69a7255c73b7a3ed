"""Processes do not import packages that they do not use, which takes memory and time."""

from __future__ import annotations

import subprocess
import sys

import pytest

MASTERS = "dispatcher.__main__, resourcemanager.__main__, jobmaster.__main__"


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        ("firesteel.client.cli, firesteel.client.client, firesteel.client.render", "pyarrow"),
        ("jobmaster.__main__", "pyarrow"),  # unless it has checkpoints
        (MASTERS, "rich"),
        ("taskexecutor.__main__, taskexecutor.executor.__main__", "rich"),
        ("firesteel.environment", "sqlglot"),
        ("taskexecutor.executor.slot_process, taskexecutor.executor.columnar.warm_up", "sqlglot"),
    ],
)
def test_a_process_imports_no_package_that_it_does_without(modules: str, without: str) -> None:
    code = f"import sys, {modules}; sys.exit({without!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

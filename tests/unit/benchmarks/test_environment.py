"""When there is no apache-flink and none can be installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers import environment
from benchmarks.peers.environment import NotInstalled, install, installed


def test_what_cannot_be_installed_is_said_in_a_line(tmp_path: Path) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--target",
        str(tmp_path),
        "no-such-package==1.0",
    ]
    with pytest.raises(
        NotInstalled, match="^ERROR: No matching distribution found for no-such-package==1.0$"
    ):
        environment.run(pip)


def test_a_python_that_will_not_do_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "PYTHONS", ("2.6", "2.5"))
    with pytest.raises(NotInstalled, match="^it needs Python 2.6 or 2.5 with its venv module"):
        install(tmp_path / "venv")
    assert not installed(tmp_path / "venv")

"""Completion in shells, as docs/how-to/session-cluster.md sets it up."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from firesteel.client.cli import main


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_verbs_are_completed(shell: str) -> None:
    words = {"COMP_WORDS": "firesteel can", "COMP_CWORD": "1"}
    env = {"_FIRESTEEL_COMPLETE": f"{shell}_complete", **words}
    done = CliRunner().invoke(main, [], env=env, prog_name="firesteel")
    assert "cancel" in done.output and "cluster" not in done.output

"""The commands in the comments of docker-compose.yml exist, with their options and files."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from firesteel.client.cli import main
from tests.compose import ROOT, commands, comments

COMMANDS = commands()


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_comments_is_parsed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, *words = shlex.split(command)
    found: click.Command = main
    while isinstance(found, click.Group):
        found = found.commands[words.pop(0)]
    found.make_context("firesteel", words)  # raises UsageError


def test_the_profiles_of_the_comments_are_those_of_the_services() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    profiles = {word for line in comments() for word in re.findall(r"--profile (\w+)", line)}
    assert profiles == set(re.findall(r'profiles: \["(\w+)"\]', text))

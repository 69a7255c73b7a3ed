"""The services of docker-compose.yml, to be run here as processes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
HA_CONFIGURATION = ROOT / "deploy" / "ha" / "config.yaml"
_SHARED = "/var/lib/firesteel"  # by all containers
_OWN = "/tmp"


def comments() -> list[str]:
    """The commands that the comments of docker-compose.yml give, one a line."""
    lines = (ROOT / "docker-compose.yml").read_text().splitlines()
    return [line.removeprefix("#").strip() for line in lines if line.startswith("#     ")]


def commands() -> list[str]:
    """Returns the commands of Firesteel's command line."""
    found = (re.search(r"firesteel (?:run|list|show|cluster) [^()]*", line) for line in comments())
    return [match[0].strip() for match in found if match]


class ComposedService(NamedTuple):
    module: str
    arguments: list[str]
    environment: dict[str, str]


def services(profile: str, directory: Path) -> Iterator[ComposedService]:
    """Yields Firesteel's services with this profile. Each listens on a free port of this machine
    and keeps its folders below `directory`.
    """
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name, service in composed.items():
        if profile not in service.get("profiles", ()) or "command" not in service:
            continue
        command, verb, module, *arguments = shlex.split(service["command"])
        assert (command, verb) == ("firesteel", "service"), f"{name}: {service['command']}"
        assert service["hostname"] == name
        arguments = [_here(word, name, directory) for word in arguments]
        any_port = ["--port=0"] if "--port" in arguments else []
        environment = {
            key: _here(value, name, directory)
            for key, value in service.get("environment", {}).items()
            if key != "FIRESTEEL_CONF_DIR"  # what it has is given as options
        }
        yield ComposedService(module, [*arguments, *any_port], environment)


def _here(word: str, host: str, directory: Path) -> str:
    if word == host or word.endswith(f"={host}"):
        return word.removesuffix(host) + "127.0.0.1"
    if word.startswith(f"{_SHARED}/"):
        return str(directory) + word.removeprefix(_SHARED)
    if word.startswith(f"{_OWN}/"):
        return f"{directory}/{host}{word.removeprefix(_OWN)}"
    return word

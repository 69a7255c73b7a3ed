"""The services of docker-compose.yml, to be run here as processes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
HA_CONFIGURATION = ROOT / "deploy" / "ha" / "config.yaml"
_FOLDERS = ("/var/lib/firesteel", "/tmp")


class ComposedService(NamedTuple):
    module: str
    arguments: list[str]


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
        yield ComposedService(module, [*arguments, *any_port])


def _here(word: str, host: str, directory: Path) -> str:
    if word == host or word.endswith(f"={host}"):
        return word.removesuffix(host) + "127.0.0.1"
    for folder in _FOLDERS:
        if word.startswith(f"{folder}/"):
            return str(directory) + word[len(folder) :]
    return word

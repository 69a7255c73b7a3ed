"""Becomes the masters of a cluster that Flink's client has deployed.

    python -m firesteel.kubernetes.flink kubernetes-application|kubernetes-session [-D KEY=VALUE]...

Flink's configuration is in $FLINK_CONF_DIR, its pod template for TaskExecutors beside it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from firesteel.common import logs
from firesteel.common.config import ConfigurationError, options, parse_definitions, read_values
from firesteel.kubernetes.flink.translation import Translation, template_of, translate

log = logs.get_logger(__name__)

_CONF_DIR = "/opt/flink/conf"  # where Flink's client mounts it by default
_TEMPLATE = "pod-template/taskmanager-pod-template.yaml"  # beside it
_OWN = "configuration"  # Firesteel's, in the working directory


def main(arguments: Sequence[str]) -> None:
    mode, *definitions = arguments or ("",)
    given = Path(os.environ.get("FLINK_CONF_DIR", _CONF_DIR))
    try:
        overrides = parse_definitions([text for text in definitions if text != "-D"])
        translation = translate(read_values(given / "config.yaml") | overrides, mode)
        folder = Path(_OWN).absolute()
        folder.mkdir(mode=0o700, exist_ok=True)  # a container that restarts has it
        command = _prepared(translation, given, folder)
    except ConfigurationError as error:
        sys.exit(f"Error: {error}")
    if translation.ignored:
        log.info("keys of Flink's configuration have no effect", keys=translation.ignored)
    os.execvp(command[0], command)


def _prepared(translation: Translation, given: Path, folder: Path) -> list[str]:
    """Writes Firesteel's configuration; returns the command of the masters."""
    values = dict(translation.values)
    template = given.parent / _TEMPLATE
    if translation.template and template.exists():
        own = folder / "pod-template.yaml"
        own.write_text(yaml.safe_dump(template_of(yaml.safe_load(template.read_text()))))
        values[options.KUBERNETES_TM_TEMPLATE.key] = str(own)
    (folder / "config.yaml").write_text(json.dumps(values, indent=1))  # JSON is YAML
    os.environ["FIRESTEEL_CONF_DIR"] = str(folder)
    host = os.environ.get("_POD_IP_ADDRESS") or os.environ.get("POD_IP", "127.0.0.1")
    command = ["firesteel", "service", "masters", "--host", host, "--dir", "masters"]
    if program := translation.program:
        path = program.path or _program_of(program.module, folder)
        command += ["--application", "--program", path, "--", *program.arguments]
    return command


def _program_of(module: str, folder: Path) -> str:
    """Writes a program that runs the module; returns its path."""
    path = folder / "program.py"
    path.write_text(f"import runpy\nrunpy.run_module({module!r}, run_name='__main__')\n")
    return str(path)


if __name__ == "__main__":
    main(sys.argv[1:])

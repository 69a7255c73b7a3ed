"""`.bench-venv`: apache-flink, whose pinned dependencies conflict with Firesteel's. Created on
demand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from firesteel.common.process.java import java_home

FLINK = "apache-flink==2.3.0"
PYTHONS = ("3.11", "3.12", "3.10")  # versions for which it has packages, best first
# With a million keys on the heap, the parallel collector takes a third less CPU than the default.
JVM_ARGS = "-Xmx4g -XX:+UseParallelGC"
ROOT = Path(__file__).parents[2]
VENV = ROOT / ".bench-venv"


class NotInstalled(Exception):
    """apache-flink is missing and could not be installed; the message has the reason."""


def flink_python(venv: Path = VENV) -> Path:
    return venv / "bin" / "python"


def installed(venv: Path = VENV) -> bool:
    return _ready(venv).exists()


def install(venv: Path = VENV) -> None:
    """Installs apache-flink, unless it is installed. Raises NotInstalled."""
    if installed(venv):
        return
    run([_base_python(), "-m", "venv", "--clear", str(venv)])
    run(
        [
            str(flink_python(venv)),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            FLINK,
        ]
    )
    _ready(venv).touch()


def flink_environ() -> dict[str, str]:
    python = str(flink_python())
    flink = {"PYFLINK_CLIENT_EXECUTABLE": python, "JVM_ARGS": JVM_ARGS}
    return {**os.environ, "JAVA_HOME": java_home(), "PYTHONPATH": str(ROOT), **flink}


def _ready(venv: Path) -> Path:
    return venv / f".{FLINK}"  # written last, so that an interrupted installation is repeated


def _base_python() -> str:
    """Returns this interpreter if it is suitable, else one on the PATH."""
    for candidate in (sys.executable, *(f"python{version}" for version in PYTHONS)):
        found = shutil.which(candidate)
        if found and _version_with_venv(found) in PYTHONS:
            return found
    raise NotInstalled(
        f"it needs Python {' or '.join(PYTHONS)} with its venv module; there is none on the PATH"
    )


def _version_with_venv(python: str) -> str:
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False
    ).stdout.strip()


def run(argv: Sequence[str]) -> None:
    """Runs a command. Raises NotInstalled with the most informative line of its output."""
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()] or [
            f"code {done.returncode}"
        ]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise NotInstalled((errors or lines)[-1])

"""`.bench-venv`: apache-flink with what it pins, apart from our own environment, which could not have both. Made when needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FLINK = "apache-flink==2.3.0"
ROOT = Path(__file__).parents[2]
_VENV = ROOT / ".bench-venv"
_READY = _VENV / f".{FLINK}"


def flink_python() -> Path:
    """The interpreter that has PyFlink. Raises CalledProcessError if it cannot be installed."""
    python = _VENV / "bin" / "python"
    if not _READY.exists():
        print(f"installing {FLINK} in {_VENV} (once, some minutes)", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(_VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", FLINK], check=True)
        _READY.touch()
    return python


def flink_environ() -> dict[str, str]:
    from firesteel.java import java_home

    python = str(flink_python())
    return {**os.environ, "JAVA_HOME": str(java_home()), "PYTHONPATH": str(ROOT), "PYFLINK_CLIENT_EXECUTABLE": python}

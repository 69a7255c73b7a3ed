"""The built wheel, in an environment of its own: what `pip install firesteel` gives a user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("dispatcher", "firesteel", "jobmaster", "resourcemanager", "taskexecutor")
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "proto", *PACKAGES)
# Nothing of the tree may be found by its processes.
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
EXPECTED = "2024-03-01 00:00:00+00:00   flint      97          2"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the tree and nothing stale gets in."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "_proto")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run([*pip, "--wheel-dir", str(out), str(copy)], check=True, timeout=300)
    (built,) = out.glob("firesteel-*.whl")
    return built


def test_the_wheel_has_the_services_the_stubs_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert "firesteel/_proto/dispatcher_pb2_grpc.py" in names
    assert "firesteel/py.typed" in names
    assert "taskexecutor/executor/spark/jvm/java/FiresteelTask.java" in names


def test_an_example_runs_from_an_empty_directory(wheel: Path, tmp_path: Path) -> None:
    environment, empty = tmp_path / "environment", tmp_path / "empty"
    venv.create(environment, with_pip=True)
    pip = (environment / "bin" / "python", "-m", "pip", "install", "--quiet")
    constraint = ("--constraint", ROOT / "requirements.lock")
    subprocess.run([*pip, *constraint, wheel], check=True, timeout=900, env=CLEAN)
    empty.mkdir()
    shutil.copy(ROOT / "examples" / "two_streams.py", tmp_path)
    done = subprocess.run(
        [environment / "bin" / "firesteel", "run", "-t", "local", tmp_path / "two_streams.py"],
        cwd=empty,
        env=CLEAN,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert EXPECTED in done.stdout, done.stdout

"""The image of deploy/Dockerfile, as far as it can be tested without a container engine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "deploy" / "image"
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "proto")
SERVICES = ("firesteel", "dispatcher", "resourcemanager", "jobmaster", "taskexecutor")
COMPILERS = ("as", "c++", "c99", "cc", "clang", "g++", "gcc", "gfortran", "ld", "rustc")


def copied() -> Iterator[str]:
    """Yields the paths of the repository that the Dockerfile copies."""
    for line in re.findall(r"^COPY (?!--from)(.*)", DOCKERFILE, re.M):
        yield from line.split()[:-1]


def locked(path: Path) -> dict[str, str]:
    """Returns the locked versions. Asserts that every line has a hash."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    for line in lines:
        assert path.parent != IMAGE or "--hash=sha256:" in line, line
    names = [line.split()[0].lower().replace("_", "-") for line in lines if "==" in line]
    return dict(name.split("==") for name in names)


def wheel(folder: Path) -> bytes:
    """Builds Firesteel's wheel from a copy of the sources; returns its content."""
    hidden = shutil.ignore_patterns("__pycache__", "_proto")
    for name in (*SOURCES, *SERVICES):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=hidden)
        else:
            shutil.copyfile(source, folder / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--wheel-dir", str(folder / "wheels"), str(folder)],
        env={**os.environ, "SOURCE_DATE_EPOCH": "1704067200"},
        check=True,
    )
    (built,) = (folder / "wheels").iterdir()
    return built.read_bytes()


def test_all_that_the_dockerfile_copies_exists() -> None:
    assert {*SOURCES, *SERVICES, "deploy/image"} <= set(copied())
    assert not [path for path in copied() if not (ROOT / path).exists()]
    for script in (IMAGE / "build.sh", IMAGE / "docker-entrypoint.sh", *(IMAGE / "bin").iterdir()):
        assert os.access(script, os.X_OK), script
        subprocess.run(["sh", "-n", script], check=True)


def test_the_final_stage_installs_no_tools_to_build_with() -> None:
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "pip" not in final and "-dev" not in final and "build-essential" not in final
    assert "\nUSER 10001:10001\n" in final


def test_the_image_has_the_versions_of_the_tests() -> None:
    tested = locked(ROOT / "requirements.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = locked(IMAGE / "requirements.lock")
    assert installed.items() <= tested.items()
    required = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["kafka"],
    ]
    assert {re.split(r"[<>=\[]", each)[0] for each in required} <= installed.keys()
    tools = locked(IMAGE / "build.lock")
    assert {re.split(r"[<>=]", each)[0] for each in project["build-system"]["requires"]} <= set(
        tools
    )


def test_equal_sources_produce_equal_wheels(tmp_path: Path) -> None:
    first, second = (tmp_path / "a", tmp_path / "somewhere-else")
    for folder in (first, second):
        folder.mkdir()
    assert hashlib.sha256(wheel(first)).digest() == hashlib.sha256(wheel(second)).digest()


def test_the_entry_point_becomes_its_command() -> None:
    command = [IMAGE / "docker-entrypoint.sh", "sh", "-c", 'echo "$$ $1"', "sh", "two words"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate()
    assert output == f"{process.pid} two words\n"


def files(root: Path) -> dict[str, str]:
    """Returns the mode, the time and the digest of every file."""

    def facts(path: Path) -> str:
        status = path.lstat()
        if path.is_symlink():
            content = os.readlink(path)
        else:
            content = "" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        return f"{status.st_mode:o} {status.st_mtime:.0f} {content}"

    return {str(path.relative_to(root)): facts(path) for path in sorted(root.rglob("*"))}


class Build:
    """Builds /opt/firesteel of the image, without a compiler, in a folder of the tests."""

    def __init__(self, folder: Path) -> None:
        tools = folder / "bin"
        tools.mkdir()
        for name in ("/bin", "/usr/bin"):  # the later one wins
            for program in Path(name).iterdir():
                if not program.name.startswith(COMPILERS):
                    (tools / program.name).unlink(missing_ok=True)
                    (tools / program.name).symlink_to(program)
        (tools / "python3").unlink(missing_ok=True)
        (tools / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
        pip = {name: os.environ[name] for name in os.environ if name.startswith("PIP_")}
        cache = {"PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip")}
        self.environment = {**cache, **pip, "PATH": str(tools), "HOME": str(folder)}
        self.place = folder / "firesteel"

    def run(self) -> dict[str, str]:
        shutil.rmtree(self.place, ignore_errors=True)
        command = [IMAGE / "build.sh", self.place]
        subprocess.run(command, cwd=ROOT, env=self.environment, check=True)
        return files(self.place)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return Build(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def built(build: Build) -> dict[str, str]:
    return build.run()


@pytest.mark.long
def test_the_image_is_built_without_a_compiler(build: Build, built: dict[str, str]) -> None:
    assert not (build.place / "bin" / "pip").exists()
    program = [build.place / "bin" / "firesteel", "service", "taskexecutor", "--help"]
    help_ = subprocess.check_output(program, env=build.environment, text=True)
    assert "TaskExecutor" in help_


@pytest.mark.long
def test_the_image_is_built_twice_alike(build: Build, built: dict[str, str]) -> None:
    assert build.run() == built

"""The built wheel, in a separate environment: what `pip install firesteel` gives a user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGES = ("dispatcher", "firesteel", "jobmaster", "resourcemanager", "taskexecutor")
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "proto", *PACKAGES)
# Nothing of the tree may be found by its processes; their JVMs are as a user's.
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "JDK_JAVA_OPTIONS")
}
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
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"firesteel"}
    services = {name.split("/")[2] for name in names if name.startswith("firesteel/_services/")}
    assert services == set(PACKAGES) - {"firesteel"}
    assert "firesteel/_proto/dispatcher_pb2_grpc.py" in names
    assert "firesteel/py.typed" in names
    java = "firesteel/_services/taskexecutor/executor/columnar/jvm/java"
    assert f"{java}/org/apache/spark/unsafe/FiresteelLocalTask.java" in names
    dashboard = ROOT / "dispatcher" / "rest" / "dashboard"
    assert {
        f"firesteel/_services/{path.relative_to(ROOT).as_posix()}"
        for path in dashboard.rglob("*")
        if path.is_file()
    } <= set(names)


def required(distribution: Distribution) -> dict[str, Distribution]:
    """Returns the distribution's direct and indirect requirements, as they are installed here."""
    found: dict[str, Distribution] = {}
    extras: dict[str, set[str]] = {}
    pending = [(distribution, "")]
    while pending:
        of, extra = pending.pop()
        for text in of.requires or ():
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            new = name not in found
            installed = found.setdefault(name, metadata.distribution(name))
            assert requirement.specifier.contains(installed.version, prereleases=True), text
            wanted = (requirement.extras | ({""} if new else set())) - extras.get(name, set())
            extras.setdefault(name, set()).update(wanted)
            pending += [(installed, each) for each in wanted]
    return found


def link(distribution: Distribution, packages: Path) -> None:
    """Installs it by links to its files."""
    for file in distribution.files or ():
        if ".." not in file.parts:  # not a script
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.locate())


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of the wheel and its requirements, and nothing else."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install")
    arguments = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", wheel)
    subprocess.run([*pip, *arguments], check=True, timeout=300, env=CLEAN)
    (packages,) = environment.glob("lib/python*/site-packages")
    (installed,) = metadata.distributions(name="firesteel", path=[str(packages)])
    for distribution in required(installed).values():
        link(distribution, packages)
    return environment


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config.yaml: clusters have fewer slots."""
    folder = tmp_path_factory.mktemp("configuration")
    (folder / "config.yaml").write_text("taskmanager.numberOfTaskSlots: 1\n")
    return folder


def run(
    *command: object, cwd: Path, configuration: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=CLEAN | ({"FIRESTEEL_CONF_DIR": str(configuration)} if configuration else {}),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.long  # as the first program
def test_an_example_runs_from_an_empty_directory(
    environment: Path, configuration: Path, tmp_path: Path
) -> None:
    """With functions of modules beside it, which have the names of our packages."""
    empty, folder = tmp_path / "empty", tmp_path / "folder"
    empty.mkdir()
    folder.mkdir()
    for name in set(PACKAGES) - {"firesteel"}:
        (folder / f"{name}.py").write_text("def same(batch):\n    return batch\n")
    example = (ROOT / "examples" / "two_streams.py").read_text()
    for old, new in (
        ("import argparse\n", "import argparse, dispatcher, taskexecutor\n"),
        (" in batches:", " in map(dispatcher.same, map(taskexecutor.same, batches)):"),
    ):
        assert old in example
        example = example.replace(old, new)
    (folder / "two_streams.py").write_text(example)
    command = (environment / "bin" / "firesteel", "run", "-t", "local", "--task-executors", "1")
    done = run(*command, folder / "two_streams.py", cwd=empty, configuration=configuration)
    assert done.returncode == 0, done.stdout + done.stderr
    assert EXPECTED in done.stdout, done.stdout


def test_the_services_are_found_by_name_only_in_their_processes(
    environment: Path, tmp_path: Path
) -> None:
    python, firesteel = environment / "bin" / "python", environment / "bin" / "firesteel"
    (tmp_path / "dispatcher.py").write_text("raise SystemExit('imported from the folder')")
    for name in set(PACKAGES) - {"firesteel"}:
        alone = f"import importlib.util as u; raise SystemExit(u.find_spec({name!r}) is not None)"
        assert run(python, "-P", "-c", alone, cwd=tmp_path).returncode == 0
    for name in ("dispatcher", "resourcemanager", "taskexecutor"):
        helped = run(firesteel, "service", name, "--help", cwd=tmp_path)
        assert helped.returncode == 0 and f"-m {name} [OPTIONS]" in helped.stdout, helped
    harness = "from firesteel.testing import OperatorHarness; print(OperatorHarness.__module__)"
    assert "taskexecutor" in run(python, "-P", "-c", harness, cwd=tmp_path).stdout


def test_the_first_program_runs_in_an_empty_directory(
    environment: Path, configuration: Path, tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"^```python\n(.*?)^```.*?prints\n\n```\n(.*?)```", readme, re.M | re.S)
    assert found is not None
    program, printed = found.groups()
    (tmp_path / "first.py").write_text(program)
    python = environment / "bin" / "python"
    done = run(python, "first.py", cwd=tmp_path, configuration=configuration)
    assert done.returncode == 0, done.stdout + done.stderr
    assert printed in done.stdout, done.stdout
    shown = run(environment / "bin" / "firesteel", "info", "first.py", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["first.py"], "nothing is left"

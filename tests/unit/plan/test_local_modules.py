"""Which modules travel with a program."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firesteel.client.files import prepared, program_modules
from firesteel.common.installation import SERVICES
from firesteel.common.job_graph import BlobKind
from firesteel.errors import InvalidProgram
from firesteel.plan.local_modules import local_module, local_modules

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """On sys.path, as that of a program, which has loaded none of our services."""
    monkeypatch.syspath_prepend(tmp_path)
    for service in SERVICES:
        monkeypatch.delitem(sys.modules, service, raising=False)
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def members(*names: str) -> list[str]:
    return sorted(name for module in local_modules(names) for name, _ in module.files())


def test_modules_travel_with_what_they_import_anywhere(folder: Path) -> None:
    write(
        folder,
        {
            "helpers.py": "import numpy, json\ndef late():\n    from shop.prices import tax\n",
            "shop/__init__.py": "",
            "shop/prices.py": "from . import rates\nimport plain_folder.inner as inner\n",
            "shop/rates/__init__.py": "",
            "shop/rates/germany.csv": "19",
            "shop/__pycache__/prices.pyc": "",
            "shop/.hidden/secret.py": "",
            "shop/env/pyvenv.cfg": "",
            "shop/env/lib.py": "import unrelated",
            "plain_folder/inner.py": "import not_valid",
            "not_valid.py": "this is not Python",
            "unrelated.py": "",
        },
    )
    assert members("helpers") == [
        "helpers.py",
        "not_valid.py",
        "plain_folder/inner.py",
        "shop/__init__.py",
        "shop/prices.py",
        "shop/rates/__init__.py",
        "shop/rates/germany.csv",
    ]


def test_threads_look_at_modules_at_the_same_time(
    folder: Path,
) -> None:
    """Queries that a program starts in parallel. Garbage collections switch between threads."""
    names = [f"parallel_{number}" for number in range(64)]
    for name in names:
        nested = "a" + ".b(0)" * 40
        (folder / f"{name}.py").write_text(f"import helpers\nvalue = lambda a: {nested}\n" * 20)
    thresholds = gc.get_threshold()

    def switch(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    gc.callbacks.append(switch)
    gc.set_threshold(10)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda name: local_modules([name]), names))
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(switch)
    for name, modules in zip(names, found, strict=True):
        assert name in {each.name for each in modules}


def test_installed_modules_stay(folder: Path) -> None:
    names = ["numpy", "pyspark", "json", "sys", "firesteel", "taskexecutor", "tests", "nonsuch"]
    assert local_modules([*names, "__main__"]) == []


def test_a_module_hides_one_of_ours_with_its_name(folder: Path) -> None:
    write(folder, {"dispatcher.py": "", "jobmaster/__init__.py": ""})
    assert members("dispatcher", "jobmaster") == ["dispatcher.py", "jobmaster/__init__.py"]


def test_a_zip_file_travels_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = folder / "library.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("packed/__init__.py", "")
    monkeypatch.syspath_prepend(archive)
    module = local_module("packed")
    assert module is not None and module.places == (archive,)
    (file,) = program_modules([module], 2**20).files
    assert (file.path, file.kind) == (archive, BlobKind.FILE)


def test_the_same_modules_are_the_same_file(folder: Path) -> None:
    write(folder, {"helpers.py": "STEP = 1\n", "shop/__init__.py": ""})
    prints = []
    for scratch in (folder / "one", folder / "two"):
        scratch.mkdir()
        (file,) = program_modules(local_modules(["helpers", "shop"]), 2**20).files
        path, blob = prepared(file, scratch)
        prints.append(blob)
        assert zipfile.ZipFile(path).namelist() == ["helpers.py", "shop/__init__.py"]
    assert prints[0] == prints[1]
    assert prints[0].kind is BlobKind.MODULES


def test_data_stays_behind_if_all_is_too_large(folder: Path) -> None:
    write(folder, {"shop/__init__.py": "", "shop/model.bin": "x" * 5000, "shop/small.csv": "1"})
    modules = local_modules(["shop"])
    assert program_modules(modules, 5001).left_behind == ""
    (file,), left_behind = program_modules(modules, 1000)
    assert list(file.members) == ["shop/__init__.py"]
    assert left_behind.startswith(
        f"2 files of 5,001 bytes, such as {folder}/shop/model.bin, are not"
    )
    assert "python.modules.max-size" in left_behind


def test_modules_that_are_too_large_are_refused_or_stay(folder: Path) -> None:
    write(folder, {"helpers.py": "#" * 2000})
    modules = local_modules(["helpers"])
    with pytest.raises(InvalidProgram, match=rf"2,000 bytes, over .* 1,000 .*{folder}/helpers.py"):
        program_modules(modules, 1000)
    assert program_modules(modules, 0).files == ()


def test_a_module_that_imports_a_name_of_the_slots_is_refused(folder: Path) -> None:
    write(folder, {"helpers.py": "import taskexecutor", "taskexecutor.py": ""})
    with pytest.raises(InvalidProgram, match=rf"{folder}/helpers.py imports .*'taskexecutor'"):
        local_modules(["helpers"])


PROGRAM = """
import pickle, sys
import taskexecutor, os.path
import shop.deep.inner
from helpers import Adds
from firesteel import Environment

def late(batches):
    import other
    return [shop.deep.inner.same(batch) for batch in batches]

def relative(batches):
    {late}
    return batches

env = Environment()
numbers = env.from_sequence(0, 10)
numbers.map_in_arrow(late).map_in_arrow(taskexecutor.twice).map_in_arrow(relative).print()
numbers.map_in_arrow(Adds()).print()

def seen(graph):
    for vertex in graph.vertices:
        for operator in vertex.operators:
            print(operator.spec.hex())

from firesteel.client import execution_context
from firesteel.client.execution_context import ExecutionContext, StopProgram

def with_modules(self, modules):
    print(sorted(name for file in modules.files for name in file.members), file=sys.stderr)
    return self

ExecutionContext.with_modules = with_modules
with execution_context.active(ExecutionContext(mode="plan-only", on_job_graph=seen)):
    try:
        env.execute()
    except StopProgram:
        pass
"""
RECEIVER = """
import pickle, sys
import taskexecutor
assert not hasattr(taskexecutor, "twice")
for line in sys.stdin:
    spec = pickle.loads(bytes.fromhex(line))
    if type(spec).__name__ == "MapInArrowSpec":
        print(list(spec.function([1])))
"""


def run(*arguments: str, path: str, text: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], input=text, env=env, capture_output=True, text=True
    )


def test_functions_find_the_modules_that_travel(tmp_path: Path) -> None:
    """Also those of which no file travels, since slots have a module with their name."""
    write(
        tmp_path / "program",
        {
            "job.py": PROGRAM.format(late=""),
            "taskexecutor.py": "def twice(batches):\n    return helper(batches)\n"
            "def helper(batches):\n    return [2 * batch for batch in batches]\n",
            "helpers.py": "class Adds:\n    def __call__(self, batches):\n        return [7]\n",
            "shop/__init__.py": "",
            "shop/deep/__init__.py": "",
            "shop/deep/inner.py": "def same(batch):\n    return batch\n",
            "other.py": "",
        },
    )
    sent = run(str(tmp_path / "program" / "job.py"), path=str(ROOT))
    assert sent.returncode == 0, sent.stderr
    travels = "['helpers.py', 'other.py', 'shop/__init__.py', 'shop/deep/__init__.py', 'shop/deep/inner.py']"
    assert sent.stderr.strip() == travels
    (tmp_path / "program" / "taskexecutor.py").unlink()
    path = os.pathsep.join([str(tmp_path / "program"), str(ROOT)])
    received = run("-P", "-c", RECEIVER, path=path, text=sent.stdout)
    assert received.stdout.splitlines() == ["[1]", "[2]", "[1]", "[7]"], received.stderr


def test_a_function_that_imports_a_name_of_the_slots_late_is_refused(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "job.py": PROGRAM.format(late="import taskexecutor"),
            "taskexecutor.py": "def twice(batches):\n    return batches\n",
            "helpers.py": "class Adds:\n    def __call__(self, batches):\n        return [7]\n",
            "shop/deep/inner.py": "",
        },
    )
    refused = run(str(tmp_path / "job.py"), path=str(ROOT))
    assert "imports the program's module 'taskexecutor', but in slots" in refused.stderr
    assert "job.py, line" in refused.stderr


def test_the_harness_says_which_module_hides_it(tmp_path: Path) -> None:
    write(tmp_path, {"taskexecutor.py": "", "test_job.py": "import firesteel.testing"})
    hidden = run(str(tmp_path / "test_job.py"), path=str(ROOT))
    assert f"finds {tmp_path}/taskexecutor.py: rename that module" in hidden.stderr

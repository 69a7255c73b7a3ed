"""User files and archives: shipped by content hash, importable in the job, gone with it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from .conftest import Session, files_below, firesteel

JOB = """
from firesteel import Environment

def apply(batches):
    import pyarrow as pa
    import pyarrow.compute as pc
    import helper
    import packed.inner
    from pathlib import Path
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"value": pc.add(batch["value"], helper.STEP + packed.inner.STEP)})

env = Environment()
stream = env.from_sequence(0, 3).map_in_arrow(apply)
print("rows", sorted(stream.execute_and_collect("with files")["value"].to_pylist()))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def run(session: Session, project: Path, step: int) -> str:
    library = project / "lib"
    library.mkdir(exist_ok=True)
    (library / "helper.py").write_text(f"STEP = {step}\n")
    with zipfile.ZipFile(project / "packed.zip", "w") as archive:
        archive.writestr("packed/__init__.py", "")
        archive.writestr("packed/inner.py", "STEP = 100\n")
    files = f"{library / 'helper.py'},{project / 'packed.zip'}"
    done = firesteel("run", "-m", session.address, "--py-files", files, str(project / "job.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_files_are_importable_and_a_new_version_replaces_the_old(
    session: Session, project: Path
) -> None:
    assert "rows [110, 111, 112]" in run(session, project, 10)
    assert "rows [120, 121, 122]" in run(session, project, 20)


def test_a_module_that_was_not_shipped_fails_with_its_name(session: Session, project: Path) -> None:
    done = firesteel("run", "-m", session.address, str(project / "job.py"))
    assert done.returncode == 1
    assert "No module named 'helper'" in done.stdout + done.stderr


WITH_MODULES = """
import dispatcher, taskexecutor
import shop.prices
from firesteel import Environment

def late(batches):
    import pyarrow as pa
    from lazy_helper import plus_one
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"value": [plus_one(value) for value in batch["value"].to_pylist()]})

def frames(frames):
    for frame in frames:
        frame["value"] = [shop.prices.with_tax(value) for value in frame["value"]]
        yield frame

stream = Environment().from_sequence(0, 3)
stream = stream.map_in_arrow(dispatcher.doubled).map_in_arrow(taskexecutor.tripled).map_in_arrow(late)
stream = stream.map_in_pandas(frames, "value long")
print("rows", sorted(stream.execute_and_collect("with modules")["value"].to_pylist()))
"""
OF_BATCHES = """
import pyarrow as pa
import pyarrow.compute as pc

def {name}(batches):
    for batch in batches:
        yield pa.RecordBatch.from_pydict({{"value": times(batch["value"], {factor})}})

def times(values, factor):
    return pc.multiply(values, factor)
"""


def test_modules_beside_the_program_travel_with_it(session: Session, tmp_path: Path) -> None:
    """Also those with the names of our packages, those that functions import when they run, and the
    data in packages."""
    for name, text in {
        "job.py": WITH_MODULES,
        "dispatcher.py": OF_BATCHES.format(name="doubled", factor=2),
        "taskexecutor.py": OF_BATCHES.format(name="tripled", factor=3),
        "lazy_helper.py": "from constants import ONE\n\ndef plus_one(value):\n    return value + ONE\n",
        "constants.py": "ONE = 1\n",
        "shop/__init__.py": "",
        "shop/prices.py": "from pathlib import Path\n\ndef with_tax(value):\n"
        "    return value + int((Path(__file__).parent / 'tax.txt').read_text())\n",
        "shop/tax.txt": "1000",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = firesteel("run", "-m", session.address, str(tmp_path / "job.py"))
    assert "rows [1001, 1007, 1013]" in done.stdout, done.stdout + done.stderr


def test_archives_are_unpacked_and_cannot_escape(session: Session, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("words.txt", "spark")
    (tmp_path / "job.py").write_text(
        """
from firesteel import Environment

def apply(batches):
    import os
    import pyarrow as pa
    for batch in batches:
        with open(os.path.join(os.environ.get("FIRESTEEL_JOB_DIR", "."), "data", "words.txt")) as words:
            yield pa.RecordBatch.from_pydict({"word": [words.read()] * batch.num_rows})

env = Environment()
print("rows", env.from_sequence(0, 2).map_in_arrow(apply, "word string").execute_and_collect()["word"].to_pylist())
"""
    )
    done = firesteel(
        "run",
        "-m",
        session.address,
        "--py-archives",
        f"{tmp_path / 'data.zip'}#data",
        str(tmp_path / "job.py"),
    )
    assert "rows ['spark', 'spark']" in done.stdout, done.stdout + done.stderr

    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("../../escaped.txt", "no")
    done = firesteel(
        "run",
        "-m",
        session.address,
        "--py-archives",
        f"{tmp_path / 'data.zip'}#data",
        str(tmp_path / "job.py"),
    )
    assert done.returncode == 1
    assert "escaped.txt" in done.stdout + done.stderr
    assert "escaped.txt" not in {path.name for path in files_below(session.cluster.directory)}


def test_a_file_that_does_not_exist(session: Session, project: Path) -> None:
    done = firesteel(
        "run", "-m", session.address, "--py-files", "nowhere.py", str(project / "job.py")
    )
    assert done.returncode != 0
    assert "nowhere.py" in done.stderr

"""`firesteel package`: one file with a program and its files."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from firesteel.client.cli import main
from firesteel.client.package import BadPackage, entries, opened_program, unpacked

PROGRAM = """
from pathlib import Path
from firesteel import Environment
from prices.tax import rate

start = int((Path(__file__).parent / "data" / "start.txt").read_text())
env = Environment()
env.from_sequence(start, start + rate()).print()
env.execute("packaged " + str(start))
"""


@pytest.fixture(autouse=True)
def forgotten_modules() -> None:
    sys.modules.pop("prices", None)
    sys.modules.pop("prices.tax", None)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "prices").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "job.py").write_text(PROGRAM)
    (folder / "prices" / "__init__.py").write_text("")
    (folder / "prices" / "tax.py").write_text("def rate():\n    return 19\n")
    (folder / "prices" / "rates.csv").write_text("a,19\n")
    (folder / "data" / "start.txt").write_text("7")
    (folder / "unrelated.py").write_text("")
    return folder


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def packaged(project: Path, *options: object) -> Path:
    target = project.parent / "job.zip"
    result = invoke("package", project / "job.py", "-o", target, *options)
    assert result.exit_code == 0, result.output
    return target


def zipped(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__slash__", "/").replace("__py", ".py"), text)
    return path


def test_a_package_runs_elsewhere_with_its_modules_and_data(project: Path) -> None:
    package = packaged(project, "--files", project / "data")
    project.rename(project.with_name("moved"))
    result = invoke("info", package)
    assert result.exit_code == 0, result.output
    assert "packaged 7" in result.output


def test_it_contains_what_the_program_imports_and_what_is_named(project: Path) -> None:
    (project / "requirements.txt").write_text("colorama\n")
    (project / "extra.py").write_text("")
    package = packaged(
        project,
        "--files=" + str(project / "data" / "start.txt"),
        "--py-files=" + str(project / "extra.py"),
        "--py-archives=" + f"{zipped(project / 'model.zip', weights='1')}#model",
        "--py-requirements=" + str(project / "requirements.txt"),
    )
    with zipfile.ZipFile(package) as archive:
        names = set(archive.namelist())
        manifest = json.loads(archive.read("firesteel.json"))
    assert names == {
        "firesteel.json",
        "job.py",
        "prices/__init__.py",
        "prices/tax.py",
        "prices/rates.csv",
        "data/start.txt",
        ".firesteel/extra.py",
        ".firesteel/model.zip",
        ".firesteel/requirements.txt",
    }
    assert manifest == {
        "program": "job.py",
        "files": [".firesteel/extra.py"],
        "archives": [".firesteel/model.zip#model"],
        "requirements": ".firesteel/requirements.txt",
    }
    with unpacked(package) as program:
        root = program.main.parent
        assert program.main.name == "job.py"
        assert program.files == (str(root / ".firesteel/extra.py"),)
        assert program.archives == (str(root / ".firesteel/model.zip#model"),)
        assert program.requirements == str(root / ".firesteel/requirements.txt")
    assert not root.exists()
    assert str(root) not in sys.path


def test_equal_content_makes_equal_packages(project: Path) -> None:
    assert packaged(project).read_bytes() == packaged(project).read_bytes()


def test_data_outside_of_the_programs_folder_is_refused(project: Path) -> None:
    other = project.parent / "other.csv"
    other.write_text("")
    result = invoke("package", project / "job.py", "--files", other)
    assert result.exit_code == 1
    assert "is not below" in result.output


def test_a_zip_file_made_by_hand_is_run_by_its_main_or_only_module(tmp_path: Path) -> None:
    assert entries(zipped(tmp_path / "a.zip", __main____py="", other__py=""))[0] == "__main__.py"
    assert entries(zipped(tmp_path / "b.zip", job__py="", lib__slash__x__py=""))[0] == "job.py"
    several = zipped(tmp_path / "c.zip", one__py="", two__py="", lib__slash__three__py="")
    with pytest.raises(BadPackage, match="name the one to run"), unpacked(several):
        pass
    for entry, main_file in (("two", "two.py"), ("lib.three", "three.py"), ("one.py", "one.py")):
        with unpacked(several, entry) as program:
            assert program.main.name == main_file
    with pytest.raises(BadPackage, match="no module 'four'"), unpacked(several, "four"):
        pass


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil.py", "a/../../evil.py", "..\\evil.py"])
def test_members_outside_of_the_package_are_refused(tmp_path: Path, name: str) -> None:
    package = tmp_path / "evil.zip"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("__main__.py", "")
        archive.writestr(name, "")
    with pytest.raises(BadPackage, match="outside"), unpacked(package):
        pass


def test_a_package_that_is_large_unpacked_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("firesteel.client.package.MAX_UNPACKED_BYTES", 1_000)
    package = zipped(tmp_path / "bomb.zip", __main____py="#" * 10_000)
    with pytest.raises(BadPackage, match="10,000 bytes unpacked"), unpacked(package):
        pass


def test_a_java_program_and_a_damaged_file_are_refused_in_words(tmp_path: Path) -> None:
    jar = tmp_path / "WordCount.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Main-Class: WordCount")
        archive.writestr("WordCount.class", b"\xca\xfe\xba\xbe")
    with pytest.raises(BadPackage, match="is a Java program: .* `firesteel package"):
        entries(jar)
    named = zipped(tmp_path / "x.zip", **{"firesteel.json": '{"program": "no.py"}', "a__py": ""})
    with pytest.raises(BadPackage, match="does not contain"):
        entries(named)


def test_a_python_file_is_its_own_program(project: Path) -> None:
    with opened_program(project / "job.py") as program:
        assert program.main == project / "job.py"

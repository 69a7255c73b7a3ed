from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.common.process import java


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "_INSTALLED", tmp_path / "jvm")


def installed(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_comes_first_then_path_then_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = installed(tmp_path / "jvm" / "a-25", "25.0.1")
    older = installed(tmp_path / "jvm" / "z-17", "17.0.9")
    assert java.java_home() == str(older)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(newer / "bin" / "java")
    assert java.java_home() == str(newer)
    monkeypatch.setenv("JAVA_HOME", str(older))
    assert java.java_home() == str(older)


def test_one_that_is_too_old_is_passed_over_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(installed(tmp_path / "old", "1.8.0_402")))
    with pytest.raises(
        java.JavaNotFound,
        match=r"needs Java 17 or later .*/old \(Java 8\).*apt-get install openjdk-17",
    ):
        java.java_home()
    new = installed(tmp_path / "jvm" / "21", "21")
    assert java.java_home() == str(new)


def test_without_java_the_error_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert java.main() == 1
    assert "install" in capsys.readouterr().err

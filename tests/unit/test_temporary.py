"""Temporary folders outlive neither their process nor, if it was killed, the next one's start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from firesteel.common.process import temporary


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def made_by_another_process(tmp_path: Path, then: str) -> tuple[subprocess.Popen[str], Path]:
    code = f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
    code += f"from firesteel.common.process import temporary\np = temporary.make('x')\n{then}"
    code += "\nprint(p, flush=True)\nimport time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        return process, Path(process.stdout.readline().strip())


def test_a_folder_is_swept_when_its_owner_was_killed_and_not_before(tmp_path: Path) -> None:
    process, path = made_by_another_process(
        tmp_path, "(p / 'sub').mkdir(); (p / 'sub' / 'file').touch()"
    )
    mine = temporary.make()
    try:
        assert temporary.sweep() == []
        assert path.exists()
    finally:
        process.kill()
        process.wait()
    assert temporary.sweep() == [path]
    assert not path.exists()
    assert mine.exists()
    temporary.remove(mine)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_provably_abandoned_stays(tmp_path: Path) -> None:
    (tmp_path / "firesteel-of-somebody").mkdir()  # no owner file: who knows
    (tmp_path / "other").mkdir()
    abandoned = tmp_path / "elsewhere"
    abandoned.mkdir()
    (abandoned / "owner").touch()
    (tmp_path / "firesteel-link").symlink_to(abandoned)
    assert temporary.sweep() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "elsewhere",
        "firesteel-link",
        "firesteel-of-somebody",
        "other",
    ]


def test_a_kept_folder_stays_for_a_week() -> None:
    path = temporary.make()
    temporary.keep(path)
    assert temporary.sweep() == []
    os.utime(path / "kept", (0, 0))
    assert temporary.sweep() == [path]

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.common.process.lock_file import LockFile

HOLD = """
import sys, time
from pathlib import Path
from firesteel.common.process.lock_file import LockFile
LockFile(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    lock, other = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    assert not lock.is_held()
    lock.acquire()
    assert other.is_held()
    with pytest.raises(BlockingIOError):
        other.acquire()
    lock.release()
    other.acquire()
    other.release()


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert LockFile(path).is_held()
        holder.kill()
    assert not LockFile(path).is_held()


def test_a_missing_file_is_only_made_if_wanted(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    with pytest.raises(FileNotFoundError):
        lock.acquire(create=False)
    assert not (tmp_path / "lock").exists()


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        LockFile(tmp_path / "lock").acquire()


def test_the_holder_writes_into_the_file(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    lock.acquire()
    lock.write_text("a long line\n")
    lock.write_text("7\n")
    assert lock.path.read_text() == "7\n"
    lock.release()

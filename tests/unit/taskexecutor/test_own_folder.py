"""A TaskExecutor has its folder for itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from firesteel.common.process.lock_file import LockFile


def test_a_second_task_executor_in_a_folder_ends_with_the_reason(tmp_path: Path) -> None:
    first = LockFile(tmp_path / "lock")
    first.acquire()
    command = [sys.executable, "-m", "taskexecutor", "--resource-manager", "127.0.0.1:1"]
    second = subprocess.run(
        [*command, "--dir", str(tmp_path), "-D", "metrics.reporter.prom.port=0"],
        capture_output=True,
        text=True,
        check=False,
    )
    first.release()
    assert second.returncode == 1
    assert f"another TaskExecutor runs in {tmp_path}: give each its own --dir" in second.stderr
    assert "Traceback" not in second.stderr

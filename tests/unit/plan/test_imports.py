from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "modules",
    [
        "firesteel.environment",
        "taskexecutor.executor.slot_process, taskexecutor.executor.columnar.warm_up",
    ],
)
def test_programs_and_slots_import_the_sql_parser_only_to_aggregate(modules: str) -> None:
    code = f"import sys, {modules}; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

from __future__ import annotations

import subprocess
import sys


def test_a_program_that_aggregates_nothing_does_not_import_the_sql_parser() -> None:
    """Slots also import the API, with the modules of a program."""
    code = "import sys; from firesteel import Environment; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

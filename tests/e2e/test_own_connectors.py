"""Connectors of a program's own: in the job's file, and in a module that is shipped with it."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from .conftest import ROOT, Session, firesteel

EXAMPLE = "examples/own_connector.py"
JOB = """
import sys
from pathlib import Path
from firesteel import Environment
from own_connector import GzipSink, SqliteSource, create_table

folder = Path(sys.argv[1])
create_table(folder / "stock.db")
env = Environment(parallelism=2)
source = SqliteSource(str(folder / "stock.db"), "stock", "article STRING, quantity LONG")
stock = env.from_source(source)
stock.filter("quantity % 2 = 1").sink_to(GzipSink(str(folder / "odd")))
env.execute("shipped connectors")
"""


def quantities(folder: Path) -> list[int]:
    files = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return sorted(json.loads(line)["quantity"] for path in files for line in gzip.open(path))


@pytest.mark.parametrize("shipped", [False, True], ids=["in the job's file", "in a module"])
def test_a_source_and_a_sink_of_the_programs_own(
    session: Session, tmp_path: Path, shipped: bool
) -> None:
    arguments = [EXAMPLE, "--data", str(tmp_path)]
    if shipped:
        (tmp_path / "job.py").write_text(JOB)
        module = shutil.copy(ROOT / EXAMPLE, tmp_path)
        arguments = ["--py-files", str(module), str(tmp_path / "job.py"), str(tmp_path)]
    run = firesteel("run", "-m", session.address, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    assert quantities(tmp_path / "odd") == list(range(1, 10_000, 2))
    assert not list((tmp_path / "odd").glob(".*")), "nothing is left uncommitted"

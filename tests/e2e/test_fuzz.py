"""Random programs on random tables have the results of Spark; `make fuzz` runs many more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import ROOT, WARM_S, Session

SEEDS = 4


@pytest.mark.long  # CI draws programs at night
def test_random_programs_have_sparks_results(session: Session) -> None:
    arguments = ["--seed", "0", "--count", str(SEEDS), "--address", session.address]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WARM_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    equal = ran.stdout.splitlines()[-1].split(" equal")[0]
    assert int(equal) >= SEEDS * 3 // 4, ran.stdout

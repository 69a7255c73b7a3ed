"""Makes each mutant in a copy of the tree, and runs the tests that convict it.

python -m tests.mutants.run              all of them
python -m tests.mutants.run barrier      those with the word in their name
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.mutants.defects import MUTANTS, SIMULATION, Mutant

ROOT = Path(__file__).parents[2]
SEEDS = 40  # as the suite has
LIMIT_S = 150  # for tests that take seconds, unless one waits for what the mistake prevents
ENDLESS = -1


@click.command()
@click.argument("word", default="")
def main(word: str) -> None:
    """Prints what convicts each mutant, and after how long; fails if one is acquitted."""
    chosen = [mutant for mutant in MUTANTS if word in mutant.name]
    if not chosen:
        raise SystemExit(f"no mutant has {word!r} in its name")
    acquitted = []
    with tempfile.TemporaryDirectory(prefix="firesteel-mutants-") as folder:
        tree = Path(folder) / "tree"
        _copy_tree(tree)
        for number, mutant in enumerate(chosen, 1):
            click.echo(f"[{number}/{len(chosen)}] {mutant.name}")
            began = time.perf_counter()
            verdict = _convicted(tree, mutant)
            click.echo(f"    {verdict or 'ACQUITTED'} ({time.perf_counter() - began:.0f} s)")
            if not verdict:
                acquitted.append(mutant.name)
    if acquitted:
        raise SystemExit("acquitted: " + "; ".join(acquitted))


def _copy_tree(tree: Path) -> None:
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "out", "dist")
    shutil.copytree(ROOT, tree, ignore=ignored)


def _convicted(tree: Path, mutant: Mutant) -> str:
    """Returns the test that finds the mutant, or an empty text. Raises if the tests cannot run."""
    path = tree / mutant.file
    original = path.read_text()
    if original.count(mutant.was) != 1:
        raise SystemExit(f"{mutant.file} has not exactly once:\n{mutant.was}")
    path.write_text(original.replace(mutant.was, mutant.becomes))
    try:
        return _simulated(tree) if mutant.convicted_by == SIMULATION else _tested(tree, mutant)
    finally:
        path.write_text(original)


def _tested(tree: Path, mutant: Mutant) -> str:
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-m", ""]
    done = _run(tree, "-m", "pytest", *options, mutant.convicted_by)
    if done.returncode not in (0, 1, ENDLESS):  # not a failed test: they could not be run
        raise SystemExit(done.stdout[-3000:] + done.stderr[-1000:])
    failed = re.search(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if done.returncode and failed else ""


def _simulated(tree: Path) -> str:
    # One after another, until the first that fails.
    for seed in range(SEEDS):
        done = _run(tree, "-m", "tests.simulation.run", "--seed", str(seed))
        if done.returncode:
            why = re.search(rf"^seed {seed} failed: (.*)", done.stdout, re.MULTILINE)
            if why is None:
                raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
            return f"seed {seed} of the simulation: {why[1][:150]}"
    return ""


def _run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests with a time limit: a mutant may also block forever."""
    command = [sys.executable, *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONHASHSEED": "0",
        "HYPOTHESIS_PROFILE": "all",
    }
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, complaints = process.communicate(timeout=LIMIT_S)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the servers that its tests have started
            printed, complaints = process.communicate()
            code = ENDLESS
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, code, printed, complaints)


if __name__ == "__main__":
    main()

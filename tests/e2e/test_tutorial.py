"""The steps of docs/tutorial.md work and print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.waiting import PATIENCE_S

from .conftest import ROOT, WARM_S

PAGE = ROOT / "docs" / "tutorial.md"
REPEATED = ("cat ", "firesteel list")  # their output changes while a job runs


class File(NamedTuple):
    name: str
    text: str


class Command(NamedTuple):
    line: str
    output: tuple[str, ...]


def steps(page: Path) -> Iterator[File | Command]:
    """Yields the files and commands of a page, in its order."""
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S):
        if language in ("python", "yaml"):
            name, _, program = text.partition("\n")
            yield File(name.removeprefix("# "), program)
        elif language == "console":
            for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
                line, *output = part.splitlines()
                yield Command(line, tuple(output))


def comparable(line: str) -> str:
    """Returns the line without numbers, ids and the width of spaces; results keep their numbers."""
    if not re.match(r"\s*(north|south|{)", line):
        line = re.sub(r"[0-9a-f]{32}|\d+(\.\d+)*", "N", line)
    return " ".join(line.split())


def missing(expected: tuple[str, ...], printed: str) -> list[str]:
    """Returns the expected lines that were not printed. `...` stands for any text."""
    lines = [comparable(line) for line in printed.splitlines()]
    patterns = {
        line: re.escape(comparable(line)).replace(re.escape("..."), ".*") for line in expected
    }
    return [
        line
        for line, pattern in patterns.items()
        if not any(re.fullmatch(pattern, printed_line) for printed_line in lines)
    ]


def test_every_step_of_the_tutorial_works(tmp_path: Path) -> None:
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "FIRESTEEL_DIR": str(tmp_path / "cluster"),
    }

    def run(line: str) -> str:
        if line.startswith("firesteel cluster start"):
            line += " -D jobmanager.rpc.port=0"  # other clusters of this machine have the default
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=WARM_S,
            check=False,
        )
        assert done.returncode == 0 or line.startswith(REPEATED), (line, done.stdout, done.stderr)
        return done.stdout + done.stderr

    try:
        for step in steps(PAGE):
            if isinstance(step, File):
                (tmp_path / step.name).write_text(step.text)
                continue
            printed = run(step.line)
            deadline = time.monotonic() + PATIENCE_S
            while missing(step.output, printed) and step.line.startswith(REPEATED):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
                printed = run(step.line)
            assert missing(step.output, printed) == [], (step.line, printed)
        rows = [
            line
            for path in (tmp_path / "revenue").glob("*.json")
            for line in path.read_text().splitlines()
        ]
        assert len(rows) == len(set(rows)) == 5, "each window once"
    finally:
        run("firesteel cluster status > /dev/null && firesteel cluster stop || true")

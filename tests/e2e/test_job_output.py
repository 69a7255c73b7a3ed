"""Jobs print to the terminal of a program that waits for them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.errors import JobCanceled
from tests.long import long_after

from .conftest import ROOT, WARM_S, Session, firesteel

PROGRAM = """
from firesteel import Environment

def chatty(row):
    print("chatty about", row["value"])
    return row

def frames(frames):
    for frame in frames:
        print("a frame of", len(frame))
        yield frame

env = Environment(parallelism=2)
numbers = env.from_sequence(0, 4).rebalance()
numbers.map(chatty).print()
numbers.transform(lambda df: df.mapInPandas(frames, "value long")).print("pandas")
env.execute("printing")
print("the program's last line")
"""
ENDLESS = """
from firesteel import Environment
from firesteel.connectors import SequenceSource

env = Environment()
env.from_source(SequenceSource(0, rate_per_s=1000)).print()
env.execute("endless printing")
"""


def test_run_follows_what_a_job_prints_and_logs_select_it(session: Session, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    run = firesteel("run", "--output", "-m", session.address, str(tmp_path / "job.py"))
    assert run.returncode == 0, run.stdout + run.stderr
    submitted, *printed = run.stdout.splitlines()
    job_id = submitted.removeprefix("Job has been submitted with JobID ")
    assert printed.pop() == "the program's last line"
    frames = [line for line in printed if line.startswith("a frame of ")]
    assert sum(int(line.rpartition(" ")[2]) for line in frames) == 4, "Spark's workers print"
    of_tasks = set(printed) - set(frames)
    assert all(re.match(r"(pandas:)?[12]> ", line) for line in of_tasks)
    rows = sorted(re.sub(r"^(pandas:)?[12]> ", r"\1", line) for line in of_tasks)
    assert rows == sorted(
        f"{place}{number}{end}"
        for number in range(4)
        for place, end in (("chatty about ", ""), ("{'value': ", "}"), ("pandas:{'value': ", "}"))
    )
    assert "job FINISHED" in run.stderr
    logs = firesteel("logs", "--output", "-m", session.address, job_id)
    assert sorted(logs.stdout.splitlines()) == sorted(printed)
    for subtask in ("1", "2"):
        own = ("logs", "--output", "--subtask", subtask, "-m", session.address, job_id)
        assert sorted(firesteel(*own).stdout.splitlines()) == sorted(
            line for line in of_tasks if re.match(rf"(pandas:)?{subtask}> ", line)
        )
    sink = firesteel("logs", "--output", "--vertex", "pandas", "-m", session.address, job_id)
    assert sink.returncode == 1
    assert "has no vertex 'pandas'" in sink.stderr
    mapped = firesteel("logs", "--output", "--vertex", "chatty", "-m", session.address, job_id)
    assert "chatty about 3" in mapped.stdout
    whole = firesteel("logs", "-m", session.address, job_id).stdout
    assert re.search(r"Z slot-\d+\[\d+\]@\S+ [12]> chatty about 3\n", whole)


ENDED = {
    "waits": (
        "env.from_source(SequenceSource(0, rate_per_s=100)).print()\nenv.execute('endless')\n",
        "1 RUNNING",
    ),
    "reads": (
        "stream = env.from_source(SequenceSource(0, rate_per_s=100))\n"
        "for batch in stream.execute_and_collect('endless', iterate='arrow'):\n"
        "    print('read', batch.num_rows, flush=True)\n",
        "read ",
    ),
}


PAIRS = [
    (signal.SIGTERM, "waits"),
    (signal.SIGHUP, "reads"),
    (signal.SIGTERM, "reads"),
    (signal.SIGHUP, "waits"),
]


@pytest.mark.parametrize("how", long_after(2, PAIRS), ids=lambda how: f"{how[0].name} {how[1]}")
def test_a_run_that_is_ended_cancels_its_job(
    session: Session, tmp_path: Path, how: tuple[signal.Signals, str]
) -> None:
    number, program = how
    text, begun = ENDED[program]
    (tmp_path / "job.py").write_text(
        "from firesteel import Environment\n"
        "from firesteel.connectors import SequenceSource\n"
        f"env = Environment()\n{text}"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "firesteel", "run", "-m", session.address, str(tmp_path / "job.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        # Tests that are started with nohup ignore SIGHUP.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    ) as run:
        assert run.stdout is not None
        told = ""
        while begun not in told:
            told += (read := run.stdout.readline())
            assert read, told
        run.send_signal(number)
        rest = run.stdout.read()
        assert run.wait(WARM_S) == 128 + number, rest
    assert "Traceback" not in rest
    with pytest.raises(JobCanceled):
        session.client.wait(re.search(r"JobID (\w+)", told)[1])  # type: ignore[index]


def test_a_reader_that_leaves_cancels_the_job(session: Session, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(ENDLESS)
    arguments = ["run", "--output", "-m", session.address, str(tmp_path / "job.py")]
    with subprocess.Popen(
        [sys.executable, "-m", "firesteel", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        submitted = run.stdout.readline()
        assert run.stdout.readline() == "{'value': 0}\n"
        run.stdout.close()
        errors = run.stderr.read()
        assert run.wait(WARM_S) == 141
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors
    with pytest.raises(JobCanceled):
        session.client.wait(submitted.split()[-1])

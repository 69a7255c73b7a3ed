"""Rows of a program and of a socket on a cluster, and jobs that end with their first rows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Session, firesteel

JOB = """
import datetime as dt
import sys

import pyarrow as pa

from firesteel import Environment, Tumbling, Watermarks
from firesteel.connectors import SocketSource
from firesteel.errors import JobFailed

at = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
rows = [(n, "abc"[n % 3], at + dt.timedelta(seconds=n % 60)) for n in range(1000)]
for mode in ("streaming", "batch"):
    env = Environment(parallelism=2, mode=mode)
    stream = env.from_collection(
        rows,
        "n INT, k STRING, at TIMESTAMP",
        watermarks=Watermarks.bounded("at", max_out_of_orderness="1 hour"),
    )
    sums = stream.key_by("k").window(Tumbling("1 hour")).aggregate("sum(n) AS total")
    print(mode, sorted(sums.execute_and_collect(mode)["total"].to_pylist()))

env = Environment(parallelism=2)
large = env.from_arrow(pa.table({"n": range(500_000)})).execute_and_collect("large")
print("large", sum(large["n"].to_pylist()))

env = Environment()
print("first", env.from_sequence(0, 10**12).execute_and_collect("first", limit=5).num_rows)
print("all", env.from_sequence(0, 3).execute_and_collect("all", limit=5).num_rows)
with env.from_sequence(0, 10**12).execute_and_collect(iterate="pandas", limit=7) as batches:
    print("batches", sum(map(len, batches)))
failing = env.from_collection([0]).map(lambda row: (1 // row.value,), "v BIGINT")
try:
    failing.execute_and_collect("failing", limit=5)
except JobFailed as error:
    print("failed", error.error.summary.splitlines()[-1])

lines = env.from_source(SocketSource("127.0.0.1", int(sys.argv[1])))
print("lines", lines.execute_and_collect("lines")["value"].to_pylist())
"""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that sends two lines to its first client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"one\ntwo\n")

        serving = threading.Thread(target=serve)
        serving.start()
        yield listener.getsockname()[1]
        serving.join()


def test_rows_of_a_program_and_first_rows(session: Session, tmp_path: Path, port: int) -> None:
    (tmp_path / "job.py").write_text(JOB)
    run = firesteel("run", "-m", session.address, str(tmp_path / "job.py"), str(port))
    assert run.returncode == 0, run.stdout + run.stderr
    for line in (
        "streaming [166167, 166500, 166833]",
        "batch [166167, 166500, 166833]",
        f"large {sum(range(500_000))}",
        "first 5",
        "all 3",
        "batches 7",
        "lines ['one', 'two']",
    ):
        assert line in run.stdout.splitlines(), run.stdout
    assert "ZeroDivisionError" in run.stdout

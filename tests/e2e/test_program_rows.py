"""Rows of a program and of a socket on a cluster, and jobs that end with their first rows."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from firesteel import Environment
from firesteel.common.states import ExecutionState
from firesteel.connectors import FileSink
from firesteel.program import MAX_INLINE_BYTES
from tests.waiting import eventually

from .conftest import Session, firesteel
from .test_faults import slot_of

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


ROWS = 1_000  # of each source


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_rows_of_a_program_count_once_although_a_slot_dies(
    session: Session, in_session: None, tmp_path: Path, mode: str
) -> None:
    """Rows in the job's own message, rows whose times are local, and rows in a shipped file."""
    out, flowing, killed = (tmp_path / name for name in ("out", "flowing", "killed"))

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in range(0, batch.num_rows, 20):
                flowing.touch()
                time.sleep(0 if killed.exists() else 0.5)
                yield batch.slice(at, 20)

    checkpointing = {
        "execution.checkpointing.interval": "100 ms",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "execution.checkpointing.unaligned.enabled": "true",  # rows wait for those before them
    }
    env = Environment(
        mode=mode,
        parallelism=2,
        configuration={
            **(checkpointing if mode == "streaming" else {}),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
            "restart-strategy.fixed-delay.delay": "0 s",
        },
    )
    times = pd.date_range("2024-01-01", periods=ROWS, freq="s")
    texts = ["x" * (2 * MAX_INLINE_BYTES // ROWS)] * ROWS
    env.from_collection([(n, "in the job") for n in range(ROWS)], "n LONG, text STRING").union(
        env.from_pandas(pd.DataFrame({"n": range(ROWS, 2 * ROWS), "at": times})).select_expr(
            "n", "CAST(at AS STRING) AS text"
        ),
        env.from_arrow(pa.table({"n": range(2 * ROWS, 3 * ROWS), "text": texts})),
    ).map_in_arrow(slowly).sink_to(FileSink(str(out)))
    job = env.execute_async("rows of a program")
    eventually(flowing.exists, "rows flow")
    if mode == "streaming":
        eventually(lambda: list(out.glob("part-*")), "some rows are committed")
    running = [
        subtask.current
        for vertex in job.details().vertices
        for subtask in vertex.subtasks
        if subtask.current is not None and subtask.current.state is ExecutionState.RUNNING
    ]
    slot_of(session, running[-1]).kill()
    killed.touch()
    job.result()
    assert any(
        subtask.current is not None and subtask.current.number > 0
        for vertex in job.details().vertices
        for subtask in vertex.subtasks
    ), "the job was restarted in mid-stream"
    rows = ds.dataset(out, format="parquet").to_table()
    assert sorted(rows["n"].to_pylist()) == list(range(3 * ROWS))
    assert len(set(rows["text"].to_pylist())) == ROWS + 2

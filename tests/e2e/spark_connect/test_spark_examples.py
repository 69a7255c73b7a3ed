"""Spark's own streaming examples, unmodified, on Spark's own engine and on Firesteel: the same
lines from a socket have the same results.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyspark
import pytest

from tests.e2e.conftest import ROOT, Session
from tests.waiting import PATIENCE_S

EXAMPLES = Path(pyspark.__file__).parent / "examples/src/main/python/sql/streaming"
LINES = [  # a console shows at most 20 words
    "to be or not to be",
    "that is the question",
    "",
    "to be is the question",
]
WORDS = [word for line in LINES for word in line.split(" ")]

Table = list[tuple[str, ...]]


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that sends the lines to each client and keeps the connection."""
    with contextlib.ExitStack() as connections:
        server = connections.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            with contextlib.suppress(OSError):  # the server is closed
                while True:
                    connection, _ = server.accept()
                    connections.enter_context(connection)
                    connection.sendall("".join(f"{line}\n" for line in LINES).encode())

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def counts(tables: list[Table]) -> dict[tuple[str, ...], int]:
    """The rows of the last batch: their last column is a count."""
    return {row[:-1]: int(row[-1]) for row in tables[-1]} if tables else {}


def ended_sessions(tables: list[Table]) -> dict[tuple[str, ...], int]:
    """The number of events of each session. Their times are those at which lines arrived."""
    return {row[:1]: int(row[1]) for table in tables for row in table}


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        pytest.param("structured_network_wordcount", (), counts, marks=pytest.mark.long),
        # Windows of a hundred years, for the times differ from run to run.
        pytest.param(
            "structured_network_wordcount_windowed",
            (f"{36_500 * 86_400}",),
            counts,
            marks=pytest.mark.long,
        ),
        ("structured_network_wordcount_session_window", (), ended_sessions),
    ],
)
def test_an_example_has_the_results_of_spark(
    shared_cluster: Session,
    port: int,
    name: str,
    arguments: tuple[str, ...],
    result: Callable[[list[Table]], dict[tuple[str, ...], int]],
) -> None:
    program = [str(EXAMPLES / f"{name}.py"), "127.0.0.1", str(port), *arguments]
    firesteel = ["-m", "firesteel", "run", "-m", shared_cluster.address]
    expected = printed([sys.executable, *program], result)
    found = printed([sys.executable, *firesteel, *program], result)
    assert found == expected
    assert {key[-1] for key in found} == set(WORDS)


def printed(
    command: list[str], result: Callable[[list[Table]], dict[tuple[str, ...], int]]
) -> dict[tuple[str, ...], int]:
    """Runs a program until the result of its tables has all words."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # or the child ignores it
    with subprocess.Popen(
        command,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=1 pyspark-shell",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        signal.signal(signal.SIGINT, before)
        end = threading.Timer(PATIENCE_S, run.kill)  # of a run that never prints all words
        end.start()
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(run.stderr or ()))
        reader.start()
        try:
            tables: list[Table] = []
            for table in tables_of(run.stdout or ()):
                tables.append(table)
                if sum((found := result(tables)).values()) >= len(WORDS):
                    return found
        finally:
            end.cancel()
            run.send_signal(signal.SIGINT)
            run.wait(timeout=PATIENCE_S)
            reader.join()
    raise AssertionError(f"{command} ended with {tables}\n{''.join(errors)}")


def tables_of(lines: Iterable[str]) -> Iterator[Table]:
    """Yields the rows of each printed batch."""
    rows: Table = []
    borders = 0
    for line in lines:
        if line.startswith("+"):
            borders += 1
            if borders == 3:
                yield rows[1:]  # after the names
                rows, borders = [], 0
        elif line.startswith("|"):
            rows.append(tuple(cell.strip() for cell in line.strip()[1:-1].split("|")))


@pytest.mark.long
def test_spark_and_firesteel_refuse_an_example_alike(shared_cluster: Session, port: int) -> None:
    """Sessions are not updated."""
    program = [str(EXAMPLES / "structured_sessionization.py"), "127.0.0.1", str(port)]
    for engine in ([], ["-m", "firesteel", "run", "-m", shared_cluster.address]):
        done = subprocess.run(
            [sys.executable, *engine, *program],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION]" in done.stderr
        assert "not supported for session window streaming aggregations" in done.stderr

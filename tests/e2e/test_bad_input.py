"""A failed operation reports one clear error and leaves the cluster as it was (every test ends with
all slots free).
"""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firesteel import Environment, Tumbling, Watermarks
from firesteel.client.client import Client
from firesteel.common.states import ExecutionState
from firesteel.connectors import CollectSink, FileSink, FileSource
from firesteel.errors import ClusterUnreachable, FiresteelError, JobFailed, PayloadTooLarge
from taskexecutor.executor.columnar.jvm.session import PYTHON_DAEMON
from tests.small_disk import small_disk
from tests.waiting import PATIENCE_S, eventually

from .conftest import SLOTS, Session, command, firesteel, in_this_process, services
from .jobs import endless, failing, nothing_left


def failure(session: Session, env: Environment, **overrides: str) -> JobFailed:
    with pytest.raises(JobFailed) as caught:
        session.client.wait(session.submit(env, **overrides))
    return caught.value


def no_task_ran(session: Session, job_id: str) -> bool:
    entered = [
        a.entered_ms
        for v in session.client.job_details(job_id).vertices
        for s in v.subtasks
        for a in s.attempts
    ]
    return not any(ExecutionState.DEPLOYING in states for states in entered)


@pytest.mark.parametrize("where", ["analysis", "task"])
def test_an_exception_without_a_valid_text_fails_its_job(session: Session, where: str) -> None:
    class WithoutText(Exception):
        def __str__(self) -> str:
            raise SystemExit("\ud83d")  # a surrogate is not UTF-8

    def raises(given: Any) -> Any:
        raise WithoutText

    env = Environment(parallelism=1)
    numbers = env.from_sequence(0, 3)
    failing = numbers.transform(raises) if where == "analysis" else numbers.map_in_arrow(raises)
    failing.map(lambda row: row, "value BIGINT", name="\ud83d\0").print()
    error = failure(session, env).error
    assert error is not None
    assert "WithoutText" in error.summary


def test_a_row_that_is_too_large_to_be_collected_fails_its_job_only(session: Session) -> None:
    executors = {t.task_executor_id: t.pid for t in session.overview().task_executors}
    env = Environment(parallelism=1)
    rows = env.from_sequence(0, 1).map(lambda row: {"text": "q" * 70_000_000}, "text STRING")
    rows.sink_to(CollectSink())
    assert "a row is too large to be collected: it has 70,000," in str(failure(session, env))
    assert {t.task_executor_id: t.pid for t in session.overview().task_executors} == executors


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("env = Environment(\n", ["SyntaxError", "job.py"]),
        ("import nonsuch\n", ["ModuleNotFoundError", "nonsuch", "job.py"]),
        ("from firesteel import Environment\nEnvironment().execute()\n", ["no operators"]),
    ],
)
def test_a_wrong_job_file(
    session: Session, tmp_path: Path, program: str, expected: list[str]
) -> None:
    job = tmp_path / "job.py"
    job.write_text(program)
    run = in_this_process("run", "-m", session.address, str(job))
    assert run.returncode == 1
    for words in expected:
        assert words in run.stderr
    assert "firesteel/client/cli" not in run.stderr, "no frames of ours"


def test_a_job_file_that_executes_no_job(session: Session, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("print('no job here')\n")
    run = in_this_process("run", "-m", session.address, str(job))
    assert run.returncode == 0
    assert run.stdout == "no job here\n"
    assert "job.py ran as an ordinary Python program" in run.stderr
    assert "submitted no job" in run.stderr


def test_a_job_file_that_does_not_exist(session: Session) -> None:
    run = in_this_process("run", "-m", session.address, "nowhere.py")
    assert run.returncode != 0
    assert "nowhere.py" in run.stderr


def test_an_unknown_key_column_is_found_before_data_flows(session: Session) -> None:
    env = Environment(parallelism=2)
    env.from_sequence(0, 100).transform(lambda df: df.selectExpr("value AS amount")).key_by(
        "amuont"
    ).map_in_arrow(nothing_left).print()
    job_id = session.submit(env)
    with pytest.raises(JobFailed, match=r"amuont.*amount"):
        session.client.wait(job_id)
    assert no_task_ran(session, job_id)


def test_an_unknown_aggregate_column_is_found_before_data_flows(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("at,origin,n\n2024-01-01T00:00:00Z,JFK,1\n")
    env = Environment(parallelism=2)
    (
        env.from_source(
            FileSource(f"{tmp_path}/*.csv", format="csv", header=True),
            watermarks=Watermarks.bounded("at"),
        )
        .key_by("origin")
        .window(Tumbling("1 day"))
        .aggregate("sum(nn) AS total")
        .print()
    )
    job_id = session.submit(env)
    with pytest.raises(JobFailed, match="nn"):
        session.client.wait(job_id)
    assert no_task_ran(session, job_id)


def test_special_files_are_skipped_and_the_program_says_so(
    session: Session, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    os.mkfifo(folder / "a.csv")
    (folder / "b.csv").write_text("1\n")
    (tmp_path / "job.py").write_text(
        "from firesteel import Environment\n"
        "from firesteel.connectors import FileSource\n"
        f"source = FileSource({str(folder)!r}, format='csv')\n"
        "print(Environment().from_source(source).execute_and_collect('fifo').num_rows, 'row')\n"
    )
    run = firesteel("run", "-m", session.address, str(tmp_path / "job.py"))
    assert "1 row" in run.stdout, run.stderr
    assert f"{folder}/a.csv is a named pipe (FIFO); it is skipped" in run.stderr


def test_a_transform_that_does_not_resolve_shows_sparks_message(session: Session) -> None:
    env = Environment()
    env.from_sequence(0, 100).transform(lambda df: df.where("valeu > 1")).print()
    error = failure(session, env)
    assert "valeu" in str(error)
    assert "JavaObject" not in str(error)
    assert "py4j" not in str(error)


def test_a_transform_that_relates_rows_is_refused_before_data_flows(session: Session) -> None:
    env = Environment(parallelism=2)

    def once(df: Any) -> Any:
        return df.dropDuplicates(["shop"])

    shops = env.from_sequence(0, 1_000).transform(lambda df: df.selectExpr("value % 4 AS shop"))
    shops.transform(once).print()
    line = once.__code__.co_firstlineno + 4  # where it is passed to transform
    job_id = session.submit(env)
    with pytest.raises(
        JobFailed,
        match=rf"test_bad_input\.py, line {line}: Transform\(once\): dropDuplicates "
        r"\(Deduplicate\) works on one bundle .*drop_duplicates.*per_bundle=True",
    ):
        session.client.wait(job_id)
    assert no_task_ran(session, job_id)


def test_a_user_function_that_raises_shows_its_traceback_first(session: Session) -> None:
    def explode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise ValueError("no good at all")
        yield from ()

    error = failure(session, failing(explode))
    assert error.error is not None
    assert error.error.user_traceback.startswith("Traceback (most recent call last)")
    assert "in explode" in error.error.user_traceback
    assert error.error.user_traceback.rstrip().endswith("ValueError: no good at all")
    assert "taskexecutor/" not in error.error.user_traceback
    shown = firesteel("show", "-m", session.address, error.job_id)
    assert "no good at all" in shown.stdout


def test_a_source_path_that_does_not_exist(session: Session) -> None:
    env = Environment()
    env.from_source(FileSource("/nonexistent/*.csv", format="csv")).print()
    assert "/nonexistent/*.csv" in str(failure(session, env))


def of_numbers(folder: Path, format: str) -> FileSource:
    return FileSource(f"{folder}/[a-z].*", format=format, schema="n LONG")


def numbers(*values: int) -> bytes:
    return "".join(f"{n}\n" for n in values).encode()


def in_parquet(*values: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(values, pa.int64())}), out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("b.csv.gz", gzip.compress(numbers(*range(100_000)))[:-1000], "Unexpected end of input"),
        ("b.csv.xz", lzma.compress(numbers(1, 2, 3)), "compressed with xz"),
        ("b.parquet", in_parquet(*range(1000))[:-100], "is not a Parquet file"),
    ],
    ids=["cut off gz", "xz", "cut off Parquet"],
)
def test_a_file_that_cannot_be_read_fails_the_job_by_name(
    session: Session, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    format = "parquet" if name.endswith("parquet") else "csv"
    for good in ("a", "c"):
        whole = in_parquet(1) if format == "parquet" else numbers(1)
        (tmp_path / f"{good}.{format}").write_bytes(whole)
    (tmp_path / name).write_bytes(content)
    env = Environment(parallelism=2)
    env.from_source(of_numbers(tmp_path, format)).print()
    message = str(failure(session, env))
    assert str(tmp_path / name) in message
    assert reason in message


@pytest.mark.parametrize(
    ("format", "content", "expected"),
    [
        ("csv", numbers(3, 4), "the file was written to; it had 4 bytes"),
        ("csv", numbers(1), "the file now has 2 bytes; it had 4 bytes"),
        ("csv", numbers(1, 2, 3), ""),  # it may have grown
        ("parquet", in_parquet(*range(1000)), "the file now has "),
    ],
    ids=["as large", "smaller", "lines were appended", "larger Parquet"],
)
def test_a_file_that_changes_while_the_job_reads_another(
    session: Session,
    in_session: None,
    tmp_path: Path,
    format: str,
    content: bytes,
    expected: str,
) -> None:
    encoded = in_parquet if format == "parquet" else numbers
    (tmp_path / f"a.{format}").write_bytes(encoded(0))
    second, other = tmp_path / f"b.{format}", tmp_path / ".other"
    second.write_bytes(encoded(1, 2))
    other.write_bytes(content)
    os.utime(other, ns=(0, 0))

    def replace(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """With the first file's rows, in the thread that then reads the second one."""
        for batch in batches:
            if batch.num_rows and other.exists():
                os.replace(other, second)
            yield batch

    env = Environment(parallelism=1)
    rows = env.from_source(of_numbers(tmp_path, format)).map_in_arrow(replace)
    if expected:
        rows.print()
        message = str(failure(session, env))
        assert f"{second}: {expected}" in message
    else:
        assert sorted(rows.execute_and_collect("grown")["n"].to_pylist()) == [0, 1, 2, 3]
    assert not other.exists()


def test_more_parallelism_than_slots(session: Session) -> None:
    error = failure(session, endless(SLOTS + 3), slot__request__timeout="3 s")
    assert f"3 of the {SLOTS + 3} slots that the job needs are still missing" in str(error)


def test_a_payload_over_the_limit(session: Session) -> None:
    ballast = os.urandom(50 * 2**20)
    env = Environment()
    env.from_sequence(0, 1).map_in_arrow(lambda batches: [ballast] and batches).print()
    with pytest.raises(PayloadTooLarge, match=r"48 MiB|50"):
        session.submit(env)


def test_a_dead_address() -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ClusterUnreachable, match=f"127.0.0.1:{port}"):
            Client(f"127.0.0.1:{port}").list_jobs()
        completed = firesteel("list", "-m", f"127.0.0.1:{port}")
    assert completed.returncode == 1
    assert str(port) in completed.stderr
    assert "Traceback" not in completed.stderr


def test_an_address_that_is_not_a_dispatcher(session: Session) -> None:
    overview = session.client.cluster_overview()
    for address in (overview.resource_manager_address, "127.0.0.1:notaport", "nohost.invalid:6123"):
        with pytest.raises(FiresteelError, match=address.split(":")[0]):
            Client(address).list_jobs()


def test_a_full_disk(session: Session, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "64k") as small:
        env = Environment()
        env.from_sequence(0, 2_000_000).sink_to(FileSink(str(small / "out"), format="parquet"))
        message = str(failure(session, env))
        assert "the disk is full" in message
        assert str(small / "out") in message
        assert not list((small / "out").glob("part-*")), "no half-written file appears as a result"


def test_garbage_on_every_port_is_harmless(session: Session) -> None:
    import psutil

    job_id = session.submit(endless(2))
    session.wait_until(job_id, lambda d: set(d.states) == {ExecutionState.RUNNING})
    eventually(
        lambda: len(services(session, "jobmaster")) == 2,
        "only this job's JobMaster and a spare one",
    )
    supervisor = next(
        p for p in psutil.Process().children() if str(session.cluster.directory) in command(p)
    )
    # Spark ends its Python workers when they have been idle for long.
    family = [p for p in supervisor.children(recursive=True) if PYTHON_DAEMON not in command(p)]
    ports = set()
    for process in [supervisor, *family]:
        with contextlib.suppress(psutil.NoSuchProcess):  # some are there for a moment only
            if "java" not in process.name():
                ports |= {
                    connection.laddr.port
                    for connection in process.net_connections("tcp")
                    if connection.status == psutil.CONN_LISTEN
                }
    everybody = [supervisor, *(process for process in family if process.is_running())]
    assert len(ports) >= 4 + 2 * SLOTS - 2, (
        "masters, TaskExecutors, exchanges and metrics all listen"
    )
    for port in ports:
        for garbage in (
            os.urandom(4096),
            b"GET / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(512),
        ):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection,
                contextlib.suppress(ConnectionError),
            ):
                connection.sendall(garbage)  # the peer may hang up in the middle of it
    assert [p.pid for p in everybody if not p.is_running()] == []
    assert session.client.job_details(job_id).status.name == "RUNNING"
    before = sum(v.metrics.records_in for v in session.client.job_details(job_id).vertices)
    session.wait_until(job_id, lambda d: sum(v.metrics.records_in for v in d.vertices) > before)
    eventually(lambda: session.free_slots() == SLOTS - 2, "the slots as they were")
    session.client.cancel(job_id)

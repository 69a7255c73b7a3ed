"""A session cluster that serves Spark Connect, to programs that have PySpark alone."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from firesteel.common.security.client import ClientSecurity
from firesteel.common.security.keys import Keys
from firesteel.common.security.roles import Role
from firesteel.common.states import JobStatus
from tests.e2e.conftest import Session, own_cluster
from tests.waiting import eventually

# Functions of __main__, which have no module in the cluster.
QUERY = """
    import sys, uuid
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.builder.getOrCreate()
    offset = int(sys.argv[1])

    @F.udf("long")
    def shifted(value):
        return value + offset

    rows = spark.createDataFrame([(1,), (2,)], "value long")
    rows.write.mode("overwrite").parquet(sys.argv[2])
    numbers = spark.readStream.schema(rows.schema).parquet(sys.argv[2])
    query = (
        numbers.select(shifted("value").alias("value")).writeStream.format("memory")
        .queryName("numbers").start()
    )
    query.processAllAvailable()
    print(sorted(row.value for row in spark.table("numbers").collect()))
    print(query.isActive, len(spark.streams.active), flush=True)
    sys.stdin.readline()
    if sys.argv[3] == "stop":
        spark.stop()
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    folder = tmp_path_factory.mktemp("cluster")
    with own_cluster(
        folder, slots=2, spark_connect__port=port, spark_connect__session_timeout="30 s"
    ) as session:
        yield session


def url(session: Session, token: str) -> str:
    address = session.overview().spark_connect_url
    return f"{address};token={token}"


@contextlib.contextmanager
def program(
    session: Session, folder: Path, token: str, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(QUERY))
    with subprocess.Popen(
        [sys.executable, str(path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARK_REMOTE": url(session, token)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()  # it has ended
    return line


def test_clients_have_separate_sessions_that_end_their_queries(
    session: Session, tmp_path: Path
) -> None:
    token = ClientSecurity(session.cluster.conf).token()
    with (
        program(session, tmp_path, token, "10", str(tmp_path / "a"), "stop") as first,
        program(session, tmp_path, token, "20", str(tmp_path / "b"), "stay") as second,
    ):
        for process, rows in ((first, [11, 12]), (second, [21, 22])):
            assert line_of(process) == f"{rows}\n"
            assert line_of(process) == "True 1\n"
        names = [job.name for job in session.client.list_jobs()]
        assert names == ["numbers", "numbers"], "names are unique in a session"
        for process in (first, second):
            process.communicate("\n")

    def left() -> list[JobStatus]:
        jobs = session.client.list_jobs()
        return [job.status for job in jobs if not job.status.globally_terminal]

    eventually(
        lambda: left() == [JobStatus.RUNNING],
        lambda: f"only the query of the client that did not stop runs: {left()}",
    )
    session.cancel_all()


def test_only_those_who_may_submit_jobs_connect(session: Session, tmp_path: Path) -> None:
    from firesteel.common.security.folder import security_directory

    issuer = Keys.open(security_directory(session.cluster.conf)).issuer()
    for token, message in (
        (issuer.issue("eve", Role.VIEWER, valid_s=600), "eve (viewer) may not use Spark Connect"),
        ("wrong", "the token"),
    ):
        with program(session, tmp_path, token, "1", str(tmp_path / "c"), "stop") as process:
            _, errors = process.communicate()
        assert process.returncode == 1
        assert message in errors, errors
    refused = [entry for entry in session.client.audit() if entry.outcome != "OK"]
    assert {(entry.subject, entry.outcome) for entry in refused} >= {
        ("eve", "NOT_ALLOWED"),
        ("", "CREDENTIAL_INVALID"),
    }


def test_a_query_ends_with_its_session_when_its_token_is_revoked(
    session: Session, tmp_path: Path
) -> None:
    created = session.client.create_token("carol", "submitter", valid_s=3_600)
    with program(session, tmp_path, created.token, "1", str(tmp_path / "d"), "stay") as process:
        assert line_of(process) == "[2, 3]\n"
        (job,) = [job for job in session.client.list_jobs() if job.owner == "carol"]
        (entry,) = [
            entry
            for entry in session.client.audit()
            if entry.subject == "carol" and entry.action == "RunProgram"
        ]
        assert (entry.outcome, entry.address.rpartition(":")[0]) == ("OK", "ipv4:127.0.0.1")
    session.client.revoke_token(created.description.token_id)
    assert session.client.job_details(job.job_id).status is JobStatus.RUNNING
    eventually(
        lambda: session.client.job_details(job.job_id).status is JobStatus.CANCELED,
        "the query of the ended session is stopped",
    )

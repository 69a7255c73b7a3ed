"""Storage that is away, full or damaged while jobs run: an object store, a database, a disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from firesteel import Environment
from firesteel.client.job_details import CheckpointDetails
from firesteel.connectors import FileSink, SequenceSource
from firesteel.errors import FiresteelError, JobFailed
from tests.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore
from tests.postgres import Postgres
from tests.proxy import Proxy
from tests.small_disk import fill, small_disk
from tests.waiting import eventually

from .conftest import Session, command, firesteel, logs_below, own_cluster

ROWS, KEYS = 40_000, 7
PASSWORD = "a-password-that-no-log-may-show"


pytestmark = pytest.mark.usefixtures("shipped_module")


@pytest.fixture
def database(postgres: str) -> Iterator[Proxy]:
    (folder,) = parse_qs(urlsplit(postgres).query)["host"]
    engine = sa.create_engine(postgres.replace("postgresql://", "postgresql+psycopg2://"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA storage_away")
    engine.dispose()
    proxy = Proxy(f"{folder}/.s.PGSQL.5432")
    yield proxy
    proxy.down()


@pytest.fixture
def cluster(
    object_store: ObjectStore, database: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Session]:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    where = f"postgres:{PASSWORD}@127.0.0.1:{database.port}/postgres"
    with own_cluster(
        tmp_path / "cluster",
        database__url=f"postgresql+psycopg2://{where}?options=-csearch_path%3Dstorage_away",
        s3__endpoint=object_store.endpoint,
        s3__access_key=ACCESS_KEY,
        s3__secret_key=SECRET_KEY,
    ) as session:
        yield session


class Ledger(StatefulProcessor):
    """Numbers the rows of each key, and fails on request."""

    def __init__(self, fails: str) -> None:
        self.fails = Path(fails)

    def init(self, handle: object) -> None:
        self.count = handle.getValueState("count", "n BIGINT")  # type: ignore[attr-defined]

    def handleInputRows(self, key, rows, timer_values):  # type: ignore[no-untyped-def]
        (n,) = self.count.get() or (0,)
        for row in rows:
            n += 1
            yield Row(key=key[0], value=row.value, n=n)
        self.count.update((n,))
        if self.fails.exists():
            self.fails.unlink()
            raise RuntimeError("fails once")


def numbered(
    out: Path, checkpoints: str, *, rate_per_s: float, configuration: dict[str, str] | None = None
) -> Environment:
    env = Environment(
        parallelism=1,
        configuration={
            "execution.checkpointing.interval": "200 ms",
            "execution.checkpointing.dir": checkpoints,
            "execution.checkpointing.tolerable-failed-checkpoints": "1000",
            "execution.checkpointing.data-inline-threshold": "0",  # all state is in files
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "0 s",
            **(configuration or {}),
        },
    )
    (
        env.from_source(SequenceSource(0, ROWS, rate_per_s=rate_per_s))
        .transform(lambda df: df.selectExpr("value", f"value % {KEYS} AS key"))
        .key_by("key")
        .transform_with_state(
            Ledger(f"{out}.fails"), "key BIGINT, value BIGINT, n BIGINT", "update", "none"
        )
        .sink_to(FileSink(str(out)))
    )
    return env


class Watched:
    """A job, as the client sees it."""

    def __init__(self, session: Session, job_id: str) -> None:
        self.job_id = job_id
        self._session = session

    def attempts(self) -> set[int]:
        details = self._session.client.job_details(self.job_id)
        found = [subtask.current for vertex in details.vertices for subtask in vertex.subtasks]
        return {attempt.number for attempt in found if attempt is not None}

    def eventually(
        self,
        wanted: Callable[[CheckpointDetails], bool],
        what: str,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> int:
        """The newest such checkpoint's id."""
        ids: list[int] = []

        def look() -> list[int]:
            meanwhile()
            details = self._session.client.job_details(self.job_id)
            assert not details.status.globally_terminal, details.exceptions
            ids[:] = [found.checkpoint_id for found in details.checkpoints if wanted(found)]
            return ids

        eventually(look, what)
        return max(ids)

    def complete_after(self, checkpoint_id: int) -> int:
        return self.eventually(
            lambda c: c.state == "COMPLETED" and c.checkpoint_id > checkpoint_id,
            f"a checkpoint after {checkpoint_id} is complete",
        )

    def failed_after(
        self, checkpoint_id: int, problem: str, meanwhile: Callable[[], object] = lambda: None
    ) -> int:
        return self.eventually(
            lambda c: problem in c.failure and c.checkpoint_id > checkpoint_id,
            f"a checkpoint after {checkpoint_id} has failed: {problem}",
            meanwhile,
        )


def check_rows(out: Path) -> None:
    rows = ds.dataset(out, format="parquet").to_table().to_pandas()
    assert sorted(rows["value"]) == list(range(ROWS)), "every row once"
    for _, of_key in rows.groupby("key"):
        assert sorted(of_key["n"]) == list(range(1, len(of_key) + 1)), "and counted once"


def test_jobs_continue_while_storage_is_away_without_showing_credentials(
    cluster: Session, object_store: ObjectStore, database: Proxy, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    jobs = f"s3://{BUCKET}/jobs"
    job = Watched(cluster, cluster.submit(numbered(out, jobs, rate_per_s=500)))
    latest = job.complete_after(0)
    Path(f"{out}.fails").touch()
    eventually(lambda: job.attempts() == {1}, "it has restored what is on S3")
    latest = job.complete_after(latest)

    database.down()
    failed = job.failed_after(latest, "job store cannot be written")
    database.up()
    latest = job.complete_after(failed)

    object_store.stop()
    failed = job.failed_after(latest, "Could not connect")
    object_store.start()
    job.complete_after(failed)
    assert job.attempts() == {1}, "neither has failed the job"

    stopped = firesteel("stop", "-m", cluster.address, "-p", f"s3://{BUCKET}/mine", job.job_id)
    assert stopped.returncode == 0, stopped.stderr
    path = stopped.stdout.splitlines()[-1].removeprefix("Savepoint completed. Path: ")
    assert cluster.client.wait(job.job_id).status.name == "FINISHED"
    restored = {"execution.state-recovery.path": path}
    env = numbered(out, jobs, rate_per_s=50_000, configuration=restored)
    assert cluster.run(env).status.name == "FINISHED"
    check_rows(out)

    eventually(lambda: not object_store.paths("jobs"), "the checkpoints are deleted")
    assert object_store.paths("mine")
    disposed = firesteel("savepoint", "-m", cluster.address, "--dispose", f"{path}/_metadata")
    assert disposed.returncode == 0, disposed.stderr
    assert not object_store.paths("mine")
    assert object_store.unfinished_uploads() == 0

    shown = firesteel("show", "-m", cluster.address, job.job_id, "--full", "--checkpoints")
    seen = [stopped.stdout, shown.stdout, *logs_below(cluster.cluster.directory)]
    seen += [command(process) for process in psutil.process_iter()]
    for secret in (SECRET_KEY, PASSWORD):
        assert not any(secret in text for text in seen)


@pytest.fixture
def crashing() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


def test_a_job_survives_a_crash_of_its_store_and_no_cluster_starts_without(
    crashing: Postgres, tmp_path: Path
) -> None:
    url = crashing.url.replace("postgresql://", "postgresql+psycopg2://")
    out, folder = tmp_path / "out", tmp_path / "cluster"
    with own_cluster(folder, database__url=url) as session:
        env = numbered(out, str(tmp_path / "jobs"), rate_per_s=2000)
        job = Watched(session, session.submit(env))
        latest = job.complete_after(0)

        crashing.crash()
        for _ in range(3):
            latest = job.failed_after(latest, "job store cannot be written")
        assert session.client.job_details(job.job_id).status.name == "RUNNING"
        crashing.start()
        job.complete_after(latest)
        assert job.attempts() == {0}, "it has kept running"

        Path(f"{out}.fails").touch()
        eventually(lambda: job.attempts() == {1}, "it has restored what was stored since")
        assert session.client.wait(job.job_id).status.name == "FINISHED"
        check_rows(out)

    crashing.crash()
    problem = r"job store .* cannot be opened: .*No such file.*; check database.url"
    with (
        pytest.raises(FiresteelError, match=problem),
        own_cluster(folder, database__url=url),
    ):
        pass


def test_a_full_disk_fails_checkpoints_and_damaged_files_fail_the_job(
    session: Session, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "16m") as disk:
        out, jobs = tmp_path / "out", disk / "jobs"
        job = Watched(session, session.submit(numbered(out, str(jobs), rate_per_s=500)))
        latest = job.complete_after(0)

        def fails_on_full_disk(latest: int) -> int:
            """Twice: what an older checkpoint leaves may be room for one more."""
            full = "No space left on device"
            failed = job.failed_after(latest, full, lambda: fill(disk))
            return job.failed_after(failed, full, lambda: fill(disk))

        failed = fails_on_full_disk(latest)
        (disk / "ballast").unlink()
        latest = job.complete_after(failed)
        eventually(lambda: len(list(jobs.glob("*/*"))) == 1, "what failed has left nothing")

        away = jobs.rename(disk / "away")
        jobs.write_text("not a directory")
        failed = job.failed_after(latest, "Not a directory")
        jobs.unlink()
        shutil.rmtree(away)
        latest = job.complete_after(failed)
        assert job.attempts() == {0}, "none of that has failed the job"

        fails_on_full_disk(latest)
        latest = job.complete_after(0)  # stays, and is read when the job fails: no older one
        (state,) = (path for path in jobs.glob(f"*/chk-{latest}/*") if path.name != "_metadata")
        content = bytearray(state.read_bytes())
        content[len(content) // 2] ^= 1
        state.write_bytes(content)
        Path(f"{out}.fails").touch()
        problem = rf"the file {state.parent.name}/{state.name} of {state.parents[1]} is damaged"
        with pytest.raises(JobFailed, match=problem):
            session.client.wait(job.job_id)

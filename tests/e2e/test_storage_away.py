"""A cluster whose checkpoints are on S3 and whose jobs are in PostgreSQL: both go away while a job
runs, and what they need is in nobody's sight.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import cloudpickle
import psutil
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from firesteel import Environment
from firesteel.client.cluster import LocalCluster
from firesteel.client.job_details import CheckpointDetails
from firesteel.common.config import Configuration
from firesteel.connectors import FileSink, SequenceSource
from tests.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore
from tests.proxy import Proxy

from .conftest import WARM_S, Session, command, eventually, firesteel, logs_below

ROWS, KEYS = 40_000, 7
PASSWORD = "a-password-that-nobody-may-see"


@pytest.fixture(autouse=True, scope="module")
def _ship_this_module() -> Iterator[None]:
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


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
    conf = Configuration.load(
        overrides={
            "metrics.reporter.prom.port": "0",
            "database.url": f"postgresql+psycopg2://{where}?options=-csearch_path%3Dstorage_away",
            "s3.endpoint": object_store.endpoint,
            "s3.access-key": ACCESS_KEY,
            "s3.secret-key": SECRET_KEY,
        }
    )
    folder = tmp_path / "cluster"
    with LocalCluster(conf, task_executors=1, slots=1, directory=folder) as cluster:
        cluster.wait_for_slots(timeout_s=WARM_S)
        yield Session(cluster)


class Ledger(StatefulProcessor):
    """Numbers the rows of each key, and fails when it is told to."""

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


def numbered(out: Path, rate_per_s: float, **configuration: str) -> Environment:
    env = Environment(
        parallelism=1,
        configuration={
            "execution.checkpointing.interval": "200 ms",
            "execution.checkpointing.dir": f"s3://{BUCKET}/jobs",
            "execution.checkpointing.tolerable-failed-checkpoints": "1000",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "0 s",
            **configuration,
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


def test_jobs_go_on_while_storage_is_away_and_nobody_sees_credentials(
    cluster: Session, object_store: ObjectStore, database: Proxy, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    job_id = cluster.submit(numbered(out, rate_per_s=500))

    def attempts() -> set[int]:
        details = cluster.client.job_details(job_id)
        found = [subtask.current for vertex in details.vertices for subtask in vertex.subtasks]
        return {attempt.number for attempt in found if attempt is not None}

    def eventually_found(wanted: Callable[[CheckpointDetails], bool], what: str) -> int:
        """The newest such checkpoint's id."""
        ids: list[int] = []

        def look() -> list[int]:
            details = cluster.client.job_details(job_id)
            assert not details.status.globally_terminal, details.exceptions
            ids[:] = [found.checkpoint_id for found in details.checkpoints if wanted(found)]
            return ids

        eventually(look, what)
        return max(ids)

    def complete_after(checkpoint_id: int) -> int:
        return eventually_found(
            lambda c: c.state == "COMPLETED" and c.checkpoint_id > checkpoint_id, "complete"
        )

    latest = complete_after(0)
    Path(f"{out}.fails").touch()
    eventually(lambda: attempts() == {1}, "it has restored what is on S3")
    latest = complete_after(latest)

    database.down()
    problem = "job store cannot be written"
    failed = eventually_found(lambda c: problem in c.failure, "a checkpoint has no row")
    database.up()
    latest = complete_after(failed)

    object_store.stop()
    failed = eventually_found(
        lambda c: c.checkpoint_id > latest and "Could not connect" in c.failure,
        "a checkpoint has no files",
    )
    object_store.start()
    complete_after(failed)
    assert attempts() == {1}, "neither has failed the job"

    stopped = firesteel("stop", "-m", cluster.address, "-p", f"s3://{BUCKET}/mine", job_id)
    assert stopped.returncode == 0, stopped.stderr
    path = stopped.stdout.splitlines()[-1].removeprefix("Savepoint completed. Path: ")
    assert cluster.client.wait(job_id).status.name == "FINISHED"
    restored = {"execution.state-recovery.path": path}
    assert cluster.run(numbered(out, 50_000, **restored)).status.name == "FINISHED"
    rows = ds.dataset(out, format="parquet").to_table().to_pandas()
    assert sorted(rows["value"]) == list(range(ROWS)), "every row once"
    for _, of_key in rows.groupby("key"):
        assert sorted(of_key["n"]) == list(range(1, len(of_key) + 1)), "and counted once"

    eventually(lambda: not object_store.paths("jobs"), "nobody will restore the jobs")
    assert object_store.paths("mine")
    disposed = firesteel("savepoint", "-m", cluster.address, "--dispose", f"{path}/_metadata")
    assert disposed.returncode == 0, disposed.stderr
    assert not object_store.paths("mine")
    assert object_store.unfinished_uploads() == 0

    shown = firesteel("show", "-m", cluster.address, job_id, "--full", "--checkpoints")
    seen = [stopped.stdout, shown.stdout, *logs_below(cluster.cluster.directory)]
    seen += [command(process) for process in psutil.process_iter()]
    for secret in (SECRET_KEY, PASSWORD):
        assert not any(secret in text for text in seen)

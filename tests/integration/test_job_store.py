"""The job store's schema over releases, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from dispatcher import migrations
from dispatcher.core.records import (
    HandoverChanged,
    JobAdded,
    JobAssigned,
    JobEnded,
    JobForgotten,
    JobStatusChanged,
)
from dispatcher.core.submitted_jobs import SubmittedJob
from dispatcher.job_store import Fenced, JobStore, NotWritten, Superseded
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError
from tests.integration.job_stores import JOB, store_with_a_job

ENDED, FORGOTTEN = JobId("b" * 32), JobId("c" * 32)

# The tables as they were before there were versions.
FIRST_TABLES = [
    """CREATE TABLE jobs (
        job_id VARCHAR(32) NOT NULL, name TEXT NOT NULL, graph_id VARCHAR(32) NOT NULL,
        status VARCHAR(16) NOT NULL, start_ms BIGINT NOT NULL, end_ms BIGINT NOT NULL,
        epoch BIGINT NOT NULL, job_master_id VARCHAR(32), cancel_requested BOOLEAN NOT NULL,
        failure TEXT NOT NULL, final_details {bytes}, forgotten BOOLEAN NOT NULL,
        PRIMARY KEY (job_id))""",
    """CREATE TABLE job_graphs (
        graph_id VARCHAR(32) NOT NULL, graph {bytes} NOT NULL, PRIMARY KEY (graph_id))""",
    """CREATE TABLE job_graph_blobs (
        graph_id VARCHAR(32) NOT NULL, blob_hash VARCHAR(32) NOT NULL,
        PRIMARY KEY (graph_id, blob_hash))""",
    """CREATE TABLE leaders (
        service VARCHAR(32) NOT NULL, epoch BIGINT NOT NULL, PRIMARY KEY (service))""",
    "INSERT INTO leaders VALUES ('dispatcher', 6)",
    "INSERT INTO job_graphs VALUES ('g', CAST('graph' AS {bytes}))",
    "INSERT INTO job_graph_blobs VALUES ('g', 'blob')",
    f"""INSERT INTO jobs VALUES
        ('{JOB}', 'runs', 'g', 'RUNNING', 7, 0, 1, 'm', true, '', NULL, false)""",
    f"""INSERT INTO jobs VALUES
        ('{ENDED}', 'failed', 'g', 'FAILED', 5, 9, 1, 'n', false, 'why',
        CAST('all' AS {{bytes}}), false)""",
    f"""INSERT INTO jobs VALUES
        ('{FORGOTTEN}', '', '', 'FINISHED', 3, 4, 1, 'o', false, '', NULL, true)""",
]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Returns the URL of an empty database."""
    if request.param == "sqlite":
        return JobStore.sqlite_url(tmp_path)
    server: str = request.getfixturevalue("postgres")
    url = server.replace("postgresql://", "postgresql+psycopg2://")
    url += f"{'&' if '?' in url else '?'}options=-csearch_path%3Djob_store"
    empty(url)
    return url


def empty(url: str) -> None:
    execute(url, "DROP SCHEMA IF EXISTS job_store CASCADE", "CREATE SCHEMA job_store")


def execute(url: str, *statements: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def first_release(url: str) -> None:
    content = "BYTEA" if url.startswith("postgresql") else "BLOB"
    execute(url, *(statement.replace("{bytes}", content) for statement in FIRST_TABLES))


def schema(url: str) -> dict[str, object]:
    """Everything that two databases of one version have in common."""
    engine = sa.create_engine(url)
    inspector = sa.inspect(engine)
    found = {
        table: (
            [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)],
            inspector.get_pk_constraint(table)["constrained_columns"],
            [(i["name"], i["column_names"]) for i in inspector.get_indexes(table)],
        )
        for table in inspector.get_table_names()
    }
    engine.dispose()
    return found


def test_a_database_without_a_version_is_migrated_with_its_rows(url: str) -> None:
    first_release(url)
    store = JobStore(url)
    assert store.epoch == 7
    assert store.jobs() == [
        SubmittedJob(
            job_id=ENDED,
            name="failed",
            graph_id="g",
            status=JobStatus.FAILED,
            start_ms=5,
            end_ms=9,
            epoch=1,
            job_master_id=JobMasterId("n"),
        ),
        SubmittedJob(
            job_id=JOB,
            name="runs",
            graph_id="g",
            status=JobStatus.RUNNING,
            start_ms=7,
            epoch=1,
            job_master_id=JobMasterId("m"),
            cancel_requested=True,
        ),
    ]
    assert store.forgotten() == [(FORGOTTEN, JobStatus.FINISHED, "")]
    assert store.graph("g") == b"graph"
    assert store.needed_blobs() == {"blob"}
    assert store.ending(ENDED) == (b"all", "why")
    store.persist([JobForgotten(job_id=ENDED)])
    store.close()
    JobStore(url).close()  # it is of the newest version now


def test_the_state_for_the_next_job_master_is_migrated(url: str) -> None:
    first_release(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        migrations.set_version(connection, migrations.FIRST)
        migrations.upgrade(connection, to="0008")
        connection.execute(sa.text("UPDATE jobs SET analysis = :left"), {"left": b"a handover"})
    engine.dispose()
    store = JobStore(url)
    assert {job.handover for job in store.jobs()} == {b"a handover"}
    store.persist([HandoverChanged(job_id=JOB, handover=b"another")])
    assert {job.job_id: job.handover for job in store.jobs()}[JOB] == b"another"
    store.close()


def test_a_migrated_database_is_like_a_new_one(url: str, tmp_path: Path) -> None:
    first_release(url)
    JobStore(url).close()
    migrated = schema(url)
    if url.startswith("postgresql"):
        empty(url)
    else:
        url = f"sqlite:///{tmp_path}/new.db"
    JobStore(url).close()
    assert schema(url) == migrated


def test_all_migrations_from_nothing_make_the_newest_version(url: str, tmp_path: Path) -> None:
    JobStore(url).close()
    new = schema(url)
    if url.startswith("postgresql"):
        empty(url)
    else:
        url = f"sqlite:///{tmp_path}/other.db"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        migrations.upgrade(connection)
    engine.dispose()
    assert schema(url) == new


def test_a_database_of_a_newer_release_is_refused_and_left_alone(url: str) -> None:
    earlier = JobStore(url)
    execute(url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(FiresteelError, match=r"to a newer release .*9999.*upgrade Firesteel"):
        JobStore(url)
    earlier.persist([JobAdded(job_id=JOB, name="a job", graph_id="g", start_ms=7)])
    earlier.close()


def test_a_later_dispatcher_fences_the_earlier_one(url: str) -> None:
    earlier, later = JobStore(url), JobStore(url)
    with pytest.raises(Fenced, match="taken over"):
        earlier.persist([JobAdded(job_id=JOB, name="a job", graph_id="g", start_ms=7)])
    later.persist([JobAdded(job_id=JOB, name="a job", graph_id="g", start_ms=7)])
    assert len(later.jobs()) == 1
    earlier.close()
    later.close()


def test_a_commit_whose_answer_was_lost_may_be_repeated(url: str) -> None:
    store = JobStore(url)
    records = [
        JobAdded(job_id=JOB, name="a job", graph_id=store.put_graph(b"graph"), start_ms=7),
        JobForgotten(job_id=JOB),
    ]
    for _ in range(2):
        store.persist(records[:1])
    assert [job.name for job in store.jobs()] == ["a job"]
    for _ in range(2):
        store.persist(records[1:])
    assert store.forgotten() == [(JOB, JobStatus.INITIALIZING, "")]
    store.close()


def test_the_versions_are_those_of_the_modules() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert scripts.get_current_head() == migrations.HEAD
    assert {script.revision for script in scripts.walk_revisions()} == set(migrations.KNOWN)


def test_opening_a_database_of_the_newest_version_does_not_import_alembic(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dispatcher.job_store import JobStore\n"
        "for _ in range(2): JobStore(JobStore.sqlite_url(Path(sys.argv[1]))).close()\n"
        "assert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def checkpoint(checkpoint_id: int, *, savepoint: bool = False) -> CompleteCheckpoint:
    return CompleteCheckpoint(
        checkpoint_id=checkpoint_id,
        savepoint=savepoint,
        path=f"/d/chk-{checkpoint_id}",
        size_bytes=5,
        triggered_ms=6,
        completed_ms=7,
    )


@pytest.fixture
def store(url: str) -> Iterator[JobStore]:
    with store_with_a_job(url) as store:
        yield store


def test_what_a_restart_strategy_has_counted_is_kept(store: JobStore) -> None:
    assert store.jobs()[0].restart_history == ""
    store.persist(
        [JobStatusChanged(job_id=JOB, status=JobStatus.RUNNING, restart_history='{"used": 1}')]
    )
    assert store.jobs()[0].restart_history == '{"used": 1}'


def test_complete_checkpoints_are_kept_by_id_until_others_subsume_them(store: JobStore) -> None:
    assert store.jobs()[0].recovers
    for found in (checkpoint(1), checkpoint(2), checkpoint(3, savepoint=True)):
        store.commit_checkpoint(JOB, 1, found, [])
    store.commit_checkpoint(JOB, 1, checkpoint(4), [1, 2])
    store.commit_checkpoint(JOB, 1, checkpoint(4), [1, 2])  # its answer was lost
    assert store.checkpoints(JOB) == [checkpoint(3, savepoint=True), checkpoint(4)]
    with pytest.raises(LookupError, match="has checkpoint 4 already"):
        store.commit_checkpoint(JOB, 1, checkpoint(2), [])


def test_the_documented_query_shows_the_latest_checkpoints(store: JobStore, url: str) -> None:
    for found in (checkpoint(1), checkpoint(2, savepoint=True)):
        store.commit_checkpoint(JOB, 1, found, [])
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "checkpoints.md").read_text()
    (query,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql(query).all() == [("a job", 1, 5, 1, "/d/chk-1")]
    engine.dispose()


def test_a_job_master_that_another_one_has_replaced_adds_no_checkpoint(store: JobStore) -> None:
    store.commit_checkpoint(JOB, 1, checkpoint(1), [])
    store.persist([JobAssigned(job_id=JOB, epoch=2, job_master_id=JobMasterId("n"))])
    with pytest.raises(Superseded, match="newer JobMaster than that of epoch 1"):
        store.commit_checkpoint(JOB, 1, checkpoint(2), [1])
    assert store.checkpoints(JOB) == [checkpoint(1)]
    store.commit_checkpoint(JOB, 2, checkpoint(10), [1])
    assert store.checkpoints(JOB) == [replace(checkpoint(10), epoch=2)]


@pytest.mark.parametrize("keeps", [True, False])
def test_checkpoints_of_an_ended_job_are_gone_unless_they_are_kept(
    store: JobStore, keeps: bool
) -> None:
    store.commit_checkpoint(JOB, 1, checkpoint(1), [])
    ended = JobEnded(job_id=JOB, status=JobStatus.FAILED, end_ms=9, keeps_checkpoints=keeps)
    store.persist([ended])
    assert store.checkpoints(JOB) == [checkpoint(1)] * keeps
    with pytest.raises(Superseded, match="is over"):
        store.commit_checkpoint(JOB, 1, checkpoint(2), [])
    store.persist([JobForgotten(job_id=JOB)])
    assert store.checkpoints(JOB) == []


def test_a_certainly_unwritten_checkpoint_differs_from_a_possibly_written(
    store: JobStore, url: str
) -> None:
    def fail(connection: object) -> None:
        raise sa.exc.OperationalError("COMMIT", {}, Exception("the connection is gone"))

    sa.event.listen(store._engine, "commit", fail)
    with pytest.raises(sa.exc.OperationalError, match="the connection is gone"):
        store.commit_checkpoint(JOB, 1, checkpoint(1), [])
    sa.event.remove(store._engine, "commit", fail)
    execute(url, "ALTER TABLE checkpoints RENAME TO elsewhere")
    with pytest.raises(NotWritten, match="checkpoints"):
        store.commit_checkpoint(JOB, 1, checkpoint(1), [])


def test_a_savepoint_is_forgotten_unless_a_running_job_needs_it(store: JobStore) -> None:
    store.commit_checkpoint(JOB, 1, checkpoint(1, savepoint=True), [])
    assert store.drop_savepoint("/d/chk-1") == JOB
    store.commit_checkpoint(JOB, 1, checkpoint(2), [])
    assert store.drop_savepoint("/d/chk-2") is None, "it is a checkpoint"
    assert store.drop_savepoint("/d/chk-1") is None
    assert store.checkpoints(JOB) == [checkpoint(2)]
    store.commit_checkpoint(JOB, 1, checkpoint(3, savepoint=True), [])
    store.persist([JobEnded(job_id=JOB, status=JobStatus.FAILED, end_ms=9, keeps_checkpoints=True)])
    assert store.drop_savepoint("/d/chk-3") is None
    assert store.checkpoints(JOB) == [checkpoint(2)]

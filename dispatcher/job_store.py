"""Stores jobs: their graphs, their statuses, and the final details of ended jobs.

Each call is one fenced transaction: it fails if a later Dispatcher has taken over the store. Every
write may be repeated, because a commit whose answer is lost may have happened. The API is
synchronous; the shell calls it in one thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, assert_never

import sqlalchemy as sa
import tenacity
from sqlalchemy.engine import Connection

from dispatcher import access_store, migrations
from dispatcher.core.records import (
    HandoverChanged,
    JobAdded,
    JobAssigned,
    JobCancelRequested,
    JobEnded,
    JobForgotten,
    JobStatusChanged,
    Record,
)
from dispatcher.core.submitted_jobs import ForgottenJob, SubmittedJob
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.fencing import Refusals
from firesteel.common.ids import JobId, JobMasterId, random_id
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError

_metadata = sa.MetaData()

_jobs = sa.Table(
    "jobs",
    _metadata,
    sa.Column("job_id", sa.String(32), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("graph_id", sa.String(32), nullable=False),
    sa.Index("jobs_by_graph", "graph_id"),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("start_ms", sa.BigInteger, nullable=False),
    sa.Column("end_ms", sa.BigInteger, nullable=False, default=0),
    sa.Column("epoch", sa.BigInteger, nullable=False, default=0),
    sa.Column("job_master_id", sa.String(32)),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, default=False),
    # Why the job failed without a report of its JobMaster, or why a forgotten job was forgotten.
    sa.Column("failure", sa.Text, nullable=False, default=""),
    sa.Column("final_details", sa.LargeBinary),
    sa.Column("forgotten", sa.Boolean, nullable=False, default=False),
    # Whether a new JobMaster continues the job when its JobMaster is lost.
    sa.Column("recovers", sa.Boolean, nullable=False, server_default=sa.false()),
    # The state of the restart strategy as JSON; empty: none yet.
    sa.Column("restart_history", sa.Text, nullable=False, server_default=""),
    # A serialised Handover for the next JobMaster; only until the job has ended. NULL until a
    # JobMaster reports it; empty: the tasks cannot be adopted.
    sa.Column("handover", sa.LargeBinary),
    sa.Column("job_master_address", sa.Text, nullable=False, server_default=""),
    # A serialised JobHistory: the job's statuses, failures and warnings. NULL until a JobMaster
    # reports it.
    sa.Column("history", sa.LargeBinary),
    # The name of who submitted it; empty: not known.
    sa.Column("owner", sa.Text, nullable=False, server_default=""),
    # A serialised JobParallelism. NULL: that of the graph.
    sa.Column("parallelism", sa.LargeBinary),
)

# Complete checkpoints and savepoints; a job restarts from the one with the highest id.
_checkpoints = sa.Table(
    "checkpoints",
    _metadata,
    sa.Column("job_id", sa.String(32), primary_key=True),
    sa.Column("checkpoint_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),  # checkpoint, savepoint
    sa.Column("path", sa.Text, nullable=False),  # of the directory with its _metadata
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("triggered_ms", sa.BigInteger, nullable=False),
    sa.Column("completed_ms", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),  # of the JobMaster that took it
)

# Keyed by content: equal graphs are stored once.
_graphs = sa.Table(
    "job_graphs",
    _metadata,
    sa.Column("graph_id", sa.String(32), primary_key=True),
    sa.Column("graph", sa.LargeBinary, nullable=False),
)

# The files that the jobs of a graph need.
_graph_blobs = sa.Table(
    "job_graph_blobs",
    _metadata,
    sa.Column("graph_id", sa.String(32), primary_key=True),
    sa.Column("blob_hash", sa.String(32), primary_key=True),
)

_leaders = sa.Table(
    "leaders",
    _metadata,
    sa.Column("service", sa.String(32), primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
)

# Has one row once Dispatchers have been elected for this store.
_identity = sa.Table("identity", _metadata, sa.Column("store_id", sa.String(32), primary_key=True))

_SERVICE = "dispatcher"
_CHECKPOINT, _SAVEPOINT = "checkpoint", "savepoint"
# Statements of every checkpoint, compiled once: compiling takes longer than running them.
_LEADER = sa.select(_leaders.c.epoch).where(_leaders.c.service == _SERVICE).with_for_update()
_JOB_MASTER = (
    sa.select(_jobs.c.epoch, _jobs.c.status)
    .where(_jobs.c.job_id == sa.bindparam("job_id"))
    .with_for_update()
)
_HIGHEST_CHECKPOINT = sa.select(sa.func.max(_checkpoints.c.checkpoint_id)).where(
    _checkpoints.c.job_id == sa.bindparam("job_id")
)
_DROP_SUBSUMED = sa.delete(_checkpoints).where(
    _checkpoints.c.job_id == sa.bindparam("job_id"),
    _checkpoints.c.checkpoint_id.in_(sa.bindparam("subsumed", expanding=True)),
)
_ADD_CHECKPOINT = sa.insert(_checkpoints)
_MIGRATION_LOCK = 0x46697265  # Postgres: one process at a time creates or migrates the tables
_SQLITE_BUSY_S = 5  # how long another process may hold the file's lock


class Fenced(FiresteelError):
    """Another Dispatcher has taken over this job store; this one must not write to it."""


class Superseded(FiresteelError):
    """The job is over or has a newer JobMaster; the caller must not write to the store."""


class NotWritten(FiresteelError):
    """The database failed; no change of this call is stored."""


class Ending(NamedTuple):
    final_details: bytes | None  # as reported by the job's JobMaster; None: not reported
    failure: str  # why the job ended without final details


class JobStore:
    """The jobs of one cluster. Opening the store takes it over from the previous Dispatcher."""

    def __init__(
        self, url: str, epoch: int | None = None, refusals: Refusals | None = None
    ) -> None:
        """`url` is an SQLAlchemy URL such as sqlite:////var/lib/firesteel/jobs.db or
        postgresql+psycopg2://...; `epoch` is the elected epoch, or None for the store's next one.
        Raises Fenced if a later Dispatcher has the store. `refusals` counts transactions refused
        after a takeover.
        """
        self._refusals = refusals or Refusals()
        with _opening(url):
            self._engine = _engine(url)
            with self._engine.begin() as connection:
                _bring_up_to_date(connection)
            self.epoch, self._found = self._take_over(epoch)

    def _take_over(self, elected: int | None) -> tuple[int, _Found | None]:
        """Returns this Dispatcher's epoch. If the disk is too full to store it, also returns what
        the store contained: the first transaction then takes the store over.
        """
        try:
            with self._engine.begin() as connection:
                return _take_over(connection, elected), None
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "sqlite_errorname", "") != "SQLITE_FULL":
                raise
        with self._engine.connect() as connection:
            found = _find(connection)
        return _next_epoch(found.epoch, elected), found

    @property
    def access(self) -> access_store.AccessStore:
        """The tokens and the audit log, in the same database."""
        return access_store.AccessStore(self._engine.connect, self._transaction)

    @staticmethod
    def sqlite_url(directory: Path) -> str:
        return f"sqlite:///{(directory / 'jobs.db').resolve()}"

    def close(self) -> None:
        self._engine.dispose()

    # ---- graphs

    @staticmethod
    def graph_id(graph: bytes) -> str:
        return hashlib.md5(graph, usedforsecurity=False).hexdigest()

    def put_graph(self, graph: bytes, blob_hashes: Iterable[str] = ()) -> str:
        """Stores a graph before its job is accepted, and returns its id. `blob_hashes` names its
        files.
        """
        graph_id = self.graph_id(graph)
        with self._transaction() as connection:
            if (
                connection.execute(
                    sa.select(_graphs.c.graph_id).where(_graphs.c.graph_id == graph_id)
                ).first()
                is None
            ):
                connection.execute(sa.insert(_graphs).values(graph_id=graph_id, graph=graph))
                for blob_hash in set(blob_hashes):
                    connection.execute(
                        sa.insert(_graph_blobs).values(graph_id=graph_id, blob_hash=blob_hash)
                    )
        return graph_id

    def graph(self, graph_id: str) -> bytes | None:
        with self._engine.connect() as connection:
            row = connection.execute(
                sa.select(_graphs.c.graph).where(_graphs.c.graph_id == graph_id)
            ).first()
        return None if row is None else bytes(row.graph)

    def drop_unused_graphs(self) -> None:
        """Deletes the graphs of submissions that were refused or interrupted."""
        used = sa.select(_jobs.c.graph_id)
        with self._transaction() as connection:
            for table in (_graphs, _graph_blobs):
                connection.execute(sa.delete(table).where(table.c.graph_id.not_in(used)))

    def needed_blobs(self) -> set[str]:
        """Returns the hashes of all files that stored graphs need."""
        with self._engine.connect() as connection:
            return {
                row.blob_hash
                for row in connection.execute(sa.select(_graph_blobs.c.blob_hash).distinct())
            }

    # ---- jobs

    def persist(self, records: Sequence[Record]) -> None:
        """Stores all of the records or none."""
        with self._transaction() as connection:
            for record in records:
                _write(connection, record)

    def jobs(self) -> list[SubmittedJob]:
        """Returns all jobs that are not forgotten, oldest first."""
        others = ("final_details", "forgotten", "failure", "parallelism")
        columns = [c for c in _jobs.c if c.name not in others]
        query = sa.select(*columns).where(_jobs.c.forgotten.is_(False)).order_by(_jobs.c.start_ms)
        with self._engine.connect() as connection:
            return [
                SubmittedJob(
                    job_id=JobId(row.job_id),
                    name=row.name,
                    graph_id=row.graph_id,
                    status=JobStatus[row.status],
                    start_ms=row.start_ms,
                    end_ms=row.end_ms,
                    epoch=row.epoch,
                    job_master_id=JobMasterId(row.job_master_id) if row.job_master_id else None,
                    job_master_address=row.job_master_address,
                    cancel_requested=row.cancel_requested,
                    recovers=row.recovers,
                    restart_history=row.restart_history,
                    history=row.history or b"",
                    handover=row.handover,
                    owner=row.owner,
                )
                for row in connection.execute(query)
            ]

    def forgotten(self) -> list[ForgottenJob]:
        query = (
            sa.select(_jobs.c.job_id, _jobs.c.status, _jobs.c.failure)
            .where(_jobs.c.forgotten.is_(True))
            .order_by(_jobs.c.end_ms)
        )
        with self._engine.connect() as connection:
            return [
                ForgottenJob(JobId(row.job_id), JobStatus[row.status], row.failure)
                for row in connection.execute(query)
            ]

    def ending(self, job_id: JobId) -> Ending | None:
        """Returns None until the job has ended."""
        query = sa.select(_jobs.c.status, _jobs.c.final_details, _jobs.c.failure).where(
            _jobs.c.job_id == job_id
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        if row is None:
            return Ending(None, "")
        if not JobStatus[row.status].globally_terminal:
            return None
        return Ending(row.final_details, row.failure)

    # ---- checkpoints

    def commit_checkpoint(
        self, job_id: JobId, epoch: int, checkpoint: CompleteCheckpoint, subsumed: Sequence[int]
    ) -> None:
        """Replaces the subsumed checkpoints with this complete one if `epoch` is the epoch of the
        job's JobMaster; does nothing if it is already stored.

        Raises Superseded or NotWritten. After any other error the outcome is unknown; a repeated
        call resolves it.
        """
        with self._job_master_writes(job_id, epoch) as connection:
            _replace_checkpoints(connection, job_id, epoch, checkpoint, subsumed)

    def commit_parallelism(self, job_id: JobId, epoch: int, parallelism: bytes) -> None:
        """Stores the serialised JobParallelism with which the job's next JobMaster continues it, if
        `epoch` is the epoch of the job's JobMaster. Raises as `commit_checkpoint` does.
        """
        with self._job_master_writes(job_id, epoch) as connection:
            _update(connection, job_id, parallelism=parallelism)

    def parallelism(self, job_id: JobId) -> bytes:
        """Returns the serialised JobParallelism; empty: the job was never rescaled."""
        query = sa.select(_jobs.c.parallelism).where(_jobs.c.job_id == job_id)
        with self._engine.connect() as connection:
            return connection.execute(query).scalar() or b""

    def drop_savepoint(self, path: str) -> JobId | None:
        """Forgets a savepoint, which may not be stored here. If a running job has completed no
        checkpoint since, changes nothing and returns that job."""
        of_path = sa.and_(_checkpoints.c.path == path, _checkpoints.c.kind == _SAVEPOINT)
        newer = _checkpoints.alias()
        superseded = sa.exists().where(
            newer.c.job_id == _checkpoints.c.job_id,
            newer.c.checkpoint_id > _checkpoints.c.checkpoint_id,
        )
        ended = [status.name for status in JobStatus if status.globally_terminal]
        needed = (
            sa.select(_jobs.c.job_id)
            .join(_checkpoints, _checkpoints.c.job_id == _jobs.c.job_id)
            .where(of_path, ~superseded, _jobs.c.status.not_in(ended))
        )
        with self._transaction() as connection:
            if (job_id := connection.execute(needed).scalar()) is not None:
                return JobId(job_id)
            connection.execute(sa.delete(_checkpoints).where(of_path))
        return None

    def checkpoints(self, job_id: JobId) -> list[CompleteCheckpoint]:
        """Returns the job's checkpoints in order of their ids."""
        query = sa.select(_checkpoints).where(_checkpoints.c.job_id == job_id)
        with self._engine.connect() as connection:
            return [
                CompleteCheckpoint(
                    checkpoint_id=row.checkpoint_id,
                    savepoint=row.kind == _SAVEPOINT,
                    path=row.path,
                    size_bytes=row.size_bytes,
                    triggered_ms=row.triggered_ms,
                    completed_ms=row.completed_ms,
                    epoch=row.epoch,
                )
                for row in connection.execute(query.order_by(_checkpoints.c.checkpoint_id))
            ]

    @contextmanager
    def _job_master_writes(self, job_id: JobId, epoch: int) -> Iterator[Connection]:
        """Runs a transaction of the job's JobMaster. Raises NotWritten if it certainly failed."""
        before_commit = True
        try:
            with self._transaction() as connection:
                _check_job_master(connection, job_id, epoch)
                yield connection
                before_commit = False
        except sa.exc.SQLAlchemyError as error:
            if before_commit:
                raise NotWritten(_reason(error)) from error
            raise

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Runs one transaction. Raises Fenced once a later Dispatcher has taken over the store."""
        with self._engine.begin() as connection:
            if self._found is None:
                self._check_epoch(connection)
            elif _find(connection) == self._found:
                _take_over(connection, self.epoch)
            else:
                raise Fenced("another Dispatcher has written to the job store before this one")
            yield connection
        self._found = None

    def _check_epoch(self, connection: Connection) -> None:
        # SQLite has no FOR UPDATE: there, BEGIN IMMEDIATE has locked the whole file.
        epoch = connection.execute(_LEADER).scalar_one()
        if epoch != self.epoch:
            self._refusals.refuse(
                "transaction of the job store",
                sender="Dispatcher",
                epoch=self.epoch,
                in_force=epoch,
            )
            raise Fenced(
                f"another Dispatcher (epoch {epoch}) has taken over the job store from this one"
                f" (epoch {self.epoch})"
            )


class JobStoreFacts(NamedTuple):
    """The facts about the job store that contenders for Dispatcher leadership need."""

    store_id: str  # unique to this store
    epoch: int  # of the last Dispatcher; 0: there was none


def job_store_facts(url: str) -> JobStoreFacts:
    """Creates or migrates the store without taking it over. Raises FiresteelError."""
    with _opening(url):
        engine = _engine(url)
        try:
            with engine.begin() as connection:
                _bring_up_to_date(connection)
                store_id = connection.execute(sa.select(_identity.c.store_id)).scalar()
                if store_id is None:
                    store_id = random_id()
                    connection.execute(sa.insert(_identity).values(store_id=store_id))
                return JobStoreFacts(store_id, connection.execute(_LEADER).scalar() or 0)
        finally:
            engine.dispose()


@contextmanager
def _opening(url: str) -> Iterator[None]:
    try:
        yield
    except (sa.exc.SQLAlchemyError, ImportError) as error:
        where = url.split("@")[-1]  # without a password
        problem = f"the job store {where} cannot be opened: {_reason(error)}"
        raise FiresteelError(f"{problem}; check database.url and --dir") from error


def _engine(url: str) -> sa.Engine:
    engine = sa.create_engine(url, future=True, **_patience(sa.make_url(url)))
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(
            engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE")
        )
    return engine


def _bring_up_to_date(connection: Connection) -> None:
    """Creates the tables, or migrates those of an earlier release. Raises FiresteelError."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    version = migrations.current_version(connection)
    if version == migrations.HEAD:
        return
    if version is None and not sa.inspect(connection).has_table(_jobs.name):
        _metadata.create_all(connection)
        access_store.metadata.create_all(connection)
        migrations.set_version(connection, migrations.HEAD)
        return
    if version is None:
        _check_first_version(connection)
        migrations.set_version(connection, migrations.FIRST)
    elif version not in migrations.KNOWN:
        raise FiresteelError(
            f"the job store belongs to a newer release of Firesteel (table version {version});"
            " upgrade Firesteel, or use another --dir or database.url"
        )
    migrations.upgrade(connection)


def _check_first_version(connection: Connection) -> None:
    """Raises FiresteelError if tables without a version are older than the first version."""
    inspector = sa.inspect(connection)
    for table, columns in migrations.FIRST_COLUMNS.items():
        present = inspector.get_columns(table) if inspector.has_table(table) else []
        if missing := set(columns) - {column["name"] for column in present}:
            raise FiresteelError(
                "the job store belongs to a release of Firesteel that cannot be migrated (table"
                f" {table} lacks {', '.join(sorted(missing))}); use another --dir or database.url"
            )


class _Found(NamedTuple):
    """The content of a store that a Dispatcher could not take over immediately."""

    epoch: int | None
    jobs: list[tuple[Any, ...]]


def _find(connection: Connection) -> _Found:
    epoch = connection.execute(
        sa.select(_leaders.c.epoch).where(_leaders.c.service == _SERVICE)
    ).scalar()
    query = sa.select(_jobs.c.job_id, _jobs.c.status, _jobs.c.epoch, _jobs.c.cancel_requested)
    rows = connection.execute(query.order_by(_jobs.c.job_id))
    return _Found(epoch, [tuple(row) for row in rows])


def _take_over(connection: Connection, elected: int | None) -> int:
    before = connection.execute(_LEADER).scalar()
    epoch = _next_epoch(before, elected)
    if before is None:
        connection.execute(sa.insert(_leaders).values(service=_SERVICE, epoch=epoch))
    else:
        connection.execute(
            sa.update(_leaders).where(_leaders.c.service == _SERVICE).values(epoch=epoch)
        )
    return epoch


def _next_epoch(before: int | None, elected: int | None) -> int:
    if elected is None:
        return (before or 0) + 1
    if elected <= (before or 0):
        raise Fenced(
            f"another Dispatcher (epoch {before}) has the job store, and this one (epoch {elected})"
            " was elected before it"
        )
    return elected


def _write(connection: Connection, record: Record) -> None:
    match record:
        case JobAdded():
            _add(connection, record)
        case JobAssigned():
            _update(
                connection,
                record.job_id,
                epoch=record.epoch,
                job_master_id=record.job_master_id,
                job_master_address=record.address,
            )
        case JobStatusChanged():
            _update(
                connection,
                record.job_id,
                status=record.status.name,
                restart_history=record.restart_history,
                history=record.history,
            )
        case HandoverChanged():
            _update(connection, record.job_id, handover=record.handover)
        case JobCancelRequested():
            _update(connection, record.job_id, cancel_requested=True)
        case JobEnded():
            _update(
                connection,
                record.job_id,
                status=record.status.name,
                end_ms=record.end_ms,
                final_details=record.final_details,
                failure=record.failure,
                handover=None,
                # Otherwise the details include it.
                **({} if record.final_details is None else {"history": None}),
            )
            if not record.keeps_checkpoints:
                _drop_checkpoints(connection, record.job_id)
        case JobForgotten():
            graph_id = connection.execute(
                sa.select(_jobs.c.graph_id).where(_jobs.c.job_id == record.job_id)
            ).scalar()
            _update(
                connection,
                record.job_id,
                forgotten=True,
                final_details=None,
                graph_id="",
                name="",
                failure=record.why,
                history=None,
            )
            _drop_checkpoints(connection, record.job_id)
            others = sa.select(_jobs.c.job_id).where(_jobs.c.graph_id == graph_id)
            if connection.execute(others).first() is None:
                for table in (_graphs, _graph_blobs):
                    connection.execute(sa.delete(table).where(table.c.graph_id == graph_id))
        case _:
            assert_never(record)


def _add(connection: Connection, record: JobAdded) -> None:
    """Does nothing if the same row is stored: the answer to an earlier commit was lost."""
    row = {
        "name": record.name,
        "graph_id": record.graph_id,
        "start_ms": record.start_ms,
        "recovers": record.recovers,
        "owner": record.owner,
    }
    query = sa.select(*(_jobs.c[name] for name in row)).where(_jobs.c.job_id == record.job_id)
    if (stored := connection.execute(query).mappings().first()) is None:
        connection.execute(
            sa.insert(_jobs).values(job_id=record.job_id, status=JobStatus.INITIALIZING.name, **row)
        )
    elif dict(stored) != row:
        raise LookupError(f"the job store has a different job {record.job_id}: {dict(stored)}")


def _update(connection: Connection, job_id: JobId, **values: object) -> None:
    changed = connection.execute(sa.update(_jobs).where(_jobs.c.job_id == job_id).values(**values))
    if changed.rowcount != 1:
        raise LookupError(f"the job store has no job {job_id} to update")


def _check_job_master(connection: Connection, job_id: JobId, epoch: int) -> None:
    row = connection.execute(_JOB_MASTER, {"job_id": job_id}).first()
    if row is None or row.epoch != epoch or JobStatus[row.status].globally_terminal:
        raise Superseded(
            f"job {job_id} is over, or has a newer JobMaster than that of epoch {epoch}"
        )


def _replace_checkpoints(
    connection: Connection,
    job_id: JobId,
    epoch: int,
    checkpoint: CompleteCheckpoint,
    subsumed: Sequence[int],
) -> None:
    if subsumed:
        connection.execute(_DROP_SUBSUMED, {"job_id": job_id, "subsumed": list(subsumed)})
    highest = connection.execute(_HIGHEST_CHECKPOINT, {"job_id": job_id}).scalar()
    if highest == checkpoint.checkpoint_id:
        return  # the answer to an earlier commit was lost
    if highest is not None and highest > checkpoint.checkpoint_id:
        raise LookupError(f"job {job_id} has checkpoint {highest} already: {checkpoint}")
    row = {
        "job_id": job_id,
        "checkpoint_id": checkpoint.checkpoint_id,
        "kind": _SAVEPOINT if checkpoint.savepoint else _CHECKPOINT,
        "path": checkpoint.path,
        "size_bytes": checkpoint.size_bytes,
        "triggered_ms": checkpoint.triggered_ms,
        "completed_ms": checkpoint.completed_ms,
        "epoch": epoch,
    }
    connection.execute(_ADD_CHECKPOINT, row)


def _drop_checkpoints(connection: Connection, job_id: JobId) -> None:
    connection.execute(sa.delete(_checkpoints).where(_checkpoints.c.job_id == job_id))


def _prepare_sqlite(connection: object, _record: object) -> None:
    # Keeps the driver from starting transactions itself: ours are IMMEDIATE.
    connection.isolation_level = None  # type: ignore[attr-defined]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    # While another process creates the file, it is "locked" immediately: SQLite's own timeout does
    # not apply to the change of its journal mode.
    for attempt in tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_busy),
        wait=tenacity.wait_random(0.001, 0.02),
        stop=tenacity.stop_after_delay(_SQLITE_BUSY_S),
        reraise=True,
    ):
        with attempt:
            cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")  # a committed row survives a loss of power
    cursor.execute(f"PRAGMA busy_timeout={_SQLITE_BUSY_S * 1000}")
    cursor.close()


def _is_busy(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def _patience(url: sa.URL) -> dict[str, Any]:
    """Settings that detect a lost server within seconds, including on pooled connections, and that
    keep calls from failing on stale connections once the server is back.
    """
    if url.get_backend_name() != "postgresql":
        return {}
    limits = {
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,  # ms
    }
    arguments = {name: value for name, value in limits.items() if name not in url.query}
    return {"pool_pre_ping": True, "connect_args": arguments}


def _reason(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]

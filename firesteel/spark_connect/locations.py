"""The checkpointLocation of a streaming query: where its state is kept between runs.

    LOCATION/metadata                        {"id": ...}: the id of the query, as Spark stores it
             firesteel/query                 the job that runs the query, if one does
                       imported              positions in the sources, of a query on Spark
                       batches               the last batch: its number and where its sources ended
                       lock                  held by the process that runs it, on a local disk
                       checkpoints/JOB/chk-N
                       savepoints/savepoint-...
                       completed/            the batches that foreachBatch has processed

A query that stops takes a savepoint here, and one that fails leaves its last checkpoint. The next
start continues from the newest of them and deletes the others.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql.connect.proto.commands_pb2 import WriteStreamOperationStart

from firesteel.client.client import Client
from firesteel.client.spark_programs.imports import ID, IMPORTED, OURS, positions_of
from firesteel.client.spark_programs.spark_checkpoint import SourcePosition
from firesteel.client.spark_programs.uris import resolved
from firesteel.common.checkpoints.metadata import read_metadata
from firesteel.common.checkpoints.storage import METADATA, CheckpointStorage, StorageError
from firesteel.common.config import options
from firesteel.common.process.lock_file import LockFile
from firesteel.errors import ClusterUnreachable, JobNotFound
from firesteel.spark_connect.refusals import Refused

OPTION = "checkpointLocation"
DEFAULT = "spark.sql.streaming.checkpointLocation"
_QUERY = "query"
_BATCHES = "batches"
_BEGUN = "begun"
_SPARKS = ("commits", "offsets")  # the folders of Spark's own checkpoints


class RunningQuery(NamedTuple):
    """The job that a location names as running its query."""

    job_id: str
    name: str
    cluster: (
        str  # its Dispatcher's address; empty: an embedded cluster, which ends with its program
    )


class LastBatch(NamedTuple):
    """The last batch of a query's earlier runs. `ends` has an end offset of each source, or nothing
    if they are not known.
    """

    number: int
    ends: tuple[Any, ...] = ()


NO_BATCH = LastBatch(-1)


class Location:
    """The location of one run of a query. It is locked until `close`."""

    def __init__(self, uri: str, *, temporary: str = "") -> None:
        """`temporary` is a folder that is removed with the location."""
        self.uri = uri
        self._temporary = temporary
        self._storage = CheckpointStorage(uri, option=OPTION)
        self._ours = self._storage.at(OURS)
        self._lock: LockFile | None = None
        self.query_id = ""
        self.last_batch = NO_BATCH  # of the earlier runs
        self.restores: str = ""  # the newest checkpoint or savepoint; empty: the query is new

    @property
    def is_temporary(self) -> bool:
        return bool(self._temporary)

    @property
    def savepoints(self) -> str:
        """The directory in which a stop puts its savepoint."""
        return self._ours.at("savepoints").uri

    @property
    def completed(self) -> str:
        """The directory of completed batches; empty if the location is temporary, since no other
        job restores them.
        """
        return "" if self._temporary else self._ours.at("completed").uri

    def configuration(self) -> dict[str, str]:
        """Returns the options of the job."""
        found = {
            options.CHECKPOINT_DIR.key: self._ours.at("checkpoints").uri,
            options.CHECKPOINT_RETENTION.key: (
                "NO_EXTERNALIZED_CHECKPOINTS" if self._temporary else "RETAIN_ON_CANCELLATION"
            ),
            options.SAVEPOINT_DIR.key: self.savepoints,
        }
        if self.restores:
            found |= {
                options.RECOVERY_PATH.key: self.restores,
                options.RECOVERY_CLAIM_MODE.key: "NO_CLAIM",
            }
        return found

    def imported(self) -> tuple[SourcePosition, ...] | None:
        """Returns how far a query on Spark had read its sources; None if it did not run there."""
        if self._temporary or not self._ours.exists(IMPORTED):
            return None
        return positions_of(self._ours.read_unchecked(IMPORTED))

    def started(self, query: RunningQuery) -> None:
        """Records the job of the query, which another process then finds."""
        self._ours.write(_QUERY, [json.dumps(query._asdict()).encode()])

    def begun_us(self) -> int:
        """Returns when the query was first started, in microseconds since the epoch. Records it,
        unless it is recorded.
        """
        if self._ours.exists(_BEGUN):
            return int(self._ours.read_unchecked(_BEGUN))
        begun_us = time.time_ns() // 1_000
        self._ours.write(_BEGUN, [str(begun_us).encode()])
        return begun_us

    def batch_ended(self, batch: LastBatch) -> None:
        """Records that the query has completed a batch, for the progress of the next run."""
        if self.is_temporary:
            return
        with contextlib.suppress(StorageError):
            self._ours.write(_BATCHES, [json.dumps(batch._asdict()).encode()])

    def ended(self) -> None:
        """Records that the job has ended. A process that is killed does not get here, so whoever
        opens the location queries the cluster.
        """
        with contextlib.suppress(StorageError):
            self._ours.delete([_QUERY])

    def close(self) -> None:
        """Releases the lock, and removes a temporary location."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    # -- opening

    def _open(self, runs: Callable[[RunningQuery], bool]) -> None:
        self._refuse_sparks()
        self._acquire()
        query = self._query()
        if query is not None and runs(query):
            raise _in_use(self.uri, f"job {query.job_id} ({query.name!r})")
        self.query_id = self._stored_id() or self._store_id()
        self.restores = self._newest()
        self.last_batch = self._stored_batch() if self.restores else NO_BATCH

    def _refuse_sparks(self) -> None:
        found = [name for name in _SPARKS if name in self._storage.directories()]
        if found:
            raise Refused(
                f"the checkpointLocation {self.uri} has a checkpoint of Spark ({', '.join(found)})."
                " To continue where Spark has stopped reading, run `firesteel"
                f" import-spark-checkpoint {self.uri} NEW_LOCATION` and use the new location; to"
                " start over, name another one"
            )

    def _acquire(self) -> None:
        if "://" in self.uri:
            return  # an object store has no locks: the recorded job decides
        path = Path(self.uri, OURS, "lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = LockFile(path)
            lock.acquire()
        except BlockingIOError:
            holder = self._query()
            who = "another query" if holder is None else f"job {holder.job_id} ({holder.name!r})"
            raise _in_use(self.uri, who) from None
        except OSError as error:
            raise Refused(
                f"the checkpointLocation {self.uri} cannot be written: {error.strerror or error}"
            ) from error
        self._lock = lock

    def _query(self) -> RunningQuery | None:
        if not self._ours.exists(_QUERY):
            return None
        return RunningQuery(**json.loads(self._ours.read_unchecked(_QUERY)))

    def _stored_id(self) -> str:
        if not self._storage.exists(ID):
            return ""
        content = self._storage.read_unchecked(ID)
        try:
            return str(json.loads(content)["id"])
        except (ValueError, KeyError, TypeError):
            raise Refused(
                f"the file {ID} of the checkpointLocation {self.uri} is damaged; it has the id of"
                ' the query as {"id": "..."}'
            ) from None

    def _stored_batch(self) -> LastBatch:
        if not self._ours.exists(_BATCHES):
            return NO_BATCH
        try:
            stored = json.loads(self._ours.read_unchecked(_BATCHES))
            if isinstance(stored, int):  # an earlier version wrote the number of the next batch
                return LastBatch(stored - 1)
            return LastBatch(int(stored["number"]), tuple(stored["ends"]))
        except (ValueError, KeyError, TypeError):
            return NO_BATCH

    def _store_id(self) -> str:
        query_id = str(uuid.uuid4())
        self._storage.write(ID, [json.dumps({"id": query_id}).encode()])
        return query_id

    def _newest(self) -> str:
        """Returns the directory of the newest complete checkpoint or savepoint, and deletes the
        older ones: no job refers to their files.
        """
        taken: list[tuple[int, int, str]] = []  # time, id, directory below this one
        for found in self._complete():
            metadata = read_metadata(self._ours.at(found).uri)
            taken.append((metadata.timestamp_ms, metadata.checkpoint_id, found))
        if not taken:
            return ""
        newest = max(taken)[2]
        kept = _owner_of(newest)
        for directory in self._owners():
            if directory != kept:
                self._ours.delete_directory(directory)
        return self._ours.at(newest).uri

    def _owners(self) -> list[str]:
        """Returns the directories that belong together: those of jobs, and of savepoints."""
        return [
            f"{kind}/{name}"
            for kind in ("checkpoints", "savepoints")
            for name in self._ours.at(kind).directories()
        ]

    def _complete(self) -> list[str]:
        found = []
        for owner in self._owners():
            if owner.startswith("savepoints/"):
                found.append(owner)
            else:
                names = self._ours.at(owner).directories()
                found += [f"{owner}/{name}" for name in names if name.startswith("chk-")]
        return [path for path in found if self._ours.exists(f"{path}/{METADATA}")]


def open_location(
    request: WriteStreamOperationStart,
    *,
    required: bool,
    runs: Callable[[RunningQuery], bool],
    settings: Mapping[str, str] | None = None,
) -> Location:
    """Opens and locks the location of a query: that of the request, or a folder named after the
    query below that of the session's `settings`, or a temporary one.

    `runs` returns whether a job that the location names still runs. Raises Refused if the location
    is in use, has a checkpoint of Spark, or is `required` and not there.
    """
    given = {name.lower(): value for name, value in request.options.items()}
    uri = given.get(OPTION.lower(), "")
    if not uri and (root := (settings or {}).get(DEFAULT, "")):
        uri = f"{root.rstrip('/')}/{request.query_name or uuid.uuid4()}"
    if not uri:
        if required:
            raise Refused(
                f'{OPTION} must be specified either through option("{OPTION}", ...) or'
                f' SparkSession.conf.set("{DEFAULT}", ...).',
                condition="_LEGACY_ERROR_TEMP_1298",
                parameters={"config": DEFAULT},
            )
        folder = tempfile.mkdtemp(prefix="firesteel-query-")
        location = Location(folder, temporary=folder)
        location.query_id = str(uuid.uuid4())
        return location
    try:
        location = Location(resolved(uri))
    except StorageError as error:
        raise Refused(str(error)) from error
    try:
        location._open(runs)
    except BaseException as error:
        location.close()
        if isinstance(error, StorageError):
            raise Refused(f"the {OPTION} {uri} cannot be used: {error}") from error
        raise
    return location


def _owner_of(directory: str) -> str:
    return "/".join(directory.split("/")[:2])


def _in_use(uri: str, who: str) -> Refused:
    return Refused(
        f"the checkpointLocation {uri} is in use by {who}: stop that query first, or name another"
        " location. Multiple streaming jobs detected. Please make sure only one streaming job runs"
        " on a specific checkpoint location at a time.",
        condition="CONCURRENT_STREAM_LOG_UPDATE",
        parameters={"batchId": uri},
        sql_state="40000",
    )


def still_runs(query: RunningQuery, client: Client) -> bool:
    """Whether the recorded job runs, as far as its cluster knows; `client` is that of the cluster
    of this process. A cluster that does not answer runs no job.
    """
    if not query.cluster:
        return False
    try:
        if query.cluster == client.address:
            return _runs(query.job_id, client)
        with Client(query.cluster) as other:
            return _runs(query.job_id, other)
    except ClusterUnreachable:
        return False


def _runs(job_id: str, client: Client) -> bool:
    try:
        return not client.job_details(job_id).status.globally_terminal
    except JobNotFound:
        return False

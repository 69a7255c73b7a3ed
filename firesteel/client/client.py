"""The client of a Firesteel cluster: submits, watches and cancels jobs, and fetches results.

    with Client("localhost:6123") as client:
        for job in client.list_jobs():
            print(job.job_id, job.name, job.status.name)

Every error is one of firesteel.errors, with one sentence on what is wrong and what to do.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import grpc

from firesteel._proto import (
    access_pb2,
    dispatcher_pb2,
    inspections_pb2,
    job_logs_pb2,
    job_master_pb2,
    resource_manager_pb2,
)
from firesteel.client import files as user_files
from firesteel.client import log_in
from firesteel.client.connection import LEADER_TIMEOUT_S, START_HINT, Connection
from firesteel.client.files import UserFile
from firesteel.client.job_details import (
    CLUSTER_OVERVIEW,
    JOB_DETAILS,
    JOB_OVERVIEW,
    STOP_PROGRESS,
    ClusterOverview,
    JobDetails,
    JobOverview,
    Rescaled,
    StopProgress,
)
from firesteel.common.config import Configuration, absolute, options
from firesteel.common.ids import JobId, VertexId
from firesteel.common.inspections import (
    FlameGraph,
    Inspection,
    RowSampling,
    SampledRows,
    StackSampling,
    TaskInspection,
)
from firesteel.common.job_graph import Blob, JobGraph
from firesteel.common.job_log.lines import LogLine
from firesteel.common.rpc.access_messages import (
    AUDIT_ENTRY,
    CREATED_TOKEN,
    TOKEN_DESCRIPTION,
    AuditEntry,
    CreatedToken,
    TokenDescription,
)
from firesteel.common.rpc.bearer import CALLER_ADDRESS, REST_TOKEN
from firesteel.common.rpc.convert import (
    ASSESSMENT,
    FLAME_GRAPH,
    JOB_GRAPH,
    SAMPLED_ROWS,
    TASK_INSPECTION,
)
from firesteel.common.rpc.job_logs import LINE
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.states import JobStatus
from firesteel.errors import (
    ClusterUnreachable,
    FiresteelError,
    JobCanceled,
    JobFailed,
    JobNotFound,
    PayloadTooLarge,
    SubmissionRejected,
)

if TYPE_CHECKING:
    import pyarrow as pa

CALL_TIMEOUT_S = 30.0
RECONNECT_TIMEOUT_S = 15.0  # a stream survives a Dispatcher's restart, if it takes no longer
QUORUM_TIMEOUT_S = 120.0  # the same where Dispatchers are elected, for which ZooKeeper may be away
RECONNECT_PAUSE_S = 0.1
# A Dispatcher that does not lead, or may not act, refuses a call before it does anything.
_BY_STANDBY = frozenset({Reason.NOT_LEADER, Reason.COORDINATION_UNAVAILABLE})
_NOTHING_DONE = _BY_STANDBY | {Reason.STARTING}


class Client:
    """Connects when it is created: to HOST:PORT, or to the Dispatcher that leads, which
    zookeeper://HOST:PORT,HOST:PORT/ROOT/CLUSTER-ID tells.

    Raises ClusterUnreachable: at once if nobody listens, or else after ten seconds at most.
    """

    def __init__(
        self,
        address: str,
        *,
        conf: Configuration | None = None,
        own_cluster: bool = False,
        token: Callable[[], str] | None = None,
    ) -> None:
        """`own_cluster`: this process has started the cluster, and is its administrator. `token`
        returns the token of the user on whose behalf this process calls.
        """
        self._conf = conf or Configuration.load()
        self._connection = Connection(address, self._conf, own_cluster=own_cluster, token=token)
        self.address = self._connection.address

    # ---- jobs

    def submit(self, job_graph: JobGraph, files: Sequence[UserFile] = ()) -> str:
        """Uploads the files that the cluster lacks, submits the job, and returns its id.

        Waits for a Dispatcher that is away. The job's id names the submission: if an answer is
        lost, it is sent again, and answered with the job that exists. Raises PayloadTooLarge,
        before anything is sent, SubmissionRejected, also if the cluster has another job with this
        id, or ClusterUnreachable.
        """
        with tempfile.TemporaryDirectory(prefix="firesteel-files-") as scratch:
            prepared = [user_files.prepared(file, Path(scratch)) for file in files]
            for _, blob in prepared:
                self._check_blob_size(blob)
            graph = dataclasses.replace(
                job_graph, blobs=(*job_graph.blobs, *(blob for _, blob in prepared))
            )
            specs_bytes = sum(len(o.spec) for v in graph.vertices for o in v.operators)
            self._check_payload_size(graph, specs_bytes)  # larger messages cannot be made
            request = dispatcher_pb2.SubmitJobRequest(job_graph=JOB_GRAPH.encode(graph))
            self._check_payload_size(graph, request.ByteSize())
            self._upload_missing({blob.hash: path for path, blob in prepared})
        unknown = (
            f". Whether it has the job {job_graph.job_id} is not known: look with"
            " `firesteel list -a` before you submit it again"
        )
        self._call("SubmitJob", request, submitting=True, unknown=unknown)
        return str(job_graph.job_id)

    def list_jobs(self) -> list[JobOverview]:
        """All jobs on record at the cluster, oldest first."""
        response = self._call("ListJobs", dispatcher_pb2.ListJobsRequest())
        return list(map(JOB_OVERVIEW.decode, response.jobs))

    def job_details(self, job_id: str, *, checkpoints: bool = False) -> JobDetails:
        """`checkpoints`: while the job runs, with each task's part of its last checkpoints. Raises
        JobNotFound.
        """
        request = job_master_pb2.JobDetailsRequest(job_id=job_id, checkpoints=checkpoints)
        return JOB_DETAILS.decode(self._call("GetJobDetails", request))

    def watch_job(self, job_id: str) -> Iterator[JobDetails]:
        """The job's details: now, at every change, and every second until it has ended."""
        away_since: float | None = None
        while True:
            try:
                for message in self._dispatcher.WatchJob(
                    job_master_pb2.JobDetailsRequest(job_id=job_id)
                ):
                    away_since = None
                    details = JOB_DETAILS.decode(message)
                    yield details
                    if details.status.globally_terminal:
                        return
            except grpc.RpcError as error:
                away_since = self._away_since(error, away_since)
            time.sleep(RECONNECT_PAUSE_S)

    def wait(self, job_id: str) -> JobDetails:
        """Waits until the job has FINISHED. Raises JobFailed or JobCanceled."""
        last = deque(self.watch_job(job_id), maxlen=1).pop()
        raise_unless_finished(last)
        return last

    def cancel(self, job_id: str) -> None:
        """Requests the cancellation; the job is CANCELED a little later. Waits for a Dispatcher
        that is away.

        Raises JobNotFound, FiresteelError if it has already ended, or ClusterUnreachable.
        """
        request = job_master_pb2.CancelJobRequest(job_id=job_id)
        self._call("CancelJob", request, repeats=True)

    def sample_stacks(
        self, job_id: str, vertex_id: str, subtask: int = 0, *, seconds: float = 5.0
    ) -> FlameGraph:
        """Samples the stacks of a running task, which continues, for at most 30 s.

        Raises FiresteelError if the task does not run or its slot is busy with another inspection.
        """
        response = self._inspect(job_id, vertex_id, subtask, StackSampling(seconds=seconds))
        return FLAME_GRAPH.decode(response.flame_graph)

    def sample_rows(
        self, job_id: str, vertex_id: str, subtask: int = 0, *, count: int = 20
    ) -> SampledRows:
        """Returns the next rows that a running task sends to its consumers, at most 100; fewer, if
        no more flow within ten seconds. Raises FiresteelError as `sample_stacks` does, for a sink,
        and on clusters that show no rows.
        """
        response = self._inspect(job_id, vertex_id, subtask, RowSampling(count=count))
        return SAMPLED_ROWS.decode(response.sampled_rows)

    def _inspect(
        self, job_id: str, vertex_id: str, subtask: int, inspection: Inspection
    ) -> inspections_pb2.InspectTaskResponse:
        asked = TaskInspection(
            job_id=JobId(job_id),
            vertex_id=VertexId(vertex_id),
            subtask=subtask,
            inspection=inspection,
        )
        request, timeout_s = TASK_INSPECTION.encode(asked), inspection.seconds + CALL_TIMEOUT_S
        response: inspections_pb2.InspectTaskResponse = self._answered(
            lambda: self._dispatcher.InspectTask(request, timeout=timeout_s)
        )
        return response

    def savepoint(self, job_id: str, directory: str = "") -> str:
        """Takes a savepoint of a running job, and returns its path when it is complete.

        `directory`: a path or a URI, in which one is made for it; empty: the configured one
        (execution.checkpointing.savepoint-dir). Raises JobNotFound, or FiresteelError if no
        savepoint was taken.
        """
        return str(self._take_checkpoint(job_id, savepoint=True, directory=directory).path)

    def checkpoint(self, job_id: str, *, full: bool = False) -> int:
        """Takes a checkpoint of a running job now, and returns its id when it is complete. `full`:
        it refers to no file of an earlier one (execution.checkpointing.incremental).

        Raises JobNotFound, or FiresteelError if no checkpoint was taken.
        """
        return int(self._take_checkpoint(job_id, savepoint=False, full=full).checkpoint_id)

    def stop(self, job_id: str, directory: str = "", *, drain: bool = False) -> str:
        """Ends a running job with a savepoint, and returns its path when that is complete: the job
        is FINISHED a little later. It goes on if no savepoint could be taken.

        Windows do not fire: a job that begins from the savepoint goes on with them. With `drain`,
        sources end for good, event time with them, and windows fire; if the savepoint then fails,
        so does the job. `directory` and errors: as of `savepoint`.
        """
        taken = self._take_checkpoint(
            job_id, savepoint=True, directory=directory, stop=True, drain=drain
        )
        return str(taken.path)

    def _take_checkpoint(
        self,
        job_id: str,
        *,
        savepoint: bool,
        directory: str = "",
        stop: bool = False,
        drain: bool = False,
        full: bool = False,
    ) -> Any:
        request = job_master_pb2.TakeCheckpointRequest(
            job_id=job_id,
            savepoint=savepoint,
            directory=absolute(directory),
            stop=stop,
            drain=drain,
            full=full,
        )
        try:  # takes as long as it takes
            return self._by_leader(lambda: self._dispatcher.TakeCheckpoint(request))
        except grpc.RpcError as error:
            unknown = (
                f"whether the {'savepoint' if savepoint else 'checkpoint'} is complete is not"
                f" known; `firesteel show --checkpoints {job_id}` tells"
            )
            raise self._broken_off(error, unknown) from None

    def rescale(
        self,
        job_id: str,
        parallelism: int | None = None,
        *,
        vertices: Mapping[str, int] | None = None,
        timeout_s: float | None = None,
        dry_run: bool = False,
    ) -> Rescaled:
        """Changes the parallelism of a running job, which restarts from a checkpoint taken for it.
        Returns once all tasks run with it. With `dry_run`, only checks the request; without a
        parallelism, returns what the autoscaler concludes from its measurements.

        `parallelism` applies to all operators whose parallelism the program does not set. The keys
        of `vertices` are names, ids, or names or uids of their operators. Additional slots are
        awaited for `timeout_s` (default: slot.request.timeout). Raises JobNotFound, or
        FiresteelError if the job continues as it was.
        """
        if parallelism is not None and parallelism < 1:
            raise FiresteelError(f"the parallelism is {parallelism}; it must be at least 1")
        request = job_master_pb2.RescaleJobRequest(
            job_id=job_id,
            parallelism=0 if parallelism is None else parallelism,
            by_vertex=vertices or {},
            timeout_s=timeout_s or 0.0,
            dry_run=dry_run,
        )
        try:  # takes as long as it takes
            rescaled = self._by_leader(lambda: self._dispatcher.RescaleJob(request))
        except grpc.RpcError as error:
            unknown = (
                "the job continues with the old or the new parallelism;"
                f" `firesteel show {job_id}` shows which"
            )
            raise self._broken_off(error, unknown) from None
        return Rescaled(
            dict(rescaled.before.by_vertex),
            dict(rescaled.after.by_vertex),
            rescaled.tasks,
            rescaled.missing_slots,
            tuple(map(ASSESSMENT.decode, rescaled.assessments)),
            rescaled.window_s,
            rescaled.autoscaled,
        )

    def dispose_savepoint(self, path: str) -> None:
        """Deletes a savepoint. Raises FiresteelError if it is none, or a job still needs it."""
        self._call(
            "DisposeSavepoint",
            dispatcher_pb2.DisposeSavepointRequest(path=absolute(path)),
        )

    def remove(self, job_id: str) -> None:
        """Deletes a job that has ended, with its collected rows, its JobMaster's log, its record
        and files that no other job needs. Lines in logs that it shares with other jobs stay.

        Raises JobNotFound, or FiresteelError if it has not ended.
        """
        self._call("RemoveJob", dispatcher_pb2.RemoveJobRequest(job_id=job_id))

    # ---- results

    def fetch_results(
        self, job_id: str, operator_id: str, *, offset: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """The batches of a CollectSink as they arrive, until the job ends.

        `offset`: the number of chunks to skip. A batch without rows carries the schema. Raises
        FiresteelError if the job starts over after some of its rows were returned: all of them
        would be returned again.
        """
        returned = 0
        for chunk in self._result_chunks(job_id, operator_id, offset):
            if chunk.index < 0 and (returned or offset):
                raise FiresteelError(
                    f"job {job_id} failed and started over after {returned:,} of its rows had been"
                    " read, and sends them again; read them with execute_and_collect() or"
                    " JobResult.table(), which return the rows of the last run alone once the job"
                    " has ended"
                )
            for batch in _batches(chunk.ipc_stream):
                returned += batch.num_rows
                yield batch

    def fetch_table(self, job_id: str, operator_id: str, *, limit: int | None = None) -> pa.Table:
        """All rows of a CollectSink, each once; waits until the job has ended, or until there are
        `limit` rows, and returns no more than these.
        """
        import pyarrow as pa

        batches: list[pa.RecordBatch] = []
        rows = 0
        for chunk in self._result_chunks(job_id, operator_id, 0):
            if chunk.index < 0:
                batches.clear()
                rows = 0
            received = list(_batches(chunk.ipc_stream))
            batches += received
            rows += sum(batch.num_rows for batch in received)
            if limit is not None and rows >= limit:
                break
        table = pa.Table.from_batches(batches) if batches else pa.table({})
        return table if limit is None or rows <= limit else table.slice(0, limit)

    def _result_chunks(
        self, job_id: str, operator_id: str, offset: int
    ) -> Iterator[dispatcher_pb2.ResultChunk]:
        """Continues where it was after the Dispatcher was away."""
        away_since: float | None = None
        generation = 0
        while True:
            request = dispatcher_pb2.FetchResultsRequest(
                job_id=job_id, operator_id=operator_id, offset=offset, generation=generation
            )
            try:
                call = self._dispatcher.FetchResults(request)
                if _answers(call):
                    away_since = None
                for chunk in call:
                    away_since = None
                    generation, offset = chunk.generation, chunk.index + 1
                    yield chunk
                return
            except grpc.RpcError as error:
                away_since = self._away_since(error, away_since)
                time.sleep(RECONNECT_PAUSE_S)

    # ---- logs

    def logs(
        self,
        job_id: str,
        *,
        follow: bool = False,
        output: bool = False,
        vertex: str | None = None,
        subtask: int | None = None,
    ) -> Iterator[LogLine]:
        """The job's lines in the logs of all processes of the cluster, in the order of time; with
        `follow`, then new ones until the job has ended.

        `output`: only what `print()` of streams and of functions has printed. `vertex`: only lines
        that name a vertex whose name has this text in it; `subtask`: only lines that name it,
        counted from 0. What Spark and its Python workers log and print names no task, and is in
        neither. Raises JobNotFound, or FiresteelError if the job has no such task.
        """
        vertices: Sequence[str] = ()
        if vertex is not None or subtask is not None:
            vertices = _vertices_meant(self.job_details(job_id), vertex, subtask)
        for lines in self.log_batches(
            job_id, follow=follow, output=output, vertices=vertices, subtask=subtask
        ):
            yield from lines

    def log_batches(
        self,
        job_id: str,
        *,
        follow: bool = False,
        output: bool = False,
        vertices: Sequence[str] = (),
        subtask: int | None = None,
    ) -> Iterator[list[LogLine]]:
        """As `logs`, many lines at a time. `vertices`: the names of those to read of."""
        request = job_logs_pb2.ReadJobLogsRequest(
            job_id=job_id, follow=follow, output=output, vertices=vertices, subtask=subtask
        )
        away_since: float | None = None
        while True:
            try:
                call = self._dispatcher.FetchLogs(request)
                if _answers(call):
                    away_since = None
                for message in call:
                    away_since = None
                    if message.lines:
                        request.after_us = max(request.after_us, message.lines[-1].time_us)
                    lines = list(map(LINE.decode, message.lines))
                    lines += (LogLine(text=notice) for notice in message.notices)
                    if lines:
                        yield lines
                return
            except grpc.RpcError as error:
                away_since = self._away_since(error, away_since)
            away = "the Dispatcher was away for a moment; lines may come twice"
            yield [LogLine(text=away)]
            time.sleep(RECONNECT_PAUSE_S)

    # ---- the cluster

    def cluster_overview(self) -> ClusterOverview:
        """The cluster's TaskExecutors and slots."""
        request = resource_manager_pb2.ClusterOverviewRequest()
        return CLUSTER_OVERVIEW.decode(self._call("GetClusterOverview", request))

    @property
    def forwards(self) -> bool:
        """Whether the cluster is reached through port-forwards, which end with this client."""
        return self._connection.forwards

    def dashboard_url(self) -> str:
        """The address of the dashboard; empty: the cluster has none."""
        url = self.cluster_overview().rest_url
        if url and self.forwards:
            parts = urlsplit(url)
            return urlunsplit(parts._replace(netloc=self._connection.reach(parts.netloc)))
        host = self.address.rpartition(":")[0]
        return url.replace("//0.0.0.0:", f"//{host}:").replace("//[::]:", f"//{host}:")

    def login_code(self, dashboard_url: str) -> str:
        """Returns a code that logs a browser in as this client, once, within a minute; empty: the
        cluster has no logins. Raises FiresteelError.
        """
        security = self._connection.security
        if security is None:
            return ""
        return log_in.code(dashboard_url, security, forwarded=self.forwards)

    def stop_task_executor(
        self, task_executor_id: str, *, drain: bool = False, force: bool = False
    ) -> Iterator[StopProgress]:
        """Stops a TaskExecutor; yields what it waits for, at every change, until it has ended.

        At once, so that its tasks are lost; or, with `drain`, when jobs have moved their tasks away
        and read their results. `force`: jobs that take no checkpoints start from their beginning
        instead of being waited for, and nothing waits for slots or results. Raises FiresteelError
        if there is none with this id, if slots for its tasks are missing (nothing is changed then),
        or if it or its masters are lost meanwhile. Whoever closes the iterator of a drain before
        the TaskExecutor was told to end has it give slots again.
        """
        request = resource_manager_pb2.StopTaskExecutorRequest(
            task_executor_id=task_executor_id, drain=drain, force=force
        )
        call: Any = None

        def begin() -> Any:
            nonlocal call
            call = self._dispatcher.StopTaskExecutor(request)
            return next(call, None)

        try:
            message = self._by_leader(begin)
            while message is not None:
                yield STOP_PROGRESS.decode(message)
                message = next(call, None)
        except grpc.RpcError as error:
            if self._is_away(error):
                unknown = (
                    f"whether TaskExecutor {task_executor_id} ends is not known;"
                    " `firesteel cluster status` tells"
                )
                raise self._broken_off(error, unknown) from None
            raise FiresteelError(
                f"TaskExecutor {task_executor_id}: {error.details() or error.code().name}"
            ) from None
        finally:
            if call is not None:
                call.cancel()

    def close(self) -> None:
        """Closes the connection; `with Client(...)` does so itself."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- inside

    def _check_payload_size(self, graph: JobGraph, size_bytes: int) -> None:
        limit_bytes = self._conf.get(options.PAYLOAD_LIMIT)
        if size_bytes <= limit_bytes:
            return
        largest = max(
            (o for v in graph.vertices for o in v.operators),
            key=lambda o: len(o.spec),
            default=None,
        )
        hint = (
            f"; the largest operator is {largest.name!r} with {len(largest.spec):,} bytes"
            if largest
            else ""
        )
        raise PayloadTooLarge(
            f'job "{graph.name}" has {size_bytes:,} bytes, over the limit of {limit_bytes:,}'
            f" ({options.PAYLOAD_LIMIT.key}){hint}: do not capture large data in functions;"
            " ship it with --py-files, or read it from files"
        )

    def _check_blob_size(self, blob: Blob) -> None:
        limit_bytes = self._conf.get(options.BLOB_LIMIT)
        if blob.size_bytes > limit_bytes:
            raise PayloadTooLarge(
                f"{blob.name} has {blob.size_bytes:,} bytes, over the limit of {limit_bytes:,}"
                f" ({options.BLOB_LIMIT.key});"
                " ship less, or raise the limit on the cluster and here"
            )

    def _upload_missing(self, paths: dict[str, Path]) -> None:
        if not paths:
            return
        asked = dispatcher_pb2.MissingBlobsRequest(hashes=list(paths))
        for blob_hash in self._call("MissingBlobs", asked, submitting=True).hashes:

            def upload(of: str = blob_hash) -> Any:
                return self._dispatcher.UploadBlob(_upload(of, paths[of]))

            self._answered(upload, submitting=True)

    # ---- access

    def who_am_i(self) -> tuple[str, str]:
        """Returns the name and the role in which this client acts."""
        answer = self._access("WhoAmI", access_pb2.WhoAmIRequest())
        return answer.subject, answer.role

    def create_token(
        self, subject: str, role: str, *, valid_s: int, own_jobs: bool = False
    ) -> CreatedToken:
        """Creates a token for `subject`. With `own_jobs`, it acts on jobs alone that a bearer of
        this name has submitted. Raises FiresteelError for a bad name, role or time.
        """
        request = access_pb2.CreateTokenRequest(
            subject=subject, role=role, valid_s=valid_s, own_jobs=own_jobs
        )
        return CREATED_TOKEN.decode(self._access("CreateToken", request))

    def tokens(self) -> list[TokenDescription]:
        """Returns all tokens that were created, the newest first."""
        answer = self._access("ListTokens", access_pb2.ListTokensRequest())
        return [TOKEN_DESCRIPTION.decode(each) for each in answer.tokens]

    def revoke_token(self, token_id: str) -> None:
        """Revokes a token, which is refused from now on."""
        self._access("RevokeToken", access_pb2.RevokeTokenRequest(token_id=token_id))

    def audit(self, *, limit: int = 100, job_id: str = "") -> list[AuditEntry]:
        """Returns who has changed something, and whose calls were refused, the newest first."""
        request = access_pb2.ReadAuditRequest(limit=limit, job_id=job_id)
        return [AUDIT_ENTRY.decode(each) for each in self._access("ReadAudit", request).entries]

    def record_program(self, address: str, *, voucher: str) -> None:
        """Records in the audit log that the bearer of the token runs a program, or is refused, at
        this address, for which the bearer of the token `voucher` vouches: a process with the role
        rest. Raises FiresteelError.
        """
        metadata = ((REST_TOKEN, voucher), (CALLER_ADDRESS, address))
        self._access("RunProgram", access_pb2.RunProgramRequest(), metadata)

    def _access(self, method: str, request: Any, metadata: Sequence[tuple[str, str]] = ()) -> Any:
        return self._answered(
            lambda: getattr(self._connection.access, method)(
                request, timeout=CALL_TIMEOUT_S, metadata=metadata
            )
        )

    @property
    def _dispatcher(self) -> Any:
        return self._connection.stub

    def _call(
        self,
        method: str,
        request: Any,
        *,
        submitting: bool = False,
        repeats: bool = False,
        unknown: str = "",
    ) -> Any:
        return self._answered(
            lambda: getattr(self._dispatcher, method)(request, timeout=CALL_TIMEOUT_S),
            submitting=submitting,
            repeats=repeats,
            unknown=unknown,
        )

    def _answered(
        self,
        call: Callable[[], Any],
        *,
        submitting: bool = False,
        repeats: bool = False,
        unknown: str = "",
    ) -> Any:
        """Repeats the call until a Dispatcher answers: if they are elected, if this is a step of a
        submission, none of which does anything twice, or if it `repeats`. `unknown`: added to the
        error if no Dispatcher answers, and one may have carried the call out.
        """
        away_since: float | None = None
        doubtful = False
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                doubtful |= reason_of(error) not in _NOTHING_DONE
                try:
                    if not self._waits(error, submitting or repeats):
                        raise self._error(error, submitting=submitting)
                    away_since = self._away_since(error, away_since, elected_s=LEADER_TIMEOUT_S)
                except FiresteelError as failure:
                    raise _with_doubt(failure, unknown if doubtful else "") from None
            time.sleep(RECONNECT_PAUSE_S)

    def _waits(self, error: grpc.RpcError, repeatable: bool) -> bool:
        """Whether the call that failed is made again once a Dispatcher serves."""
        if not self._is_away(error):
            return False
        reason = reason_of(error)
        if reason is Reason.STARTING or self._connection.elected:
            return True
        return repeatable and reason not in _BY_STANDBY

    def _by_leader(self, call: Callable[[], Any]) -> Any:
        """Makes the call to the Dispatcher that leads, if they are elected. It is repeated only if
        a Dispatcher has refused it before doing anything. Raises RpcError, or FiresteelError.
        """
        if self._connection.elected:
            self._connection.follow()
        away_since: float | None = None
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                if reason_of(error) not in _NOTHING_DONE or not self._waits(error, False):
                    raise
                away_since = self._away_since(error, away_since, elected_s=LEADER_TIMEOUT_S)
            time.sleep(RECONNECT_PAUSE_S)

    def _broken_off(self, error: grpc.RpcError, unknown: str) -> FiresteelError:
        """Of a call that is not repeated. `unknown`: what nobody knows if the Dispatcher has ended
        meanwhile.
        """
        if self._is_away(error) and reason_of(error) not in _NOTHING_DONE:
            return ClusterUnreachable(f"the cluster at {self.address} no longer answers: {unknown}")
        return self._error(error)

    def _away_since(
        self, error: grpc.RpcError, since: float | None, *, elected_s: float = QUORUM_TIMEOUT_S
    ) -> float:
        """A stream goes on where it broke if the Dispatcher is back within RECONNECT_TIMEOUT_S, or
        `elected_s` if it is elected. Raises if it is not, or `error` is another one; `since`: None
        if this is the first.
        """
        now = time.monotonic()
        since = now if since is None else since
        elected = self._connection.elected
        limit_s = elected_s if elected else RECONNECT_TIMEOUT_S
        if self._is_away(error) and now - since <= limit_s:
            if elected:
                self._connection.follow()
            return since
        raise self._error(error) from None

    def _is_away(self, error: grpc.RpcError) -> bool:
        """A Dispatcher that stops cancels the calls that it is answering."""
        return error.code() is grpc.StatusCode.UNAVAILABLE or (
            error.code() is grpc.StatusCode.CANCELLED and not self._connection.closed
        )

    def _error(self, error: grpc.RpcError, *, submitting: bool = False) -> FiresteelError:
        code, text = error.code(), error.details() or error.code().name
        reason = reason_of(error)
        if reason in _BY_STANDBY:
            hint = "" if self._connection.elected else ": connect to the leader, or find it with -z"
            return ClusterUnreachable(f"{text}{hint}")
        if reason in (Reason.JOB_NOT_FOUND, Reason.JOB_DATA_GONE):
            return JobNotFound(text)
        match code:
            case grpc.StatusCode.UNAVAILABLE if reason is not None:
                return ClusterUnreachable(
                    f"the cluster at {self.address} no longer answers: {text}"
                )
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                return ClusterUnreachable(
                    f"the cluster at {self.address} no longer answers; {START_HINT}"
                )
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return ClusterUnreachable(
                    f"the cluster at {self.address} did not answer within {CALL_TIMEOUT_S:g} s;"
                    " try again"
                )
            # gRPC's own RESOURCE_EXHAUSTED: the message is larger than the peer accepts.
            case grpc.StatusCode.RESOURCE_EXHAUSTED if reason in (None, Reason.PAYLOAD_TOO_LARGE):
                return PayloadTooLarge(text)
            case _:
                return SubmissionRejected(text) if submitting else FiresteelError(text)


def _answers(call: Any) -> bool:
    """Waits until the Dispatcher has accepted a call that streams, which may be long before its
    first message, or until the call has failed.
    """
    call.initial_metadata()
    return bool(call.is_active())


def _with_doubt(error: FiresteelError, unknown: str) -> FiresteelError:
    if unknown and isinstance(error, ClusterUnreachable):
        return ClusterUnreachable(f"{error}{unknown}")
    return error


def raise_unless_finished(details: JobDetails) -> None:
    if details.status is JobStatus.FAILED:
        raise JobFailed(
            details.job_id, details.name, details.exceptions[0] if details.exceptions else None
        )
    if details.status is JobStatus.CANCELED:
        raise JobCanceled(details.job_id, details.name)


def _vertices_meant(job: JobDetails, vertex: str | None, subtask: int | None) -> list[str]:
    """The names of the job's vertices whose lines are asked for. Raises FiresteelError."""
    meant = [v for v in job.vertices if vertex is None or vertex in v.name]
    if not meant:
        names = ", ".join(repr(v.name) for v in job.vertices)
        raise FiresteelError(f"job {job.job_id} has no vertex {vertex!r}; it has {names}")
    parallelism = max(v.parallelism for v in meant)
    if subtask is not None and not 0 <= subtask < parallelism:
        raise FiresteelError(
            f"job {job.job_id} has no such subtask: its vertices have up to {parallelism}"
        )
    return [v.name for v in meant]


def _upload(blob_hash: str, path: Path) -> Iterator[dispatcher_pb2.BlobChunk]:
    head = blob_hash
    for data in user_files.chunks(path):
        yield dispatcher_pb2.BlobChunk(hash=head, data=data)
        head = ""
    if head:  # an empty file
        yield dispatcher_pb2.BlobChunk(hash=head)


def _batches(ipc_stream: bytes) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if not ipc_stream:
        return
    with pa.ipc.open_stream(ipc_stream) as reader:
        empty = True
        for batch in reader:
            empty = False
            yield batch
        if empty:
            yield pa.RecordBatch.from_pylist([], schema=reader.schema)

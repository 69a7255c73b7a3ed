"""Converts between the messages of proto/dispatcher.proto and the Dispatcher's types.

Faults of a peer raise RemoteProtocolError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.core.commands import RefusalKind
from dispatcher.core.events import JobMasterRegistered, JobStatusReported
from dispatcher.core.submitted_jobs import SubmittedJob
from firesteel._proto import dispatcher_pb2, job_graph_pb2, job_master_pb2
from firesteel.common.ids import JobId, JobMasterId, is_id
from firesteel.common.rpc.convert import ERROR
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.mapping import Codec, Wire
from firesteel.common.rpc.status import Reason
from firesteel.common.states import JobStatus
from firesteel.errors import ErrorInfo

# The length of its label, with the attempt's id, is kept in one byte (dispatcher.results).
_MAX_GROUP_BYTES = 200

REASONS = {
    RefusalKind.NOT_FOUND: Reason.JOB_NOT_FOUND,
    RefusalKind.ALREADY_EXISTS: Reason.JOB_EXISTS,
    RefusalKind.WRONG_STATE: Reason.JOB_IN_WRONG_STATE,
    RefusalKind.NOT_STORED: Reason.STORE_UNAVAILABLE,
}


def registered_from_proto(
    message: dispatcher_pb2.JobMasterRegister, connection: int, *, dispatcher: str
) -> JobMasterRegistered:
    """`dispatcher`: the address of this one. A process of another machine, which an earlier leader
    has started, gets a negative number of its own instead of its pid: here, that may be another
    process's.
    """
    if not is_id(message.job_master_id):
        raise RemoteProtocolError(
            f"a JobMaster registered with the id {message.job_master_id[:80]!r};"
            " expected 32 hex characters"
        )
    if not message.address or message.pid <= 1:
        raise RemoteProtocolError(
            f"JobMaster {message.job_master_id} registered without its address or pid"
        )
    return JobMasterRegistered(
        connection=connection,
        job_master_id=JobMasterId(message.job_master_id),
        pid=(
            message.pid
            if on_one_machine(message.address, dispatcher)
            else -int(message.job_master_id[:15], 16) - 1
        ),
        address=message.address,
        serves=JobId(message.job_id) if message.job_id else None,
    )


def on_one_machine(address: str, other: str) -> bool:
    """Of two addresses that others reach: a loopback address is reached on one machine only."""
    host, other_host = (a.rpartition(":")[0].strip("[]") for a in (address, other))
    return host == other_host or host == "localhost" or host == "::1" or host.startswith("127.")


_STATUS = Wire(
    JobStatusReported,
    dispatcher_pb2.JobStatusChanged,
    context=("connection",),
    codecs={
        "final_details": Codec(
            job_master_pb2.JobDetails.FromString, job_master_pb2.JobDetails.SerializeToString
        )
    },
)


def status_from_proto(
    message: dispatcher_pb2.JobStatusChanged, connection: int
) -> JobStatusReported:
    if not is_id(message.job_id):
        raise RemoteProtocolError(
            f"a JobMaster reported on the job {message.job_id[:80]!r}; expected 32 hex characters"
        )
    return _STATUS.decode(message, connection=connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResults:
    job_id: JobId
    epoch: int
    operator_id: str
    generation: int  # increases with every restart of the job, under whichever JobMaster
    index: int
    ipc_stream: bytes  # empty: shows the group's chunks; without a group, begins the generation
    group: str  # empty: the chunk is shown at once
    attempt_id: str  # that sent it; empty: the chunk only begins the generation


def append_results_from_proto(request: dispatcher_pb2.AppendResultsRequest) -> AppendResults:
    if not is_id(request.job_id) or not is_id(request.operator_id):
        raise RemoteProtocolError(
            f"a JobMaster sent rows of job {request.job_id[:80]!r},"
            f" operator {request.operator_id[:80]!r}; expected 32 hex characters each"
        )
    if not 0 <= request.restart < 2**32 or not 0 < request.epoch < 2**31 or request.index < 0:
        raise RemoteProtocolError(
            f"a JobMaster sent chunk {request.index} of restart {request.restart}"
            f" under epoch {request.epoch}"
        )
    if not 0 <= request.generation < request.epoch << 32:
        raise RemoteProtocolError(
            f"a JobMaster sent a chunk of generation {request.generation} under epoch"
            f" {request.epoch}"
        )
    if len(request.group.encode()) > _MAX_GROUP_BYTES or " " in request.group:
        raise RemoteProtocolError(f"a JobMaster sent a chunk of group {request.group[:80]!r}...")
    if request.attempt_id and not is_id(request.attempt_id):
        raise RemoteProtocolError(
            f"a JobMaster sent a chunk of attempt {request.attempt_id[:80]!r};"
            " expected 32 hex characters"
        )
    return AppendResults(
        job_id=JobId(request.job_id),
        epoch=request.epoch,
        operator_id=request.operator_id,
        generation=request.generation or request.epoch << 32 | request.restart,
        index=request.index,
        ipc_stream=request.ipc_stream,
        group=request.group,
        attempt_id=request.attempt_id,
    )


def status_to_proto(status: JobStatus) -> str:
    """The name of the enum's value, which its constructors take."""
    return f"JOB_{status.name}"


def overview_to_proto(job: SubmittedJob) -> dispatcher_pb2.JobOverview:
    return dispatcher_pb2.JobOverview(
        job_id=job.job_id,
        name=job.name,
        status=status_to_proto(job.status),
        start_ms=job.start_ms,
        end_ms=job.end_ms,
        tasks_by_state=job.tasks_by_state,
    )


def check_job_graph(graph: job_graph_pb2.JobGraph) -> None:
    """Checks what every later step relies on."""
    if not is_id(graph.job_id):
        raise RemoteProtocolError(
            f"the job's id {graph.job_id[:80]!r} is not 32 lower-case hex characters"
        )
    if not graph.vertices:
        raise RemoteProtocolError(
            f'job "{graph.name}" has nothing to run: its program has no operators'
        )
    known = {vertex.vertex_id: len(vertex.operators) for vertex in graph.vertices}
    if len(known) != len(graph.vertices):
        raise RemoteProtocolError(f'job "{graph.name}" has two vertices with the same id')
    for vertex in graph.vertices:
        _check_vertex(graph.name, vertex)
    for edge in graph.edges:
        source, target = known.get(edge.source_vertex_id), known.get(edge.target_vertex_id)
        if (
            source is None
            or target is None
            or not (0 <= edge.source_operator < source and 0 <= edge.target_operator < target)
        ):
            raise RemoteProtocolError(
                f'job "{graph.name}" has an edge between operators that it does not have'
            )
    for blob in graph.blobs:
        if not is_id(blob.hash) or "/" in blob.name or blob.name in ("", ".", ".."):
            raise RemoteProtocolError(
                f'job "{graph.name}" has a file with the bad name {blob.name[:80]!r}'
                f" or hash {blob.hash[:80]!r}"
            )


def _check_vertex(job_name: str, vertex: job_graph_pb2.JobVertex) -> None:
    if (
        not is_id(vertex.vertex_id)
        or not vertex.operators
        or not all(is_id(o.operator_id) for o in vertex.operators)
    ):
        raise RemoteProtocolError(
            f'job "{job_name}": vertex "{vertex.name}" lacks its id or its operators'
        )
    if not 1 <= vertex.parallelism <= vertex.max_parallelism <= 32768:
        raise RemoteProtocolError(
            f'job "{job_name}": vertex "{vertex.name}" has parallelism {vertex.parallelism} and max'
            f" parallelism {vertex.max_parallelism};"
            " expected 1 <= parallelism <= max parallelism <= 32768"
        )


def details_without_master(
    job: SubmittedJob,
    graph: job_graph_pb2.JobGraph | None,
    *,
    failure: str = "",
    waiting_for: str = "",
) -> job_master_pb2.JobDetails:
    """What the Dispatcher knows by itself of a job that has no JobMaster yet, or any more."""
    history = job_master_pb2.JobHistory.FromString(job.history)
    error = ErrorInfo(summary=failure, timestamp_ms=job.end_ms)
    exceptions = [ERROR.encode(error)] if failure else []
    exceptions += [
        error
        for failure in reversed(history.failures)  # newest first
        for error in (failure.primary, *failure.follow_ups)
    ]
    statuses = list(history.statuses) or [
        job_master_pb2.StatusChange(status="JOB_INITIALIZING", timestamp_ms=job.start_ms)
    ]
    if job.end_ms:
        statuses.append(
            job_master_pb2.StatusChange(status=status_to_proto(job.status), timestamp_ms=job.end_ms)
        )
    return job_master_pb2.JobDetails(
        job_id=job.job_id,
        name=job.name,
        status=status_to_proto(job.status),
        entered_ms=statuses,
        vertices=_vertices(graph) if graph is not None else (),
        exceptions=exceptions,
        start_ms=job.start_ms,
        end_ms=job.end_ms,
        waiting_for=waiting_for,
        warnings=history.warnings,
    )


_BEFORE_END = {
    JobStatus.FINISHED: JobStatus.RUNNING,
    JobStatus.CANCELED: JobStatus.CANCELLING,
    JobStatus.FAILED: JobStatus.FAILING,
}


def before_stored(details: job_master_pb2.JobDetails, problem: str) -> job_master_pb2.JobDetails:
    """Details of a job whose newest status cannot be stored because of `problem`: its end, which
    could still be lost, is not in them.
    """
    details.waiting_for = f"the cluster's job store, which cannot be written: {problem}"
    status = JobStatus(details.status)
    if status.globally_terminal:
        kept = [entry for entry in details.entered_ms if entry.status != status.value]
        del details.entered_ms[:]
        details.entered_ms.extend(kept)
        before_end = status_to_proto(_BEFORE_END[status])
        details.MergeFrom(job_master_pb2.JobDetails(status=before_end))
        details.end_ms = 0
    return details


def _vertices(graph: job_graph_pb2.JobGraph) -> Sequence[job_master_pb2.VertexDetails]:
    inputs: dict[str, list[str]] = {}
    for edge in graph.edges:
        feeding = inputs.setdefault(edge.target_vertex_id, [])
        if edge.source_vertex_id not in feeding:
            feeding.append(edge.source_vertex_id)
    return [
        job_master_pb2.VertexDetails(
            vertex_id=vertex.vertex_id,
            name=vertex.name,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.max_parallelism,
            slot_sharing_group=vertex.slot_sharing_group,
            operators=[
                job_master_pb2.OperatorDetails(
                    operator_id=o.operator_id,
                    uid=o.uid,
                    name=o.name,
                    kind=o.kind,
                    runs_on_spark=o.runs_on_spark,
                )
                for o in vertex.operators
            ],
            input_vertex_ids=inputs.get(vertex.vertex_id, []),
        )
        for vertex in graph.vertices
    ]

"""Converts between the messages of proto/dispatcher.proto and the Dispatcher's types.

Faults of a peer raise RemoteProtocolError.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dispatcher.core.commands import RefusalKind
from dispatcher.core.events import JobMasterRegistered, JobStatusReported
from dispatcher.core.submitted_jobs import SubmittedJob
from firesteel._proto import dispatcher_pb2, job_graph_pb2, job_master_pb2
from firesteel.common.ids import JobId, is_id
from firesteel.common.rpc.convert import JOB_GRAPH, state_number
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.job_details import without_tasks
from firesteel.common.rpc.mapping import Codec, View, Wire
from firesteel.common.rpc.status import Reason
from firesteel.common.states import JobStatus

# The length of its label, with the attempt's id, is kept in one byte (dispatcher.results).
_MAX_GROUP_BYTES = 200

REASONS = {
    RefusalKind.NOT_FOUND: Reason.JOB_NOT_FOUND,
    RefusalKind.ALREADY_EXISTS: Reason.JOB_EXISTS,
    RefusalKind.WRONG_STATE: Reason.JOB_IN_WRONG_STATE,
    RefusalKind.NOT_STORED: Reason.STORE_UNAVAILABLE,
}


_REGISTERED = Wire(JobMasterRegistered, dispatcher_pb2.JobMasterRegister, context=("connection",))


def registered(
    message: dispatcher_pb2.JobMasterRegister, connection: int, *, dispatcher: str
) -> JobMasterRegistered:
    """`dispatcher` is the address of this Dispatcher. A process on another machine, which an
    earlier leader has started, gets a negative number instead of its pid, because a process on this
    machine may have the same pid.
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
    event = _REGISTERED.decode(message, connection=connection)
    if on_one_machine(event.address, dispatcher):
        return event
    return replace(event, pid=-int(event.job_master_id[:15], 16) - 1)


def on_one_machine(address: str, other: str) -> bool:
    """Of two addresses that others reach: a loopback address is reached on one machine only."""
    host, other_host = (a.rpartition(":")[0].strip("[]") for a in (address, other))
    return host == other_host or host == "localhost" or host == "::1" or host.startswith("127.")


JOB_OVERVIEW = View(SubmittedJob, dispatcher_pb2.JobOverview)
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


def status_reported(message: dispatcher_pb2.JobStatusChanged, connection: int) -> JobStatusReported:
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


_APPEND_RESULTS = Wire(AppendResults, dispatcher_pb2.AppendResultsRequest)


def append_results(request: dispatcher_pb2.AppendResultsRequest) -> AppendResults:
    chunk = _APPEND_RESULTS.decode(request)
    if not is_id(chunk.job_id) or not is_id(chunk.operator_id):
        raise RemoteProtocolError(
            f"a JobMaster sent rows of job {chunk.job_id[:80]!r},"
            f" operator {chunk.operator_id[:80]!r}; expected 32 hex characters each"
        )
    epoch, generation = chunk.epoch, chunk.generation
    if not 0 < epoch < 2**31 or not 0 < generation < epoch + 1 << 32 or chunk.index < 0:
        raise RemoteProtocolError(
            f"a JobMaster sent chunk {chunk.index} of generation {generation} under epoch {epoch}"
        )
    if len(chunk.group.encode()) > _MAX_GROUP_BYTES or " " in chunk.group:
        raise RemoteProtocolError(f"a JobMaster sent a chunk of group {chunk.group[:80]!r}...")
    if chunk.attempt_id and not is_id(chunk.attempt_id):
        raise RemoteProtocolError(
            f"a JobMaster sent a chunk of attempt {chunk.attempt_id[:80]!r};"
            " expected 32 hex characters"
        )
    return chunk


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
    """Returns what the Dispatcher itself knows of a job that has no JobMaster."""
    return without_tasks(
        job_id=job.job_id,
        name=job.name,
        status=job.status,
        start_ms=job.start_ms,
        end_ms=job.end_ms,
        history=job.history,
        failure=failure,
        graph=None if graph is None else JOB_GRAPH.decode(graph),
        waiting_for=waiting_for,
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
        details.status = state_number(_BEFORE_END[status])
        details.end_ms = 0
    return details

"""The parts of JobDetails that are known without the job's tasks."""

from __future__ import annotations

from firesteel._proto import job_master_pb2 as pb
from firesteel.common.config.redaction import redacted
from firesteel.common.job_graph import JobGraph, JobVertex, Operator
from firesteel.common.rpc.convert import ERROR, state_number
from firesteel.common.rpc.mapping import View
from firesteel.common.states import JobStatus
from firesteel.errors import ErrorInfo

_VERTEX = View(
    JobVertex,
    pb.VertexDetails,
    unmapped=(
        *("subtasks", "input_vertex_ids", "input_partitioners"),
        *("activity", "state_bytes", "lower_bound", "upper_bound"),
    ),
)
View(Operator, pb.OperatorDetails, unmapped=("plan", "group", "choice", "state_bytes"))


def vertex_details(graph: JobGraph) -> list[pb.VertexDetails]:
    """Returns the vertices in the order of the graph, without subtasks and plans."""
    inputs: dict[str, dict[str, str]] = {vertex.vertex_id: {} for vertex in graph.vertices}
    for edge in graph.edges:
        inputs[edge.target_vertex_id][edge.source_vertex_id] = edge.partitioner.name
    vertices = list(map(_VERTEX.encode, graph.vertices))
    for vertex in vertices:
        vertex.input_vertex_ids.extend(inputs[vertex.vertex_id])
        vertex.input_partitioners.extend(inputs[vertex.vertex_id].values())
    return vertices


def without_tasks(
    *,
    job_id: str,
    name: str,
    status: JobStatus,
    start_ms: int,
    end_ms: int,
    history: bytes,
    failure: str = "",
    graph: JobGraph | None = None,
    waiting_for: str = "",
) -> pb.JobDetails:
    """Describes a job that has no JobMaster, or whose JobMaster cannot start it.

    `history` is the serialised JobHistory of its earlier JobMasters. `failure` is what has ended
    it since then.
    """
    earlier = pb.JobHistory.FromString(history)
    exceptions = [ERROR.encode(ErrorInfo(summary=failure, timestamp_ms=end_ms))] if failure else []
    for past in reversed(earlier.failures):  # newest first
        exceptions += (past.primary, *past.follow_ups)
    statuses = list(earlier.statuses)
    if not statuses:
        submitted = state_number(JobStatus.INITIALIZING)
        statuses = [pb.StatusChange(status=submitted, timestamp_ms=start_ms or end_ms)]
    if end_ms:
        statuses.append(pb.StatusChange(status=state_number(status), timestamp_ms=end_ms))
    return pb.JobDetails(
        job_id=job_id,
        name=name,
        status=state_number(status),
        entered_ms=statuses,
        vertices=vertex_details(graph) if graph is not None else (),
        exceptions=exceptions,
        start_ms=start_ms or statuses[0].timestamp_ms,
        end_ms=end_ms,
        waiting_for=waiting_for,
        warnings=earlier.warnings,
        rescales=reversed(earlier.rescales),
        configuration=redacted(graph.config) if graph is not None else {},
    )

"""Between messages and the domain types that several services share."""

from __future__ import annotations

from typing import Any

from firesteel._proto import common_pb2, job_graph_pb2, job_master_pb2, tasks_pb2
from firesteel.common.ids import JobId, OperatorId, ResultId, VertexId
from firesteel.common.job_graph import (
    Blob,
    BlobKind,
    JobEdge,
    JobGraph,
    JobVertex,
    Operator,
    Partitioner,
    ResultType,
)
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.results import ResultPartitionId, StoredPartition
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo


def profile_to_proto(profile: ResourceProfile) -> common_pb2.ResourceProfile:
    if profile.unknown:
        return common_pb2.ResourceProfile(unknown=True)
    return common_pb2.ResourceProfile(
        cpu_cores=profile.cpu_cores,
        heap_bytes=profile.heap_bytes,
        off_heap_bytes=profile.off_heap_bytes,
        managed_bytes=profile.managed_bytes,
        network_bytes=profile.network_bytes,
    )


def profile_from_proto(message: common_pb2.ResourceProfile) -> ResourceProfile:
    if message.unknown:
        return UNKNOWN
    return ResourceProfile(
        cpu_cores=message.cpu_cores,
        heap_bytes=message.heap_bytes,
        off_heap_bytes=message.off_heap_bytes,
        managed_bytes=message.managed_bytes,
        network_bytes=message.network_bytes,
    )


def error_to_proto(error: ErrorInfo) -> common_pb2.ErrorInfo:
    return common_pb2.ErrorInfo(
        summary=error.summary,
        user_traceback=error.user_traceback,
        traceback=error.traceback,
        timestamp_ms=error.timestamp_ms,
        location=error.location,
        task_name=error.task_name,
    )


def error_from_proto(message: common_pb2.ErrorInfo) -> ErrorInfo:
    return ErrorInfo(
        summary=message.summary,
        user_traceback=message.user_traceback,
        traceback=message.traceback,
        timestamp_ms=message.timestamp_ms,
        location=message.location,
        task_name=message.task_name,
    )


def exceptions_of(history: job_master_pb2.JobHistory) -> list[common_pb2.ErrorInfo]:
    """As JobDetails has them: newest first, each failure followed by its follow-ups."""
    return [
        error
        for failure in reversed(history.failures)
        for error in (failure.primary, *failure.follow_ups)
    ]


def blob_to_proto(blob: Blob) -> common_pb2.BlobRef:
    return common_pb2.BlobRef(
        hash=blob.hash,
        name=blob.name,
        kind=common_pb2.BlobKind.Name(blob.kind.value),
        target_dir=blob.target_dir,
        size_bytes=blob.size_bytes,
    )


def blob_from_proto(message: common_pb2.BlobRef) -> Blob:
    return Blob(
        hash=message.hash,
        name=message.name,
        kind=BlobKind(message.kind),
        target_dir=message.target_dir,
        size_bytes=message.size_bytes,
    )


def operator_to_proto(operator: Operator) -> job_graph_pb2.Operator:
    return job_graph_pb2.Operator(
        operator_id=operator.operator_id,
        uid=operator.uid,
        name=operator.name,
        kind=operator.kind,
        spec=operator.spec,
        inputs=[job_graph_pb2.ChainInput(chained_operators=chained) for chained in operator.inputs],
        coordinator_kind=operator.coordinator_kind,
        coordinator_options_json=operator.coordinator_options_json,
        runs_on_spark=operator.runs_on_spark,
        place=operator.place,
    )


def operator_from_proto(message: job_graph_pb2.Operator) -> Operator:
    return Operator(
        operator_id=OperatorId(message.operator_id),
        uid=message.uid,
        name=message.name,
        kind=message.kind,
        spec=message.spec,
        inputs=tuple(tuple(chained.chained_operators) for chained in message.inputs),
        coordinator_kind=message.coordinator_kind,
        coordinator_options_json=message.coordinator_options_json,
        runs_on_spark=message.runs_on_spark,
        place=message.place,
    )


def vertex_to_proto(vertex: JobVertex) -> job_graph_pb2.JobVertex:
    return job_graph_pb2.JobVertex(
        vertex_id=vertex.vertex_id,
        name=vertex.name,
        parallelism=vertex.parallelism,
        max_parallelism=vertex.max_parallelism,
        operators=[operator_to_proto(o) for o in vertex.operators],
        slot_sharing_group=vertex.slot_sharing_group,
        co_location_group=vertex.co_location_group,
        resource_group=vertex.resource_group,
        resources=profile_to_proto(vertex.resources),
    )


def vertex_from_proto(message: job_graph_pb2.JobVertex) -> JobVertex:
    return JobVertex(
        vertex_id=VertexId(message.vertex_id),
        name=message.name,
        parallelism=message.parallelism,
        max_parallelism=message.max_parallelism,
        operators=tuple(operator_from_proto(o) for o in message.operators),
        slot_sharing_group=message.slot_sharing_group,
        co_location_group=message.co_location_group,
        resource_group=message.resource_group,
        resources=profile_from_proto(message.resources),
    )


def edge_to_proto(edge: JobEdge) -> job_graph_pb2.JobEdge:
    return job_graph_pb2.JobEdge(
        result_id=edge.result_id,
        source_vertex_id=edge.source_vertex_id,
        source_operator=edge.source_operator,
        target_vertex_id=edge.target_vertex_id,
        target_operator=edge.target_operator,
        target_input=edge.target_input,
        pattern=job_graph_pb2.DistributionPattern.Name(edge.pattern.value),
        partitioner=job_graph_pb2.Partitioner.Name(edge.partitioner.value),
        key_columns=edge.key_columns,
        result_type=job_graph_pb2.ResultType.Name(edge.result_type.value),
        side_output_tag=edge.side_output_tag,
    )


def edge_from_proto(message: job_graph_pb2.JobEdge) -> JobEdge:
    return JobEdge(
        result_id=ResultId(message.result_id),
        source_vertex_id=VertexId(message.source_vertex_id),
        source_operator=message.source_operator,
        target_vertex_id=VertexId(message.target_vertex_id),
        target_operator=message.target_operator,
        target_input=message.target_input,
        partitioner=Partitioner(message.partitioner),
        key_columns=tuple(message.key_columns),
        result_type=ResultType(message.result_type),
        side_output_tag=message.side_output_tag,
    )


def job_graph_to_proto(graph: JobGraph) -> job_graph_pb2.JobGraph:
    return job_graph_pb2.JobGraph(
        job_id=graph.job_id,
        name=graph.name,
        vertices=[vertex_to_proto(v) for v in graph.vertices],
        edges=[edge_to_proto(e) for e in graph.edges],
        config=graph.config,
        blobs=[blob_to_proto(b) for b in graph.blobs],
        batch=graph.batch,
    )


def job_graph_from_proto(message: job_graph_pb2.JobGraph) -> JobGraph:
    return JobGraph(
        job_id=JobId(message.job_id),
        name=message.name,
        vertices=tuple(vertex_from_proto(v) for v in message.vertices),
        edges=tuple(edge_from_proto(e) for e in message.edges),
        config=dict(message.config),
        blobs=tuple(blob_from_proto(b) for b in message.blobs),
        batch=message.batch,
    )


def state_number(state: JobStatus | ExecutionState) -> Any:
    """The state on the wire. (The type is Any because stubs take no int for an enum.)"""
    return state.value


def partition_id_to_proto(partition: ResultPartitionId) -> tasks_pb2.PartitionId:
    return tasks_pb2.PartitionId(
        result_id=partition.result_id, producer=partition.producer, attempt=partition.attempt
    )


def partition_id_from_proto(message: tasks_pb2.PartitionId) -> ResultPartitionId:
    return ResultPartitionId(ResultId(message.result_id), message.producer, message.attempt)


def stored_partition_to_proto(partition: StoredPartition) -> tasks_pb2.StoredPartition:
    return tasks_pb2.StoredPartition(
        id=partition_id_to_proto(partition.id),
        size_bytes=partition.size_bytes,
        rows=partition.rows,
        path=partition.path,
    )


def stored_partition_from_proto(message: tasks_pb2.StoredPartition) -> StoredPartition:
    return StoredPartition(
        id=partition_id_from_proto(message.id),
        size_bytes=message.size_bytes,
        rows=message.rows,
        path=message.path,
    )

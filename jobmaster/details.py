"""Builds JobDetails, the complete description of the job, for `show` and for its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel._proto import common_pb2, job_master_pb2
from firesteel.common.ids import AttemptId
from firesteel.common.rpc.convert import ERROR, state_number
from firesteel.plan.fusion import fused
from jobmaster.checkpoint_details import checkpoint_details
from jobmaster.convert import STATUS_CHANGE
from jobmaster.core.core import JobMasterCore
from jobmaster.core.execution_graph import Execution, ExecutionJobVertex

Metrics = Mapping[AttemptId, common_pb2.TaskMetrics]  # the last metrics of each attempt


def job_details(core: JobMasterCore, metrics: Metrics, now: float) -> job_master_pb2.JobDetails:
    graph = core.graph
    members = fused(graph.job_graph)
    return job_master_pb2.JobDetails(
        job_id=graph.job_graph.job_id,
        name=graph.job_graph.name,
        status=state_number(graph.status),
        entered_ms=map(STATUS_CHANGE.encode, graph.timestamps),
        vertices=[
            _vertex(core, job_vertex, members[job_vertex.vertex.vertex_id], metrics)
            for job_vertex in graph.vertices
        ],
        exceptions=[ERROR.encode(error) for error in core.exceptions.newest_first()],
        start_ms=graph.timestamps[0].timestamp_ms,
        end_ms=graph.end_ms,
        waiting_for=core.waiting_for(now),
        checkpoints=checkpoint_details(core, now, subtasks=False),
        warnings=core.job.warnings,
    )


def _vertex(
    core: JobMasterCore,
    job_vertex: ExecutionJobVertex,
    members: Sequence[tuple[int, ...]],
    metrics: Metrics,
) -> job_master_pb2.VertexDetails:
    vertex = job_vertex.vertex
    groups = {index: number for number, group in enumerate(members) for index in group}
    last_plans = _last_plans(job_vertex, members, metrics)
    return job_master_pb2.VertexDetails(
        vertex_id=vertex.vertex_id,
        name=vertex.name,
        parallelism=vertex.parallelism,
        max_parallelism=vertex.max_parallelism,
        slot_sharing_group=vertex.slot_sharing_group,
        operators=[
            job_master_pb2.OperatorDetails(
                operator_id=operator.operator_id,
                uid=operator.uid,
                name=operator.name,
                kind=operator.kind,
                runs_on_spark=operator.runs_on_spark,
                plan=last_plans.get(index) or core.job.plans.get(operator.operator_id, ""),
                group=groups[index],
            )
            for index, operator in enumerate(vertex.operators)
        ],
        subtasks=[
            job_master_pb2.SubtaskDetails(
                index=subtask.subtask,
                attempts=[_execution(execution, metrics) for execution in subtask.attempts],
            )
            for subtask in job_vertex.vertices
        ],
        input_vertex_ids=list(
            dict.fromkeys(
                result.edge.source_vertex_id for result in core.graph.inputs_of(vertex.vertex_id)
            )
        ),
    )


def _last_plans(
    job_vertex: ExecutionJobVertex, members: Sequence[tuple[int, ...]], metrics: Metrics
) -> dict[int, str]:
    """Returns the last plans that the first subtask reported, under each group's last operator, as
    the analysis does.
    """
    reported = next(
        (
            metrics[e.attempt_id].plans
            for e in job_vertex.vertices[0].attempts[::-1]
            if e.attempt_id in metrics
        ),
        None,
    )
    if not reported:
        return {}
    ids = [operator.operator_id for operator in job_vertex.vertex.operators]
    return {
        group[-1]: reported[ids[index]]
        for group in members
        for index in group
        if ids[index] in reported
    }


def _execution(execution: Execution, metrics: Metrics) -> job_master_pb2.ExecutionDetails:
    details = job_master_pb2.ExecutionDetails(
        attempt_id=execution.attempt_id,
        number=execution.attempt,
        state=state_number(execution.state),
        entered_ms=[
            job_master_pb2.StateChange(state=state_number(state), timestamp_ms=at_ms)
            for state, at_ms in execution.timestamps
        ],
        metrics=metrics.get(execution.attempt_id),
        error=ERROR.encode(execution.error) if execution.error is not None else None,
    )
    slot = execution.slot
    if slot is not None:
        details.host = slot.host
        details.task_executor_id = slot.task_executor_id
        details.slot_index = slot.slot_index
        details.allocation_id = slot.allocation_id
    return details

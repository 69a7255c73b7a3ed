"""Builds JobDetails, the complete description of the job, for `show` and for its history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

from firesteel._proto import common_pb2, job_master_pb2
from firesteel.common.config.redaction import redacted
from firesteel.common.ids import AttemptId, OperatorId
from firesteel.common.job_graph import JobVertex
from firesteel.common.rpc.convert import ERROR, RESCALE, state_number
from firesteel.common.rpc.job_details import vertex_details
from firesteel.plan.fusion import fused
from jobmaster.checkpoint_details import checkpoint_details
from jobmaster.convert import STATUS_CHANGE
from jobmaster.core.core import JobMasterCore
from jobmaster.core.execution_graph import Execution, ExecutionJobVertex
from jobmaster.series import Sample

T = TypeVar("T")
Metrics = Mapping[AttemptId, common_pb2.TaskMetrics]  # the last metrics of each attempt
NOTHING: Mapping[str, Sample] = {}


def job_details(
    core: JobMasterCore, metrics: Metrics, now: float, activity: Mapping[str, Sample] = NOTHING
) -> job_master_pb2.JobDetails:
    """`activity`: of vertices, in the last seconds."""
    graph = core.graph
    members = fused(graph.job_graph)
    # A job graph that was rejected has no execution graph.
    vertices = vertex_details(graph.job_graph) if graph.vertices else []
    sizes = _state_bytes(core)
    for details, job_vertex in zip(vertices, graph.vertices, strict=True):
        _add_tasks(details, core, job_vertex, members[job_vertex.vertex.vertex_id], metrics)
        bounds = core.job.parallelism.stored
        details.lower_bound = bounds.lower.get(job_vertex.vertex.vertex_id, 0)
        details.upper_bound = bounds.upper.get(job_vertex.vertex.vertex_id, 0)
        sample = None if graph.status.terminal else activity.get(details.vertex_id)
        if sample is not None:
            details.activity.CopyFrom(sample.message())
        if details.vertex_id in sizes:
            details.state_bytes = sum(sizes[details.vertex_id].values())
            for operator in details.operators:
                if (size_bytes := sizes[details.vertex_id][operator.operator_id]) > 0:
                    operator.state_bytes = size_bytes
    return job_master_pb2.JobDetails(
        job_id=graph.job_graph.job_id,
        name=graph.job_graph.name,
        status=state_number(graph.status),
        entered_ms=map(STATUS_CHANGE.encode, graph.timestamps),
        vertices=vertices,
        exceptions=map(ERROR.encode, core.exceptions.newest_first()),
        start_ms=graph.timestamps[0].timestamp_ms,
        end_ms=graph.end_ms,
        waiting_for=core.waiting_for(now),
        checkpoints=checkpoint_details(core, now, subtasks=False),
        warnings=core.job.warnings,
        configuration=redacted(graph.job_graph.config),
        rescales=map(RESCALE.encode, reversed(core.job.rescales.records)),
        spark_ui=core.job.coordinators.spark_program.ui_address,
    )


def _state_bytes(core: JobMasterCore) -> dict[str, Counter[str]]:
    """Returns the sizes of state in the last complete checkpoint, by vertex and operator."""
    sizes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    last = core.job.checkpoints.last_completed
    if last is not None:
        for attempt_id, snapshot in last.snapshots.items():
            execution = last.plan.to_acknowledge.get(attempt_id)
            if execution is not None:
                of_vertex = sizes[execution.vertex.job_vertex.vertex.vertex_id]
                for operator in snapshot.operators:
                    of_vertex[operator.operator_id] += operator.state_bytes
    return sizes


def _add_tasks(
    details: job_master_pb2.VertexDetails,
    core: JobMasterCore,
    job_vertex: ExecutionJobVertex,
    members: Sequence[tuple[int, ...]],
    metrics: Metrics,
) -> None:
    reported = _reported(job_vertex, metrics)
    plans = _by_group(reported.plans, job_vertex.vertex, members)
    choices = _by_group(reported.choices, job_vertex.vertex, members)
    for group, indexes in enumerate(members):
        for index in indexes:
            operator = details.operators[index]
            operator.group = group
            operator.plan = plans.get(index) or core.job.plans.get(
                OperatorId(operator.operator_id), ""
            )
            if index in choices:
                operator.choice.CopyFrom(choices[index])
    details.subtasks.extend(
        job_master_pb2.SubtaskDetails(
            index=subtask.subtask,
            attempts=[_execution(execution, metrics) for execution in subtask.attempts],
        )
        for subtask in job_vertex.vertices
    )


def _reported(job_vertex: ExecutionJobVertex, metrics: Metrics) -> common_pb2.TaskMetrics:
    """Returns the last metrics of the first subtask."""
    attempts = (execution.attempt_id for execution in job_vertex.vertices[0].attempts[::-1])
    return next((metrics[id] for id in attempts if id in metrics), common_pb2.TaskMetrics())


def _by_group(
    values: Mapping[str, T], vertex: JobVertex, members: Sequence[tuple[int, ...]]
) -> dict[int, T]:
    """Returns values by operator under the last operator of each group, as the analysis does."""
    ids = [operator.operator_id for operator in vertex.operators]
    return {
        group[-1]: values[ids[index]]
        for group in members
        for index in group
        if ids[index] in values
    }


def _execution(execution: Execution, metrics: Metrics) -> job_master_pb2.ExecutionDetails:
    details = job_master_pb2.ExecutionDetails(
        attempt_id=execution.attempt_id,
        number=execution.attempt,
        state=state_number(execution.state),
        entered_ms={state.value: at_ms for state, at_ms in execution.timestamps},
        metrics=metrics.get(execution.attempt_id),
        error=ERROR.encode(execution.error) if execution.error is not None else None,
    )
    slot = execution.slot
    if slot is not None:
        details.host = slot.host
        details.task_executor_id = slot.task_executor_id
        details.slot_index = slot.slot_index
    return details

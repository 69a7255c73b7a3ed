"""Between the messages on the link to the TaskExecutor and what the task runtime works with.
Protobuf stays at this door.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from firesteel._proto import common_pb2, executor_pb2, inspections_pb2, tasks_pb2
from firesteel.common.checkpoints.messages import (
    CheckpointAcknowledged,
    CheckpointAnswer,
    CheckpointDeclined,
    DataEnded,
    TaskHeld,
)
from firesteel.common.checkpoints.metadata import decode_snapshots
from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import AttemptId, JobId, OperatorId
from firesteel.common.inspections import (
    FlameGraph,
    Inspected,
    InspectTask,
    SampledRows,
    ThreadStack,
)
from firesteel.common.job_graph import JobEdge, JobVertex
from firesteel.common.rpc.convert import (
    ERROR,
    FLAME_GRAPH,
    SAMPLED_ROWS,
    TASK_METRICS,
    THREAD_STACK,
    plan_text,
    state_number,
)
from firesteel.common.rpc.errors import MAX_PAYLOAD_BYTES, MessageTooLarge
from firesteel.common.rpc.mapping import Codec, Envelope, Kind, Wire, register
from firesteel.common.states import ExecutionState
from firesteel.common.task_metrics import TaskMetrics
from firesteel.elements import CheckpointBarrier
from firesteel.errors import ErrorInfo, FiresteelError
from firesteel.text import valid_text
from taskexecutor.executor.analyze import AnalyzedOperator
from taskexecutor.executor.exchange import Locations
from taskexecutor.executor.state import RestoredOperatorState
from taskexecutor.executor.state.files import read_snapshot
from taskexecutor.executor.task import (
    InEdge,
    MetricSample,
    OutEdge,
    TaskConfig,
    TaskEnd,
)


def _encode_schema(schema: pa.Schema | None) -> bytes:
    return b"" if schema is None else bytes(schema.serialize())


def _decode_schema(schema: bytes) -> pa.Schema | None:
    return pa.ipc.read_schema(pa.py_buffer(schema)) if schema else None


for _hint in (pa.Schema, pa.Schema | None):
    register(_hint, Codec(_encode_schema, _decode_schema))

# -- from the TaskExecutor


class _Vertex(NamedTuple):
    vertex: JobVertex
    in_edges: tuple[JobEdge, ...]
    in_parallelism: tuple[int, ...]
    out_edges: tuple[JobEdge, ...]
    out_parallelism: tuple[int, ...]
    out_max_parallelism: tuple[int, ...]
    output_schemas: tuple[pa.Schema | None, ...]
    input_schemas: tuple[pa.Schema | None, ...]


_VERTEX = Wire(_Vertex, tasks_pb2.VertexDeployment)
_LOCATIONS = Wire(Locations, tasks_pb2.ResultLocations, unmapped=("result_id",))


def task_configs(
    submit: tasks_pb2.SubmitTasks, deployments: Sequence[tasks_pb2.TaskDeployment]
) -> list[TaskConfig]:
    """One configuration per deployment. Raises FiresteelError if the message is inconsistent."""
    located = map(tasks_pb2.ResultLocations.FromString, submit.locations)
    locations = {location.result_id: _LOCATIONS.decode(location) for location in located}
    wanted = {deployment.vertex_id for deployment in deployments}
    vertices = {
        described.vertex.vertex_id: _VERTEX.decode(described)
        for described in submit.vertices
        if described.vertex.vertex_id in wanted
    }
    config = dict(submit.config)
    return [
        _task_config(submit, deployment, vertices, locations, config) for deployment in deployments
    ]


def _task_config(
    submit: tasks_pb2.SubmitTasks,
    deployment: tasks_pb2.TaskDeployment,
    vertices: Mapping[str, _Vertex],
    locations: Mapping[str, Locations],
    config: Mapping[str, str],
) -> TaskConfig:
    described = vertices.get(deployment.vertex_id)
    if described is None:
        raise FiresteelError(
            f"JobMaster: the deployment of {deployment.attempt_id} lacks its vertex"
            f" {deployment.vertex_id}"
        )
    in_edges = []
    for edge, producers in zip(described.in_edges, described.in_parallelism, strict=True):
        location = locations.get(edge.result_id)
        if location is None:
            raise FiresteelError(
                f"JobMaster: the deployment of {deployment.attempt_id} lacks the locations of"
                f" {edge.result_id}"
            )
        in_edges.append(InEdge(edge, producers, location))
    out_edges = map(
        OutEdge, described.out_edges, described.out_parallelism, described.out_max_parallelism
    )
    return TaskConfig(
        job_id=JobId(submit.job_id),
        job_name=submit.job_name,
        vertex=described.vertex,
        subtask=deployment.subtask,
        attempt=deployment.attempt,
        attempt_id=AttemptId(deployment.attempt_id),
        in_edges=in_edges,
        out_edges=list(out_edges),
        output_schemas=described.output_schemas,
        input_schemas=described.input_schemas,
        config=config,
        restored=_restored(submit, deployment),
    )


def _restored(
    submit: tasks_pb2.SubmitTasks, deployment: tasks_pb2.TaskDeployment
) -> dict[OperatorId, RestoredOperatorState] | None:
    if not deployment.HasField("restored"):
        return None
    storage = (
        CheckpointStorage(submit.restored_directory)
        if submit.restored_directory
        else checkpoint_storage(submit)
    )
    assert storage is not None, "a task restores without a checkpoint directory"
    # Of operators that are one in the chain, the one that has state counts.
    snapshots = sorted(decode_snapshots(deployment.restored), key=lambda snapshot: snapshot.empty)
    return {snapshot.operator_id: read_snapshot(storage, snapshot) for snapshot in snapshots}


def checkpoint_storage(
    request: tasks_pb2.SubmitTasks | tasks_pb2.Analyze,
) -> CheckpointStorage | None:
    """Where the job's checkpoints are; None if it takes none."""
    if not request.checkpoint_directory:
        return None
    return CheckpointStorage(request.checkpoint_directory).at(request.job_id)


BARRIER = Wire(
    CheckpointBarrier,
    tasks_pb2.TriggerCheckpoint,
    unmapped=("job_id", "job_master_epoch", "attempt_ids", "splits", "stops", "savepoint_path"),
)


INSPECT_TASK = Wire(InspectTask, tasks_pb2.InspectTask, unmapped=("job_master_epoch",))


# -- to the TaskExecutor


_SAMPLE = Wire(
    MetricSample,
    common_pb2.MetricSample,
    codecs={
        "name": Codec(valid_text),
        "labels": Codec(lambda labels: {k: valid_text(v) for k, v in labels.items()}, dict),
    },
)
_ANALYZED = Wire(AnalyzedOperator, tasks_pb2.OperatorSchema, codecs={"plan": Codec(plan_text)})
_TASK_END = Wire(
    TaskEnd, tasks_pb2.TaskStateChange, unmapped=("attempt_id", "state", "error", "timestamp_ms")
)
_CHECKPOINT_ANSWER: Envelope[CheckpointAnswer, executor_pb2.ExecutorToTaskExecutor] = Envelope(
    executor_pb2.ExecutorToTaskExecutor,
    {
        "checkpoint_acknowledged": CheckpointAcknowledged,
        "checkpoint_declined": Kind(
            CheckpointDeclined,
            codecs={"cause": Codec(lambda cause: valid_text(cause) or "no cause given")},
        ),
        "data_ended": DataEnded,
        "task_held": TaskHeld,
    },
    others=(
        *("ready", "task_states", "operator_event", "analyze_result", "metrics", "released"),
        *("ending", "heartbeat", "task_inspected", "threads"),
    ),
    given=("job_id",),
)


def task_state(
    job_id: str,
    attempt_id: str,
    state: ExecutionState,
    error: ErrorInfo | None,
    end: TaskEnd | None,
    timestamp_ms: int,
) -> executor_pb2.ExecutorToTaskExecutor:
    change = tasks_pb2.TaskStateChange() if end is None else _TASK_END.encode(end)
    change.MergeFrom(
        tasks_pb2.TaskStateChange(
            attempt_id=attempt_id,
            state=state_number(state),
            timestamp_ms=timestamp_ms,
            error=None if error is None else ERROR.encode(error),
        )
    )
    states = tasks_pb2.TaskStateChanges(job_id=job_id, updates=[change])
    return executor_pb2.ExecutorToTaskExecutor(task_states=states)


def checkpoint_answer(job_id: str, answer: CheckpointAnswer) -> executor_pb2.ExecutorToTaskExecutor:
    if not isinstance(answer, CheckpointAcknowledged):
        return _CHECKPOINT_ANSWER.encode(answer, job_id=job_id)
    with_state = tuple(
        operator
        for operator in answer.snapshot.operators
        if not operator.empty or operator.watermark_us is not None
    )
    snapshot = replace(answer.snapshot, operators=with_state)
    message = _CHECKPOINT_ANSWER.encode(replace(answer, snapshot=snapshot), job_id=job_id)
    if len(message.checkpoint_acknowledged.snapshot.operators) > MAX_PAYLOAD_BYTES:
        raise MessageTooLarge(_too_much_state(with_state))
    return message


def _too_much_state(snapshots: Sequence[OperatorSnapshot]) -> str:
    sizes = {
        name: sum(map(len, items))
        for snapshot in snapshots
        for states in (snapshot.lists, snapshot.union_lists)
        for name, items in states.items()
    }
    for snapshot in snapshots:
        sizes |= {name: len(content) for name, content in snapshot.broadcasts.items()}
    largest = max(sizes, key=lambda name: sizes[name], default="")
    return (
        f"operator state {largest!r} is too large: it has {sizes.get(largest, 0):,} bytes, and all"
        f" that a task keeps outside of keyed state may have {MAX_PAYLOAD_BYTES:,}"
    )


def metrics_report(
    tasks: Sequence[TaskMetrics], samples: Sequence[MetricSample]
) -> executor_pb2.ExecutorToTaskExecutor:
    report = executor_pb2.ExecutorMetrics(
        tasks=map(TASK_METRICS.encode, tasks), samples=map(_SAMPLE.encode, samples)
    )
    return executor_pb2.ExecutorToTaskExecutor(metrics=report)


def analyzed(
    job_id: str, operators: Sequence[AnalyzedOperator]
) -> executor_pb2.ExecutorToTaskExecutor:
    schemas = map(_ANALYZED.encode, operators)
    result = tasks_pb2.AnalyzeResult(job_id=job_id, schemas=schemas)
    return executor_pb2.ExecutorToTaskExecutor(analyze_result=result)


def analysis_failed(job_id: str, error: ErrorInfo) -> executor_pb2.ExecutorToTaskExecutor:
    result = tasks_pb2.AnalyzeResult(job_id=job_id, error=ERROR.encode(error))
    return executor_pb2.ExecutorToTaskExecutor(analyze_result=result)


def task_inspected(inspected: Inspected) -> executor_pb2.ExecutorToTaskExecutor:
    result = inspections_pb2.InspectTaskResponse()
    match inspected.result:
        case FlameGraph():
            result.flame_graph.CopyFrom(FLAME_GRAPH.encode(inspected.result))
        case SampledRows():
            result.sampled_rows.CopyFrom(SAMPLED_ROWS.encode(inspected.result))
    message = tasks_pb2.TaskInspected(
        job_id=inspected.request.job_id,
        inspection_id=inspected.request.inspection_id,
        result=result.SerializeToString(),
        problem=valid_text(inspected.problem),
        busy=inspected.busy,
    )
    return executor_pb2.ExecutorToTaskExecutor(task_inspected=message)


def threads(stacks: Sequence[ThreadStack]) -> executor_pb2.ExecutorToTaskExecutor:
    dump = inspections_pb2.ThreadDump(threads=map(THREAD_STACK.encode, stacks))
    return executor_pb2.ExecutorToTaskExecutor(threads=dump)


def slot_released(allocation_id: str) -> executor_pb2.ExecutorToTaskExecutor:
    released = executor_pb2.SlotReleased(allocation_id=allocation_id)
    return executor_pb2.ExecutorToTaskExecutor(released=released)


def ending(reason: str) -> executor_pb2.ExecutorToTaskExecutor:
    ending = executor_pb2.ExecutorEnding(reason=valid_text(reason))
    return executor_pb2.ExecutorToTaskExecutor(ending=ending)


def ready(
    *, executor_id: str, data_address: str, pid: int, jvm_pid: int
) -> executor_pb2.ExecutorToTaskExecutor:
    message = executor_pb2.ExecutorReady(
        executor_id=executor_id, data_address=data_address, pid=pid, jvm_pid=jvm_pid
    )
    return executor_pb2.ExecutorToTaskExecutor(ready=message)

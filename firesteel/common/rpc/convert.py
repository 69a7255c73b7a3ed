"""Messages of the domain types that several services share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from firesteel._proto import (
    common_pb2,
    executor_pb2,
    inspections_pb2,
    job_graph_pb2,
    job_master_pb2,
    resource_manager_pb2,
    tasks_pb2,
)
from firesteel.common.config.redaction import hidden
from firesteel.common.ids import OperatorId
from firesteel.common.inspections import (
    FlameGraph,
    SampledRows,
    TaskInspection,
    ThreadStack,
)
from firesteel.common.job_graph import (
    Blob,
    JobEdge,
    JobGraph,
    JobVertex,
    ResultPartitionId,
    StoredPartition,
)
from firesteel.common.machines import MachineUsage
from firesteel.common.operator_messages import HeldSplit, OperatorEvent
from firesteel.common.rescales import Assessment, Rescale
from firesteel.common.resources import ResourceProfile, SlotStatus
from firesteel.common.rpc.mapping import Codec, Wire, register
from firesteel.common.security.job_keys import JobKeys
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.task_metrics import (
    AMOUNTS,
    Choice,
    PartitionProgress,
    TaskMetrics,
    TopicProgress,
)
from firesteel.errors import ErrorInfo
from firesteel.text import clipped, valid_text

# By operator, in columns: a source may have very many splits.
register(
    Mapping[OperatorId, Sequence[HeldSplit]],
    Codec(
        lambda splits: [
            tasks_pb2.HeldSplits(
                operator_id=operator_id,
                places=[split.place for split in held],
                digests=[split.digest for split in held],
            )
            for operator_id, held in splits.items()
        ],
        lambda splits: {
            OperatorId(of.operator_id): tuple(map(HeldSplit, of.places, of.digests))
            for of in splits
        },
    ),
)


def plan_text(plan: str) -> str:
    """A literal in a plan may have any length."""
    return hidden(valid_text(clipped(plan, _MAX_PLAN_CHARS)))


_MAX_PLAN_CHARS = 100_000
_NO_WATERMARK = -(2**63)
Wire(Choice, common_pb2.Choice, codecs={"reason": Codec(plan_text)})
Wire(PartitionProgress, common_pb2.PartitionProgress)
TOPIC_PROGRESS = Wire(TopicProgress, common_pb2.TopicProgress)
TASK_METRICS = Wire(
    TaskMetrics,
    common_pb2.TaskMetrics,
    codecs={
        "watermark_us": Codec(
            lambda time_us: _NO_WATERMARK if time_us is None else time_us,
            lambda time_us: None if time_us in (0, _NO_WATERMARK) else time_us,
        ),
        "plans": Codec(lambda plans: {o: plan_text(plan) for o, plan in plans.items()}, dict),
    },
)


def summed(messages: Iterable[common_pb2.TaskMetrics]) -> TaskMetrics:
    """Returns what the sum of the decoded messages is, in a fraction of the time."""
    every = list(messages)
    merged = common_pb2.TaskMetrics()
    for message in every:
        merged.MergeFrom(message)
    present = {field.name for field, _ in merged.ListFields()}  # in some message
    amounts = {name: sum(map(attrgetter(name), every)) for name in AMOUNTS if name in present}
    amounts["last_bundle_records"] = max((m.last_bundle_records for m in every), default=0)
    watermarks_us = set(map(attrgetter("watermark_us"), every)) - {0, _NO_WATERMARK}
    topics: dict[str, TopicProgress] = {}
    for message in every if merged.topics else ():
        for operator, progress in message.topics.items():
            known = topics.get(operator, TopicProgress())
            topics[operator] = known + TOPIC_PROGRESS.decode(progress)
    return TaskMetrics(
        watermark_us=min(watermarks_us, default=None),
        topics={operator: topics[operator] for operator in sorted(topics)},
        **amounts,
    )


PROFILE = Wire(ResourceProfile, common_pb2.ResourceProfile)
ERROR = Wire(ErrorInfo, common_pb2.ErrorInfo)
BLOB = Wire(Blob, common_pb2.BlobRef)
JOB_GRAPH = Wire(JobGraph, job_graph_pb2.JobGraph)
VERTEX = Wire(JobVertex, job_graph_pb2.JobVertex)
EDGE = Wire(JobEdge, job_graph_pb2.JobEdge)
ASSESSMENT = Wire(Assessment, job_master_pb2.Assessment)
RESCALE = Wire(Rescale, job_master_pb2.Rescale)
JOB_KEYS = Wire(JobKeys, executor_pb2.JobKeys)
SLOT_STATUS = Wire(SlotStatus, resource_manager_pb2.SlotStatus)
PARTITION_ID = Wire(ResultPartitionId, tasks_pb2.PartitionId)
STORED_PARTITION = Wire(StoredPartition, tasks_pb2.StoredPartition)
OPERATOR_EVENT = Wire(OperatorEvent, tasks_pb2.OperatorEvent)
TASK_INSPECTION = Wire(TaskInspection, inspections_pb2.InspectTaskRequest)
FLAME_GRAPH = Wire(FlameGraph, inspections_pb2.FlameGraph)
SAMPLED_ROWS = Wire(SampledRows, inspections_pb2.SampledRows)
THREAD_STACK = Wire(ThreadStack, inspections_pb2.ThreadStack)
MACHINE_USAGE = Wire(MachineUsage, resource_manager_pb2.MachineUsage)


def state_number(state: JobStatus | ExecutionState) -> Any:
    """The state on the wire. (The type is Any because stubs take no int for an enum.)"""
    return state.value

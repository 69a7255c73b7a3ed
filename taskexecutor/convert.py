"""Between messages on the wire and the core's events and commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel._proto import (
    common_pb2,
    executor_pb2,
    job_master_pb2,
    process_info_pb2,
    resource_manager_pb2,
    tasks_pb2,
)
from firesteel.common.config import Configuration, options
from firesteel.common.ids import AllocationId, AttemptId, Epoch, ExecutorId, JobId, VertexId
from firesteel.common.rpc.convert import (
    BLOB,
    ERROR,
    PROFILE,
    STORED_PARTITION,
)
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.mapping import Codec, Envelope, Kind, View, Wire
from firesteel.errors import ErrorInfo
from taskexecutor.core import commands, events
from taskexecutor.core.process_shape import Environment
from taskexecutor.core.settings import Settings
from taskexecutor.core.slot_table import SlotTable


def environment_from(values: Mapping[str, str]) -> Environment:
    spark = tuple(sorted((key, value) for key, value in values.items() if key.startswith("spark.")))
    return Environment(spark=spark, python=values.get(options.PYTHON_EXECUTABLE.key, ""))


# ---- ResourceManager


_ENVIRONMENT = Codec(None, environment_from)
_CAUSE = Codec(None, lambda cause: cause or "no cause given")
_FROM_RESOURCE_MANAGER: Envelope[
    events.Event | None, resource_manager_pb2.ResourceManagerToTaskExecutor
] = Envelope(
    resource_manager_pb2.ResourceManagerToTaskExecutor,
    {
        "registered": events.ResourceManagerRegistered,
        "request_slot": Kind(events.SlotRequested, codecs={"environment": _ENVIRONMENT}),
        "job_master_changed": events.JobMasterChanged,
        "free_slot": Kind(events.SlotRevoked, codecs={"cause": _CAUSE}),
    },
    others=("heartbeat", "shutdown"),  # the stream handles them
)


def from_resource_manager(
    message: resource_manager_pb2.ResourceManagerToTaskExecutor,
) -> events.Event | None:
    """Returns None for a message that does not concern the core."""
    event = _FROM_RESOURCE_MANAGER.decode(message)
    match event:
        case events.SlotRequested():
            if not event.allocation_id or not event.job_id or not event.job_master_address:
                raise RemoteProtocolError(
                    "ResourceManager: RequestSlot without allocation_id, job_id or "
                    "job_master_address"
                )
        case events.JobMasterChanged():
            if not event.job_id or not event.job_master_address:
                raise RemoteProtocolError(
                    "ResourceManager: JobMasterChanged without job_id or job_master_address"
                )
    return event


TO_RESOURCE_MANAGER: Envelope[
    commands.ToResourceManager, resource_manager_pb2.TaskExecutorToResourceManager
] = Envelope(
    resource_manager_pb2.TaskExecutorToResourceManager,
    {
        "slot_request_accepted": commands.AcceptSlotRequest,
        "slot_request_rejected": commands.RejectSlotRequest,
        "slot_report": commands.ReportSlots,
    },
    others=("register", "heartbeat", "usage"),
    given=("epoch",),
)
REGISTRATION = View(
    Settings,
    resource_manager_pb2.TaskExecutorRegistration,
    given=("address", "host", "pid", "worker_id", "slots"),
)


# ---- JobMaster


# Relayed to the slots of the attempts that they name.
_FOR_TASKS = (
    "operator_event",
    "trigger_checkpoint",
    "notify_checkpoint",
    "drain",
    "adopt",
    "inspect",
)
_FROM_JOB_MASTER: Envelope[events.Event | None, job_master_pb2.JobMasterToTaskExecutor] = Envelope(
    job_master_pb2.JobMasterToTaskExecutor,
    {
        "heartbeat": events.JobMasterHeartbeat,
        "slots_answer": events.OffersAnswered,
        "cancel": events.TasksCancelled,
        "free_slots": events.SlotsFreed,
        "release_partitions": events.PartitionsReleased,
        "goodbye": events.JobMasterLeft,
    },
    others=("submit", "analyze", *_FOR_TASKS),
)


def from_job_master(
    message: job_master_pb2.JobMasterToTaskExecutor, conf: Configuration
) -> events.Event | None:
    job_id, epoch = JobId(message.job_id), Epoch(message.job_master_epoch)
    match message.WhichOneof("message"):
        case "submit":
            return _tasks_submitted(job_id, epoch, message.submit, conf)
        case "analyze":
            return events.AnalysisRequested(
                job_id=job_id,
                job_master_epoch=epoch,
                allocation_id=AllocationId(message.analyze.allocation_id),
                blobs=tuple(map(BLOB.decode, message.analyze.job_graph.blobs)),
                dispatcher_address=message.analyze.dispatcher_address,
                message=executor_pb2.TaskExecutorToExecutor(analyze=message.analyze),
            )
        case kind if kind in _FOR_TASKS:
            relayed = getattr(message, kind)
            operator_event = kind == "operator_event"
            attempt_ids = (relayed.attempt_id,) if operator_event else relayed.attempt_ids
            return events.TaskMessageReceived(
                job_id=job_id,
                job_master_epoch=epoch,
                attempt_ids=tuple(map(AttemptId, attempt_ids)),
                message=executor_pb2.TaskExecutorToExecutor(**{kind: relayed}),
            )
        case _:
            return _FROM_JOB_MASTER.decode(message)


def _tasks_submitted(
    job_id: JobId, epoch: Epoch, submit: tasks_pb2.SubmitTasks, conf: Configuration
) -> events.TasksSubmitted:
    by_allocation: dict[str, list[tasks_pb2.TaskDeployment]] = {}
    for task in submit.tasks:
        by_allocation.setdefault(task.allocation_id, []).append(task)
    return events.TasksSubmitted(
        job_id=job_id,
        job_master_epoch=epoch,
        parts=tuple(
            events.SlotTasks(
                allocation_id=AllocationId(allocation_id),
                tasks={
                    AttemptId(task.attempt_id): events.TaskPlace(
                        VertexId(task.vertex_id),
                        task.subtask,
                        task.attempt,
                        AllocationId(allocation_id),
                    )
                    for task in tasks
                },
                message=executor_pb2.TaskExecutorToExecutor(submit=_part_of(submit, tasks)),
            )
            for allocation_id, tasks in by_allocation.items()
        ),
        blobs=tuple(BLOB.decode(blob) for blob in submit.blobs),
        dispatcher_address=submit.dispatcher_address,
        cancellation_timeout_s=_cancellation_timeout_s(submit.config, conf),
        recovers=submit.recovers,
    )


def _part_of(
    submit: tasks_pb2.SubmitTasks, tasks: list[tasks_pb2.TaskDeployment]
) -> tasks_pb2.SubmitTasks:
    """The part of a deployment for one slot: all of it but others' tasks and vertices."""
    if len(tasks) == len(submit.tasks):
        return submit
    wanted = {task.vertex_id for task in tasks}
    part: dict[str, Any] = {field.name: value for field, value in submit.ListFields()}
    part["tasks"] = tasks
    part["vertices"] = [v for v in submit.vertices if v.vertex.vertex_id in wanted]
    return tasks_pb2.SubmitTasks(**part)


def _cancellation_timeout_s(config: Mapping[str, str], conf: Configuration) -> float:
    option = options.CANCELLATION_TIMEOUT
    if option.key not in config:
        return conf.get(option)
    return Configuration({option.key: config[option.key]}).get(option)


_SPLITS = Codec(None, tuple)  # relayed
_TASK_STATE = Wire(
    events.TaskState,
    tasks_pb2.TaskStateChange,
    given=("error", "timestamp_ms"),
    unmapped=("metrics", "partitions", "unreadable"),
    codecs={"splits": _SPLITS},
)
Wire(events.TaskPlace, job_master_pb2.TaskPlace, codecs={"splits": _SPLITS})
_HELLO = View(
    commands.SendHello,
    job_master_pb2.TaskExecutorHello,
    given=("task_executor_id", "address", "host", "data_address"),
)
_OFFER_SLOTS = View(commands.OfferSlots, job_master_pb2.OfferSlots)
_SLOT_LOST = View(commands.ReportSlotLost, job_master_pb2.SlotLost, given=("error",))


def to_job_master(
    command: commands.ToJobMaster,
    *,
    epoch: Epoch,
    task_executor_id: str,
    address: str,
    data_address: str,
    host: str,
    now_ms: int,
) -> job_master_pb2.TaskExecutorToJobMaster:
    job_id, location = command.job_id, f"{host}, TaskExecutor {task_executor_id}"
    content: dict[str, Any]
    match command:
        case commands.RelayToJobMaster():
            assert isinstance(command.message, job_master_pb2.TaskExecutorToJobMaster)
            command.message.job_id, command.message.job_master_epoch = job_id, epoch
            return command.message
        case commands.SendHello():
            hello = _HELLO.encode(
                command,
                task_executor_id=task_executor_id,
                address=address,
                host=host,
                data_address=data_address,
            )
            content = {"hello": hello}
        case commands.OfferSlots():
            content = {"offer_slots": _OFFER_SLOTS.encode(command)}
        case commands.ReportSlotLost():
            error = _error(command.reason, f"{location}, slot {command.slot_index}", now_ms)
            content = {"slot_lost": _SLOT_LOST.encode(command, error=error)}
        case commands.ReportTasks():
            failure = _error(command.reason, location, now_ms) if command.reason else None
            updates = [
                _TASK_STATE.encode(state, error=failure, timestamp_ms=now_ms)
                for state in command.states
            ]
            content = {"task_states": tasks_pb2.TaskStateChanges(job_id=job_id, updates=updates)}
        case commands.ReportAnalysisFailed():
            error = _error(command.reason, location, now_ms)
            content = {"analyze_result": tasks_pb2.AnalyzeResult(job_id=job_id, error=error)}
    return job_master_pb2.TaskExecutorToJobMaster(job_id=job_id, job_master_epoch=epoch, **content)


def _error(reason: str, location: str, now_ms: int) -> common_pb2.ErrorInfo:
    """The summary is the reason's first line; what follows may be the end of a log."""
    return ERROR.encode(
        ErrorInfo(
            summary=reason.splitlines()[0] if reason else "",
            traceback=reason,
            location=location,
            timestamp_ms=now_ms,
        )
    )


# ---- a slot's process

# Relayed to the JobMaster.
_FOR_JOB_MASTER = (
    "operator_event",
    "checkpoint_acknowledged",
    "checkpoint_declined",
    "data_ended",
    "task_held",
    "task_inspected",
    "analyze_result",
)
_FROM_EXECUTOR: Envelope[events.Event | None, executor_pb2.ExecutorToTaskExecutor] = Envelope(
    executor_pb2.ExecutorToTaskExecutor,
    {
        "ready": Kind(events.ProcessReady, unmapped=("executor_id", "jvm_pid")),
        "heartbeat": events.ProcessHeartbeat,
        "ending": events.ProcessEnding,
        "released": events.ProcessCleaned,
    },
    others=("task_states", "metrics", "threads", *_FOR_JOB_MASTER),  # see `from_executor`
    context=("executor_id",),
)
TO_EXECUTOR: Envelope[
    commands.AssignProcess | commands.CancelInProcess | commands.CleanProcess,
    executor_pb2.TaskExecutorToExecutor,
] = Envelope(
    executor_pb2.TaskExecutorToExecutor,
    {
        "assign": commands.AssignProcess,
        "cancel": Kind(commands.CancelInProcess, unmapped=("job_master_epoch",)),
        "release": commands.CleanProcess,
    },
    others=("submit", "analyze", "job_keys", "dump_threads", *_FOR_TASKS),
    context=("executor_id",),
)


def from_executor(
    executor_id: ExecutorId, job_id: JobId | None, message: executor_pb2.ExecutorToTaskExecutor
) -> events.Event | None:
    """`job_id`: the job that the process serves. None if it does not concern the core."""
    match message.WhichOneof("message"):
        case "task_states":
            states = message.task_states
            return events.TaskStatesReported(
                executor_id=executor_id,
                job_id=JobId(states.job_id),
                states=tuple(map(_TASK_STATE.decode, states.updates)),
                message=job_master_pb2.TaskExecutorToJobMaster(task_states=states),
                partitions=tuple(
                    STORED_PARTITION.decode(partition)
                    for update in states.updates
                    for partition in update.partitions
                ),
            )
        case "metrics":
            if job_id is None or not message.metrics.tasks:
                return None
            report = job_master_pb2.TaskReport(metrics=message.metrics.tasks)
            relayed = job_master_pb2.TaskExecutorToJobMaster(report=report)
            return events.ProcessMessageReceived(
                executor_id=executor_id, job_id=job_id, message=relayed, keep=False
            )
        case kind if kind in _FOR_JOB_MASTER:
            content = getattr(message, kind)
            relayed = job_master_pb2.TaskExecutorToJobMaster(**{kind: content})
            return events.ProcessMessageReceived(
                executor_id=executor_id,
                job_id=JobId(content.job_id),
                message=relayed,
                keep=kind != "task_inspected",
            )
        case _:
            return _FROM_EXECUTOR.decode(message, executor_id=executor_id)


def allocated_slots(table: SlotTable) -> list[process_info_pb2.AllocatedSlot]:
    return [
        process_info_pb2.AllocatedSlot(
            slot_index=slot.index,
            job_id=slot.allocation.job_id,
            tasks=len(slot.allocation.running()),
            profile=PROFILE.encode(slot.allocation.profile),
        )
        for slot in table.slots
        if slot.allocation is not None
    ]

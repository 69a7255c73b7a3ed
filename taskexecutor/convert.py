"""Between messages on the wire and the core's events and commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel._proto import (
    common_pb2,
    executor_pb2,
    job_master_pb2,
    resource_manager_pb2,
    tasks_pb2,
)
from firesteel.common.config import Configuration, options
from firesteel.common.ids import AllocationId, AttemptId, Epoch, ExecutorId, JobId, VertexId
from firesteel.common.rpc.convert import (
    BLOB,
    ERROR,
    PARTITION_ID,
    PROFILE,
    SLOT_STATUS,
    STORED_PARTITION,
    state_number,
)
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.mapping import Codec, Envelope, Kind
from firesteel.common.states import ExecutionState
from firesteel.errors import ErrorInfo
from taskexecutor.core import commands, events
from taskexecutor.core.process_shape import Environment


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
        "heartbeat": None,
        "shutdown": None,  # which the stream handles
    },
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


def to_resource_manager(
    command: commands.AnswerSlotRequest | commands.ReportSlots, epoch: Epoch
) -> resource_manager_pb2.TaskExecutorToResourceManager:
    pb = resource_manager_pb2
    message = pb.TaskExecutorToResourceManager(epoch=epoch)
    match command:
        case commands.AnswerSlotRequest(allocation_id=allocation_id, accepted=True):
            message.slot_request_accepted.allocation_id = allocation_id
        case commands.AnswerSlotRequest(allocation_id=allocation_id, reason=reason):
            message.slot_request_rejected.allocation_id = allocation_id
            message.slot_request_rejected.reason = reason
        case commands.ReportSlots():
            report = pb.SlotReport(
                sequence=command.sequence,
                slots=map(SLOT_STATUS.encode, command.slots),
                stored_partitions=command.stored.partitions,
                stored_bytes=command.stored.size_bytes,
                stored_jobs=command.stored_jobs,
            )
            message.slot_report.CopyFrom(report)
    return message


# ---- JobMaster


def from_job_master(
    message: job_master_pb2.JobMasterToTaskExecutor, conf: Configuration
) -> events.Event | None:
    job_id, epoch = JobId(message.job_id), Epoch(message.job_master_epoch)
    match message.WhichOneof("message"):
        case "heartbeat":
            return events.JobMasterHeartbeat(job_id=job_id, job_master_epoch=epoch)
        case "slots_answer":
            return events.OffersAnswered(
                job_id=job_id,
                job_master_epoch=epoch,
                accepted=tuple(AllocationId(a) for a in message.slots_answer.accepted),
                rejected=tuple(AllocationId(a) for a in message.slots_answer.rejected),
            )
        case "submit":
            return _tasks_submitted(job_id, epoch, message.submit, conf)
        case "cancel":
            attempts = tuple(AttemptId(a) for a in message.cancel.attempt_ids)
            return events.TasksCancelled(
                job_id=job_id, job_master_epoch=epoch, attempt_ids=attempts
            )
        case "free_slots":
            return events.SlotsFreed(
                job_id=job_id,
                job_master_epoch=epoch,
                allocation_ids=tuple(AllocationId(a) for a in message.free_slots.allocation_ids),
                cause=message.free_slots.cause,
            )
        case "release_partitions":
            return events.PartitionsReleased(
                job_id=job_id,
                job_master_epoch=epoch,
                partitions=tuple(
                    PARTITION_ID.decode(partition)
                    for partition in message.release_partitions.partitions
                ),
            )
        case "operator_event":
            event = message.operator_event
            relayed = executor_pb2.TaskExecutorToExecutor(operator_event=event)
            return events.OperatorEventReceived(
                job_id=job_id,
                job_master_epoch=epoch,
                attempt_id=AttemptId(event.attempt_id),
                message=relayed,
            )
        case "trigger_checkpoint" | "notify_checkpoint" | "adopt" as kind:
            relayed = getattr(message, kind)
            return events.TaskMessageReceived(
                job_id=job_id,
                job_master_epoch=epoch,
                attempt_ids=tuple(AttemptId(a) for a in relayed.attempt_ids),
                message=executor_pb2.TaskExecutorToExecutor(**{kind: relayed}),
            )
        case "analyze":
            return events.AnalysisRequested(
                job_id=job_id,
                job_master_epoch=epoch,
                allocation_id=AllocationId(message.analyze.allocation_id),
                blobs=tuple(BLOB.decode(blob) for blob in message.analyze.job_graph.blobs),
                dispatcher_address=message.analyze.dispatcher_address,
                message=executor_pb2.TaskExecutorToExecutor(analyze=message.analyze),
            )
        case "goodbye":
            return events.JobMasterLeft(
                job_id=job_id, job_master_epoch=epoch, cause=message.goodbye.cause
            )
        case _:
            return None


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
                        VertexId(task.vertex_id), task.subtask, task.attempt
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
    envelope = job_master_pb2.TaskExecutorToJobMaster(job_id=command.job_id, job_master_epoch=epoch)
    location = f"{host}, TaskExecutor {task_executor_id}"
    match command:
        case commands.SendHello():
            envelope.hello.CopyFrom(
                job_master_pb2.TaskExecutorHello(
                    task_executor_id=task_executor_id,
                    address=address,
                    host=host,
                    slots=[_offer(offer) for offer in command.slots],
                    tasks=[
                        job_master_pb2.RunningTask(
                            attempt_id=task.attempt_id,
                            state=state_number(task.state),
                            vertex_id=task.place.vertex_id,
                            subtask=task.place.subtask,
                            attempt=task.place.attempt,
                            allocation_id=task.allocation_id,
                            splits=task.splits,
                        )
                        for task in command.tasks
                    ],
                    data_address=data_address,
                    partitions=[STORED_PARTITION.encode(part) for part in command.partitions],
                )
            )
        case commands.OfferSlots():
            envelope.offer_slots.slots.extend(_offer(offer) for offer in command.slots)
        case commands.ReportSlotLost():
            envelope.slot_lost.CopyFrom(
                job_master_pb2.SlotLost(
                    allocation_id=command.allocation_id,
                    error=_error(command.reason, f"{location}, slot {command.slot_index}", now_ms),
                )
            )
        case commands.ReportTasks():
            error = _error(command.reason, location, now_ms) if command.reason else None
            envelope.task_states.CopyFrom(
                tasks_pb2.TaskStateChanges(
                    job_id=command.job_id,
                    changes=[
                        tasks_pb2.TaskStateChange(
                            attempt_id=task.attempt_id,
                            state=state_number(task.state),
                            error=error,
                            timestamp_ms=now_ms,
                        )
                        for task in command.states
                    ],
                )
            )
        case commands.ReportAnalysisFailed():
            result = tasks_pb2.AnalyzeResult(
                job_id=command.job_id, error=_error(command.reason, location, now_ms)
            )
            envelope.analyze_result.CopyFrom(result)
        case commands.RelayToJobMaster():
            assert isinstance(command.message, job_master_pb2.TaskExecutorToJobMaster)
            command.message.job_id, command.message.job_master_epoch = command.job_id, epoch
            return command.message
    return envelope


def _offer(offer: commands.Offer) -> job_master_pb2.SlotOffer:
    return job_master_pb2.SlotOffer(
        allocation_id=offer.allocation_id,
        slot_index=offer.slot_index,
        profile=PROFILE.encode(offer.profile),
        executor_id=offer.executor_id,
        data_address=offer.data_address,
    )


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


def from_executor(
    executor_id: ExecutorId, job_id: JobId | None, message: executor_pb2.ExecutorToTaskExecutor
) -> events.Event | None:
    """`job_id`: the job that the process serves. None if it does not concern the core."""
    match message.WhichOneof("message"):
        case "ready":
            return events.ProcessReady(
                executor_id=executor_id,
                pid=message.ready.pid,
                data_address=message.ready.data_address,
            )
        case "heartbeat":
            return events.ProcessHeartbeat(executor_id=executor_id)
        case "task_states":
            changes = message.task_states
            return events.TaskStatesReported(
                executor_id=executor_id,
                job_id=JobId(changes.job_id),
                states=tuple(
                    events.TaskState(
                        AttemptId(change.attempt_id),
                        ExecutionState(change.state),
                        tuple(change.splits),
                    )
                    for change in changes.changes
                ),
                message=job_master_pb2.TaskExecutorToJobMaster(task_states=changes),
                partitions=tuple(
                    STORED_PARTITION.decode(partition)
                    for change in changes.changes
                    for partition in change.partitions
                ),
            )
        case "operator_event":
            event = message.operator_event
            relayed = job_master_pb2.TaskExecutorToJobMaster(operator_event=event)
            return events.ProcessMessageReceived(
                executor_id=executor_id, job_id=JobId(event.job_id), message=relayed
            )
        case "checkpoint_answer":
            answer = message.checkpoint_answer
            relayed = job_master_pb2.TaskExecutorToJobMaster(checkpoint_answer=answer)
            return events.ProcessMessageReceived(
                executor_id=executor_id, job_id=JobId(answer.job_id), message=relayed
            )
        case "data_ended":
            ended = message.data_ended
            relayed = job_master_pb2.TaskExecutorToJobMaster(data_ended=ended)
            return events.ProcessMessageReceived(
                executor_id=executor_id, job_id=JobId(ended.job_id), message=relayed
            )
        case "task_held":
            held = message.task_held
            relayed = job_master_pb2.TaskExecutorToJobMaster(task_held=held)
            return events.ProcessMessageReceived(
                executor_id=executor_id, job_id=JobId(held.job_id), message=relayed
            )
        case "analyze_result":
            result = message.analyze_result
            relayed = job_master_pb2.TaskExecutorToJobMaster(analyze_result=result)
            return events.ProcessMessageReceived(
                executor_id=executor_id, job_id=JobId(result.job_id), message=relayed
            )
        case "metrics":
            if job_id is None or not message.metrics.tasks:
                return None
            report = job_master_pb2.TaskReport(metrics=message.metrics.tasks)
            relayed = job_master_pb2.TaskExecutorToJobMaster(report=report)
            return events.ProcessMessageReceived(
                executor_id=executor_id, job_id=job_id, message=relayed, keep=False
            )
        case "ending":
            return events.ProcessEnding(executor_id=executor_id, reason=message.ending.reason)
        case "released":
            return events.ProcessCleaned(
                executor_id=executor_id, allocation_id=AllocationId(message.released.allocation_id)
            )
        case _:
            return None


def to_executor(
    command: commands.AssignProcess | commands.CancelInProcess | commands.CleanProcess,
) -> executor_pb2.TaskExecutorToExecutor:
    match command:
        case commands.AssignProcess():
            return executor_pb2.TaskExecutorToExecutor(
                assign=executor_pb2.AssignSlot(
                    job_id=command.job_id,
                    allocation_id=command.allocation_id,
                    job_dir=command.job_dir,
                    python_paths=command.python_paths,
                    managed_bytes=command.managed_bytes,
                )
            )
        case commands.CancelInProcess():
            cancel = tasks_pb2.CancelTasks(job_id=command.job_id, attempt_ids=command.attempt_ids)
            return executor_pb2.TaskExecutorToExecutor(cancel=cancel)
        case commands.CleanProcess():
            release = executor_pb2.ReleaseSlot(allocation_id=command.allocation_id)
            return executor_pb2.TaskExecutorToExecutor(release=release)

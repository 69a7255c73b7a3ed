"""Converts between the messages of proto/resource_manager.proto and the SlotManager's events and
commands.

Checks everything that a peer sends; faults raise RemoteProtocolError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from firesteel._proto import common_pb2
from firesteel._proto import resource_manager_pb2 as pb
from firesteel.common.ids import AllocationId, Epoch, JobId, TaskExecutorId, is_id
from firesteel.common.resources import ResourceProfile, SlotStatus
from firesteel.common.rpc.convert import PROFILE
from firesteel.common.rpc.errors import RemoteProtocolError
from resourcemanager.core import commands, events
from resourcemanager.core.core import SlotManager
from resourcemanager.core.events import Connection, WorkerId
from resourcemanager.core.slots import TaskExecutor

SLOTS_MAX = 10_000  # of one TaskExecutor
REQUIRED_MAX = 1_000_000  # slots of one job


# ---------------------------------------------------------------- from peers


def from_task_executor(
    connection: Connection, message: pb.TaskExecutorToResourceManager
) -> events.Event:
    epoch = Epoch(message.resource_manager_epoch)
    match message.WhichOneof("message"):
        case "register":
            return _task_executor_registered(connection, message.register)
        case "slot_report":
            report = message.slot_report
            return events.SlotsReported(
                connection=connection,
                epoch=epoch,
                sequence=report.sequence,
                slots=_slot_statuses(report.slots),
                stored_partitions=report.stored_partitions,
                stored_bytes=report.stored_bytes,
                stored_jobs=frozenset(map(JobId, report.stored_jobs)),
            )
        case "slot_request_result":
            result = message.slot_request_result
            allocation_id = AllocationId(
                _id(result.allocation_id, "SlotRequestResult.allocation_id")
            )
            if result.accepted:
                return events.SlotRequestAccepted(
                    connection=connection, epoch=epoch, allocation_id=allocation_id
                )
            return events.SlotRequestRejected(
                connection=connection,
                epoch=epoch,
                allocation_id=allocation_id,
                reason=result.reason[:1000],
            )
        case "heartbeat":
            return events.TaskExecutorHeartbeat(connection=connection, epoch=epoch)
        case _:
            raise RemoteProtocolError(
                "the TaskExecutor sent a TaskExecutorToResourceManager without a message"
            )


def from_job_master(connection: Connection, message: pb.JobMasterToResourceManager) -> events.Event:
    job_id = JobId(_id(message.job_id, "JobMasterToResourceManager.job_id"))
    epoch = Epoch(message.job_master_epoch)
    match message.WhichOneof("message"):
        case "register":
            register = message.register
            if (register.job_id, register.job_master_epoch) != (job_id, epoch):
                raise RemoteProtocolError(
                    "JobMasterRegistration: its job and epoch differ from its envelope's"
                )
            return events.JobMasterRegistered(
                connection=connection,
                job_id=job_id,
                epoch=epoch,
                address=_address(register.address, "JobMasterRegistration.address"),
                job_name=register.job_name[:1000],
            )
        case "declare":
            return _requirements_declared(connection, job_id, epoch, message.declare)
        case "task_executor_lost":
            lost = message.task_executor_lost
            return events.TaskExecutorReportedLost(
                connection=connection,
                job_id=job_id,
                epoch=epoch,
                task_executor_id=TaskExecutorId(
                    _id(lost.task_executor_id, "TaskExecutorLost.task_executor_id")
                ),
                cause=lost.cause[:1000],
            )
        case "heartbeat":
            return events.JobMasterHeartbeat(connection=connection, job_id=job_id, epoch=epoch)
        case _:
            raise RemoteProtocolError(
                "the JobMaster sent a JobMasterToResourceManager without a message"
            )


def _task_executor_registered(
    connection: Connection, register: pb.TaskExecutorRegistration
) -> events.TaskExecutorRegistered:
    slots = _slot_statuses(register.slots)
    if not slots:
        raise RemoteProtocolError(
            "TaskExecutorRegistration.slots: a TaskExecutor has at least one slot"
        )
    return events.TaskExecutorRegistered(
        connection=connection,
        task_executor_id=TaskExecutorId(
            _id(register.task_executor_id, "TaskExecutorRegistration.task_executor_id")
        ),
        address=_address(register.address, "TaskExecutorRegistration.address"),
        host=register.host,
        pid=register.pid,
        worker_id=WorkerId(register.worker_id) if register.worker_id else None,
        total=_known(register.total, "TaskExecutorRegistration.total"),
        default_slot=_known(register.default_slot, "TaskExecutorRegistration.default_slot"),
        slots=slots,
        metrics_address=register.metrics_address,
    )


def _requirements_declared(
    connection: Connection, job_id: JobId, epoch: Epoch, declare: pb.DeclareRequirements
) -> events.RequirementsDeclared:
    requirements: dict[ResourceProfile, int] = {}
    for requirement in declare.requirements:
        if requirement.count < 0:
            raise RemoteProtocolError(f"ResourceRequirement.count: {requirement.count} is negative")
        profile = _profile(requirement.profile, "ResourceRequirement.profile")
        requirements[profile] = requirements.get(profile, 0) + requirement.count
    if sum(requirements.values()) > REQUIRED_MAX:
        raise RemoteProtocolError(
            f"DeclareRequirements: {sum(requirements.values())} slots,"
            f" more than {REQUIRED_MAX} are not allowed"
        )
    return events.RequirementsDeclared(
        connection=connection,
        job_id=job_id,
        epoch=epoch,
        sequence=declare.sequence,
        requirements=tuple(
            events.Requirement(profile=profile, count=count)
            for profile, count in requirements.items()
            if count
        ),
        environment=tuple(sorted(declare.environment.items())),
    )


def _slot_statuses(messages: Iterable[pb.SlotStatus]) -> tuple[SlotStatus, ...]:
    statuses = tuple(_slot_status(message) for message in messages)
    if len(statuses) > SLOTS_MAX:
        raise RemoteProtocolError(
            f"{len(statuses)} slots of one TaskExecutor, more than {SLOTS_MAX} are not allowed"
        )
    if len({status.slot_index for status in statuses}) != len(statuses):
        raise RemoteProtocolError("SlotStatus.slot_index: a slot is reported twice")
    held = [status.allocation_id for status in statuses if status.allocation_id is not None]
    if len(set(held)) != len(held):
        raise RemoteProtocolError(
            "SlotStatus.allocation_id: an allocation is on two slots of the TaskExecutor"
        )
    return statuses


def _slot_status(message: pb.SlotStatus) -> SlotStatus:
    if message.slot_index < 0:
        raise RemoteProtocolError(f"SlotStatus.slot_index: {message.slot_index} is negative")
    if bool(message.allocation_id) != bool(message.job_id):
        raise RemoteProtocolError(
            f"slot {message.slot_index}: allocation_id and job_id are set together or not at all"
        )
    if not message.allocation_id:
        profile = _profile(message.profile, "SlotStatus.profile")
        return SlotStatus(
            slot_index=message.slot_index,
            profile=profile,
            warm=message.warm,
            problem=message.problem,
        )
    return SlotStatus(
        slot_index=message.slot_index,
        profile=_profile(message.profile, "SlotStatus.profile"),
        allocation_id=AllocationId(_id(message.allocation_id, "SlotStatus.allocation_id")),
        job_id=JobId(_id(message.job_id, "SlotStatus.job_id")),
        warm=message.warm,
        problem=message.problem,
    )


def _id(text: str, where: str) -> str:
    if not is_id(text):
        raise RemoteProtocolError(
            f"{where}: {text[:80]!r} is not an id of 32 lower-case hex characters"
        )
    return text


def _address(text: str, where: str) -> str:
    host, colon, port = text.rpartition(":")
    if not host or not colon or not port.isdigit():
        raise RemoteProtocolError(f"{where}: {text[:80]!r} is not host:port")
    return text


def _profile(message: common_pb2.ResourceProfile, where: str) -> ResourceProfile:
    profile = PROFILE.decode(message)
    if not math.isfinite(profile.cpu_cores) or profile.cpu_cores < 0:
        raise RemoteProtocolError(
            f"{where}.cpu_cores: {profile.cpu_cores} is not a number of cores"
        )
    if (
        min(
            profile.heap_bytes, profile.off_heap_bytes, profile.managed_bytes, profile.network_bytes
        )
        < 0
    ):
        raise RemoteProtocolError(f"{where}: a negative size in {profile}")
    return profile


def _known(message: common_pb2.ResourceProfile, where: str) -> ResourceProfile:
    profile = _profile(message, where)
    if profile.unknown:
        raise RemoteProtocolError(
            f"{where}: a TaskExecutor knows its own size, UNKNOWN is not allowed"
        )
    return profile


# ---------------------------------------------------------------- to peers


def to_task_executor(command: commands.ToPeer, epoch: Epoch) -> pb.ResourceManagerToTaskExecutor:
    message = pb.ResourceManagerToTaskExecutor(resource_manager_epoch=epoch)
    match command:
        case commands.Welcome():
            message.registered.resource_manager_epoch = epoch
        case commands.SendHeartbeat():
            message.heartbeat.SetInParent()
        case commands.RequestSlot():
            message.request_slot.CopyFrom(
                pb.RequestSlot(
                    allocation_id=command.allocation_id,
                    job_id=command.job_id,
                    slot_index=command.slot_index,
                    profile=PROFILE.encode(command.profile),
                    job_master_address=command.job_master_address,
                    job_master_epoch=command.job_master_epoch,
                    environment=dict(command.environment),
                )
            )
        case commands.FreeSlot():
            message.free_slot.allocation_id = command.allocation_id
            message.free_slot.cause = command.cause
        case commands.Shutdown():
            message.shutdown.cause = command.cause
        case commands.JobMasterChanged():
            message.job_master_changed.job_id = command.job_id
            message.job_master_changed.job_master_address = command.job_master_address
            message.job_master_changed.job_master_epoch = command.job_master_epoch
        case _:
            raise TypeError(f"{command} is not for a TaskExecutor")
    return message


def to_job_master(command: commands.ToPeer, epoch: Epoch) -> pb.ResourceManagerToJobMaster:
    message = pb.ResourceManagerToJobMaster(resource_manager_epoch=epoch)
    match command:
        case commands.Welcome():
            message.registered.resource_manager_epoch = epoch
        case commands.SendHeartbeat():
            message.heartbeat.SetInParent()
        case commands.NotEnoughResources():
            message.not_enough.sequence = command.sequence
            message.not_enough.missing = command.missing
            message.not_enough.growing = command.growing
            message.not_enough.explanation = command.explanation
        case commands.TaskExecutorLost():
            message.task_executor_lost.task_executor_id = command.task_executor_id
            message.task_executor_lost.cause = command.cause
        case commands.SlotHolders():
            message.slot_holders.task_executor_ids.extend(command.task_executor_ids)
        case commands.Vacate():
            message.vacate.task_executor_id = command.task_executor_id
            message.vacate.forced = command.forced
            message.vacate.withdrawn = command.withdrawn
        case _:
            raise TypeError(f"{command} is not for a JobMaster")
    return message


def stop_requested(request: int, message: pb.StopTaskExecutorRequest) -> events.StopRequested:
    where = "StopTaskExecutorRequest"
    if message.force and not message.drain:
        raise RemoteProtocolError(
            f"{where}: `force` is for a drain; without one nothing is waited for"
        )
    return events.StopRequested(
        request=request,
        task_executor_id=TaskExecutorId(_id(message.task_executor_id, f"{where}.task_executor_id")),
        drain=message.drain,
        force=message.force,
    )


def stop_progress(command: commands.StopProgress) -> pb.StopTaskExecutorProgress:
    return pb.StopTaskExecutorProgress(
        slots=dict(command.slots),
        stored_partitions=command.stored_partitions,
        missing=command.missing,
        explanation=command.explanation,
    )


def overview(core: SlotManager) -> pb.ResourceOverview:
    return pb.ResourceOverview(
        task_executors=[
            _task_executor_info(executor) for executor in core.table.executors.values()
        ],
        slots_total=core.table.total,
        slots_free=core.table.free,
        slots_missing=core.missing,
        slots_warm=sum(
            slot.warm
            for executor in core.table.executors.values()
            for slot in executor.slots.values()
        ),
    )


def _task_executor_info(executor: TaskExecutor) -> pb.TaskExecutorInfo:
    return pb.TaskExecutorInfo(
        task_executor_id=executor.task_executor_id,
        address=executor.address,
        host=executor.host,
        pid=executor.pid,
        metrics_address=executor.metrics_address,
        stored_bytes=executor.stored_bytes,
        stops=not executor.gives_slots,
        slots=[
            pb.SlotStatus(
                slot_index=slot.index,
                profile=PROFILE.encode(slot.profile),
                allocation_id=slot.allocation_id or "",
                job_id=slot.job_id or "",
                warm=slot.warm,
                problem=slot.problem,
            )
            for slot in executor.slots.values()
        ],
    )

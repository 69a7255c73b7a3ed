"""Converts between the messages of proto/resource_manager.proto and the SlotManager's events and
commands.

Checks everything that a peer sends; faults raise RemoteProtocolError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from firesteel._proto import resource_manager_pb2 as pb
from firesteel.common.ids import Epoch, TaskExecutorId, is_id
from firesteel.common.resources import ResourceProfile, SlotStatus
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.mapping import Codec, Envelope, Kind, View, Wire
from resourcemanager.core import commands, events
from resourcemanager.core.core import SlotManager
from resourcemanager.core.events import Connection
from resourcemanager.core.slots import TaskExecutor

SLOTS_MAX = 10_000  # of one TaskExecutor
REQUIRED_MAX = 1_000_000  # slots of one job

_CLIPPED = Codec(None, lambda text: text[:1000])  # of a text that a peer chooses

_FROM_TASK_EXECUTOR: Envelope[events.FromTaskExecutor, pb.TaskExecutorToResourceManager] = Envelope(
    pb.TaskExecutorToResourceManager,
    {
        "register": events.TaskExecutorRegistered,
        "slot_report": events.SlotsReported,
        "slot_request_accepted": events.SlotRequestAccepted,
        "slot_request_rejected": Kind(events.SlotRequestRejected, codecs={"reason": _CLIPPED}),
        "heartbeat": events.TaskExecutorHeartbeat,
    },
    others=("usage",),  # the servicer keeps it
    context=("connection",),
)
_FROM_JOB_MASTER: Envelope[events.FromJobMaster, pb.JobMasterToResourceManager] = Envelope(
    pb.JobMasterToResourceManager,
    {
        "register": Kind(events.JobMasterRegistered, codecs={"job_name": _CLIPPED}),
        "declare": events.RequirementsDeclared,
        "task_executor_lost": Kind(events.TaskExecutorReportedLost, codecs={"cause": _CLIPPED}),
        "heartbeat": events.JobMasterHeartbeat,
    },
    context=("connection",),
)
_TO_TASK_EXECUTOR: Envelope[commands.ToPeer, pb.ResourceManagerToTaskExecutor] = Envelope(
    pb.ResourceManagerToTaskExecutor,
    {
        "registered": commands.Welcome,
        "heartbeat": commands.SendHeartbeat,
        "request_slot": commands.RequestSlot,
        "free_slot": commands.FreeSlot,
        "shutdown": commands.Shutdown,
        "job_master_changed": commands.JobMasterChanged,
    },
    context=("connection",),
    given=("resource_manager_epoch",),
)
_TO_JOB_MASTER: Envelope[commands.ToPeer, pb.ResourceManagerToJobMaster] = Envelope(
    pb.ResourceManagerToJobMaster,
    {
        "registered": commands.Welcome,
        "heartbeat": commands.SendHeartbeat,
        "not_enough": commands.NotEnoughResources,
        "task_executor_lost": commands.TaskExecutorLost,
        "loss_explained": commands.LossExplained,
        "slot_holders": commands.SlotHolders,
        "vacate": commands.Vacate,
        "vacate_withdrawn": commands.VacateWithdrawn,
    },
    context=("connection",),
    given=("resource_manager_epoch",),
)
_STOP = Wire(events.StopRequested, pb.StopTaskExecutorRequest, context=("request",))
_STOP_PROGRESS = Wire(commands.StopProgress, pb.StopTaskExecutorProgress, context=("request",))
_EXECUTOR_OVERVIEW = View(
    TaskExecutor,
    pb.TaskExecutorOverview,
    given=("slots", "slots_free", "slots_warm", "slot_problem", "stops", "usage"),
)


def from_task_executor(
    connection: Connection, message: pb.TaskExecutorToResourceManager
) -> events.Event:
    event = _FROM_TASK_EXECUTOR.decode(message, connection=connection)
    match event:
        case events.TaskExecutorRegistered():
            where = "TaskExecutorRegistration"
            _check_id(event.task_executor_id, f"{where}.task_executor_id")
            _check_address(event.address, f"{where}.address")
            for name in ("total", "default_slot"):
                profile = getattr(event, name)
                _check_profile(profile, f"{where}.{name}")
                if profile.unknown:
                    raise RemoteProtocolError(
                        f"{where}.{name}: a TaskExecutor knows its own size, UNKNOWN is not allowed"
                    )
            if not event.slots:
                raise RemoteProtocolError(f"{where}.slots: a TaskExecutor has at least one slot")
            _check_slots(event.slots)
        case events.SlotsReported():
            _check_slots(event.slots)
        case events.SlotRequestAccepted() | events.SlotRequestRejected():
            _check_id(event.allocation_id, f"{type(event).__name__}.allocation_id")
    return event


def from_job_master(connection: Connection, message: pb.JobMasterToResourceManager) -> events.Event:
    _check_id(message.job_id, "JobMasterToResourceManager.job_id")
    event = _FROM_JOB_MASTER.decode(message, connection=connection)
    match event:
        case events.JobMasterRegistered():
            _check_address(event.address, "JobMasterRegistration.address")
        case events.RequirementsDeclared():
            return replace(event, requirements=_added_up(event.requirements))
        case events.TaskExecutorReportedLost():
            _check_id(event.task_executor_id, "TaskExecutorLost.task_executor_id")
    return event


def _added_up(requirements: Sequence[events.Requirement]) -> tuple[events.Requirement, ...]:
    """Adds up the requirements of equal profiles."""
    counts: dict[ResourceProfile, int] = {}
    for required in requirements:
        if required.count < 0:
            raise RemoteProtocolError(f"ResourceRequirement.count: {required.count} is negative")
        _check_profile(required.profile, "ResourceRequirement.profile")
        counts[required.profile] = counts.get(required.profile, 0) + required.count
    if (total := sum(counts.values())) > REQUIRED_MAX:
        raise RemoteProtocolError(
            f"DeclareRequirements: {total} slots, more than {REQUIRED_MAX} are not allowed"
        )
    return tuple(
        events.Requirement(profile=profile, count=count)
        for profile, count in counts.items()
        if count
    )


def _check_slots(statuses: Sequence[SlotStatus]) -> None:
    if len(statuses) > SLOTS_MAX:
        raise RemoteProtocolError(
            f"{len(statuses)} slots of one TaskExecutor, more than {SLOTS_MAX} are not allowed"
        )
    for status in statuses:
        if status.slot_index < 0:
            raise RemoteProtocolError(f"SlotStatus.slot_index: {status.slot_index} is negative")
        _check_profile(status.profile, "SlotStatus.profile")
        if (status.allocation_id is None) != (status.job_id is None):
            raise RemoteProtocolError(
                f"slot {status.slot_index}: allocation_id and job_id are set together or not at all"
            )
        for name in ("allocation_id", "job_id"):
            if (found := getattr(status, name)) is not None:
                _check_id(found, f"SlotStatus.{name}")
    if len({status.slot_index for status in statuses}) != len(statuses):
        raise RemoteProtocolError("SlotStatus.slot_index: a slot is reported twice")
    held = [status.allocation_id for status in statuses if status.allocation_id is not None]
    if len(set(held)) != len(held):
        raise RemoteProtocolError(
            "SlotStatus.allocation_id: an allocation is on two slots of the TaskExecutor"
        )


def _check_id(text: str, where: str) -> None:
    if not is_id(text):
        raise RemoteProtocolError(
            f"{where}: {text[:80]!r} is not an id of 32 lower-case hex characters"
        )


def _check_address(text: str, where: str) -> None:
    host, colon, port = text.rpartition(":")
    if not host or not colon or not port.isdigit():
        raise RemoteProtocolError(f"{where}: {text[:80]!r} is not host:port")


def _check_profile(profile: ResourceProfile, where: str) -> None:
    if not math.isfinite(profile.cpu_cores) or profile.cpu_cores < 0:
        raise RemoteProtocolError(
            f"{where}.cpu_cores: {profile.cpu_cores} is not a number of cores"
        )
    sizes = (
        profile.heap_bytes,
        profile.off_heap_bytes,
        profile.managed_bytes,
        profile.network_bytes,
    )
    if min(sizes) < 0:
        raise RemoteProtocolError(f"{where}: a negative size in {profile}")


def to_task_executor(command: commands.ToPeer, epoch: Epoch) -> pb.ResourceManagerToTaskExecutor:
    return _TO_TASK_EXECUTOR.encode(command, resource_manager_epoch=epoch)


def to_job_master(command: commands.ToPeer, epoch: Epoch) -> pb.ResourceManagerToJobMaster:
    return _TO_JOB_MASTER.encode(command, resource_manager_epoch=epoch)


def stop_requested(request: int, message: pb.StopTaskExecutorRequest) -> events.StopRequested:
    event = _STOP.decode(message, request=request)
    where = "StopTaskExecutorRequest"
    if event.force and not event.drain:
        raise RemoteProtocolError(
            f"{where}: `force` is for a drain; without one nothing is waited for"
        )
    _check_id(event.task_executor_id, f"{where}.task_executor_id")
    return event


def stop_progress(command: commands.StopProgress) -> pb.StopTaskExecutorProgress:
    return _STOP_PROGRESS.encode(command)


def overview(
    core: SlotManager, usages: Mapping[TaskExecutorId, pb.MachineUsage] = MappingProxyType({})
) -> pb.ClusterOverview:
    """`usages`: as TaskExecutors have last reported them."""
    executors = [
        _executor_overview(executor, usages.get(executor.task_executor_id))
        for executor in core.table.executors.values()
    ]
    return pb.ClusterOverview(
        slots_total=core.table.total,
        slots_free=core.table.free,
        slots_warm=sum(executor.slots_warm for executor in executors),
        slots_missing=core.missing,
        task_executors=executors,
        resource_manager_epoch=core.settings.epoch,
        task_executors_outdated=-1 if core.workers.undiscovered else len(core.workers.outdated),
    )


def _executor_overview(
    executor: TaskExecutor, usage: pb.MachineUsage | None
) -> pb.TaskExecutorOverview:
    slots = executor.slots.values()
    return _EXECUTOR_OVERVIEW.encode(
        executor,
        slots=len(slots),
        slots_free=sum(slot.allocation_id is None for slot in slots),
        slots_warm=sum(slot.warm for slot in slots),
        slot_problem=next((slot.problem for slot in slots if slot.problem), ""),
        stops=not executor.gives_slots,
        usage=usage,
    )

"""Messages of peers are validated on receipt; the error names the peer's fault."""

from __future__ import annotations

import pytest

from firesteel._proto import common_pb2
from firesteel._proto import resource_manager_pb2 as pb
from firesteel.common.ids import AllocationId, Epoch
from firesteel.common.rpc.errors import RemoteProtocolError
from resourcemanager import convert
from resourcemanager.core import commands, events
from resourcemanager.core.events import Connection
from tests.slot_manager import SLOT, Harness, free, job_id

HERE = Connection(1)
ID, OTHER = "a" * 32, "b" * 32
UNKNOWN = common_pb2.ResourceProfile(unknown=True)
KNOWN = common_pb2.ResourceProfile(cpu_cores=1, heap_bytes=1)


def registration(**changes: object) -> pb.TaskExecutorToResourceManager:
    fields = {
        "task_executor_id": ID,
        "address": "127.0.0.1:1",
        "total": KNOWN,
        "default_slot": KNOWN,
        "slots": [pb.SlotStatus(slot_index=0, profile=UNKNOWN)],
    }
    return pb.TaskExecutorToResourceManager(
        register=pb.TaskExecutorRegistration(**(fields | changes))
    )  # type: ignore[arg-type]


def slot(**fields: object) -> pb.SlotStatus:
    return pb.SlotStatus(profile=UNKNOWN, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"task_executor_id": "../../etc"}, "task_executor_id: '../../etc' is not an id"),
        ({"address": "nowhere"}, "'nowhere' is not host:port"),
        ({"slots": []}, "at least one slot"),
        ({"total": UNKNOWN}, "UNKNOWN is not allowed"),
        ({"total": common_pb2.ResourceProfile(heap_bytes=-1)}, "negative size"),
        ({"total": common_pb2.ResourceProfile(cpu_cores=float("nan"))}, "not a number of cores"),
        ({"slots": [slot(slot_index=0), slot(slot_index=0)]}, "reported twice"),
        ({"slots": [slot(slot_index=-1)]}, "negative"),
        ({"slots": [slot(slot_index=0, allocation_id=ID)]}, "set together"),
        (
            {"slots": [slot(slot_index=i, allocation_id=ID, job_id=OTHER) for i in range(2)]},
            "an allocation is on two slots",
        ),
        ({"slots": [slot(slot_index=i) for i in range(10_001)]}, "more than 10000"),
    ],
)
def test_faults_of_task_executors(changes: dict[str, object], fault: str) -> None:
    with pytest.raises(RemoteProtocolError, match=fault):
        convert.from_task_executor(HERE, registration(**changes))


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (pb.JobMasterToResourceManager(job_id="x"), "not an id"),
        (pb.JobMasterToResourceManager(job_id=ID), "without a message"),
        (
            pb.JobMasterToResourceManager(
                job_id=ID,
                declare=pb.DeclareRequirements(
                    requirements=[pb.ResourceRequirement(profile=UNKNOWN, count=-1)]
                ),
            ),
            "negative",
        ),
        (
            pb.JobMasterToResourceManager(
                job_id=ID,
                declare=pb.DeclareRequirements(
                    requirements=[pb.ResourceRequirement(profile=UNKNOWN, count=2**30)]
                ),
            ),
            "more than 1000000",
        ),
    ],
)
def test_faults_of_job_masters(message: pb.JobMasterToResourceManager, fault: str) -> None:
    with pytest.raises(RemoteProtocolError, match=fault):
        convert.from_job_master(HERE, message)


def test_requirements_of_one_size_are_added_up() -> None:
    needed = [pb.ResourceRequirement(profile=KNOWN, count=n) for n in (1, 2, 0)]
    message = pb.JobMasterToResourceManager(
        job_id=ID,
        declare=pb.DeclareRequirements(
            sequence=3, requirements=needed, environment={"b": "2", "a": "1"}
        ),
    )
    event = convert.from_job_master(HERE, message)
    assert isinstance(event, events.RequirementsDeclared)
    assert [r.count for r in event.requirements] == [3]
    assert event.environment == (("a", "1"), ("b", "2"))


def test_a_slot_request_on_the_wire() -> None:
    command = commands.RequestSlot(
        connection=HERE,
        allocation_id=AllocationId(ID),
        job_id=job_id("job"),
        slot_index=3,
        profile=SLOT,
        job_master_address="jm:1",
        job_master_epoch=Epoch(5),
        environment=(("spark.x", "y"),),
    )
    message = convert.to_task_executor(command, Epoch(9))
    assert message.resource_manager_epoch == 9
    assert message.request_slot.slot_index == 3
    assert message.request_slot.profile.heap_bytes == SLOT.heap_bytes
    assert dict(message.request_slot.environment) == {"spark.x": "y"}


def test_commands_do_not_reach_the_wrong_kind_of_peer() -> None:
    with pytest.raises(TypeError):
        convert.to_job_master(commands.Shutdown(connection=HERE, cause=""), Epoch(1))  # type: ignore[arg-type]


def test_overview() -> None:
    rm = Harness()
    rm.register("a", 2)
    rm.accept(*rm.submit("job", 1))
    rm.submit("more", 3)
    overview = convert.overview(rm.core)
    assert (overview.slots_total, overview.slots_free, overview.slots_missing) == (2, 0, 2)
    (executor,) = overview.task_executors
    assert (executor.slots, executor.slots_free, executor.stops) == (2, 0, False)


def test_the_overview_shows_which_slots_are_warm() -> None:
    rm = Harness()
    rm.register("a", 2)
    assert convert.overview(rm.core).slots_warm == 0
    rm.report("a", *free(0), *free(1, warm=True))
    overview = convert.overview(rm.core)
    assert (overview.slots_warm, overview.task_executors[0].slots_warm) == (1, 1)

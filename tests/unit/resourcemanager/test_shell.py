"""The shell of the ResourceManager completes the reasons of the driver."""

from __future__ import annotations

import asyncio

from firesteel._proto.resource_manager_pb2 import MachineUsage, Registered
from firesteel.common.ids import Epoch, IdSource
from resourcemanager.core import commands, events
from resourcemanager.core.core import SlotManager
from resourcemanager.core.events import Connection, WorkerId
from resourcemanager.core.settings import Settings
from resourcemanager.driver import NoDriver
from resourcemanager.peers import Peer
from resourcemanager.shell import Shell
from tests.slot_manager import SLOT, executor_id, free, job_id
from tests.waiting import until

EXECUTOR, WORKER = executor_id("one"), WorkerId("worker-1")


async def test_the_reason_of_an_oom_kill_has_the_reported_peak() -> None:
    shell = Shell(SlotManager(Settings(epoch=Epoch(5)), IdSource(b"x")), NoDriver())
    causes: list[str] = []

    def encode(command: commands.ToPeer) -> Registered:
        if isinstance(command, commands.TaskExecutorLost):
            causes.append(command.cause)
        return Registered()

    for connection in (Connection(1), Connection(2)):
        shell.peers[connection] = Peer(connection, "peer", encode)
    running = asyncio.create_task(shell.run("rm:1"))
    shell.post(
        events.TaskExecutorRegistered(
            connection=Connection(1),
            task_executor_id=EXECUTOR,
            address="te:1",
            host="te",
            pid=1,
            worker_id=WORKER,
            total=SLOT,
            default_slot=SLOT,
            slots=free(0),
        )
    )
    shell.post(
        events.JobMasterRegistered(
            connection=Connection(2),
            job_id=job_id("job"),
            epoch=Epoch(1),
            address="jm:1",
            job_name="job",
        )
    )
    await until(lambda: EXECUTOR in shell.core.table.executors and shell.core.jobs)
    shell.keep_usage(MachineUsage(task_executor_id=EXECUTOR, memory_peak_bytes=3 * 2**29))
    cause = "its pod p was killed\nThe last lines of its log:\n  one"
    shell.post(events.WorkerExited(worker_id=WORKER, cause=cause, out_of_memory=True))
    await until(lambda: causes)
    shell.stop()
    await running
    await shell.close()
    assert causes == [
        "its pod p was killed; the highest memory of its slots that it has reported was 1.5 GiB\n"
        "The last lines of its log:\n  one"
    ]

"""Events in any order, some lost, repeated or late: the invariants hold, and all comes to rest."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from firesteel.common.ids import AllocationId, AttemptId, Epoch, ExecutorId, JobId, ResultId
from firesteel.common.job_graph import Blob, BlobKind, ResultPartitionId, StoredPartition
from firesteel.common.states import ExecutionState
from taskexecutor.core import commands, events
from taskexecutor.core.process_shape import Environment
from taskexecutor.core.slots import SlotState
from tests.long import fewer
from tests.unit.taskexecutor.slot_world import DEFAULT, MIB, PLACE, SPARK, World

JOBS = [JobId("j1"), JobId("j2")]
ALLOCATIONS = [AllocationId(f"a{i}") for i in range(12)]
ATTEMPTS = [AttemptId(f"t{i}") for i in range(4)]
BLOB = Blob(hash="0" * 32, name="u.py", kind=BlobKind.FILE, size_bytes=1)


class Chaos:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(slots=3)
        self.executors: list[ExecutorId] = []
        self.killed: set[ExecutorId] = set()
        self._follow(self.world.commands)

    def _follow(self, given: list[commands.Command]) -> None:
        for command in given:
            if isinstance(command, commands.StartProcess):
                self.executors.append(command.executor_id)
            elif isinstance(command, commands.KillProcess):
                self.killed.add(command.executor_id)

    def handle(self, event: events.Event) -> None:
        self._follow(self.world.handle(event))

    def step(self) -> None:
        r = self.random
        if r.random() < 0.05:
            self.world.hung = {index for index in range(3) if r.random() < 0.3}
        if r.random() < 0.2:
            self._follow(self.world.pass_time(r.choice([0.01, 0.01, 0.5, 0.5, 3, 12, 40])))
            return
        self.handle(self.event())
        for executor_id in [e for e in self.killed if r.random() < 0.7]:
            self.killed.discard(executor_id)
            self.handle(events.ProcessDied(executor_id=executor_id, cause="killed"))

    def event(self) -> events.Event:
        r = self.random
        job, allocation, executor = r.choice(JOBS), r.choice(ALLOCATIONS), r.choice(self.executors)
        slot = r.choice(self.world.core.table.slots)
        if r.random() < 0.8:  # mostly about what is there
            if slot.process is not None:
                executor = slot.process.executor_id
            if slot.allocation is not None:
                job, allocation = slot.allocation.job_id, slot.allocation.allocation_id
        jm: dict[str, Any] = {"job_id": job, "job_master_epoch": Epoch(r.choice([1] * 20 + [2]))}
        rm: dict[str, Any] = {"resource_manager_epoch": Epoch(r.choice([1] * 20 + [2]))}
        attempts = tuple(r.sample(ATTEMPTS, r.randint(1, 3)))
        tasks = dict.fromkeys(attempts, PLACE)
        part = events.SlotTasks(allocation_id=allocation, tasks=tasks, message="deploy")
        files: dict[str, Any] = {"blobs": r.choice([(), (BLOB,)]), "dispatcher_address": "d"}
        profile = r.choice(
            [DEFAULT] * 12 + [replace(DEFAULT, heap_bytes=900 * MIB), DEFAULT + DEFAULT]
        )
        request = events.SlotRequested(
            allocation_id=AllocationId(f"n{r.randrange(10**9)}")
            if r.random() < 0.8
            else allocation,
            job_id=job,
            slot_index=r.randint(0, 3),
            profile=profile,
            environment=r.choice([Environment()] * 12 + [SPARK]),
            job_master_address="jm",
            job_master_epoch=jm["job_master_epoch"],
            **rm,
        )
        states = tuple(
            events.TaskState(attempt, r.choice(list(ExecutionState))) for attempt in attempts
        )
        partitions = [
            ResultPartitionId(ResultId("result"), r.randrange(3), r.randrange(2))
            for _ in range(r.choice([0, 0, 1, 3]))
        ]
        often: list[events.Event] = [
            request,
            events.JobMasterConnected(job_id=job),
            events.JobMasterHeartbeat(**jm),
            events.ProcessReady(executor_id=executor, pid=1, data_address="x"),
            events.TasksSubmitted(parts=(part,), cancellation_timeout_s=5.0, **files, **jm),
            events.TaskStatesReported(
                executor_id=executor,
                job_id=job,
                states=states,
                message="states",
                partitions=tuple(
                    StoredPartition(each, size_bytes=r.randrange(9), rows=1) for each in partitions
                ),
            ),
            events.ProcessCleaned(executor_id=executor, allocation_id=allocation),
        ]
        if r.random() < 0.75:
            return r.choice(often)
        return r.choice(
            [
                events.ResourceManagerRegistered(**rm),
                events.SlotRevoked(allocation_id=allocation, cause="back", **rm),
                events.ReportDue(),
                events.JobMasterDisconnected(job_id=job, cause="broken"),
                events.OffersAnswered(
                    accepted=(allocation,), rejected=(r.choice(ALLOCATIONS),), **jm
                ),
                events.SlotsFreed(allocation_ids=(allocation,), cause="free", **jm),
                events.PartitionsReleased(partitions=tuple(partitions), **jm),
                events.TasksSubmitted(
                    parts=(part,), cancellation_timeout_s=r.choice([1.0, 50.0]), **files, **jm
                ),
                events.TasksCancelled(attempt_ids=attempts, **jm),
                events.AnalysisRequested(
                    allocation_id=allocation, message="analyze", **files, **jm
                ),
                events.TaskMessageReceived(attempt_ids=attempts, message="event", **jm),
                events.JobMasterLeft(cause="bye", **jm),
                events.ProcessDied(executor_id=executor, cause="died"),
                events.ProcessLinkBroken(executor_id=executor),
                events.ProcessEnding(executor_id=executor, reason="jvm"),
                events.MemorySampled(executor_id=executor, used_bytes=r.choice([0, 0, 0, 10**11])),
                events.ProcessMessageReceived(executor_id=executor, job_id=job, message="spoke"),
                events.JobFilesReady(
                    job_id=job, job_dir="/j", python_paths=(), single_use=r.random() < 0.3
                ),
                events.JobFilesFailed(job_id=job, reason="no file"),
            ]
        )

    def rest(self) -> None:
        """JobMasters leave and processes obey: in the end all slots are free and warm."""
        self.world.hung = set()
        for job in JOBS:
            self.handle(events.JobMasterLeft(job_id=job, job_master_epoch=Epoch(9), cause="end"))
        for _ in range(100):
            for executor_id in list(self.killed):
                self.killed.discard(executor_id)
                self.handle(events.ProcessDied(executor_id=executor_id, cause="killed"))
            for slot in self.world.core.table.slots:
                if slot.process is not None:
                    self.handle(
                        events.ProcessReady(
                            executor_id=slot.process.executor_id, pid=1, data_address="x"
                        )
                    )
            self._follow(self.world.pass_time(3))


@given(st.integers(0, 2**32))
@settings(max_examples=fewer(60))
def test_invariants_hold_and_all_slots_are_free_and_warm_in_the_end(seed):
    chaos = Chaos(seed)
    seen: set[SlotState] = set()
    for _ in range(300):
        chaos.step()
        seen.update(slot.state for slot in chaos.world.core.table.slots)
    chaos.rest()
    table = chaos.world.core.table
    assert [slot.state for slot in table.slots] == [SlotState.FREE] * 3
    assert all(slot.process is not None for slot in table.slots)
    assert table.jobs == {}
    assert table.remaining() == DEFAULT * 3
    event(f"reached {sorted(state.value for state in seen)}")

"""Checks invariants: some at every event, the others once faults have stopped and time has passed.

Each checker of the second kind is a separate function that yields the violations that it finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from firesteel.common.config import options
from firesteel.common.ids import AllocationId, AttemptId, JobId
from firesteel.common.job_graph import JobGraph
from firesteel.common.states import JobStatus
from jobmaster.core import commands, events
from jobmaster.shell import RunningJob
from resourcemanager.core.slots import SlotState
from taskexecutor.core.slots import ProcessState
from taskexecutor.core.slots import SlotState as HeldState
from tests.simulation.elasticity import Elasticity, elastic_jobs_use_their_slots
from tests.simulation.executor import CHUNKS, SimulatedTask
from tests.simulation.failovers import Failovers
from tests.simulation.ledger import Ledger
from tests.simulation.lineage import lineage_problems
from tests.simulation.offices import Offices
from tests.simulation.partitions import Partitions
from tests.simulation.snapshots import Snapshots, Subtask, subtask_of
from tests.simulation.splits import SplitOwners, name_of

if TYPE_CHECKING:
    from tests.simulation.checkpoints import Partition, Restored
    from tests.simulation.cluster import Cluster
    from tests.simulation.world import SimulatedProcess

ORPHANED_S = (
    30.0  # tasks of a job whose end was decided without its JobMaster may start so long after
)


class Checkers:
    def __init__(self, cluster: Cluster) -> None:
        self.finished: dict[str, list[SimulatedTask]] = {}  # tasks that finished, by job
        self.acknowledged: dict[
            str, SimulatedProcess
        ] = {}  # by job: who knows that its end is stored
        self.unreadable = 0  # partitions that readers have reported
        self.snapshots = Snapshots(cluster)
        self.ledger = Ledger()
        self.offices = Offices(cluster.world)
        self._cluster = cluster
        self._owners = SplitOwners()
        self._partitions = Partitions()
        self._failovers = Failovers()
        self._elasticity = Elasticity()
        self._lost_slots: dict[tuple[str, int], set[AllocationId]] = {}  # by job and epoch
        self._started: set[str] = set()
        self.started_again: list[str] = []  # tasks
        self._checkpoint_ids: dict[str, dict[int, int]] = {}  # by job: their masters' epochs
        self._rounds_from_checkpoint: set[tuple[str, int, int]] = set()  # job, epoch, restarts
        self._restarts = Counter[tuple[str, int]]()  # of whole jobs, by job and epoch
        self._region_restarts = Counter[tuple[str, int]]()
        self._last_status: dict[tuple[str, int], JobStatus] = {}
        # By job and epoch: restarts, and the attempts since the last one.
        self._rounds: dict[tuple[str, int], tuple[int, frozenset[AttemptId]]] = {}
        self._versions: dict[tuple[str, int], int] = {}  # of the parallelism since the last restart
        self._with_slots: dict[tuple[str, int], set[AttemptId]] = {}  # attempts deployed
        # The attempt that reads a PIPELINED partition, by partition, vertex and subtask.
        self._readers: dict[tuple[Partition, Subtask], str] = {}
        self._analyzed: set[tuple[str, int]] = set()  # since the last restart
        self.adopted: set[AttemptId] = set()  # by a master that did not start them

    @property
    def tasks_started(self) -> int:
        return len(self._started)

    # ---- at every event

    def job_master(self, job: RunningJob, event: Any, effects: Any) -> None:
        """A job's end is final, no restart is used up without slots, and no task is deployed into a
        slot that is known to be lost. The core's own `validate` checks the rest.
        """
        core = job.core
        key = (job.job_id, job.epoch)
        lost = self._lost_slots.setdefault(key, set())
        match event:
            case events.SlotLost(allocation_id=allocation_id):
                lost.add(allocation_id)
            case events.SlotsOffered(slots=slots) | events.TaskExecutorConnected(slots=slots):
                lost.difference_update(slot.allocation_id for slot in slots)
                if isinstance(event, events.TaskExecutorConnected):
                    self._with_slots.setdefault(key, set()).update(event.places)
            case events.TaskHeld():
                self._owners.held(job, event)
            case events.TerminalStatusStored():
                (process,) = (p for p, service in self._cluster.job_masters if service.job is job)
                self.acknowledged[job.job_id] = process
            case _:
                pass
        self._sent(job, effects.commands)
        before = self._last_status.get(key)
        if before is not None and before.terminal and core.graph.status is not before:
            raise self._failed(
                f"job {job.job_id} was {before.name} and is {core.graph.status.name}"
            )
        self._last_status[key] = core.graph.status
        self._restarts[key] = core.job.full_restarts
        self._region_restarts[key] = core.restarts - core.job.full_restarts
        self._no_attempt_is_wasted(job)
        if problem := self._elasticity.check(job):
            raise self._failed(f"job {job.job_id}: {problem}")
        if problem := self._failovers.check(job, event):
            raise self._failed(f"job {job.job_id}: {problem} (invariants 18 and 21)")

    def _no_attempt_is_wasted(self, job: RunningJob) -> None:
        """Checks that a restart follows the failure of something that had a slot: of one of the
        restarted tasks, or of the analysis (invariant 21). A job that waits for slots also restarts
        with fewer subtasks, which is not an attempt.
        """
        key, core = (job.job_id, job.epoch), job.core
        restarts, attempts = self._rounds.get(key, (0, frozenset(core.graph.attempts)))
        if core.restarts == restarts:
            self._rounds[key] = restarts, attempts | core.graph.attempts.keys()
            return
        current = frozenset(core.graph.attempts)
        statuses = [change.status for change in core.graph.timestamps]
        under_this_master = statuses[::-1][: statuses[::-1].index(JobStatus.INITIALIZING)]
        if JobStatus.RECONCILING in under_this_master and not restarts:
            self._analyzed.add(key)  # what is not found had its slot under the master before
        version = core.job.parallelism.applied.version
        rescaled = self._versions.get(key, 0) != version
        self._versions[key] = version
        had_slot = (attempts - current) & self._with_slots[key]
        if not (had_slot or rescaled or key in self._analyzed):
            raise self._failed(
                f"job {job.job_id}: restart {core.restarts} is of tasks that had no slots"
                " (invariant 21)"
            )
        self._analyzed.discard(key)
        self._rounds[key] = core.restarts, current

    def _sent(self, job: RunningJob, sent: Sequence[commands.Command]) -> None:
        if problem := self._owners.check(job, sent):
            raise self._failed(f"job {job.job_id}: {problem} (invariant 17)")
        if problem := self._partitions.check(job, sent):
            raise self._failed(f"job {job.job_id}: {problem} (invariant 18)")
        deployed = self._with_slots.setdefault((job.job_id, job.epoch), set())
        for command in sent:
            match command:
                case commands.AnalyzeJob():
                    self._analyzed.add((job.job_id, job.epoch))
                case commands.AdoptTasks(attempt_ids=attempt_ids):
                    self.adopted.update(attempt_ids)
                case commands.DropAllCheckpoints():
                    self._all_dropped(job)
                case commands.TriggerCheckpoint():
                    self._triggered(job, command.checkpoint_id)
                case commands.DeployTasks(tasks=tasks):
                    key = (job.job_id, job.epoch)
                    deployed.update(task.attempt_id for task in tasks)
                    gone = self._lost_slots[key].intersection(t.allocation_id for t in tasks)
                    if gone:
                        raise self._failed(
                            f"job {job.job_id}: deployed into {gone}, which are lost (invariant 19)"
                        )
                    if any(task.restored is not None for task in tasks):
                        self._rounds_from_checkpoint.add((*key, job.core.restarts))
                case _:
                    pass

    def _all_dropped(self, job: RunningJob) -> None:
        """Only once the job's end is stored, and by its last JobMaster (invariants 4 and 7)."""
        stored = self._cluster.store.by_id[JobId(job.job_id)]
        if not stored.status.globally_terminal or job.epoch < stored.epoch:
            raise self._failed(
                f"job {job.job_id} ({stored.status.name}, epoch {stored.epoch}): its JobMaster with"
                f" epoch {job.epoch} deletes its checkpoints (invariant 7)"
            )

    def _triggered(self, job: RunningJob, checkpoint_id: int) -> None:
        """Ids strictly increase, under every master (invariant 8)."""
        if job.epoch < self._cluster.store.by_id[JobId(job.job_id)].epoch:
            return  # it has been replaced: its checkpoints are refused
        epochs = self._checkpoint_ids.setdefault(job.job_id, {})
        latest = max(epochs, default=0)
        if checkpoint_id <= latest and epochs.get(checkpoint_id) != job.epoch:
            raise self._failed(f"job {job.job_id}: checkpoint {checkpoint_id} follows {latest}")
        epochs[checkpoint_id] = job.epoch

    def task_started(self, task: SimulatedTask) -> None:
        """An attempt runs once; what was sent to one attempt is not awaited by the next (invariant
        18); nothing of a job that has ended runs (invariant 1).
        """
        if task.attempt_id in self._started:
            raise self._failed(f"attempt {task.attempt_id} was started twice")
        self._started.add(task.attempt_id)
        for partition in task.sources:
            reader = self._readers.setdefault((partition, subtask_of(task)), task.attempt_id)
            if reader != task.attempt_id:
                raise self._failed(
                    f"{task.vertex.vertex.name} #{task.attempt} of {task.job_id} reads {partition};"
                    f" its rows have gone to attempt {reader} (invariant 18)"
                )
        if task.attempt:
            self.started_again.append(f"{task.vertex.vertex.name} #{task.attempt} of {task.job_id}")
        stored = self._cluster.store.by_id[task.job_id]  # type: ignore[index]
        if (
            stored.status.globally_terminal
            and self._cluster.world.now - stored.ended_at > ORPHANED_S
        ):
            raise self._failed(
                f"a task of job {task.job_id} starts though that is {stored.status.name}"
            )

    def task_restored(
        self, task: SimulatedTask, job_master_epoch: int, restored: Restored | None
    ) -> None:
        """A deployment has come."""
        if problem := self.snapshots.restored(task, job_master_epoch, restored):
            raise self._failed(problem)

    def snapshot_taken(self, task: SimulatedTask, checkpoint_id: int) -> None:
        self.snapshots.taken(task, checkpoint_id)

    def told_complete(self, task: SimulatedTask, checkpoint_id: int) -> None:
        """A sink would commit: the checkpoint must be stored, and hold its part (invariant 15)."""
        stored = self._cluster.store.checkpoints.get(JobId(task.job_id), [])
        if checkpoint_id not in stored:
            raise self._failed(
                f"task {task.attempt_id} is notified that checkpoint {checkpoint_id} is complete;"
                f" stored are {stored}"
            )
        if not self.snapshots.has_part(task, checkpoint_id):
            raise self._failed(
                f"task {task.attempt_id} is notified of checkpoint {checkpoint_id}, in which it"
                " takes no part"
            )

    def committed(
        self, task: SimulatedTask, subtask: int, checkpoint_id: int, splits: Sequence[Any]
    ) -> None:
        names = [_name_of(task, split) for split in splits]
        if problem := self.ledger.commit(task, subtask, checkpoint_id, names):
            raise self._failed(f"job {task.job_id}: {problem}")

    def task_finished(self, task: SimulatedTask) -> None:
        self.finished.setdefault(task.job_id, []).append(task)

    def _failed(self, why: str) -> AssertionError:
        return self._cluster.world.failed(why)

    # ---- in the end

    def at_rest(self) -> None:
        """Raises with all that is wrong."""
        if found := self.problems():
            raise self._failed("\n".join(found))

    def problems(self) -> list[str]:
        return [
            f"{check.__name__}: {problem}" for check in AT_REST for problem in check(self._cluster)
        ]

    def outcomes(self) -> Counter[str]:
        return Counter(stored.status.name for stored in self._cluster.store.by_id.values())

    def happened(self) -> Counter[str]:
        """Counts the checked events, by kind."""
        stored = self._cluster.store
        return Counter(
            {
                "job restarts": self._restarts.total(),
                "region restarts": self._region_restarts.total(),
                "leaders followed": self.offices.changes,
                "masters replaced": sum(max(0, job.epoch - 1) for job in stored.by_id.values()),
                "starts from a checkpoint": len(self._rounds_from_checkpoint),
                "starts of joins from one": sum(
                    is_join(self._cluster.jobs[JobId(job_id)].graph)
                    for job_id, _, _ in self._rounds_from_checkpoint
                ),
                "checkpoints completed": sum(map(len, stored.checkpoints.values())),
                "partitions read": self._partitions.read,
                "partitions unreadable": self.unreadable,
                "splits reassigned": self._owners.reassigned,
                "splits committed": self.ledger.total(),
                "parallelisms stored": sum(map(len, stored.parallelism.values())),
                "tasks rescaled": self.snapshots.rescaled,
                **self._elasticity.happened(),
            }
        )


def is_join(graph: JobGraph) -> bool:
    """Whether a vertex of it has two inputs."""
    return any(edge.target_input for edge in graph.edges)


def every_job_ends_or_runs(cluster: Cluster) -> Iterator[str]:
    """A submitted job is over, or every task of it runs. Slots that do not exist end it by
    slot.request.timeout.
    """
    by_job = running_jobs(cluster)
    if cluster.dispatcher is None:
        yield "there is no Dispatcher"
        return
    for job_id, submitted in cluster.jobs.items():
        if not submitted.submitted:
            yield f"job {job_id}: its submission was never answered"
            continue
        stored = cluster.store.by_id.get(job_id)
        if stored is None:
            yield f"job {job_id}: accepted, but not in the store"
            continue
        known = cluster.dispatcher.shell.core.jobs[job_id]
        if known.status is not stored.status:
            yield (
                f"job {job_id}: {known.status.name} for the Dispatcher,"
                f" {stored.status.name} in its store"
            )
        if stored.status.globally_terminal:
            continue
        if submitted.cancel_wanted:
            yield f"job {job_id}: cancelled, but {stored.status.name}"
        job = by_job.get(job_id)
        if job is None:
            yield f"job {job_id}: {stored.status.name}, but it has no JobMaster"
            continue
        status = job.core.graph.status
        states = job.core.graph.tasks_by_state()
        waits = job.core.waiting_for(cluster.world.now)
        if (
            status is not JobStatus.RUNNING
            or stored.status is not JobStatus.RUNNING
            or set(states) != {"RUNNING"}
        ):
            yield (
                f"job {job_id}: {status.name} ({stored.status.name} in the store),"
                f" tasks {states}, waits for {waits!r}"
            )
        elif not submitted.endless:
            yield f"job {job_id}: its input has an end, but it does not finish"


def finished_jobs_ran(cluster: Cluster) -> Iterator[str]:
    """Every subtask of a job that is FINISHED has finished once: no success without an execution
    (invariant 3).
    """
    for job_id, submitted in cluster.jobs.items():
        stored = cluster.store.by_id.get(job_id)
        if stored is None or stored.status is not JobStatus.FINISHED:
            continue
        ran = {subtask_of(task) for task in cluster.checkers.finished.get(job_id, [])}
        graphs = [submitted.graph, *cluster.store.rescales(submitted.graph)]
        for number, vertex in enumerate(submitted.graph.vertices):
            # One that had finished before the job was rescaled does not run again.
            missing = [
                subtask
                for subtask in range(graphs[-1].vertices[number].parallelism)
                if (vertex.vertex_id, subtask) not in ran
            ]
            if missing and not any(
                all((vertex.vertex_id, n) in ran for n in range(g.vertices[number].parallelism))
                for g in graphs
            ):
                yield f"job {job_id} is FINISHED; {vertex.name} {missing} never was"


def jobs_have_the_stored_parallelism(cluster: Cluster) -> Iterator[str]:
    """Also under the next JobMaster."""
    for job_id, job in running_jobs(cluster).items():
        if (submitted := cluster.jobs.get(JobId(job_id))) is None or not job.core.graph.vertices:
            continue
        graphs = [submitted.graph, *cluster.store.rescales(submitted.graph)]
        wanted = [vertex.parallelism for vertex in graphs[-1].vertices]
        found = [vertex.parallelism for vertex in job.core.graph.vertices]
        if found != wanted:
            yield f"job {job_id}: parallelism {found}, stored is {wanted}"


def no_task_restarts_by_a_masters_death(cluster: Cluster) -> Iterator[str]:
    """Checks that no task restarts and no job gets another JobMaster if elected masters die, pause
    and are cut off, while nothing else goes wrong (invariant 20).
    """
    if not cluster.shape.only_masters_fail:
        return
    for name in cluster.checkers.started_again:
        if not any(job_id in name for job_id in cluster.store.parallelism):
            yield f"{name} was started again"
    for job_id, stored in cluster.store.by_id.items():
        if stored.epoch > 1:
            yield f"job {job_id}: has got {stored.epoch} JobMasters"


def slots_agree(cluster: Cluster) -> Iterator[str]:
    """Allocation <-> slot is a bijection, the same for ResourceManager, TaskExecutor and JobMaster
    (invariant 19).
    """
    if cluster.resource_manager is None:
        yield "there is no ResourceManager"
        return
    manager = cluster.resource_manager.shell.core
    living = {x.task_executor_id: x for _, x in cluster.task_executors}
    names = {x.task_executor_id: process.name for process, x in cluster.task_executors}
    if set(manager.table.executors) != set(living):
        yield f"registered are {sorted(manager.table.executors)}, alive {sorted(living)}"
        return
    by_job = running_jobs(cluster)
    held: dict[str, str] = {}
    for who, task_executor in living.items():
        name = names[who]
        known = manager.table.executors[who]
        if known.connection is None:
            yield f"{name} is not connected to the ResourceManager"
        for slot in task_executor.core.table.slots:
            believed = known.slots[slot.index]
            allocation_id = slot.allocation.allocation_id if slot.allocation else None
            place = f"slot {slot.index} of {name}"
            if believed.allocation_id != allocation_id:
                yield f"{place}: holds {allocation_id}, the ResourceManager says {believed}"
            if slot.allocation is None:
                continue
            if allocation_id in held:
                yield f"{place}: {allocation_id} is on {held[str(allocation_id)]}, too"
            held[str(allocation_id)] = place
            job = by_job.get(slot.allocation.job_id)
            if slot.state is not HeldState.ACTIVE or not slot.allocation.accepted:
                yield f"{place}: still {slot.state.value}, accepted: {slot.allocation.accepted}"
            pooled = (
                job.core.pool.slots.get(slot.allocation.allocation_id) if job is not None else None
            )
            if pooled is None:
                yield f"{place}: the JobMaster of job {slot.allocation.job_id} has no such slot"
            elif (
                slot.process is None
                or pooled.executor_id != slot.process.executor_id
                or pooled.task_executor_id != who
            ):
                yield f"{place}: another process for its JobMaster"
    for job_id, job in by_job.items():
        for allocation_id in job.core.pool.slots:
            if allocation_id not in held:
                yield f"job {job_id}: its slot {allocation_id} does not exist"


def slots_add_up(cluster: Cluster) -> Iterator[str]:
    """Free + allocated = total; nothing is under way any more."""
    if cluster.resource_manager is None:
        return
    table = cluster.resource_manager.shell.core.table
    free, allocated = table.count(SlotState.FREE), table.count(SlotState.ALLOCATED)
    if free + allocated != table.total:
        yield f"{free} free, {allocated} allocated, {table.total} in total"
    missing = cluster.shape.task_executors - len(table.executors)
    if missing > 0:
        yield f"{missing} TaskExecutors are missing"
    idle = [executor for executor in table.executors.values() if executor.idle]
    if (
        missing < 0 and idle
    ):  # a ResourceManager that was replaced may have started more than needed: they go once idle
        yield f"{-missing} TaskExecutors are too many, and {len(idle)} are idle"


def ended_jobs_hold_nothing(cluster: Cluster) -> Iterator[str]:
    """No slot, no requirement, no task, no JobMaster of a job that is over."""
    ended = {
        job_id for job_id, stored in cluster.store.by_id.items() if stored.status.globally_terminal
    }
    if cluster.resource_manager is None:
        return
    manager = cluster.resource_manager.shell.core
    for job_id, known in manager.jobs.items():
        if job_id in ended and (known.required or manager.table.held_by(job_id)):
            yield f"job {job_id} is over; the ResourceManager has {known}"
    for process, task_executor in cluster.task_executors:
        for slot in task_executor.core.table.slots:
            if slot.allocation is not None and slot.allocation.job_id in ended:
                yield (
                    f"job {slot.allocation.job_id} is over,"
                    f" but holds slot {slot.index} of {process.name}"
                )
        for job_id in task_executor.core.table.jobs:
            if job_id in ended:
                yield f"job {job_id} is over, but {process.name} still knows it"
    for process, executor in cluster.slot_processes:
        for task in executor.tasks.values():
            if task.job_id in ended and not task.state.terminal:
                yield f"job {task.job_id} is over, but {process.name} runs {task.attempt_id}"
    for name, job_id, partitions in cluster.results.left():
        if job_id in ended:
            yield f"job {job_id} is over, but {name} keeps {len(partitions)} partitions"
    for process, job_master in cluster.job_masters:
        if job_master.job is not None and job_master.job.job_id in ended:
            yield f"job {job_master.job.job_id} is over, but {process.name} is there"


def ended_jobs_leave_no_files(cluster: Cluster) -> Iterator[str]:
    """Checks that the JobMaster deletes the checkpoints once it knows that the end is stored."""
    for job_id, process in cluster.checkers.acknowledged.items():
        stored = cluster.store.by_id[JobId(job_id)]
        deletes = stored.status in (JobStatus.FINISHED, JobStatus.CANCELED)
        if deletes and process.returncode == 0:
            left = cluster.shared.files(job_id)
            if left:
                yield f"job {job_id} is over, and has left {left[:5]}"


def tasks_agree(cluster: Cluster) -> Iterator[str]:
    """The tasks that run are those that JobMasters believe to run, each in the slot believed."""
    believed: dict[str, str] = {}
    for job in running_jobs(cluster).values():
        for execution in job.core.graph.executions():
            if not execution.terminal and execution.slot is not None:
                believed[execution.attempt_id] = execution.slot.executor_id
    real: dict[str, str] = {}
    for _, executor in cluster.slot_processes:
        for task in executor.tasks.values():
            if not task.state.terminal:
                real[task.attempt_id] = executor.executor_id
    for attempt_id in believed.keys() | real.keys():
        if believed.get(attempt_id) != real.get(attempt_id):
            yield (
                f"attempt {attempt_id} runs in {real.get(attempt_id)},"
                f" believed in {believed.get(attempt_id)}"
            )


def _name_of(task: SimulatedTask, split: Any) -> str:
    """Among all sources of a job."""
    return f"{task.vertex.vertex.name}: {name_of(split)}"


def splits_are_read_once(cluster: Cluster) -> Iterator[str]:
    """A finished job has read all that there was, each split once: what its sinks have committed,
    or, without checkpoints, what the last attempts of its sources have read (invariant 17).
    """
    for job_id, submitted in cluster.jobs.items():
        stored = cluster.store.by_id.get(job_id)
        if stored is None or stored.status is not JobStatus.FINISHED:
            continue
        if options.CHECKPOINT_INTERVAL.key in submitted.graph.config:
            read = cluster.checkers.ledger.splits(job_id)
        else:
            tasks = sorted(cluster.checkers.finished.get(job_id, []), key=lambda t: t.attempt)
            last = {subtask_of(task): task for task in tasks}.values()
            read = Counter(_name_of(task, split) for task in last for split in task.splits)
        wanted = sum(submitted.splits.values())
        if len(read) != wanted or any(count != 1 for count in read.values()):
            yield f"job {job_id}: {wanted} splits, read were {dict(read)}"


def finished_tasks_read_what_counts(cluster: Cluster) -> Iterator[str]:
    """Without checkpoints: each last attempt of a finished job has read what the last attempts of
    its producers have produced, or earlier ones that have read the same splits.
    """
    for job_id, submitted in cluster.jobs.items():
        stored = cluster.store.by_id.get(job_id)
        if stored is None or stored.status is not JobStatus.FINISHED:
            continue
        if options.CHECKPOINT_INTERVAL.key in submitted.graph.config:
            continue
        yield from lineage_problems(job_id, cluster.checkers.finished.get(job_id, []))


def collected_rows_are_kept_once(cluster: Cluster) -> Iterator[str]:
    """Checks that the collected rows of a finished job are those of its sinks' last attempts."""
    dispatcher = cluster.dispatcher
    for job_id, submitted in cluster.jobs.items():
        stored = cluster.store.by_id.get(job_id)
        if dispatcher is None or stored is None or stored.status is not JobStatus.FINISHED:
            continue
        sinks = {
            operator.operator_id: vertex.parallelism
            for vertex in submitted.graph.vertices
            for operator in vertex.operators
            if operator.coordinator_kind == "collect"
        }
        kept = {of.operator_id: of.chunks for of in dispatcher.shell.results.collected(job_id)}
        wanted = {operator_id: CHUNKS * subtasks for operator_id, subtasks in sinks.items()}
        if kept != wanted:
            yield f"job {job_id}: chunks that were collected are {kept}, not {wanted}"


def shared_files_are_those_referred_to(cluster: Cluster) -> Iterator[str]:
    """Nothing that can be reached is deleted, nothing that cannot be is kept (invariant 10)."""
    for job_id in running_jobs(cluster):
        if not cluster.store.ended(JobId(job_id)):
            yield from cluster.shared.problems(JobId(job_id))


def processes_are_as_wanted(cluster: Cluster) -> Iterator[str]:
    """Every slot is warm, no slot has two processes, the spares are there and nothing else."""
    for process, task_executor in cluster.task_executors:
        slots = task_executor.core.table.slots
        wanted = {slot.process.executor_id for slot in slots if slot.process is not None}
        living = {x.executor_id for p, x in cluster.slot_processes if p.parent is process}
        if wanted != living:
            yield f"{process.name}: processes {sorted(living)}, wanted {sorted(wanted)}"
        for slot in slots:
            if slot.process is None or slot.process.state not in (
                ProcessState.READY,
                ProcessState.BUSY,
            ):
                yield f"slot {slot.index} of {process.name} is not warm"
    if cluster.dispatcher is None:
        return
    alive = {process.pid for process in cluster.living("jobmaster")}
    known = set(cluster.dispatcher.shell.core.processes.by_pid)
    if alive != known:
        yield f"JobMasters alive {sorted(alive)}, known {sorted(known)}"
    spares = sum(job_master.job is None for _, job_master in cluster.job_masters)
    if spares < cluster.shape.spares:
        yield f"{spares} spare JobMasters, wanted {cluster.shape.spares}"


def running_jobs(cluster: Cluster) -> dict[str, RunningJob]:
    return {x.job.job_id: x.job for _, x in cluster.job_masters if x.job is not None}


AT_REST: tuple[Callable[[Cluster], Iterator[str]], ...] = (
    every_job_ends_or_runs,
    finished_jobs_ran,
    jobs_have_the_stored_parallelism,
    elastic_jobs_use_their_slots,
    no_task_restarts_by_a_masters_death,
    slots_agree,
    slots_add_up,
    ended_jobs_hold_nothing,
    ended_jobs_leave_no_files,
    tasks_agree,
    splits_are_read_once,
    finished_tasks_read_what_counts,
    collected_rows_are_kept_once,
    shared_files_are_those_referred_to,
    processes_are_as_wanted,
)

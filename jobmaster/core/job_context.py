"""The state that all phases of a job share: its graph, slots, coordinators and TaskExecutors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.ids import AllocationId, IdSource, OperatorId, TaskExecutorId, VertexId
from firesteel.common.job_graph import JobGraph, ResultPartitionId, ResultType
from firesteel.common.states import ExecutionState, TaskEvent
from firesteel.errors import ErrorInfo
from jobmaster.core import commands
from jobmaster.core.checkpoints.completed import CompletedCheckpoints
from jobmaster.core.checkpoints.coordinator import CheckpointCoordinator
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.commands import log
from jobmaster.core.coordinators import BadOptions
from jobmaster.core.coordinators.registry import Coordinators
from jobmaster.core.events import FinishedTask, ListedTask, LossExplained, OperatorAnalysis
from jobmaster.core.execution_graph import (
    Execution,
    ExecutionGraph,
    ExecutionJobVertex,
    ExecutionVertex,
    InvalidJobGraph,
    build,
    share_slots,
)
from jobmaster.core.execution_graph.vertex import DEPLOYED
from jobmaster.core.failover.exceptions import ExceptionHistory, explained
from jobmaster.core.failover.regions import Regions, SlotsLost, tasks_to_restart
from jobmaster.core.failover.restart_strategy import new_strategy
from jobmaster.core.failover.strategy import Failover, check_individual
from jobmaster.core.parallelism import JobParallelism
from jobmaster.core.partitions import Partitions
from jobmaster.core.rescale_history import RescaleHistory
from jobmaster.core.scheduling.scheduler import Scheduler
from jobmaster.core.scheduling.strategies import SchedulingStrategy, scheduling_strategy
from jobmaster.core.settings import JobSettings
from jobmaster.core.slots.pool import SlotPool
from jobmaster.core.slots.slot import Slot
from jobmaster.core.slots.wait import SlotWait
from jobmaster.core.task_executors import TaskExecutors
from jobmaster.core.tasks import Tasks

_CREATED = ExecutionState.CREATED
MAX_WARNINGS = 100


class TasksFailed(NamedTuple):
    """Tasks failed and partitions cannot be read, from one cause."""

    failed: Sequence[Execution]
    error: ErrorInfo  # of the first of them
    lost: Sequence[ResultPartitionId]


class JobContext:
    """Phases and the core change it. Methods return commands in order."""

    def __init__(
        self,
        job_graph: JobGraph,
        settings: JobSettings,
        *,
        ids: IdSource,
        now: float,
        now_ms: int,
        recovery: Recovery,
    ) -> None:
        """`now` (monotonic seconds) and `now_ms` (wall clock) denote the same instant."""
        self._wall_ms = now_ms - now * 1000
        self.ids = ids
        self._failover = settings.failover
        self._policy = settings.scheduling
        # Whether subtasks are restarted without the others of their vertex.
        self.divides = job_graph.batch or settings.failover is Failover.INDIVIDUAL
        # Whether another JobMaster needs a list of started tasks, because there are no checkpoints.
        self.lists_tasks = settings.checkpoints is None
        self.has_blocking_results = any(
            edge.result_type is ResultType.BLOCKING for edge in job_graph.edges
        )
        self.restart_strategy = new_strategy(
            settings.restart, lambda: int(ids.next(), 16) / 16**32, recovery.restarts
        )
        self._restarts_after_user_errors = settings.restarts_after_user_errors
        self.exceptions = ExceptionHistory(recovery.failures)
        self.pool = SlotPool(idle_timeout_s=settings.slot_idle_timeout_s)
        self.slot_wait = SlotWait(self.pool, timeout_s=settings.slot_request_timeout_s)
        self.task_executors = TaskExecutors(
            heartbeat_interval_s=settings.heartbeat_interval_s,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            reconnect_grace_s=settings.reconnect_grace_s,
        )
        self.coordinators = Coordinators()
        self.invalid = ""  # why the graph cannot run at all
        try:
            self.graph = build(
                job_graph,
                ids,
                now_ms,
                first_attempt=recovery.first_attempt,
                earlier=recovery.statuses,
            )
            share_slots(self.graph)
            if settings.failover is Failover.INDIVIDUAL:
                check_individual(job_graph, takes_checkpoints=settings.checkpoints is not None)
            self.coordinators = Coordinators.of(job_graph)
        except (InvalidJobGraph, BadOptions) as error:
            self.graph = ExecutionGraph(job_graph, now_ms, earlier=recovery.statuses)
            self.invalid = str(error)
        # Addresses where TaskExecutors serve BLOCKING results.
        self.stores: dict[TaskExecutorId, str] = {}
        self.scheduler = Scheduler(self.graph, self.pool, self.stores)
        self.tasks = Tasks(self.graph, self.pool)
        self.partitions = Partitions(self.graph)
        # Results of the analysis: the schemas of all outputs (None before it), and plans for
        # display.
        self.schemas: dict[commands.OutputOf, bytes] | None = None
        self.plans: dict[OperatorId, str] = {}
        self.states: dict[OperatorId, StateDescriptions] = {}  # of operators that declare them
        # Vertices of which a new attempt may produce different rows from the same input.
        self._not_repeatable: frozenset[VertexId] = frozenset()
        self.completed = CompletedCheckpoints(self.graph, recovery)
        self.checkpoints = CheckpointCoordinator(
            settings.checkpoints,
            self.graph,
            self.coordinators,
            self.completed,
            recovery,
            self.now_ms,
        )
        self.parallelism = JobParallelism(job_graph, recovery.parallelism, settings.elastic.mode)
        self.rescales = RescaleHistory(recovery.rescales, self.parallelism.stored.by_vertex, now_ms)
        self._collected = recovery.collected
        self.warnings = dict.fromkeys(recovery.warnings)  # in order
        self.restarts = 0  # of the whole job and of regions
        self.full_restarts = 0
        self.stale_messages = 0  # about unknown attempts or slots
        self.declared = 0  # sequence of the last declaration

    def now_ms(self, now: float) -> int:
        return int(self._wall_ms + now * 1000)

    def restart_delay_s(self, error: ErrorInfo, now: float) -> float | None:
        """Returns the seconds to wait before restarting after this failure, or None for no restart.
        Uses up an attempt.
        """
        if error.final or (error.of_program and not self._restarts_after_user_errors):
            return None
        return self.restart_strategy.delay_s(self.now_ms(now) / 1000)

    def error(self, summary: str, now: float) -> ErrorInfo:
        return ErrorInfo(summary=summary, timestamp_ms=self.now_ms(now))

    def explain_loss(self, event: LossExplained) -> None:
        """Adds the reason of a loss to the errors that report it."""
        self.exceptions.explain_loss(event)
        for execution in (e for v in self.graph.execution_vertices() for e in v.attempts):
            error = execution.error
            if error is not None and error.lost_task_executor == event.task_executor_id:
                execution.error = explained(error, event)

    def warn(self, text: str) -> list[commands.Command]:
        """Logs a warning for the user, and shows it with the job, which keeps running."""
        if text in self.warnings or len(self.warnings) > MAX_WARNINGS:
            return []
        if len(self.warnings) == MAX_WARNINGS:
            text = "there are more warnings, which are not shown"
        self.warnings[text] = None
        return [log("warning", text)]

    def take_analysis(self, found: Iterable[OperatorAnalysis]) -> None:
        found = tuple(found)
        self.schemas = {
            commands.OutputOf(analysis.operator_id, tag): schema
            for analysis in found
            for tag, schema in (("", analysis.schema), *analysis.side_schemas.items())
        }
        self.plans = {analysis.operator_id: analysis.plan for analysis in found}
        self.states = {
            analysis.operator_id: analysis.states
            for analysis in found
            if analysis.states is not None
        }
        other_rows = {analysis.operator_id for analysis in found if not analysis.repeatable}
        self._not_repeatable = frozenset(
            job_vertex.vertex.vertex_id
            for job_vertex in self.graph.vertices
            if any(o.operator_id in other_rows for o in job_vertex.vertex.operators)
        )

    @property
    def lacks_slots(self) -> bool:
        """Whether tasks wait for missing slots. In batch mode, running tasks will free theirs."""
        if not self.scheduler.waiting or self.scheduler.has_all_slots:
            return False
        return not (self.graph.job_graph.batch and any(map(self.graph.count, DEPLOYED)))

    @property
    def can_deploy(self) -> bool:
        """Whether waiting tasks have their slots, on TaskExecutors that are reachable."""
        return bool(self.scheduler.ready) and not self.task_executors.any_broken

    def deploy(self, now: float) -> list[commands.Command]:
        """Deploys tasks that have their slots; the plan must have been analysed."""
        assert self.schemas is not None, "deployed before the analysis"
        self.scheduler.restored = self.completed.restored()
        self.scheduler.restored_from = self.completed.restored_from
        return self.scheduler.deploy(self.schemas, self.now_ms(now))

    @property
    def all_run(self) -> bool:
        """Whether every task runs or has finished."""
        running = self.graph.count(ExecutionState.RUNNING)
        return running + self.graph.count(ExecutionState.FINISHED) == len(self.graph.attempts)

    def start_over(self, now: float) -> list[commands.Command]:
        """Creates new attempts of all tasks, which restore the latest checkpoint if there is
        one. They have the parallelism that is stored.
        """
        self.restarts += 1
        self.full_restarts += 1
        if (by_vertex := self.parallelism.apply()) is not None:
            return [*self._rescale(by_vertex, now), *self.restore_coordinators(self.graph.vertices)]
        self.graph.start_over(self.graph.execution_vertices(), self.ids, self.now_ms(now))
        return self.restore_coordinators(self.graph.vertices)

    def not_deployed(self) -> list[ExecutionVertex]:
        """Returns the tasks that have not ended and have no slot yet."""
        states = (ExecutionState.CREATED, ExecutionState.SCHEDULED)
        if not any(map(self.graph.count, states)):
            return []
        return [v for v in self.graph.execution_vertices() if v.current.state in states]

    @property
    def resizes_in_place(self) -> bool:
        """Whether its parallelism changes while its tasks run: they have no state and exchange no
        data.
        """
        return bool(self.coordinators.spark_program)

    def surplus(self) -> list[ExecutionVertex]:
        """Returns the subtasks that the stored parallelism does not have."""
        wanted = self.parallelism.stored.by_vertex
        return [
            vertex
            for job_vertex in self.graph.vertices
            for vertex in job_vertex.vertices[wanted[job_vertex.vertex.vertex_id] :]
        ]

    def resize_in_place(self, now: float) -> list[commands.Command]:
        """Applies the stored parallelism, and schedules the new subtasks. Surplus ones have
        ended.
        """
        by_vertex = self.parallelism.apply()
        assert by_vertex is not None, "the tasks have it already"
        self.parallelism.proved()  # a failure of a new subtask restarts that alone
        added = self.graph.resize_in_place(by_vertex, self.ids, self.now_ms(now))
        return [*self._follow_parallelism(by_vertex), *self.schedule(added, now)]

    def _rescale(self, by_vertex: Mapping[VertexId, int], now: float) -> list[commands.Command]:
        self.graph.rescale(by_vertex, self.ids, self.now_ms(now))
        self.checkpoints.release(now)
        return self._follow_parallelism(by_vertex)

    def _follow_parallelism(self, by_vertex: Mapping[VertexId, int]) -> list[commands.Command]:
        self.coordinators.rescale(self.graph.job_graph)
        for derived in ("regions", "strategy"):  # cached properties
            self.__dict__.pop(derived, None)
        return [
            log("info", "the parallelism changes", version=self.parallelism.applied.version),
            commands.UseParallelism(by_vertex=by_vertex),
        ]

    def restart(self, vertices: Sequence[ExecutionVertex], now: float) -> list[commands.Command]:
        """Creates new attempts of these tasks, which have ended, while other tasks continue."""
        self.restarts += 1
        restored: list[commands.Command] = []
        if self.divides:
            for vertex in vertices:
                self.coordinators.subtask_starts_over(vertex.current)
        else:
            restored = self.restore_coordinators(dict.fromkeys(v.job_vertex for v in vertices))
        self.graph.start_over(vertices, self.ids, self.now_ms(now))
        return [*restored, *self.schedule(vertices, now)]

    def take_collected(self) -> None:
        """Passes the numbers of chunks stored under earlier masters to the coordinators."""
        self.coordinators.take_kept(self._collected)

    def replace_rows_of_others(self) -> list[commands.Command]:
        """Replaces rows of attempts before the running ones. Without a checkpoint, only the rows of
        running attempts count, and the earlier master died before it could replace the others.
        """
        if self.completed.latest is not None:
            return []
        foreign = tuple(
            operator_id
            for operator_id, by_attempt in self._collected.items()
            if not by_attempt.keys() <= self.graph.attempts.keys()
        )
        if not foreign:
            return []
        return [commands.BeginResults(restart=self.restarts, operator_ids=foreign)]

    def tasks_to_restart(
        self,
        failed: Sequence[ExecutionVertex],
        lost: Sequence[ResultPartitionId],
        restarting: Collection[ExecutionVertex],
    ) -> list[ExecutionVertex]:
        """Returns, in topological order, the tasks that cannot continue because these tasks failed
        and these partitions cannot be read. Tasks in `restarting` are about to restart already.
        """
        failure = SlotsLost(tuple(failed), tuple(lost))
        other_rows: set[VertexId] = set()
        while True:
            found = tasks_to_restart(
                self.regions, failure, other_rows=other_rows, restarting=restarting
            )
            if not (newly := self._with_other_rows(found) - other_rows):
                return found
            other_rows |= newly

    def torn(self) -> list[ExecutionVertex]:
        """Returns started subtasks that cannot continue alongside those that are yet to start: they
        run together, or have read rows that may now go to other subtasks.
        """
        created = [v for v in self.graph.execution_vertices() if v.current.state is _CREATED]
        anew = [v for v in created if self.coordinators.reads_anew(v.current)]
        other_rows = self._with_other_rows(created, anew)
        found = tasks_to_restart(self.regions, SlotsLost(tuple(created)), other_rows=other_rows)
        return [vertex for vertex in found if vertex.current.state is not _CREATED]

    def _with_other_rows(
        self, again: Iterable[ExecutionVertex], reads_anew: Iterable[ExecutionVertex] = ()
    ) -> set[VertexId]:
        """Returns vertices that may produce different rows if these tasks run again: those that are
        not repeatable, those whose tasks read different splits, and all vertices downstream of
        them.
        """
        found = {vertex.job_vertex.vertex.vertex_id for vertex in reads_anew}
        if self._not_repeatable:
            found |= self._not_repeatable & {v.job_vertex.vertex.vertex_id for v in again}
        for job_vertex in self.graph.vertices if found else ():  # in topological order
            vertex_id = job_vertex.vertex.vertex_id
            if any(r.edge.source_vertex_id in found for r in self.graph.inputs_of(vertex_id)):
                found.add(vertex_id)
        return found

    def listed(self) -> Iterator[ListedTask]:
        """Yields the started tasks, for another JobMaster."""
        for vertex in self.graph.execution_vertices():
            execution = vertex.current
            finished = None
            if execution.state is ExecutionState.FINISHED and (slot := execution.slot) is not None:
                finished = FinishedTask(
                    slot.task_executor_id,
                    slot.host,
                    slot.slot_index,
                    self.coordinators.owned(execution),
                )
            elif execution.state not in DEPLOYED:
                continue
            yield ListedTask(
                vertex.job_vertex.vertex.vertex_id,
                vertex.subtask,
                execution.attempt,
                execution.attempt_id,
                finished,
            )

    def restarts_as_a_whole(self, vertices: Sequence[ExecutionVertex]) -> bool:
        """Whether a restart of these tasks restarts all tasks."""
        if self._failover is Failover.FULL or self.checkpoints.ends_the_job:
            # Tasks that ended for a savepoint must run again if it does not end the job.
            return True
        if self.parallelism.unproven:
            return True
        return len(vertices) == len(self.graph.attempts) and not self.divides

    @cached_property
    def regions(self) -> Regions:
        """The regions of the graph. In a stream, they contain whole vertices: the state of sources
        and sinks is shared by all subtasks. The rows of a collect sink are also replaced together.
        """
        whole = [
            vertex_id
            for vertex_id, job_vertex in self.graph.by_id.items()
            if not self.divides
            or any(o.coordinator_kind == "collect" for o in job_vertex.vertex.operators)
        ]
        return Regions(self.graph, whole=whole)

    @cached_property
    def strategy(self) -> SchedulingStrategy:
        return scheduling_strategy(self._policy, self.graph, self.regions)

    def begin_others(self, now: float) -> list[commands.Command]:
        """Schedules the tasks that have not started under an earlier master."""
        created = [v for v in self.graph.execution_vertices() if v.current.state is _CREATED]
        return self.schedule(created, now) if created else []

    def schedule(self, vertices: Sequence[ExecutionVertex], now: float) -> list[commands.Command]:
        """Requests the slots of those vertices that may start now and had not finished in the
        restored checkpoint; all of them are CREATED.
        """
        job_vertices = dict.fromkeys(vertex.job_vertex for vertex in vertices)
        begun: list[commands.Command] = []
        if self.completed.latest is None:
            operators = tuple(_operators(job_vertices))
            begun.append(commands.BeginResults(restart=self.restarts, operator_ids=operators))
        begun += self._restore_finished(job_vertices, now)
        self.scheduler.schedule(self.strategy.startable(vertices), now, self.now_ms(now))
        return begun

    def _restore_finished(
        self, among: Iterable[ExecutionJobVertex], now: float
    ) -> list[commands.Command]:
        """Marks vertices as finished instead of deploying them if all their subtasks, and those of
        their producers, had finished in the restored checkpoint. Their consumers are told that
        input ended.

        A vertex of which only some subtasks had finished runs as a whole: its state is distributed
        to all of them.
        """
        by_id = {job_vertex.vertex.vertex_id: job_vertex for job_vertex in among}
        finished = self.completed.finished_vertices(by_id.keys())
        answers: list[commands.Command] = []
        for vertex_id, job_vertex in by_id.items():
            if vertex_id not in finished:
                continue
            for vertex in job_vertex.vertices:
                vertex.current.apply(TaskEvent.RESTORED_FINISHED, self.now_ms(now))
                answers += self.coordinators.attempt_finished(
                    vertex.current, now, self.graph.attempts
                )
        return answers

    def cannot_resume(self) -> str:
        """Returns why the analysed job cannot resume from its restored checkpoint; empty if it
        can.
        """
        assert self.schemas is not None
        if self.checkpoints.enabled and (why := self.completed.analyzed(self.schemas, self.states)):
            return why
        latest = self.completed.latest
        if latest is None:
            return ""
        found = self.coordinators.mismatch({o.operator_id: o.coordinator for o in latest.operators})
        if found is None:
            return ""
        operator = self.graph.job_graph.operator(found[0])
        return operator.says(
            f"{operator.name!r} cannot resume from the checkpoint: {found[1]}. Restore its earlier"
            " definition, or give the source a different uid and discard its state"
            " (--allow-non-restored-state)"
        )

    def restore_coordinators(
        self, vertices: Iterable[ExecutionJobVertex]
    ) -> list[commands.Command]:
        """Resets the coordinators of these vertices to the latest checkpoint, or to the
        beginning.
        """
        latest = self.completed.latest
        if latest is None:
            self.coordinators.start_over(_operators(vertices), None)
            return []
        snapshots = {o.operator_id: o.coordinator for o in latest.operators}
        self.coordinators.start_over(_operators(vertices), snapshots)
        return [log("info", "the job resumes from a checkpoint", checkpoint=latest.checkpoint_id)]

    def end_tasks(
        self, vertices: Collection[ExecutionVertex], now: float
    ) -> list[commands.Command]:
        """Cancels or forgets these tasks only."""
        self.scheduler.forget(vertices)
        return self.tasks.cancel(vertices, now, self.now_ms(now))

    def declare(self, *, force: bool = False) -> list[commands.Command]:
        """Declares the required slots if they have changed, or if `force` is set."""
        requirements = self.pool.take_requirements()
        if force and requirements is None:
            requirements = self.pool.requirements()
        if requirements is None:
            return []
        self.declared += 1
        return [commands.DeclareRequirements(sequence=self.declared, requirements=requirements)]

    def free(self, slots: Iterable[Slot], cause: str) -> list[commands.Command]:
        """Returns slots that have left the pool to their TaskExecutors."""
        by_task_executor: dict[TaskExecutorId, list[AllocationId]] = {}
        for slot in slots:
            by_task_executor.setdefault(slot.task_executor_id, []).append(slot.allocation_id)
        return [
            commands.FreeSlots(
                task_executor_id=task_executor_id, allocation_ids=tuple(allocation_ids), cause=cause
            )
            for task_executor_id, allocation_ids in by_task_executor.items()
        ]

    def report_status(self) -> commands.ReportStatus:
        status, timestamp_ms = self.graph.timestamps[-1]
        return commands.ReportStatus(status=status, timestamp_ms=timestamp_ms)


def _operators(vertices: Iterable[ExecutionJobVertex]) -> Iterator[OperatorId]:
    return (o.operator_id for vertex in vertices for o in vertex.vertex.operators)

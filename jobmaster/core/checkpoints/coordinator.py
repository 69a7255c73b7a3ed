"""The CheckpointCoordinator: decides when a checkpoint is triggered, how it ends, and which ones
are retained (spec 000, spec 001).

The steps of a checkpoint are: an id that no other checkpoint of the job ever has → triggers →
acknowledgements of all its tasks → `_metadata` and the row → notices to the tasks → deletion of the
oldest checkpoint that is no longer retained. A failed checkpoint leaves no files behind; if a
process that had written some died, they are deleted once a later checkpoint is complete.

* Ids strictly increase across restarts and masters (invariant 8): each master uses a separate range
  (`recovery.py`).
* A checkpoint is complete when its row is committed, not before. While one is being stored, nothing
  can be restored, because the latest checkpoint is not known yet (invariants 5, 6): `settled`.
* Checkpoints are stored one at a time, in the order of their ids. When one is complete, older
  incomplete ones are abandoned. Savepoints are not, because a caller waits for them.
* Tasks that have processed all their data end with the next checkpoint. Once all have, it is
  triggered regardless of the interval.
* If a job was being stopped when its master died, the next master stops it: tasks remember it.
* A job is drained by ending its sources; the savepoint is its last checkpoint. If the savepoint
  fails, the job fails, because its sources have ended.
* A checkpoint from which the job restarts with a different parallelism starts after all others
  have ended, and no other one follows it until `release`. It is aligned and exactly-once, like a
  savepoint.
* After a savepoint that stops the job without draining, sources wait: when it is complete, all
  tasks end; when it is abandoned, they continue. No other checkpoint is triggered until then.
* A task that finishes before it has acknowledged fails the checkpoint immediately (spec 001).
* An acknowledgement that no checkpoint waits for comes from a task whose checkpoint was abandoned:
  its files are deleted.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping

from firesteel.common.checkpoints.messages import Snapshot
from firesteel.common.ids import AttemptId, TaskExecutorId, VertexId
from firesteel.common.states import ExecutionState, JobStatus
from jobmaster.core.checkpoints.checkpoint import Checkpoint, CheckpointState, Kind
from jobmaster.core.checkpoints.completed import CompletedCheckpoints
from jobmaster.core.checkpoints.plan import NotPossible, plan_checkpoint
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.checkpoints.settings import NO_CHECKPOINTS, CheckpointSettings, Retention
from jobmaster.core.checkpoints.shared_files import SharedFiles
from jobmaster.core.commands import (
    AnswerRequest,
    Command,
    DrainTasks,
    DropAllCheckpoints,
    DropCheckpoint,
    DropCheckpointFiles,
    NotifyCheckpoint,
    StoreCheckpoint,
    SweepSharedFiles,
    TriggerCheckpoint,
)
from jobmaster.core.coordinators.registry import Coordinators
from jobmaster.core.events import CheckpointRequested
from jobmaster.core.execution_graph import Execution, ExecutionGraph

_HISTORY = 10
_DISABLED = (
    "the job takes no checkpoints: run it with execution.checkpointing.interval and"
    " execution.checkpointing.dir"
)


class CheckpointCoordinator:
    """Methods return commands in order. Times are in seconds on the core's clock.

    The coordinator of a job without checkpoints triggers none and refuses requests.
    """

    def __init__(
        self,
        settings: CheckpointSettings | None,
        graph: ExecutionGraph,
        coordinators: Coordinators,
        completed: CompletedCheckpoints,
        recovery: Recovery,
        now_ms: Callable[[float], int],
    ) -> None:
        """`recovery` is the state that earlier masters left; `now_ms` converts a time of the core's
        clock.
        """
        settings = settings or NO_CHECKPOINTS
        self.enabled = settings.enabled
        self.failure = ""  # why the job must fail: too many checkpoints have failed
        self.next_id = recovery.first_checkpoint_id
        # Complete checkpoints, oldest first; excludes savepoints.
        self.retained = list(recovery.retained)
        self.failed_in_a_row = 0
        self.completed = self.failed = 0  # under this master, including savepoints
        self.last_completed: Checkpoint | None = None
        # Rows that tasks had read before the last complete checkpoint; None: not known.
        self._read: dict[AttemptId, int] | None = {}
        self.stale = 0  # acknowledgements that no checkpoint waited for
        self.history: deque[Checkpoint] = deque(maxlen=_HISTORY)  # ended ones, oldest first
        # Complete ones that newer checkpoints have displaced from the history, oldest first.
        self.savepoints: deque[Checkpoint] = deque(maxlen=_HISTORY)
        self.shared = SharedFiles(recovery.shared_files or {})
        # A retained checkpoint may refer to unknown files: then unreferenced files are not deleted.
        self._sweeps = settings.incremental and recovery.shared_files is not None
        self._swept = False  # since the job runs and no acknowledgement was lost
        self._settings = settings
        self._graph = graph
        self._coordinators = coordinators
        self._completed = completed
        self._claimed = recovery.claimed
        self._now_ms = now_ms
        self._pending: dict[int, Checkpoint] = {}  # in order of their ids
        self._requests: deque[CheckpointRequested] = deque()
        self._left_over = True  # files of failed checkpoints may exist, also of an earlier master
        self._running = False
        self._stopped = False  # a savepoint that ends the job is complete
        # Waits until all tasks have processed their data.
        self._draining: CheckpointRequested | None = None
        self._held = False  # the job is about to restart from its latest checkpoint
        self._due: float | None = None  # when the next periodic checkpoint may start
        self._data_ended: set[AttemptId] = set()  # tasks that have processed all their data

    @property
    def pending(self) -> tuple[Checkpoint, ...]:
        return tuple(self._pending.values())

    @property
    def interval_s(self) -> float | None:
        """The interval of periodic checkpoints; None: they are taken only on request."""
        return self._settings.interval_s if self.enabled else None

    def path_of(self, checkpoint: Checkpoint) -> str:
        """Returns the directory of a complete periodic checkpoint; empty for any other."""
        if checkpoint.state is not CheckpointState.COMPLETED or checkpoint.savepoint_path:
            return ""
        job_id = self._graph.job_graph.job_id
        where, mark, query = self._settings.directory.partition("?")
        return f"{where.rstrip('/')}/{job_id}/chk-{checkpoint.checkpoint_id}{mark}{query}"

    @property
    def settled(self) -> bool:
        """Whether the latest checkpoint is known."""
        return not any(c.state is CheckpointState.STORING for c in self._pending.values())

    @property
    def ends_the_job(self) -> bool:
        """Whether the job is or was being stopped: some tasks may have ended because of that."""
        stopping = self._stopped or self._draining is not None
        return stopping or any(c.stops or c.drains for c in self._pending.values())

    def next_deadline(self) -> float | None:
        deadlines = [checkpoint.expires_at for checkpoint in self._unacknowledged()]
        if self._due is not None and self._may_begin:
            deadlines.append(self._due)
        return min(deadlines, default=None)

    # ---- the job

    def follow(self, running: bool, now: float, *, otherwise: str) -> list[Command]:
        """Called after every event. `running` is true if all tasks run or have finished;
        `otherwise` says why they do not.
        """
        if running == self._running:
            return []
        return self.started(now) if running else self.stopped(otherwise, now)

    def kept_after(self, status: JobStatus) -> bool:
        """Whether complete checkpoints are kept after the job ended with this status."""
        retention = self._settings.retention
        if status is JobStatus.FAILED:
            return retention is not Retention.NEVER
        return status is JobStatus.CANCELED and retention is Retention.FAILED_OR_CANCELED

    def ended(self, status: JobStatus) -> list[Command]:
        """Deletes the job's checkpoints unless they are kept, once the end of the job is stored."""
        if not self.enabled or self.kept_after(status):
            return []
        dropped: list[Command] = [DropAllCheckpoints()]
        if self._claimed is not None and self._claimed.checkpoint_id in self.retained:
            dropped.append(DropCheckpoint(checkpoint_id=self._claimed.checkpoint_id))
        return dropped

    def late_answer(self, checkpoint_id: int, problem: str = "") -> list[Command]:
        """Answers for a checkpoint that was being stored when the job ended."""
        return [
            AnswerRequest(request=pending.request, checkpoint_id=checkpoint_id, problem=problem)
            for pending in self.pending
            if pending.checkpoint_id == checkpoint_id and pending.request
        ]

    def started(self, now: float) -> list[Command]:
        """The job runs (again). Periodic checkpoints start after one interval, or immediately if
        all tasks had processed their data before the last of them ran.
        """
        self._running, self._stopped = True, False
        self._swept = False
        self._data_ended.intersection_update(self._graph.attempts)
        self._data_ended.update(  # also those that had finished before the job was restored
            execution.attempt_id
            for execution in self._graph.executions()
            if execution.state is ExecutionState.FINISHED
        )
        interval_s = self._settings.interval_s
        if interval_s is not None:
            self._due = now if self._only_ends else now + interval_s
        return self.tick(now)

    def stopped(self, cause: str, now: float) -> list[Command]:
        """The job no longer runs: abandons pending checkpoints and triggers none. A checkpoint that
        is being stored completes or fails independently.
        """
        self._running = False
        self._due = None
        commands: list[Command] = []
        for checkpoint in self._collecting():
            commands += self._fail(checkpoint, cause, now)
        if self._draining is not None:
            self._requests.append(self._draining)
            self._draining = None
        while self._requests:
            request = self._requests.popleft()
            commands.append(_refusal(request, cause))
        return commands

    def lost_messages(self, now: float) -> list[Command]:
        """Triggers and notices to tasks may be lost: abandons checkpoints that are being collected,
        and notifies tasks again of complete ones. Acknowledgements may also be lost, with unknown
        files.
        """
        self._swept = False
        commands: list[Command] = []
        for checkpoint in self._collecting():
            cause = "the stream to a TaskExecutor broke: messages may be lost"
            commands += self._fail(checkpoint, cause, now)
        complete = [c for c in self.history if c.state is CheckpointState.COMPLETED]
        if complete and self._running:
            commands += _notices(complete[-1], completed=True)
        if self._draining is not None:
            commands += self._drain_tasks()
        return [*commands, *self._begin_requested(now)]

    def adopted(
        self,
        open_checkpoints: Mapping[AttemptId, Collection[int]],
        stops_with: Collection[int],
        now: float,
        *,
        asked: CheckpointRequested | None,
        stopped: bool,
    ) -> list[Command]:
        """Takes over the running tasks of an earlier master. `open_checkpoints` has the checkpoints
        that each task takes part in and whose outcome it does not know; `stops_with` has the
        savepoints after which sources produce nothing; `asked` is set if the job is being stopped
        and its savepoint is not stored; `stopped` means that this savepoint is the latest
        checkpoint. The next one follows an interval after the latest one, as if the earlier master
        had lived.

        Stored checkpoints are complete: tasks that do not know it are notified now, and no others
        (invariant 15). All others are abandoned, and the job is stopped again.
        """
        self._read = None
        tasks = {attempt_id: self._graph.attempts[attempt_id] for attempt_id in open_checkpoints}
        latest = self._completed.latest
        complete = {*self.retained, *(() if latest is None else (latest.checkpoint_id,))}
        begun = {checkpoint_id for of in open_checkpoints.values() for checkpoint_id in of}
        commands: list[Command] = [
            notice
            for checkpoint_id in sorted(begun - complete)
            for notice in _notify(checkpoint_id, tasks.values(), completed=False)
        ]
        if self._due is not None:
            age_ms = math.inf if latest is None else self._now_ms(now) - latest.timestamp_ms
            self._due -= min(max(age_ms / 1000, 0.0), self._due - now)
        self._stopped = self._stopped or stopped
        if latest is not None and latest.checkpoint_id in begun:
            complete_id = latest.checkpoint_id
            stops = complete_id in stops_with
            self._stopped = self._stopped or stops
            unheard = [tasks[a] for a, of in open_checkpoints.items() if complete_id in of]
            commands += _notify(complete_id, unheard, completed=True, stops=stops)
        if asked is not None and asked.drains:
            commands += self._drain(asked, now)
        elif asked is not None:
            self._requests.append(asked)
            commands += self._begin_requested(now)
        return commands

    def data_ended(self, execution: Execution, now: float) -> list[Command]:
        """A task has processed all its data. Once all tasks have, a checkpoint is due: the job
        needs nothing else to end.
        """
        self._data_ended.add(execution.attempt_id)
        if self._draining is not None:
            return self._begin_drained(now)
        if not self._only_ends or self._due is None:
            return []
        self._due = now
        return self.tick(now)

    @property
    def _only_ends(self) -> bool:
        """Whether no task has data left. If a task's message was lost, the interval applies."""
        return len(self._data_ended) == len(self._graph.attempts)

    def finished(self, execution: Execution, now: float) -> list[Command]:
        """A task has finished. Fails the checkpoints that still await its acknowledgement."""
        commands: list[Command] = []
        for checkpoint in self._collecting():
            if checkpoint.awaits(execution.attempt_id):
                cause = f"task {execution.name} finished before it acknowledged"
                if checkpoint.drains:
                    self._drain_again(checkpoint)
                commands += self._fail(checkpoint, cause, now)
        return [*commands, *self._begin_requested(now)]

    # ---- beginning

    def request(self, request: CheckpointRequested, now: float) -> list[Command]:
        """Triggers the checkpoint once fewer than the allowed number are under way."""
        if not self._settings.enabled:
            return [_refusal(request, _DISABLED)]
        if not self._running:
            return [_refusal(request, "not all tasks of the job run; try again in a moment")]
        if self._draining is not None or self._stopped:
            return [_refusal(request, "the job is being stopped")]
        if self._held and request.stops:
            return [_refusal(request, "the job is being rescaled; try again in a moment")]
        if request.drains:
            return self._drain(request, now)
        self._requests.append(request)
        return self._begin_requested(now)

    def _drain(self, request: CheckpointRequested, now: float) -> list[Command]:
        """Ends all other checkpoints: tasks would end with them before the savepoint is taken."""
        self._draining = request
        cause = "the job is being stopped"
        commands = [c for found in self._collecting() for c in self._fail(found, cause, now)]
        while self._requests:
            commands.append(_refusal(self._requests.popleft(), cause))
        return [*commands, *self._drain_tasks(), *self._begin_requested(now)]

    def _drain_again(self, checkpoint: Checkpoint) -> None:
        """Takes the savepoint of the remaining tasks, because an earlier checkpoint that also
        contained all of its data has let a task end.
        """
        self._draining = CheckpointRequested(
            request=checkpoint.request, savepoint_path=checkpoint.savepoint_path, drains=True
        )
        checkpoint.request, checkpoint.drains = "", False

    def _drain_tasks(self) -> list[Command]:
        assert self._draining is not None
        live = (execution for execution in self._graph.executions() if not execution.terminal)
        return [
            DrainTasks(
                task_executor_id=task_executor_id,
                attempt_ids=attempt_ids,
                savepoint_path=self._draining.savepoint_path,
            )
            for task_executor_id, attempt_ids in _by_task_executor(live)
        ]

    def _begin_drained(self, now: float) -> list[Command]:
        request = self._draining
        if request is None or not self._only_ends or self._pending:
            return []
        self._draining = None
        try:
            return self._begin(now, request)
        except NotPossible as reason:
            return [_refusal(request, str(reason))]

    def tick(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for checkpoint in self._unacknowledged():
            if checkpoint.expires_at <= now:
                commands += self._expire(checkpoint, now)
        commands += self._begin_requested(now)
        if self._due is not None and self._due <= now and self._may_begin:
            assert self._settings.interval_s is not None
            self._due = now + self._settings.interval_s
            try:
                commands += self._begin(now)
            except NotPossible:
                pass  # retried an interval later
        return commands

    @property
    def held(self) -> bool:
        """Whether no checkpoint starts, because the job is about to restart from the latest."""
        return self._held

    def release(self, now: float) -> list[Command]:
        """Lets other checkpoints follow the one from which the job was to restart."""
        self._held = False
        return self._begin_requested(now)

    @property
    def _may_begin(self) -> bool:
        if not self._running or self._held or self.ends_the_job:
            return False
        if self._requests and self._requests[0].rescales and self._pending:
            return False
        return len(self._pending) < self._settings.max_concurrent

    def _begin_requested(self, now: float) -> list[Command]:
        commands = self._begin_drained(now)
        while self._requests and self._may_begin:
            request = self._requests.popleft()
            try:
                commands += self._begin(now, request)
            except NotPossible as reason:
                commands.append(_refusal(request, str(reason)))
        return commands

    def _begin(self, now: float, request: CheckpointRequested | None = None) -> list[Command]:
        """Triggers a checkpoint. Raises NotPossible."""
        settings = self._settings
        savepoint = request is not None and bool(request.savepoint_path)
        kind = Kind.SAVEPOINT if savepoint else Kind.CHECKPOINT
        plan = plan_checkpoint(self._graph, after_tasks_finish=settings.after_tasks_finish)
        checkpoint = Checkpoint(
            self.next_id,
            kind,
            plan,
            self._coordinators.snapshot(),
            triggered_at=now,
            expires_at=now + settings.timeout_s,
            request=request.request if request is not None else "",
            savepoint_path=request.savepoint_path if request is not None else "",
            stops=request is not None and request.stops and not request.drains,
            drains=request is not None and request.drains,
            rescales=request is not None and request.rescales,
        )
        self._held = self._held or checkpoint.rescales
        self.next_id += 1
        self._pending[checkpoint.checkpoint_id] = checkpoint
        base = None
        if settings.incremental and kind is Kind.CHECKPOINT:
            base = 0 if request is not None and request.full else self._base()
        self.shared.begun(checkpoint.checkpoint_id, base or 0)
        # A different parallelism cannot be restored from in-flight data, nor from subtasks that
        # have reached different event times.
        aligns = kind is Kind.SAVEPOINT or checkpoint.rescales
        overtakes = settings.unaligned and not aligns
        splits = {e.attempt_id: self._coordinators.assigned(e) for e in plan.to_trigger}
        return [
            TriggerCheckpoint(
                task_executor_id=task_executor_id,
                checkpoint_id=checkpoint.checkpoint_id,
                timestamp_ms=self._now_ms(now),
                savepoint=kind is Kind.SAVEPOINT,
                attempt_ids=attempt_ids,
                splits={a: splits[a] for a in attempt_ids if splits[a]},
                unaligned=overtakes and not settings.aligned_timeout_s,
                aligned_timeout_ms=(
                    round(settings.aligned_timeout_s * 1000)
                    if overtakes and settings.aligned_timeout_s
                    else None
                ),
                at_least_once=settings.at_least_once and not aligns,
                stops=checkpoint.stops,
                savepoint_path=checkpoint.savepoint_path if checkpoint.stops else "",
                base=base,
            )
            for task_executor_id, attempt_ids in _by_task_executor(plan.to_trigger)
        ]

    def _base(self) -> int:
        """Returns the latest complete checkpoint of this job, or 0 if there is none."""
        latest = self.retained[-1] if self.retained else 0
        return latest if self.shared.knows(latest) else 0

    # ---- answers of the tasks

    def acknowledged(
        self, attempt_id: AttemptId, checkpoint_id: int, snapshot: Snapshot, now: float
    ) -> list[Command]:
        checkpoint = self._awaiting(attempt_id, checkpoint_id)
        if checkpoint is None:
            self.stale += 1
            if self._was_given_up(checkpoint_id):
                return _deletion(self.shared.unreachable(snapshot.files))
            # Either a repeated message, whose files are part of the checkpoint, or one so late that
            # its checkpoint is unknown: its files are deleted with other unreferenced ones.
            self._left_over, self._swept = True, False
            return []
        checkpoint.snapshots[attempt_id] = snapshot
        if missing := self.shared.missing(checkpoint_id, snapshot.shared_files):
            name = checkpoint.plan.to_acknowledge[attempt_id].name
            cause = f"task {name} refers to {missing[0]}, which no retained checkpoint has"
            return [*self._fail(checkpoint, cause, now), *self._begin_requested(now)]
        if not checkpoint.complete:
            return []
        torn = checkpoint.torn_union_list()
        if torn:
            cause = (
                f"{torn} has union list state, and only some of its subtasks have finished:"
                " checkpoints resume when all have"
            )
            return [*self._fail(checkpoint, cause, now), *self._begin_requested(now)]
        return self._store_next()

    def declined(
        self, attempt_id: AttemptId, checkpoint_id: int, cause: str, now: float
    ) -> list[Command]:
        checkpoint = self._awaiting(attempt_id, checkpoint_id)
        if checkpoint is None:
            self.stale += 1
            return []
        name = checkpoint.plan.to_acknowledge[attempt_id].name
        return [
            *self._fail(checkpoint, f"task {name} declined: {cause}", now, counts=True),
            *self._begin_requested(now),
        ]

    def _collecting(self) -> list[Checkpoint]:
        found = self._pending.values()
        return [c for c in found if c.state is CheckpointState.COLLECTING]

    def _unacknowledged(self) -> list[Checkpoint]:
        """Returns checkpoints that tasks still have to acknowledge. One that all have acknowledged
        may wait for an earlier one to be stored, for as long as the job store is unavailable.
        """
        return [checkpoint for checkpoint in self._collecting() if not checkpoint.complete]

    def _awaiting(self, attempt_id: AttemptId, checkpoint_id: int) -> Checkpoint | None:
        """Returns the checkpoint if it awaits this task's acknowledgement."""
        checkpoint = self._pending.get(checkpoint_id)
        if checkpoint is None or checkpoint.state is not CheckpointState.COLLECTING:
            return None
        return checkpoint if checkpoint.awaits(attempt_id) else None

    def _expire(self, checkpoint: Checkpoint, now: float) -> list[Command]:
        missing = [
            execution.name
            for attempt_id, execution in checkpoint.plan.to_acknowledge.items()
            if checkpoint.awaits(attempt_id)
        ]
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if missing[3:] else "")
        cause = (
            f"not acknowledged within {self._settings.timeout_s:g} s"
            f" (execution.checkpointing.timeout) by {shown}"
        )
        return self._fail(checkpoint, cause, now, counts=True)

    # ---- storing

    def stored(self, checkpoint_id: int, now: float) -> list[Command]:
        """The checkpoint's row is committed."""
        checkpoint = self._pending.pop(checkpoint_id)
        checkpoint.become(CheckpointState.COMPLETED)
        self._end(checkpoint, now)
        self.failed_in_a_row = 0
        self.completed += 1
        self._stopped = self._stopped or checkpoint.stops or checkpoint.drains
        self.last_completed = checkpoint
        self._count_rows(checkpoint)
        if checkpoint.kind is Kind.CHECKPOINT:
            unreachable = self.shared.completed(checkpoint_id, checkpoint.shared_files)
        else:
            unreachable = self.shared.given_up(checkpoint_id)
        commands = [*_notices(checkpoint, completed=True), *_answer(checkpoint)]
        for older in self.pending:
            if older.checkpoint_id < checkpoint_id and older.kind is Kind.CHECKPOINT:
                commands += self._fail(older, f"checkpoint {checkpoint_id} was complete first", now)
        commands += _deletion(unreachable)
        for subsumed in self._subsumed_by(checkpoint):
            self.retained.remove(subsumed)
            commands.append(DropCheckpoint(checkpoint_id=subsumed))
            commands += _deletion(self.shared.dropped(subsumed))
        if checkpoint.kind is Kind.CHECKPOINT:
            self.retained.append(checkpoint_id)
            if self._sweeps and not self._swept:
                self._swept = True
                commands.append(SweepSharedFiles(before=checkpoint_id, kept=self.shared.reachable))
        commands += [*self._store_next(), *self._begin_requested(now)]
        self._completed.stored(checkpoint_id, self._pending)
        return commands

    def _count_rows(self, checkpoint: Checkpoint) -> None:
        """Counts what the sources have read since the checkpoint that was complete before."""
        before, self._read = self._read, {}
        counted: Counter[VertexId] = Counter()
        for attempt_id, snapshot in checkpoint.snapshots.items():
            if snapshot.records_read is None:
                continue
            known = 0 if before is None else before.get(attempt_id, 0)
            # A savepoint that is stored late is older than the last complete checkpoint.
            self._read[attempt_id] = max(known, snapshot.records_read)
            execution = checkpoint.plan.to_acknowledge[attempt_id]
            vertex_id = execution.vertex.job_vertex.vertex.vertex_id
            counted[vertex_id] += self._read[attempt_id] - known
        if before is not None:
            checkpoint.records_read = dict(counted)

    def not_stored(
        self, checkpoint_id: int, problem: str, now: float, *, counts: bool = True
    ) -> list[Command]:
        """The checkpoint's row is not stored and never will be. `counts` is False if the job store
        is unavailable, which fails no job.
        """
        checkpoint = self._pending[checkpoint_id]
        self._completed.not_stored(checkpoint_id)
        return [
            *self._fail(checkpoint, f"it could not be stored: {problem}", now, counts=counts),
            *self._store_next(),
            *self._begin_requested(now),
        ]

    def _store_next(self) -> list[Command]:
        if not self.settled:
            return []
        for checkpoint in self._pending.values():
            if checkpoint.complete:
                checkpoint.become(CheckpointState.STORING)
                unsettled = frozenset(self._pending) if self._left_over else None
                self._left_over = False
                return [
                    StoreCheckpoint(
                        metadata=self._completed.storing(
                            checkpoint, self._now_ms(checkpoint.triggered_at)
                        ),
                        size_bytes=checkpoint.size_bytes,
                        subsumed=tuple(self._subsumed_by(checkpoint)),
                        savepoint_path=checkpoint.savepoint_path,
                        unsettled=unsettled,
                    )
                ]
        return []

    def _subsumed_by(self, checkpoint: Checkpoint) -> list[int]:
        """Returns the oldest checkpoints that exceed the retained number once this one is added."""
        if checkpoint.kind is Kind.SAVEPOINT:
            return []
        return self.retained[: max(0, len(self.retained) + 1 - self._settings.num_retained)]

    # ---- endings

    def _fail(
        self, checkpoint: Checkpoint, cause: str, now: float, *, counts: bool = False
    ) -> list[Command]:
        """With `counts`, counts towards the failures that the job tolerates. Savepoints never do,
        nor checkpoints to restart with a different parallelism.
        """
        del self._pending[checkpoint.checkpoint_id]
        checkpoint.become(CheckpointState.FAILED)
        checkpoint.failure = cause
        self._left_over = True
        self.failed += 1
        self._end(checkpoint, now)
        unreachable = self.shared.given_up(checkpoint.checkpoint_id)
        files = (path for snapshot in checkpoint.snapshots.values() for path in snapshot.files)
        if checkpoint.drains and self._running:
            self.failure = f"{checkpoint}, with which the job was to end, failed: {cause}"
        elif counts and checkpoint.kind is Kind.CHECKPOINT and not checkpoint.rescales:
            self.failed_in_a_row += 1
            if self.failed_in_a_row > self._settings.tolerable_failures:
                self.failure = f"{checkpoint} failed: {cause}"
        return [
            *_notices(checkpoint, completed=False),
            *_deletion(self.shared.unreachable(files)),
            *_deletion(unreachable),
            *_answer(checkpoint),
        ]

    def _was_given_up(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint failed. Also False if it is no longer known."""
        return any(
            ended.checkpoint_id == checkpoint_id and ended.state is CheckpointState.FAILED
            for ended in self.history
        )

    def _end(self, checkpoint: Checkpoint, now: float) -> None:
        checkpoint.ended_at = now
        if len(self.history) == _HISTORY:
            displaced = self.history[0]
            complete = displaced.state is CheckpointState.COMPLETED
            if complete and displaced.kind is Kind.SAVEPOINT:
                self.savepoints.append(displaced)
        self.history.append(checkpoint)
        if self._due is not None and not self._only_ends:
            self._due = max(self._due, now + self._settings.min_pause_s)


def _by_task_executor(
    executions: Iterable[Execution],
) -> list[tuple[TaskExecutorId, tuple[AttemptId, ...]]]:
    attempt_ids: dict[TaskExecutorId, list[AttemptId]] = {}
    for execution in executions:
        if execution.slot is not None:
            task_executor_id = execution.slot.task_executor_id
            attempt_ids.setdefault(task_executor_id, []).append(execution.attempt_id)
    return [(task_executor_id, tuple(of)) for task_executor_id, of in attempt_ids.items()]


def _notify(
    checkpoint_id: int, executions: Iterable[Execution], *, completed: bool, stops: bool = False
) -> list[Command]:
    return [
        NotifyCheckpoint(
            task_executor_id=task_executor_id,
            checkpoint_id=checkpoint_id,
            completed=completed,
            attempt_ids=attempt_ids,
            stops=stops,
        )
        for task_executor_id, attempt_ids in _by_task_executor(executions)
    ]


def _notices(checkpoint: Checkpoint, *, completed: bool) -> list[Command]:
    live = (e for e in checkpoint.plan.to_acknowledge.values() if not e.terminal)
    return _notify(checkpoint.checkpoint_id, live, completed=completed, stops=checkpoint.stops)


def _answer(checkpoint: Checkpoint) -> list[Command]:
    if not checkpoint.request:
        return []
    return [
        AnswerRequest(
            request=checkpoint.request,
            checkpoint_id=checkpoint.checkpoint_id,
            problem=checkpoint.failure,
        )
    ]


def _deletion(paths: list[str]) -> list[Command]:
    return [DropCheckpointFiles(paths=tuple(paths))] if paths else []


def _refusal(request: CheckpointRequested, cause: str) -> AnswerRequest:
    return AnswerRequest(request=request.request, problem=cause)

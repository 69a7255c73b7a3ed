"""Moves tasks away from TaskExecutors that are to stop, while all tasks keep running
(`firesteel stop-task-executor --drain`; decision 39).

    requested ──slots elsewhere, all tasks run──▶ checkpoint ──complete, or failed──▶ moved

No slot is released before the job has as many slots elsewhere, and only the rows since the
checkpoint just taken are repeated. The tasks restart with their regions from the latest checkpoint;
this is not a failure and uses no restart attempt. A job that takes no checkpoints would start from
the beginning: its tasks run to their end and later tasks run elsewhere, unless the move is forced.
A forced move waits neither for slots nor for stored results. If the TaskExecutor can only be
replaced after its end, a job that takes checkpoints moves without slots elsewhere.

The core owns this object and calls `advance` after every event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.common.ids import TaskExecutorId
from firesteel.common.states import ExecutionState
from jobmaster.core import events
from jobmaster.core.commands import AnswerRequest, Command, log
from jobmaster.core.job_context import JobContext
from jobmaster.core.phases import Phase, Step
from jobmaster.core.slots.slot import Slot


@dataclass(slots=True)
class _Move:
    forced: bool
    without_slots: bool
    reserved: bool = False  # an equal number of slots elsewhere is required
    request: str = ""  # of the awaited checkpoint
    ready: bool = False  # nothing is awaited


class Vacating:
    def __init__(self, job: JobContext) -> None:
        self._job = job
        self._moves: dict[TaskExecutorId, _Move] = {}

    def asked(self, event: events.VacateRequested, now: float) -> None:
        """Starts a move. Called again on every connection to the ResourceManager while it is
        wanted.
        """
        new = _Move(event.forced, event.without_slots)
        move = self._moves.setdefault(event.task_executor_id, new)
        move.forced |= event.forced
        move.without_slots |= event.without_slots
        self._job.pool.vacate(event.task_executor_id, now)

    def ended(self, task_executor_id: TaskExecutorId) -> None:
        """Ends a move: the TaskExecutor has stopped, or is no longer to stop. Moved tasks stay."""
        if self._moves.pop(task_executor_id, None) is not None:
            self._job.pool.keep(task_executor_id)
            if not self._moves:
                self._job.pool.reserve_nothing()

    def forget(self) -> None:
        """Ends all moves: a new ResourceManager does not know of any drain."""
        for task_executor_id in tuple(self._moves):
            self.ended(task_executor_id)

    def advance(self, phase: Phase, now: float) -> Step:
        """Takes the next step that the facts allow."""
        steps: list[Command] = []
        for task_executor_id, move in self._moves.items():
            checkpoints = self._job.checkpoints
            if not phase.runs or checkpoints.ends_the_job or checkpoints.held:
                break
            pool = self._job.pool
            slots = [pool.slots[each] for each in pool.slots_of(task_executor_id)]
            if not move.ready:
                steps += self._prepare(move, slots, now)
            if move.ready:
                phase, moved = self._move(task_executor_id, move, slots, phase, now)
                steps += moved
        return phase, steps

    def take_answers(self, commands: list[Command]) -> list[Command]:
        """Returns the commands without the answers to this object's requests for checkpoints. Marks
        moves as ready once their checkpoints end; a failed one does not prevent the move.
        """
        awaited = {move.request: move for move in self._moves.values() if move.request}
        if not awaited:
            return commands
        others: list[Command] = []
        for command in commands:
            if not isinstance(command, AnswerRequest) or command.request not in awaited:
                others.append(command)
                continue
            move = awaited[command.request]
            move.request, move.ready = "", True
            if command.problem:
                text = "no checkpoint before tasks move"
                others.append(log("warning", text, reason=command.problem))
        return others

    def _prepare(self, move: _Move, slots: Sequence[Slot], now: float) -> list[Command]:
        job = self._job
        takes_checkpoints = job.checkpoints.enabled
        if move.request or not slots or not (takes_checkpoints or move.forced):
            return []
        if not move.forced:
            if not move.reserved and not move.without_slots:
                move.reserved = True
                job.pool.reserve(slots)
            if job.pool.reserved or not job.all_run:
                return []
        if not takes_checkpoints or not job.all_run:
            move.ready = True
            return []
        move.request = job.ids.next()
        request = events.CheckpointRequested(request=move.request)
        return self.take_answers(job.checkpoints.request(request, now))

    def _move(
        self,
        task_executor_id: TaskExecutorId,
        move: _Move,
        slots: Sequence[Slot],
        phase: Phase,
        now: float,
    ) -> Step:
        job = self._job
        leaving = [
            execution.vertex
            for execution in job.tasks.deployed_in(slots)
            if execution.state is not ExecutionState.CANCELING
        ]
        lost = job.partitions.kept_by(task_executor_id) if move.forced else ()
        cause = f"TaskExecutor {task_executor_id} is to stop"
        return phase.move_tasks(job, leaving, lost, cause, now)

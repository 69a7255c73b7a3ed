"""Changes the parallelism of the job's vertices, while all tasks keep running until the last step
(`firesteel scale`; decision 60).

    SLOTS ──all there, all tasks run──▶ CHECKPOINT ──complete──▶ STORING ──stored──▶ RESTARTING

Until the new parallelism is stored, any problem leaves the job as it is. Then all tasks restart
from the checkpoint, which is not a failure and uses no restart attempt. If a task fails before all
have run, the previous parallelism is stored and restored (`Failing.ended`).

The core owns this object and calls `advance` after every event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from firesteel.common.checkpoints.fits import CannotRestore, check_fits
from firesteel.common.ids import VertexId
from jobmaster.core import events
from jobmaster.core.commands import AnswerRequest, AnswerRescale, Command, log
from jobmaster.core.execution_graph import slot_profiles
from jobmaster.core.job_context import JobContext
from jobmaster.core.parallelism import CannotRescale, planned
from jobmaster.core.phases import Phase, Step

_NO_CHECKPOINTS = (
    "the job takes no checkpoints, so a restart would lose its state and read its sources again."
    " Run it with execution.checkpointing.interval and execution.checkpointing.dir, or cancel it"
    " and run it with another parallelism (-p)"
)


class _Stage(Enum):
    SLOTS = auto()
    CHECKPOINT = auto()
    STORING = auto()
    RESTARTING = auto()


@dataclass(slots=True)
class _Rescale:
    request: str
    before: dict[VertexId, int]
    after: dict[VertexId, int]
    deadline: float  # for the slots
    timeout_s: float
    stage: _Stage = _Stage.SLOTS
    checkpoint: AnswerRequest | None = None  # the outcome; None: not known yet
    version: int = 0  # that it has stored
    problem: str = ""  # of the store


class Rescaling:
    def __init__(self, job: JobContext, slot_timeout_s: float) -> None:
        """`slot_timeout_s` is slot.request.timeout."""
        self._job = job
        self._slot_timeout_s = slot_timeout_s
        self._rescale: _Rescale | None = None

    # ---- events

    def requested(self, event: events.RescaleRequested, phase: Phase, now: float) -> list[Command]:
        job = self._job
        before = {v.vertex.vertex_id: v.parallelism for v in job.graph.vertices}
        try:
            after = planned(job.graph.job_graph, event.parallelism, event.by_vertex)
        except CannotRescale as problem:
            return [AnswerRescale(request=event.request, problem=str(problem), invalid=True)]
        if why := self._impossible(phase):
            return [AnswerRescale(request=event.request, problem=why)]
        if after == before:
            return [AnswerRescale(request=event.request, before=before, after=after)]
        timeout_s = event.timeout_s or self._slot_timeout_s
        self._rescale = _Rescale(event.request, before, after, now + timeout_s, timeout_s)
        job.pool.keeps_idle = True
        job.slot_wait.explain("")
        return [log("info", "the job is to be rescaled", parallelism=self._changes())]

    def _impossible(self, phase: Phase) -> str:
        job = self._job
        if not job.checkpoints.enabled:
            return _NO_CHECKPOINTS
        if self._rescale is not None or job.parallelism.unproven:
            return "its parallelism is being changed already; try again when that has ended"
        if job.checkpoints.ends_the_job:
            return "it is being stopped with a savepoint"
        if job.pool.vacates:
            return "a TaskExecutor with slots of the job is being drained; try again afterwards"
        if not phase.runs:
            return f"it is {job.graph.status.name}, and only a running job can be rescaled"
        return ""

    def give_way(self, now: float) -> list[Command]:
        """A TaskExecutor is to stop, which needs slots elsewhere: ends what has not been stored."""
        rescale = self._rescale
        if rescale is None or rescale.stage not in (_Stage.SLOTS, _Stage.CHECKPOINT):
            return []
        return self._end(now, "a TaskExecutor is being drained; try again afterwards")

    def stored(self) -> None:
        self._job.parallelism.was_stored()

    def not_stored(self, problem: str) -> None:
        self._job.parallelism.was_not_stored()
        if self._rescale is not None:
            self._rescale.problem = problem

    def next_deadline(self) -> float | None:
        rescale = self._rescale
        return rescale.deadline if rescale and rescale.stage is _Stage.SLOTS else None

    def take_answers(self, commands: list[Command]) -> list[Command]:
        """Returns the commands without the answer to this object's request for a checkpoint."""
        rescale = self._rescale
        if rescale is None or rescale.stage is not _Stage.CHECKPOINT:
            return commands
        others: list[Command] = []
        for command in commands:
            if isinstance(command, AnswerRequest) and command.request == rescale.request:
                rescale.checkpoint = command
            else:
                others.append(command)
        return others

    # ---- steps

    def advance(self, phase: Phase, now: float) -> Step:
        """Takes the next step that the facts allow."""
        rescale, job = self._rescale, self._job
        if rescale is None:
            return phase, []
        if job.graph.status.terminal:
            return phase, self._end(now, f"the job is {job.graph.status.name}")
        match rescale.stage:
            case _Stage.SLOTS:
                return phase, self._wait_for_slots(rescale, phase, now)
            case _Stage.CHECKPOINT:
                return phase, self._wait_for_checkpoint(rescale, phase, now)
            case _Stage.STORING if not job.parallelism.settled:
                return phase, []
            case _Stage.STORING if job.parallelism.stored.version != rescale.version:
                why = f"the job store did not accept the new parallelism: {rescale.problem}"
                return phase, self._end(now, why)
            case _Stage.STORING:
                rescale.stage = _Stage.RESTARTING
                return phase.rescale(job, now)
            case _Stage.RESTARTING:
                return phase, self._wait_for_tasks(rescale, phase, now)

    def _wait_for_slots(self, rescale: _Rescale, phase: Phase, now: float) -> list[Command]:
        job, pool = self._job, self._job.pool
        if why := self._interrupted(phase):
            return self._end(now, why)
        target = job.graph.job_graph.with_parallelism(rescale.after)
        pool.reserve_up_to(profile for _, profile in slot_profiles(target.vertices))
        if pool.reserved or not job.all_run:
            return [] if now < rescale.deadline else self._end(now, self._missing(rescale))
        rescale.stage = _Stage.CHECKPOINT
        request = events.CheckpointRequested(request=rescale.request, rescales=True)
        begun = self.take_answers(job.checkpoints.request(request, now))
        return [*begun, *self._wait_for_checkpoint(rescale, phase, now)]

    def _missing(self, rescale: _Rescale) -> str:
        job = self._job
        within = f"within {rescale.timeout_s:g} s"
        if not job.pool.reserved:
            return f"not all tasks of the job ran {within}"
        missing, shortage = job.pool.reserved, job.slot_wait.shortage
        return (
            f"{missing} more slot{'s' if missing != 1 else ''} did not become available {within}"
            f"{f' ({shortage})' if shortage else ''}. Add slots, or request a lower parallelism"
        )

    def _wait_for_checkpoint(self, rescale: _Rescale, phase: Phase, now: float) -> list[Command]:
        job, outcome = self._job, rescale.checkpoint
        if outcome is None:
            return []
        if outcome.problem:
            return self._end(now, f"no checkpoint could be taken for it: {outcome.problem}")
        if why := self._interrupted(phase):
            return self._end(now, why)
        latest = job.completed.latest
        assert latest is not None and latest.checkpoint_id == outcome.checkpoint_id, str(job.graph)
        try:
            check_fits(job.graph.job_graph.with_parallelism(rescale.after), latest.operators)
        except CannotRestore as problem:
            return self._end(now, str(problem))
        rescale.stage = _Stage.STORING
        store = job.parallelism.store(rescale.after)
        rescale.version = store.version
        return [store]

    def _wait_for_tasks(self, rescale: _Rescale, phase: Phase, now: float) -> list[Command]:
        parallelism = self._job.parallelism
        if parallelism.stored.version != rescale.version:
            error = self._job.exceptions.latest
            why = error.summary if error is not None else "its tasks did not start"
            return self._end(
                now,
                f"its tasks failed with the new parallelism, and the old one is restored: {why}",
            )
        if parallelism.applied.version != rescale.version:
            return []
        if not phase.runs or not self._job.all_run:
            return []
        parallelism.proved()
        return self._end(now)

    def _interrupted(self, phase: Phase) -> str:
        """Returns why the tasks cannot be restarted now; empty if they can."""
        job = self._job
        if job.checkpoints.ends_the_job:
            return "the job is being stopped with a savepoint"
        if not phase.runs:
            error = job.exceptions.latest
            cause = f": {error.summary}" if error is not None else ""
            return f"the job is {job.graph.status.name}{cause}"
        return ""

    def _end(self, now: float, problem: str = "") -> list[Command]:
        """Answers the caller and returns the slots that the job does not need."""
        rescale, job = self._rescale, self._job
        assert rescale is not None
        changes = self._changes()
        self._rescale = None
        job.pool.keeps_idle = False
        ended = job.checkpoints.release(now)
        if rescale.stage is _Stage.SLOTS:
            job.pool.reserve_nothing()
        if not job.graph.status.terminal and job.all_run:  # otherwise a restart may use them
            surplus = job.pool.release_all_idle(now)
            # Lowered first, so that the ResourceManager does not replace the slots.
            ended += [*job.declare(), *job.free(surplus, "the job was rescaled")]
        outcome = log("info", "the job was rescaled", parallelism=changes)
        if problem:
            outcome = log("warning", "the job was not rescaled", parallelism=changes, cause=problem)
        answer = AnswerRescale(
            request=rescale.request, before=rescale.before, after=rescale.after, problem=problem
        )
        return [*ended, outcome, answer]

    def _changes(self) -> str:
        rescale = self._rescale
        assert rescale is not None
        return ", ".join(
            f"{vertex.name}: {rescale.before[vertex.vertex_id]} -> {after}"
            for vertex in self._job.graph.job_graph.vertices
            if (after := rescale.after[vertex.vertex_id]) != rescale.before[vertex.vertex_id]
        )

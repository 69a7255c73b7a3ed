"""Changes the parallelism of the job's vertices, while all tasks keep running until the last step
(`firesteel scale`; decision 60).

    SLOTS ──all there, all tasks run──▶ CHECKPOINT ──complete──▶ STORING ──stored──▶ RESTARTING

Until the new parallelism is stored, any problem leaves the job as it is. Then all tasks restart
from the checkpoint, which is not a failure and uses no restart attempt. If a task fails before all
have run, the previous parallelism is stored and restored (`Failing.ended`).

A Spark program changes its executors without a checkpoint and a restart (`resizes_in_place`).

With `scheduler-mode` adaptive or reactive, it also lets the job follow the slots that there are,
within its bounds: a running job as above, and one that waits for slots without a new checkpoint.

The core owns this object and calls `advance` after every event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from firesteel.common.checkpoints.fits import CannotRestore, check_fits
from firesteel.common.ids import VertexId
from firesteel.common.rescales import Rescale, StageEntered, TriggerCause
from jobmaster.core import events
from jobmaster.core.commands import AnswerRequest, AnswerRescale, Command, log
from jobmaster.core.elasticity import Elasticity, ElasticSettings, fitted
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
    lower: Mapping[VertexId, int]
    upper: Mapping[VertexId, int]
    stage: _Stage = _Stage.SLOTS
    checkpoint_request: str = ""
    checkpoint: AnswerRequest | None = None  # the outcome; None: not known yet
    version: int = 0  # that it has stored
    problem: str = ""  # of the store


class Rescaling:
    def __init__(self, job: JobContext, elastic: ElasticSettings, slot_timeout_s: float) -> None:
        """`slot_timeout_s` is slot.request.timeout."""
        self._job = job
        self._elastic = elastic
        self._elasticity = Elasticity(elastic)
        # The last result, for the identities of the bounds and the slots.
        self._last_fit: tuple[object, dict[VertexId, int] | None] | None = None
        job.pool.keeps_idle = elastic.enabled
        self._slot_timeout_s = slot_timeout_s
        self._rescale: _Rescale | None = None

    # ---- events

    def requested(self, event: events.RescaleRequested, phase: Phase, now: float) -> list[Command]:
        job = self._job
        graph, stored = job.graph.job_graph, job.parallelism.stored
        before = dict(job.parallelism.applied.by_vertex)
        try:
            after = planned(graph, event.parallelism, event.by_vertex)
            lower = self._lower_bounds(event, after)
        except CannotRescale as problem:
            return [AnswerRescale(request=event.request, problem=str(problem), invalid=True)]
        if why := self._impossible(phase):
            return [AnswerRescale(request=event.request, problem=why)]
        if event.dry_run or (after == before and (lower, after) == (stored.lower, stored.upper)):
            return [self._answer_unchanged(event.request, before, after)]
        elastic = lower != after
        timeout_s = self._elastic.fewer_after_s if elastic else self._slot_timeout_s
        timeout_s = event.timeout_s or timeout_s
        rescale = _Rescale(
            event.request, before, after, now + timeout_s, timeout_s, lower, dict(after)
        )
        self._start(rescale, TriggerCause.UPDATE_REQUIREMENT, now, event.reason)
        job.pool.keeps_idle = True
        job.pool.reserve_nothing()
        job.slot_wait.explain("")
        because = {"reason": event.reason} if event.reason else {}
        return [log("info", "the job is to be rescaled", parallelism=self._changes(), **because)]

    def _answer_unchanged(
        self, request: str, before: Mapping[VertexId, int], after: Mapping[VertexId, int]
    ) -> AnswerRescale:
        """Nothing changes; the answer says what a change would need."""
        job = self._job
        target = job.graph.job_graph.with_parallelism(after)
        missing = Counter(profile for _, profile in slot_profiles(target.vertices))
        return AnswerRescale(
            request=request,
            before=before,
            after=after,
            tasks=0 if after == before or job.resizes_in_place else len(job.graph.attempts),
            missing_slots=(missing - job.pool.requirements_held).total(),
        )

    def _start(
        self, rescale: _Rescale, trigger: TriggerCause, now: float, reason: str = ""
    ) -> None:
        job = self._job
        self._rescale = rescale
        record = Rescale(
            rescale_id=rescale.request or job.ids.next(),
            number=job.rescales.next_number,
            trigger=trigger,
            before=_plain(rescale.before),
            after=_plain(rescale.after),
            lower=_plain(rescale.lower),
            upper=_plain(rescale.upper),
            stages=(StageEntered(rescale.stage.name, job.now_ms(now)),),
            reason=reason,
        )
        job.rescales.started(record)

    def _enter(self, rescale: _Rescale, stage: _Stage, now: float) -> None:
        rescale.stage = stage
        self._job.rescales.entered(stage.name, rescale.after, self._job.now_ms(now))

    def _lower_bounds(
        self, event: events.RescaleRequested, upper: Mapping[VertexId, int]
    ) -> dict[VertexId, int]:
        """Raises CannotRescale."""
        graph, lower = self._job.graph.job_graph, dict(upper)
        if event.lower_bounds:
            lower = planned(graph, 0, event.lower_bounds)
        elif self._elastic.enabled:
            stored = self._job.parallelism.stored.lower
            lower = {v: min(stored[v], bound) for v, bound in upper.items()}
        for vertex in graph.vertices:
            low, high = lower[vertex.vertex_id], upper[vertex.vertex_id]
            if low > high:
                raise CannotRescale(
                    f"{vertex.name!r} has the lower bound {low}, above its upper bound {high}"
                )
        return lower

    def _impossible(self, phase: Phase) -> str:
        job = self._job
        if not job.checkpoints.enabled and not job.resizes_in_place:
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
        if rescale is None:
            return self._elasticity.deadline()
        return rescale.deadline if rescale.stage is _Stage.SLOTS else None

    def take_answers(self, commands: list[Command]) -> list[Command]:
        """Returns the commands without the answer to this object's request for a checkpoint."""
        rescale = self._rescale
        if rescale is None or rescale.stage is not _Stage.CHECKPOINT:
            return commands
        others: list[Command] = []
        for command in commands:
            asked = rescale.checkpoint_request
            if isinstance(command, AnswerRequest) and command.request == asked:
                rescale.checkpoint = command
            else:
                others.append(command)
        return others

    # ---- steps

    def advance(self, phase: Phase, now: float) -> Step:
        """Takes the next step that the facts allow."""
        under_way = self._rescale is not None
        following, commands = self._step(phase, now)
        if under_way and self._rescale is None and following is phase:
            commands += self._follow_slots(phase, now)
        return following, commands

    def _step(self, phase: Phase, now: float) -> Step:
        rescale, job = self._rescale, self._job
        if rescale is None:
            return phase, self._follow_slots(phase, now)
        if job.graph.status.terminal:
            return phase, self._end(now, f"the job is {job.graph.status.name}")
        match rescale.stage:
            case _Stage.SLOTS:
                return phase, self._wait_for_slots(rescale, phase, now)
            case _Stage.CHECKPOINT:
                return phase, self._wait_for_checkpoint(rescale, phase, now)
            case _Stage.STORING if not job.parallelism.settled:
                return phase, []
            case _Stage.STORING if rescale.problem:
                why = f"the job store did not accept the new parallelism: {rescale.problem}"
                return phase, self._end(now, why)
            case _Stage.STORING if job.parallelism.applied.version == rescale.version:
                return phase, self._end(now)  # only the bounds have changed
            case _Stage.STORING:
                self._elasticity.changed(now)
                self._enter(rescale, _Stage.RESTARTING, now)
                return phase.rescale(job, now)
            case _Stage.RESTARTING if self._not_applied(rescale) and (phase.runs or phase.waits):
                return phase.rescale(job, now)  # slots have come before it was stored
            case _Stage.RESTARTING:
                return phase, self._wait_for_tasks(rescale, phase, now)

    def _not_applied(self, rescale: _Rescale) -> bool:
        parallelism = self._job.parallelism
        return parallelism.stored.version == rescale.version != parallelism.applied.version

    def _wait_for_slots(self, rescale: _Rescale, phase: Phase, now: float) -> list[Command]:
        job, pool = self._job, self._job.pool
        if why := self._interrupted(phase):
            return self._end(now, why)
        target = job.graph.job_graph.with_parallelism(rescale.after)
        pool.reserve_up_to(profile for _, profile in slot_profiles(target.vertices))
        if pool.reserved or not job.all_run:
            if now < rescale.deadline:
                return []
            fit = self._fitted(rescale.lower, rescale.upper) if job.all_run else None
            if fit is None:
                return self._end(now, self._missing(rescale))
            rescale.after = fit
            pool.reserve_nothing()
        if job.resizes_in_place or rescale.after == job.parallelism.applied.by_vertex:
            return self._store(rescale, now)
        self._enter(rescale, _Stage.CHECKPOINT, now)
        rescale.checkpoint_request = rescale.request or job.ids.next()
        request = events.CheckpointRequested(request=rescale.checkpoint_request, rescales=True)
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
        return self._store(rescale, now)

    def _store(self, rescale: _Rescale, now: float) -> list[Command]:
        self._enter(rescale, _Stage.STORING, now)
        store = self._job.parallelism.store(rescale.after, rescale.lower, rescale.upper)
        rescale.version = store.version
        return [store]

    def _fitted(
        self, lower: Mapping[VertexId, int], upper: Mapping[VertexId, int]
    ) -> dict[VertexId, int] | None:
        job, held = self._job, self._job.pool.requirements_held
        key = (id(lower), id(upper), frozenset(held.items()))
        if self._last_fit is None or self._last_fit[0] != key:
            self._last_fit = key, fitted(job.graph.job_graph, lower, upper, held)
        return self._last_fit[1]

    def _follow_slots(self, phase: Phase, now: float) -> list[Command]:
        """Changes the parallelism of a job that may follow its slots, if they have changed."""
        job, pool, stored = self._job, self._job.pool, self._job.parallelism.stored
        runs = phase.runs and job.all_run and job.checkpoints.enabled
        waits = phase.waits and job.lacks_slots
        if (
            not self._elastic.enabled
            or not (runs or waits)
            or not job.parallelism.settled
            or job.checkpoints.ends_the_job
            or not job.checkpoints.settled
            or pool.vacates
        ):
            self._elasticity.forget()
            return []
        if runs:
            highest = job.graph.job_graph.with_parallelism(stored.upper)
            pool.reserve_up_to(profile for _, profile in slot_profiles(highest.vertices))
        fit = self._fitted(stored.lower, stored.upper)
        before = dict(job.parallelism.applied.by_vertex)
        if fit is None or not self._elasticity.may_change(
            possible=sum(fit.values()),
            current=sum(before.values()),
            most=sum(stored.upper.values()),
            runs=runs,
            now=now,
        ):
            return []
        if waits and not self._restorable(fit):
            return []
        pool.reserve_nothing()
        rescale = _Rescale("", before, fit, now, 0.0, stored.lower, stored.upper)
        cause = TriggerCause.NEW_RESOURCE_AVAILABLE if runs else TriggerCause.RECOVERABLE_FAILOVER
        self._start(rescale, cause, now)
        text = "the job follows the slots that there are"
        followed = log("info", text, parallelism=self._changes())
        return [followed, *(self._store(rescale, now) if waits else ())]

    def _restorable(self, by_vertex: Mapping[VertexId, int]) -> bool:
        """Whether the latest checkpoint, if there is one, can be restored with this parallelism."""
        latest = self._job.completed.latest
        if latest is None:
            return True
        try:
            check_fits(self._job.graph.job_graph.with_parallelism(by_vertex), latest.operators)
        except CannotRestore:
            return False
        return True

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
        job.rescales.ended(job.graph.status, problem, job.now_ms(now))
        job.pool.keeps_idle = self._elastic.enabled
        self._elasticity.changed(now)
        ended = job.checkpoints.release(now)
        if not job.pool.vacates:
            job.pool.reserve_nothing()
        parallelism = job.parallelism
        highest = parallelism.applied.by_vertex == parallelism.stored.upper
        follows = self._elastic.enabled and not highest
        if not job.graph.status.terminal and job.all_run and not follows:
            # Otherwise a restart may use them, or the job in a moment.
            surplus = job.pool.release_all_idle(now)
            # Lowered first, so that the ResourceManager does not replace the slots.
            ended += [*job.declare(), *job.free(surplus, "the job was rescaled")]
        outcome = log("info", "the job was rescaled", parallelism=changes)
        if problem:
            outcome = log("warning", "the job was not rescaled", parallelism=changes, cause=problem)
        if not rescale.request:
            return [*ended, outcome]
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


def _plain(by_vertex: Mapping[VertexId, int]) -> dict[str, int]:
    return {str(vertex_id): parallelism for vertex_id, parallelism in by_vertex.items()}

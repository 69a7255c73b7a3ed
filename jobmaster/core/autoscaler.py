"""Decides which parallelism the vertices of a job need, from their load (`job.autoscaler.enabled`).

A vertex that is busy for half of the time could process twice its records: this rate is its
capacity. A source needs capacity for the records that arrive, and for its backlog within the
catch-up duration; other vertices in proportion to their inputs. A source without a known backlog
needs capacity for the records that it reads. The parallelism changes if the utilisation leaves a
band around its target. These rules prevent oscillation:

* After a change, nothing is measured until the job has been stable for a while.
* A vertex gets fewer subtasks only once fewer have sufficed throughout the scale-down interval.
* A vertex that did not become faster with more subtasks gets no more of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from firesteel.common.ids import VertexId
from firesteel.common.job_graph import JobGraph, JobVertex, Scaling
from firesteel.common.rescales import Assessment
from jobmaster.core.parallelism import bound_together

_IDLE = 0.01  # the least busy share from which a capacity can be computed
_PRESSED = 0.05  # the least back-pressure that is mentioned
_FEW_SPLITS = 4  # that were assigned in the window; with fewer, their size is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSettings:
    enabled: bool = True  # otherwise it only measures
    dry_run: bool = False
    utilization: float = 0.7
    boundary: float = 0.2
    window_s: float = 300.0  # of measurements
    stabilization_s: float = 120.0  # after a change, until the next measurement
    scale_down_s: float = 3600.0
    catch_up_s: float = 1800.0
    least: int = 1  # subtasks of a vertex
    most: int = 200
    effectiveness: float = 0.1  # the least share of the expected gain

    @property
    def acts(self) -> bool:
        return self.enabled and not self.dry_run


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexLoad:
    """The load of a vertex in the last seconds."""

    records_per_s: float  # received; of sources: read
    busy: float  # share of time, from 0 to 1
    back_pressured: float = 0.0  # as above
    pending: float | None = None  # records that have arrived and were not read; None: not known
    # Some sources know splits instead: those to be assigned, and those assigned since the start.
    pending_splits: int | None = None
    assigned_splits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    by_vertex: Mapping[VertexId, int]  # those that change
    reasons: tuple[str, ...]  # a sentence per vertex


@dataclass(frozen=True, slots=True)
class _Measured:
    """Means over the window."""

    seconds: float
    rate: float
    busy: float
    back_pressured: float
    backlog: float | None = None  # records
    growth: float = 0.0  # of the backlog, in records per second

    @property
    def capacity(self) -> float:
        return self.rate / self.busy if self.busy >= _IDLE else 0.0


@dataclass(frozen=True, slots=True)
class _Trial:
    """A vertex that got more subtasks."""

    before: int
    after: int
    capacity: float


class _Demand(NamedTuple):
    """The demand for a vertex as multiples of its measured rate."""

    factor: float = 1.0  # to keep up
    catch_up: float = 0.0  # in addition, for the backlogs of its sources
    hidden: float = 0.0  # back-pressure of its sources whose backlog is not known


class Autoscaler:
    """Times are in seconds of any clock. `observe` is called every few seconds."""

    def __init__(self, settings: AutoscalerSettings, graph: JobGraph) -> None:
        self._settings = settings
        self._graph = graph
        self._samples: deque[tuple[float, Mapping[VertexId, VertexLoad]]] = deque()
        self._parallelism: dict[VertexId, int] = {}
        self._since = -math.inf  # the last change
        self._needed: dict[VertexId, deque[tuple[float, int]]] = {}
        self._trials: dict[VertexId, _Trial] = {}
        # The parallelism beyond which nothing is gained.
        self._ineffective: dict[VertexId, int] = {}

    def observe(
        self,
        loads: Mapping[VertexId, VertexLoad],
        parallelism: Mapping[VertexId, int],
        now: float,
    ) -> Decision | None:
        """Takes a measurement of all vertices of the running job; returns what to change."""
        if dict(parallelism) != self._parallelism:
            first = not self._parallelism
            self._parallelism = dict(parallelism)
            self._samples.clear()
            self._since = -math.inf if first else now
        if now < self._since + self._settings.stabilization_s:
            return None
        self._samples.append((now, loads))
        if now - self._samples[0][0] < self._settings.window_s:
            return None
        while now - self._samples[1][0] >= self._settings.window_s:  # they cover the window
            self._samples.popleft()
        return self._decided(now)

    def interrupted(self) -> None:
        """The job does not run: measurements start again."""
        self._samples.clear()

    def explain(self, now: float) -> tuple[Assessment, ...]:
        """Returns its conclusions from the measurements so far, which may cover less than the
        window.
        """
        return tuple(
            replace(each, decided=each.decided and max(other.decided for other in found))
            for _, found in self._assessed(now)
            for each in found
        )

    # ---- inside

    def _decided(self, now: float) -> Decision | None:
        changes: dict[VertexId, int] = {}
        reasons: list[str] = []
        found = [each for _, of_group in self._assessed(now) for each in of_group if each.wanted]
        for each in found:
            self._judge(each)
            self._remember(each, now)
        for members, assessments in self._assessed(now):
            best = max(assessments, key=lambda each: each.decided)
            if best.decided in (0, best.parallelism):
                continue
            changes |= {vertex.vertex_id: best.decided for vertex in members}
            reasons.append(best.reason(self._settings.utilization))
        if not changes:
            return None
        for each in found if self._settings.acts else ():
            if (after := changes.get(each.vertex_id, 0)) > each.parallelism:
                self._trials[each.vertex_id] = _Trial(each.parallelism, after, each.capacity)
        return Decision(by_vertex=changes, reasons=tuple(reasons))

    def _assessed(self, now: float) -> list[tuple[Sequence[JobVertex], list[Assessment]]]:
        """Returns the assessments in groups that change together."""
        measured = {
            vertex.vertex_id: found
            for vertex in self._graph.vertices
            if (found := self._mean(vertex.vertex_id)) is not None
        }
        demands = self._demands(measured)
        return [
            (
                members,
                [
                    self._assess(vertex, members, measured.get(vertex.vertex_id), demands, now)
                    for vertex in members
                ],
            )
            for members in bound_together(self._graph)
        ]

    def _mean(self, vertex_id: VertexId) -> _Measured | None:
        found = [(at, of[vertex_id]) for at, of in self._samples if vertex_id in of]
        if len(found) < 2:
            return None
        (start, first), (end, last) = found[0], found[-1]
        rate = fmean(load.records_per_s for _, load in found)
        backlog, growth = _backlog(first, last, rate, end - start)
        return _Measured(
            end - start,
            rate,
            fmean(load.busy for _, load in found),
            fmean(load.back_pressured for _, load in found),
            backlog,
            growth,
        )

    def _demands(self, measured: Mapping[VertexId, _Measured]) -> dict[VertexId, _Demand]:
        inputs: dict[VertexId, list[VertexId]] = {}
        for edge in self._graph.edges:
            inputs.setdefault(edge.target_vertex_id, []).append(edge.source_vertex_id)
        demands: dict[VertexId, _Demand] = {}
        for vertex in self._graph.vertices:  # in topological order
            v = vertex.vertex_id
            found = measured.get(v)
            if found is None:
                continue
            if not found.rate:
                demands[v] = _Demand()
            elif v not in inputs:
                hidden = found.back_pressured if found.backlog is None else 0.0
                demands[v] = _Demand(
                    max(0.0, found.rate + found.growth) / found.rate,
                    (found.backlog or 0.0) / self._settings.catch_up_s / found.rate,
                    hidden,
                )
            else:
                feeding = [(measured[i].rate, demands[i]) for i in inputs[v] if i in demands]
                if total := sum(rate for rate, _ in feeding):
                    demands[v] = _Demand(
                        sum(rate * each.factor for rate, each in feeding) / total,
                        sum(rate * each.catch_up for rate, each in feeding) / total,
                        max(each.hidden for _, each in feeding),
                    )
        return demands

    def _assess(
        self,
        vertex: JobVertex,
        members: Sequence[JobVertex],
        found: _Measured | None,
        demands: Mapping[VertexId, _Demand],
        now: float,
    ) -> Assessment:
        v, settings = vertex.vertex_id, self._settings
        current = self._parallelism.get(v, vertex.parallelism)
        unknown = Assessment(vertex_id=v, name=vertex.name, parallelism=current)
        if found is None or v not in demands:
            return replace(unknown, note="there are no measurements of it yet")
        demand = demands[v]
        needed = found.busy * (demand.factor / settings.utilization + demand.catch_up)
        assessment = replace(
            unknown,
            measured_s=found.seconds,
            busy=found.busy,
            rate=found.rate,
            capacity=found.capacity,
            demand=found.rate * demand.factor,
            backlog=found.backlog,
            catch_up=found.rate * demand.catch_up,
            back_pressured=found.back_pressured,
            target=max(1, math.ceil(current * needed - 1e-6)),
            decided=current,
        )
        if why := _unchangeable(vertex, members):
            return replace(assessment, note=why)
        most = min(settings.most, *(member.max_parallelism for member in members))
        return self._ruled(assessment, demand, most, now)

    def _ruled(self, found: Assessment, demand: _Demand, most: int, now: float) -> Assessment:
        """Adds the decision that all rules allow."""
        settings, current = self._settings, found.parallelism
        steady, note = self._suffices(found, demand), ""
        number = max(min(current if steady else found.target, most), min(settings.least, most))
        if not steady and number != found.target:
            note = f"its parallelism is limited to {settings.least} to {most}"
        wanted = number
        if number < current:
            history = self._needed.get(found.vertex_id, ())
            known_s = now - history[0][0] if history else 0.0
            number = min(current, max([number, *(n for _, n in history)]))
            if known_s < settings.scale_down_s - settings.window_s:
                number = current
            if number == current:
                note = f"fewer subtasks must have sufficed for {settings.scale_down_s:g} s before"
        elif number > current >= self._ineffective.get(found.vertex_id, most + 1):
            number, note = current, "more subtasks did not make it faster before"
        elif number > current and demand.hidden > _PRESSED:
            note = (
                f"more may arrive: a source without a known backlog is back-pressured for"
                f" {demand.hidden:.0%} of the time"
            )
        elif number == current != found.target and not note:
            note = (
                f"its utilization, {demand.factor * found.busy:.0%}, is within"
                f" {settings.utilization - settings.boundary:.0%} to"
                f" {settings.utilization + settings.boundary:.0%}"
            )
        return replace(found, wanted=wanted, decided=number, note=note)

    def _suffices(self, found: Assessment, demand: _Demand) -> bool:
        """Whether the utilisation is in the band around its target."""
        settings, utilization = self._settings, demand.factor * found.busy
        low = settings.utilization - settings.boundary
        high = settings.utilization + settings.boundary
        return low <= utilization <= high and utilization + demand.catch_up * found.busy <= 1.0

    def _remember(self, found: Assessment, now: float) -> None:
        """Keeps the parallelism that is needed now for the scale-down interval."""
        settings = self._settings
        history = self._needed.setdefault(found.vertex_id, deque())
        history.append((now, found.wanted))
        while history[0][0] < now - settings.scale_down_s:
            history.popleft()

    def _judge(self, found: Assessment) -> None:
        """Compares the capacity of a vertex since it got more subtasks with the expected one."""
        v = found.vertex_id
        trial = self._trials.get(v)
        if trial is None or found.parallelism != trial.after or not trial.capacity:
            return
        if not found.capacity:
            return
        del self._trials[v]
        expected = trial.capacity * (trial.after / trial.before - 1)
        if found.capacity - trial.capacity < self._settings.effectiveness * expected:
            self._ineffective[v] = trial.after


def _backlog(
    first: VertexLoad, last: VertexLoad, rate: float, seconds: float
) -> tuple[float | None, float]:
    """Returns the backlog in records at the end, and its growth per second."""
    before, after, per_split = first.pending, last.pending, 1.0
    if after is None and last.pending_splits is not None and first.pending_splits is not None:
        assigned = last.assigned_splits - first.assigned_splits
        if assigned < _FEW_SPLITS:
            return None, 0.0
        before, after = first.pending_splits, last.pending_splits
        per_split = rate * seconds / assigned
    if before is None or after is None or not seconds:
        return None, 0.0
    return after * per_split, (after - before) * per_split / seconds


def _unchangeable(vertex: JobVertex, members: Sequence[JobVertex]) -> str:
    """Returns why the autoscaler does not change the vertex; empty if it may."""
    for member in members:
        if member.scaling is not Scaling.DEFAULT:
            whose = f"the parallelism of {member.name!r}, which changes with it,"
            fixed = member.scaling is Scaling.FIXED
            why = "cannot change" if fixed else "is set by the program"
            return f"{'its parallelism' if member is vertex else whose} {why}"
    return ""

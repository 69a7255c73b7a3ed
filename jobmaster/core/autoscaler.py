"""Decides which parallelism the vertices of a job need, from their load (`job.autoscaler.enabled`).

A vertex that is busy for half of the time could process twice its records: this rate is its
capacity. A source needs capacity for the records that arrive, and for its backlog within the
catch-up duration; other vertices in proportion to their inputs. The parallelism changes if the
utilisation leaves a band around its target. These rules prevent oscillation:

* After a change, nothing is measured until the job has been stable for a while.
* A vertex gets fewer subtasks only once fewer have sufficed throughout the scale-down interval.
* A vertex that did not become faster with more subtasks gets no more of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from firesteel.common.ids import VertexId
from firesteel.common.job_graph import JobGraph, JobVertex, Scaling
from jobmaster.core.parallelism import bound_together

_IDLE = 0.01  # a vertex that is busy for less has no measurable capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSettings:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexLoad:
    """The load of a vertex in the last seconds."""

    records_per_s: float  # received; of sources: read
    busy: float  # share of time, from 0 to 1
    pending: float | None = None  # records that have arrived and were not read; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    by_vertex: Mapping[VertexId, int]  # those that change
    reasons: tuple[str, ...]  # a sentence per vertex


@dataclass(frozen=True, slots=True)
class _Measured:
    """Means over the window."""

    rate: float
    busy: float
    backlog: float = 0.0
    growth: float = 0.0  # of the backlog, in records per second

    @property
    def capacity(self) -> float:
        return self.rate / self.busy


@dataclass(frozen=True, slots=True)
class _Trial:
    """A vertex that got more subtasks."""

    before: int
    after: int
    capacity: float


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
        self._ineffective: dict[
            VertexId, int
        ] = {}  # the parallelism beyond which nothing is gained

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
        while now - self._samples[0][0] > self._settings.window_s:
            self._samples.popleft()
        return self._decided(now)

    def interrupted(self) -> None:
        """The job does not run: measurements start again."""
        self._samples.clear()

    # ---- inside

    def _decided(self, now: float) -> Decision | None:
        measured = {
            vertex.vertex_id: found
            for vertex in self._graph.vertices
            if (found := self._mean(vertex.vertex_id)) is not None
        }
        factors, catch_up = self._demands(measured)
        changes: dict[VertexId, int] = {}
        reasons: list[str] = []
        for members in bound_together(self._graph):
            known = [v for v in members if v.vertex_id in measured and v.vertex_id in factors]
            if not known or not all(map(_may_change, members)):
                continue
            current = self._parallelism[members[0].vertex_id]
            wanted, why = current, ""
            for vertex in known:
                v = vertex.vertex_id
                found = measured[v]
                if found.busy < _IDLE:
                    continue
                self._judge(v, found.capacity)
                number = self._wanted(v, found, factors[v], catch_up[v])
                number, sentence = self._bounded(vertex, members, number, found, factors[v], now)
                if not why or number > wanted:
                    wanted, why = number, sentence
            if why and wanted != current:
                changes |= {vertex.vertex_id: wanted for vertex in members}
                reasons.append(why)
        if not changes:
            return None
        if not self._settings.dry_run:
            for v, after in changes.items():
                if after > self._parallelism[v] and v in measured:
                    capacity = measured[v].capacity if measured[v].busy >= _IDLE else 0.0
                    self._trials[v] = _Trial(self._parallelism[v], after, capacity)
        return Decision(by_vertex=changes, reasons=tuple(reasons))

    def _mean(self, vertex_id: VertexId) -> _Measured | None:
        found = [(at, of[vertex_id]) for at, of in self._samples if vertex_id in of]
        if len(found) < 2:
            return None
        pending = [(at, load.pending) for at, load in found if load.pending is not None]
        growth = backlog = 0.0
        if len(pending) > 1 and pending[-1][0] > pending[0][0]:
            backlog = pending[-1][1]
            growth = (backlog - pending[0][1]) / (pending[-1][0] - pending[0][0])
        return _Measured(
            sum(load.records_per_s for _, load in found) / len(found),
            sum(load.busy for _, load in found) / len(found),
            backlog,
            growth,
        )

    def _demands(
        self, measured: Mapping[VertexId, _Measured]
    ) -> tuple[dict[VertexId, float], dict[VertexId, float]]:
        """Returns, as multiples of the measured rates, the rate that each vertex needs to keep up,
        and the additional rate for the backlogs of its sources.
        """
        inputs: dict[VertexId, list[VertexId]] = {}
        for edge in self._graph.edges:
            inputs.setdefault(edge.target_vertex_id, []).append(edge.source_vertex_id)
        factors: dict[VertexId, float] = {}
        catch_up: dict[VertexId, float] = {}
        for vertex in self._graph.vertices:  # in topological order
            v = vertex.vertex_id
            if v not in measured or not measured[v].rate:
                continue
            found = measured[v]
            if v not in inputs:
                factors[v] = max(0.0, found.rate + found.growth) / found.rate
                catch_up[v] = found.backlog / self._settings.catch_up_s / found.rate
                continue
            feeding = [(measured[i].rate, i) for i in inputs[v] if i in factors]
            total = sum(rate for rate, _ in feeding)
            if total:
                factors[v] = sum(rate * factors[i] for rate, i in feeding) / total
                catch_up[v] = sum(rate * catch_up[i] for rate, i in feeding) / total
        return factors, catch_up

    def _wanted(self, v: VertexId, found: _Measured, factor: float, catch_up: float) -> int:
        """Returns the parallelism for the target utilisation, or the current one within the
        band.
        """
        settings, current = self._settings, self._parallelism[v]
        utilization = factor * found.busy
        suffices = (factor + catch_up) * found.busy <= 1.0
        low, high = (
            settings.utilization - settings.boundary,
            settings.utilization + settings.boundary,
        )
        if low <= utilization <= high and suffices:
            return current
        needed = found.busy * (factor / settings.utilization + catch_up)
        return max(1, math.ceil(current * needed - 1e-6))

    def _bounded(
        self,
        vertex: JobVertex,
        members: Iterable[JobVertex],
        number: int,
        found: _Measured,
        factor: float,
        now: float,
    ) -> tuple[int, str]:
        """Returns the parallelism within all limits, and the reason for it."""
        settings, v = self._settings, vertex.vertex_id
        current = self._parallelism[v]
        most = min(settings.most, *(member.max_parallelism for member in members))
        number = max(min(number, most), min(settings.least, most))
        history = self._needed.setdefault(v, deque())
        history.append((now, number))
        while history[0][0] < now - settings.scale_down_s:
            history.popleft()
        if number < current:
            number = min(current, max(n for _, n in history))
            if now - history[0][0] < settings.scale_down_s - settings.window_s:
                number = current
        elif number > current and current >= self._ineffective.get(v, most + 1):
            number = current
        arrives = found.rate * factor
        sentence = (
            f"{vertex.name!r} is {'raised' if number > current else 'lowered'} from {current} to"
            f" {number} subtasks, because {arrives:,.0f} records/s arrive,"
            f"{f' {found.backlog:,.0f} wait,' if found.backlog >= 1 else ''} and {current} subtasks"
            f" can process {found.capacity:,.0f} (busy {found.busy:.0%},"
            f" target {settings.utilization:.0%})"
        )
        return number, sentence

    def _judge(self, v: VertexId, capacity: float) -> None:
        """Compares the capacity of a vertex since it got more subtasks with the expected one."""
        trial = self._trials.get(v)
        if trial is None or self._parallelism[v] != trial.after or not trial.capacity:
            return
        del self._trials[v]
        expected = trial.capacity * (trial.after / trial.before - 1)
        if capacity - trial.capacity < self._settings.effectiveness * expected:
            self._ineffective[v] = trial.after


def _may_change(vertex: JobVertex) -> bool:
    return vertex.scaling is Scaling.DEFAULT

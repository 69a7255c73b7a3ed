"""The autoscaler, in simulated days of load."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from firesteel.common.ids import VertexId
from firesteel.common.job_graph import Partitioner, Scaling
from firesteel.common.rescales import Assessment
from jobmaster.core.autoscaler import Autoscaler, AutoscalerSettings, Decision, VertexLoad
from tests.job_master import job, vertex

SOURCE, COUNT = vertex("source", 1), vertex("count", 2)
GRAPH = job(SOURCE, COUNT, partitioner=Partitioner.HASH)
STEP_S, RESTART_S, HOUR_S = 10.0, 30.0, 3600.0


@dataclass
class Job:
    """A source that reads what arrives as fast as its consumer allows; a subtask of the consumer
    processes `each` records per second.
    """

    arrives: Callable[[float], float]
    each: Callable[[int], float] = lambda subtasks: 1000.0 * subtasks
    settings: AutoscalerSettings = field(default_factory=AutoscalerSettings)
    subtasks: int = 2
    readers: int = 1
    backlog: float = 0.0
    decisions: list[tuple[float, int, str]] = field(default_factory=list)
    largest: float = 0.0  # backlog

    def run(self, hours: float) -> None:
        autoscaler = Autoscaler(self.settings, GRAPH)
        away_until = 0.0
        for step in range(int(hours * HOUR_S / STEP_S)):
            now = step * STEP_S
            self.backlog += self.arrives(now) * STEP_S
            self.largest = max(self.largest, self.backlog)
            if now < away_until:
                continue
            capacity = self.each(self.subtasks)
            done = min(self.backlog / STEP_S, capacity)
            self.backlog -= done * STEP_S
            busy = done / capacity
            loads = {
                SOURCE.vertex_id: VertexLoad(
                    records_per_s=done, busy=busy * 0.2 / self.readers, pending=self.backlog
                ),
                COUNT.vertex_id: VertexLoad(records_per_s=done, busy=busy),
            }
            parallelism = {SOURCE.vertex_id: self.readers, COUNT.vertex_id: self.subtasks}
            decision = autoscaler.observe(loads, parallelism, now)
            if decision is not None and not self.settings.dry_run:
                self._take(decision, now)
                away_until = now + RESTART_S

    def _take(self, decision: Decision, now: float) -> None:
        self.readers = decision.by_vertex.get(SOURCE.vertex_id, self.readers)
        if COUNT.vertex_id not in decision.by_vertex:
            return
        self.subtasks = decision.by_vertex[COUNT.vertex_id]
        self.decisions.append((now / HOUR_S, self.subtasks, " ".join(decision.reasons)))

    @property
    def steps(self) -> list[int]:
        return [subtasks for _, subtasks, _ in self.decisions]


def day(now: float) -> float:
    """1,000 records/s at night, 3,000 at noon."""
    return 2000.0 - 1000.0 * math.cos(2 * math.pi * now / (24 * HOUR_S))


def directions(steps: list[int], start: int = 2) -> list[bool]:
    """Whether each step goes up."""
    return [after > before for before, after in zip([start, *steps], steps, strict=False)]


def test_a_load_that_triples_and_falls_needs_few_decisions() -> None:
    simulated = Job(day)
    simulated.run(24)
    ups = directions(simulated.steps)
    assert 1 <= ups.count(True) <= 3 and 1 <= ups.count(False) <= 3, simulated.decisions
    assert ups == sorted(ups, reverse=True), "first up, then down, and never back"
    assert simulated.largest < 200_000 and simulated.backlog < 20_000


def test_a_steady_load_changes_nothing() -> None:
    simulated = Job(lambda now: 1400.0 + 100.0 * math.sin(now / 60))
    simulated.run(24)
    assert simulated.decisions == []


def test_a_noisy_load_does_not_oscillate() -> None:
    simulated = Job(lambda now: day(now) * (1.3 if int(now / 600) % 2 else 0.7))
    simulated.run(48)
    turns = directions(simulated.steps)
    changes = sum(a != b for a, b in itertools.pairwise(turns))
    assert changes <= 3, simulated.decisions


def test_a_jump_is_followed_and_its_backlog_worked_off() -> None:
    simulated = Job(lambda now: 1000.0 if now < HOUR_S else 3000.0)
    simulated.run(1 + 1)
    assert simulated.subtasks >= 4 and len(simulated.decisions) <= 3, simulated.decisions
    assert simulated.backlog < 50_000


def test_a_vertex_that_gains_nothing_gets_no_more_subtasks() -> None:
    simulated = Job(lambda now: 5000.0, each=lambda subtasks: 2000.0)
    simulated.run(12)
    assert len(simulated.decisions) == 1


def test_a_decision_is_explained_in_a_sentence() -> None:
    simulated = Job(lambda now: 2500.0)
    simulated.run(1)
    _, _, reason = simulated.decisions[0]
    assert reason.startswith("'count' is raised from 2 to ")
    assert "records/s arrive" in reason and "2 subtasks can process 2,000" in reason


def test_limits_are_kept() -> None:
    simulated = Job(lambda now: 9000.0, settings=AutoscalerSettings(most=3))
    simulated.run(3)
    assert simulated.subtasks == 3


def test_a_parallelism_that_the_program_sets_is_left_alone() -> None:
    graph = replace(GRAPH, vertices=(SOURCE, replace(COUNT, scaling=Scaling.CHOSEN)))
    autoscaler = Autoscaler(AutoscalerSettings(), graph)
    loads = {VertexId(v): VertexLoad(records_per_s=10.0, busy=1.0) for v in (COUNT.vertex_id,)}
    loads[SOURCE.vertex_id] = VertexLoad(records_per_s=10.0, busy=0.6, pending=0.0)
    parallelism = {SOURCE.vertex_id: 1, COUNT.vertex_id: 2}
    for step in range(100):
        assert autoscaler.observe(loads, parallelism, step * STEP_S) is None


# ---- what it concludes from less


def explained(
    load: VertexLoad, *later: VertexLoad, busy: float = 0.9, settings: AutoscalerSettings
) -> list[Assessment]:
    """The source has these loads, one per step; the consumer is as busy as given."""
    autoscaler = Autoscaler(settings, GRAPH)
    parallelism = {SOURCE.vertex_id: 1, COUNT.vertex_id: 2}
    for step, each in enumerate((load, *later)):
        loads = {
            SOURCE.vertex_id: each,
            COUNT.vertex_id: VertexLoad(records_per_s=each.records_per_s, busy=busy),
        }
        autoscaler.observe(loads, parallelism, step * STEP_S)
    return list(autoscaler.explain((len(later) + 1) * STEP_S))


def test_an_explanation_has_the_numbers_behind_the_decision() -> None:
    first = VertexLoad(records_per_s=1000.0, busy=0.1, pending=0.0)
    then = replace(first, pending=10_000.0)
    _, count = explained(first, then, busy=1.0, settings=AutoscalerSettings(enabled=False))
    assert count.measured_s == STEP_S and count.rate == 1000.0 and count.capacity == 1000.0
    assert count.demand == 2000.0, "the backlog grows by as much as is read"
    assert count.catch_up == 10_000.0 / 1800.0
    assert count.target == count.decided == 6, "2 * (2.0 / 0.7 + 0.006)"


def test_splits_that_are_not_assigned_yet_are_a_backlog() -> None:
    """10 splits are assigned in 10 s in which 1,000 records/s are read: 1,000 records in each."""
    first = VertexLoad(records_per_s=1000.0, busy=0.1, pending_splits=110, assigned_splits=2)
    then = replace(first, pending_splits=100, assigned_splits=12)
    source, count = explained(first, then, settings=AutoscalerSettings())
    assert source.backlog == 100_000.0
    assert count.demand == 0.0, "no new splits arrive"
    few = replace(first, pending_splits=108, assigned_splits=4)
    source, count = explained(first, few, settings=AutoscalerSettings())
    assert source.backlog is None and count.demand == 1000.0


def test_a_source_without_a_known_backlog_may_hide_more_records() -> None:
    load = VertexLoad(records_per_s=1000.0, busy=0.1, back_pressured=0.6)
    _, count = explained(load, load, busy=1.0, settings=AutoscalerSettings())
    assert count.decided == 3 and "back-pressured for 60%" in count.note


def test_an_explanation_says_why_nothing_changes() -> None:
    load = VertexLoad(records_per_s=1000.0, busy=0.1, pending=0.0)
    _, count = explained(load, load, busy=0.8, settings=AutoscalerSettings())
    assert count.decided == 2 and count.note == "its utilization, 80%, is within 50% to 90%"
    _, count = explained(load, load, busy=0.1, settings=AutoscalerSettings())
    assert (count.target, count.decided) == (1, 2) and "must have sufficed" in count.note
    source, _ = explained(load, settings=AutoscalerSettings())
    assert source.target == 0 and "no measurements" in source.note


def test_an_idle_vertex_gets_the_least_parallelism() -> None:
    simulated = Job(lambda now: 3000.0 if now < HOUR_S else 0.0)
    simulated.run(4)
    assert simulated.subtasks == 1 and len(simulated.decisions) <= 4, simulated.decisions

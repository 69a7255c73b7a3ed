"""Decides when subtasks start (jobmaster.scheduling-policy; spec 003, "Eager" and
"Lazy_From_Source" dispatching).

* eager: all subtasks start together, for streams: their tasks need each other from the first row.
* pipelined-region: a region starts when all BLOCKING results that it reads are complete.
* lazy-from-sources: like pipelined-region, with whole vertices instead of subtasks; a vertex starts
  when all its producers have finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol

from firesteel.common.ids import ResultId
from firesteel.common.job_graph import DistributionPattern, ResultType
from firesteel.common.states import ExecutionState
from jobmaster.core.execution_graph import ExecutionGraph, ExecutionVertex, IntermediateResult
from jobmaster.core.failover.regions import Regions
from jobmaster.core.scheduling.scheduler import Unit

_S = ExecutionState


class SchedulingPolicy(Enum):
    AUTO = "auto"  # eager for a stream, pipelined-region in batch mode
    EAGER = "eager"
    LAZY_FROM_SOURCES = "lazy-from-sources"
    PIPELINED_REGION = "pipelined-region"


class SchedulingStrategy(Protocol):
    """Selects units, which are deployed together once they have all their slots."""

    def startable(self, vertices: Sequence[ExecutionVertex]) -> list[Unit]:
        """Returns which of these subtasks, which have new attempts, may start now."""
        ...

    def after(self, finished: ExecutionVertex) -> list[Unit]:
        """Returns the subtasks that may start because this one has finished."""
        ...


def scheduling_strategy(
    policy: SchedulingPolicy, graph: ExecutionGraph, regions: Regions
) -> SchedulingStrategy:
    """`regions` are those of failover."""
    if policy is SchedulingPolicy.AUTO:
        batch = graph.job_graph.batch
        policy = SchedulingPolicy.PIPELINED_REGION if batch else SchedulingPolicy.EAGER
    if policy is SchedulingPolicy.EAGER:
        return EagerScheduling()
    if policy is SchedulingPolicy.LAZY_FROM_SOURCES:
        regions = Regions(graph, whole=graph.by_id)
    return RegionScheduling(graph, regions)


class EagerScheduling:
    def startable(self, vertices: Sequence[ExecutionVertex]) -> list[Unit]:
        unit = tuple(vertex for vertex in vertices if vertex.current.state is _S.CREATED)
        return [unit] if unit else []

    def after(self, finished: ExecutionVertex) -> list[Unit]:
        return []


class RegionScheduling:
    def __init__(self, graph: ExecutionGraph, regions: Regions) -> None:
        self._graph = graph
        self._regions = regions

    def startable(self, vertices: Sequence[ExecutionVertex]) -> list[Unit]:
        return self._units(self._regions.of(vertex) for vertex in vertices)

    def after(self, finished: ExecutionVertex) -> list[Unit]:
        found: dict[int, None] = {}
        for result in self._graph.outputs_of(finished.job_vertex.vertex.vertex_id):
            if result.edge.result_type is ResultType.PIPELINED:
                continue
            if result.edge.pattern is DistributionPattern.POINTWISE or _is_complete(result):
                consumers = result.consumers_of(finished.subtask)
                found.update(self._regions.of_subtasks(result.consumer, consumers))
        return self._units(found)

    def _units(self, regions: Iterable[int]) -> list[Unit]:
        """Returns the CREATED subtasks of these regions whose inputs are available. In a vertex
        that starts as a whole, some subtasks may restart while others continue.
        """
        complete: dict[ResultId, bool] = {}  # ALL_TO_ALL results are checked once
        units = []
        for region in dict.fromkeys(regions):
            members = self._regions.members(region)
            unit = tuple(vertex for vertex in members if vertex.current.state is _S.CREATED)
            if unit and all(self._can_be_fed(vertex, complete) for vertex in unit):
                units.append(unit)
        return units

    def _can_be_fed(self, vertex: ExecutionVertex, complete: dict[ResultId, bool]) -> bool:
        for result in self._graph.inputs_of(vertex.job_vertex.vertex.vertex_id):
            if result.edge.result_type is ResultType.PIPELINED:
                continue
            result_id = result.edge.result_id
            if result.edge.pattern is DistributionPattern.ALL_TO_ALL:
                if result_id not in complete:
                    complete[result_id] = _is_complete(result)
                if not complete[result_id]:
                    return False
            elif not all(
                result.producer.vertices[producer].current.state is _S.FINISHED
                and producer not in result.lost
                for producer in result.producers_of(vertex.subtask)
            ):
                return False
        return True


def _is_complete(result: IntermediateResult) -> bool:
    finished = result.producer.counts[_S.FINISHED.value]
    return finished == result.producer.parallelism and not result.lost

"""Pipelined regions, and which tasks restart after a failure (spec 003, "region-based").

A region is a set of subtasks that run together or not at all, because PIPELINED results connect
them. A BLOCKING result is a boundary: once it is complete, its consumers can restart without its
producers. The set of restarted tasks is closed under three rules:

1. A region is restarted as a whole.
2. If a partition that it reads is lost, the region that produces it also restarts.
3. If the rows of a partition are distributed differently each time (rebalance, rescale), a new
   attempt sends rows to one consumer that went to another one before. Keys do not help if the rows
   themselves change (random numbers). So all consumers that have started restart, including those
   that have finished. If rows are distributed the same way again, running consumers can continue
   to read their assigned partitions; consumers that are being scheduled or deployed restart, since
   they would be assigned partitions that do not exist yet.

ALL_TO_ALL results are handled as groups: time and memory are O(subtasks + results), never
O(edges).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from firesteel.common.ids import ResultId, VertexId
from firesteel.common.job_graph import (
    DistributionPattern,
    Partitioner,
    ResultPartitionId,
    ResultType,
)
from firesteel.common.states import ExecutionState
from jobmaster.core.execution_graph import (
    ExecutionGraph,
    ExecutionJobVertex,
    ExecutionVertex,
    IntermediateResult,
)

_S = ExecutionState
# Tuples: membership compares by identity, without calling Enum.__hash__ for each subtask.
_ON_ITS_WAY = (_S.SCHEDULED, _S.DEPLOYING)
_BEGUN = tuple(state for state in _S if state is not _S.CREATED)
# The consumer of a row depends on the row alone, or the row goes to all consumers.
_DETERMINISTIC = frozenset(
    {Partitioner.HASH, Partitioner.BROADCAST, Partitioner.FORWARD, Partitioner.WATERMARKS}
)


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task failed by itself: nothing else is lost."""

    vertex: ExecutionVertex


@dataclass(frozen=True, slots=True)
class PartitionUnreadable:
    """A task failed because it could not read a partition of a BLOCKING result."""

    consumer: ExecutionVertex
    partition: ResultPartitionId


@dataclass(frozen=True, slots=True)
class SlotsLost:
    """A slot is lost, or a TaskExecutor with all its slots and stored BLOCKING partitions."""

    vertices: tuple[ExecutionVertex, ...]  # tasks that ran there
    partitions: tuple[ResultPartitionId, ...] = ()


Failure: TypeAlias = TaskFailed | PartitionUnreadable | SlotsLost


class Regions:
    """The regions of a graph. They depend only on the JobGraph, so they never change."""

    def __init__(self, graph: ExecutionGraph, *, whole: Collection[VertexId] = ()) -> None:
        """Subtasks of a vertex in `whole` restart only together."""
        self.graph = graph
        self._first: dict[VertexId, int] = {}  # the number of a vertex's first subtask
        vertices = [v for job_vertex in graph.vertices for v in job_vertex.vertices]
        count = 0
        for job_vertex in graph.vertices:
            self._first[job_vertex.vertex.vertex_id] = count
            count += job_vertex.parallelism
        sets = _DisjointSets(count)
        for vertex_id in whole:
            first = self._first[vertex_id]
            sets.join_all(range(first, first + graph.by_id[vertex_id].parallelism))
        for result in graph.results:
            if result.edge.result_type is ResultType.PIPELINED:
                self._join(sets, result)
        numbers: dict[int, int] = {}  # region by root
        self._region_of = [
            numbers.setdefault(sets.root(number), len(numbers)) for number in range(count)
        ]
        self._vertices = vertices
        self._members: list[list[int]] = [[] for _ in numbers]
        for number, region in enumerate(self._region_of):
            self._members[region].append(number)

    def __len__(self) -> int:
        return len(self._members)

    def members(self, region: int) -> list[ExecutionVertex]:
        """Returns the region's subtasks in topological order."""
        return [self._vertices[number] for number in self._members[region]]

    def of(self, vertex: ExecutionVertex) -> int:
        """Returns the number of the subtask's region."""
        return self._region_of[self._first[vertex.job_vertex.vertex.vertex_id] + vertex.subtask]

    def of_subtasks(
        self, job_vertex: ExecutionJobVertex, subtasks: Iterable[int]
    ) -> dict[int, None]:
        """Returns the regions of these subtasks, each once, in the order of the subtasks."""
        first, region_of = self._first[job_vertex.vertex.vertex_id], self._region_of
        return dict.fromkeys([region_of[first + subtask] for subtask in subtasks])

    def members_of(self, regions: Iterable[int]) -> list[ExecutionVertex]:
        """Returns the subtasks of all these regions in topological order."""
        numbers = sorted(itertools.chain.from_iterable(map(self._members.__getitem__, regions)))
        return [self._vertices[number] for number in numbers]

    def _join(self, sets: _DisjointSets, result: IntermediateResult) -> None:
        producer, consumer = result.producer, result.consumer
        producers = self._first[producer.vertex.vertex_id]
        consumers = self._first[consumer.vertex.vertex_id]
        if result.edge.pattern is DistributionPattern.ALL_TO_ALL:
            sets.join_all(range(producers, producers + producer.parallelism))
            sets.join_all(range(consumers, consumers + consumer.parallelism))
            sets.join(producers, consumers)
        elif producer.parallelism <= consumer.parallelism:
            for subtask in range(consumer.parallelism):
                (one,) = result.producers_of(subtask)
                sets.join(producers + one, consumers + subtask)
        else:
            for subtask in range(producer.parallelism):
                (one,) = result.consumers_of(subtask)
                sets.join(producers + subtask, consumers + one)


class _DisjointSets:
    """Disjoint sets of the numbers below `count`; the root of a set is its lowest number."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, number: int) -> int:
        parent = self._parent
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self._parent[high] = low

    def join_all(self, numbers: range) -> None:
        for number in numbers:
            self.join(numbers.start, number)


def tasks_to_restart(
    regions: Regions,
    failure: Failure,
    *,
    other_rows: Collection[VertexId] = (),
    restarting: Collection[ExecutionVertex] = (),
) -> list[ExecutionVertex]:
    """Returns all subtasks that need a new attempt, in topological order; none if all lost
    partitions have already been read by all of their consumers. A new attempt of a vertex in
    `other_rows` may produce different rows. Subtasks in `restarting` will read their inputs again
    although they have finished.
    """
    search = _Search(regions, other_rows, restarting)
    match failure:
        case TaskFailed(vertex=vertex):
            search.begin((vertex,), ())
        case PartitionUnreadable(consumer=consumer, partition=partition):
            search.begin((consumer,), (partition,))
        case SlotsLost(vertices=vertices, partitions=partitions):
            search.begin(vertices, partitions)
        case _:
            assert_never(failure)
    return regions.members_of(search.run())


class _Search:
    """Searches breadth first, starting from the failed tasks."""

    def __init__(
        self,
        regions: Regions,
        other_rows: Collection[VertexId],
        restarting: Collection[ExecutionVertex],
    ) -> None:
        self._regions = regions
        self._other_rows = other_rows
        self._restarting = restarting
        self._graph = graph = regions.graph
        self._found: dict[int, None] = {}  # regions, in the order in which they were found
        self._lost = {r.edge.result_id: set(r.lost) for r in graph.results if r.lost}
        # Results that are still to be followed, by vertex: an ALL_TO_ALL result leads from all
        # subtasks to the same ones, so it is removed once it has been followed.
        self._inputs: dict[VertexId, list[IntermediateResult]] = {}
        self._outputs: dict[VertexId, list[IntermediateResult]] = {}

    def begin(
        self, failed: Iterable[ExecutionVertex], partitions: Iterable[ResultPartitionId]
    ) -> None:
        newly: dict[ResultId, list[int]] = {}
        for result_id, producer, attempt in partitions:
            result = self._graph.result(result_id)
            execution = result.producer.vertices[producer].current
            if execution.attempt == attempt and execution.state is _S.FINISHED:
                newly.setdefault(result_id, []).append(producer)
        for result_id, producers in newly.items():
            self._lost.setdefault(result_id, set()).update(producers)
        for result in self._graph.results:
            edge = result.edge
            if edge.result_id in self._lost:
                self._inputs.setdefault(edge.target_vertex_id, []).append(result)
            if edge.result_type is ResultType.BLOCKING:
                self._outputs.setdefault(edge.source_vertex_id, []).append(result)
        self._found.update(dict.fromkeys(map(self._regions.of, failed)))
        for result_id, producers in newly.items():
            result = self._graph.result(result_id)
            if result.edge.pattern is DistributionPattern.ALL_TO_ALL:
                self._produce_again(result, producers)
            else:
                for producer in producers:
                    self._produce_again(result, [producer])

    def run(self) -> Iterable[int]:
        done = 0
        while (self._inputs or self._outputs) and done < len(self._found):
            new = tuple(itertools.islice(self._found, done, None))
            done += len(new)
            for vertex in self._regions.members_of(new):
                if not (self._inputs or self._outputs):
                    break
                vertex_id = vertex.job_vertex.vertex.vertex_id
                if vertex_id in self._inputs:
                    self._follow(self._inputs, vertex_id, vertex.subtask, self._lost_producers)
                if vertex_id in self._outputs:
                    self._follow(self._outputs, vertex_id, vertex.subtask, self._consumers)
        return self._found

    def _produce_again(self, result: IntermediateResult, producers: list[int]) -> None:
        """Restarts the producers of these lost partitions, which all have the same consumers.
        Consumers that have started may not have read all of them, and the others will need them.
        """
        vertices = result.consumer.vertices
        unfinished = [
            subtask
            for subtask in result.consumers_of(producers[0])
            if vertices[subtask].current.state is not _S.FINISHED
            or vertices[subtask] in self._restarting
        ]
        if unfinished:
            self._add(result.producer, producers)
            begun = (n for n in unfinished if vertices[n].current.state is not _S.CREATED)
            self._add(result.consumer, begun)

    def _follow(
        self,
        results: dict[VertexId, list[IntermediateResult]],
        vertex_id: VertexId,
        subtask: int,
        follow: Callable[[IntermediateResult, int], None],
    ) -> None:
        left = []
        for result in results[vertex_id]:
            follow(result, subtask)
            if result.edge.pattern is DistributionPattern.POINTWISE:
                left.append(result)
        if left:
            results[vertex_id] = left
        else:
            del results[vertex_id]

    def _lost_producers(self, result: IntermediateResult, consumer: int) -> None:
        """Applies rule 2."""
        lost = self._lost[result.edge.result_id]
        self._add(result.producer, lost.intersection(result.producers_of(consumer)))

    def _consumers(self, result: IntermediateResult, producer: int) -> None:
        """Applies rule 3."""
        same = result.edge.partitioner in _DETERMINISTIC
        same = same and result.edge.source_vertex_id not in self._other_rows
        states = _ON_ITS_WAY if same else _BEGUN
        vertices = result.consumer.vertices
        consumers = result.consumers_of(producer)
        self._add(result.consumer, (c for c in consumers if vertices[c].current.state in states))

    def _add(self, job_vertex: ExecutionJobVertex, subtasks: Iterable[int]) -> None:
        self._found.update(self._regions.of_subtasks(job_vertex, subtasks))

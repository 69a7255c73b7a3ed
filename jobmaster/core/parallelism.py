"""The parallelism of the job's vertices: which of it a request may change, and which one is stored.

The stored parallelism applies from the job's next restart on. Until all tasks have run once with
it, a failure restores the previous one (decision 60).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from firesteel.common.ids import VertexId
from firesteel.common.job_graph import JobGraph, JobVertex, Partitioner, Scaling
from jobmaster.core.commands import StoreParallelism
from jobmaster.core.elasticity import SchedulerMode

_NEAR = 3  # names suggested for an unknown one
_PREFIX_CHARS = 4  # the least of an id


class CannotRescale(Exception):
    """The request does not fit the job; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    version: int = 0  # increases with every change; 0: that of the submitted graph
    by_vertex: Mapping[VertexId, int] = field(default_factory=dict)  # all vertices of the job
    # The bounds between which the job follows the slots that there are.
    lower: Mapping[VertexId, int] = field(default_factory=dict)
    upper: Mapping[VertexId, int] = field(default_factory=dict)


class JobParallelism:
    """The stored parallelism, the one that the tasks have, and the one that a failure restores."""

    def __init__(self, graph: JobGraph, recovered: Parallelism, mode: SchedulerMode) -> None:
        """The graph has the recovered parallelism."""
        self.mode = mode
        by_vertex = {vertex.vertex_id: vertex.parallelism for vertex in graph.vertices}
        lower, upper = bounds(graph, mode)
        self.stored = self.applied = Parallelism(
            version=recovered.version,
            by_vertex=by_vertex,
            lower={**lower, **recovered.lower},
            upper={**upper, **recovered.upper},
        )
        # Not all tasks have run with the applied parallelism; this one is restored by a failure.
        self.previous: Parallelism | None = None
        self._storing: Parallelism | None = None
        self._restores = False  # the parallelism that is being stored, or to be applied

    @property
    def settled(self) -> bool:
        """Whether the stored parallelism is known."""
        return self._storing is None

    @property
    def unproven(self) -> bool:
        """Whether a failure restores the previous parallelism."""
        return self.previous is not None

    def store(
        self,
        by_vertex: Mapping[VertexId, int],
        lower: Mapping[VertexId, int],
        upper: Mapping[VertexId, int],
    ) -> StoreParallelism:
        return self._store(by_vertex, lower, upper, restores=False)

    def store_previous(self) -> StoreParallelism:
        assert self.previous is not None, "all tasks have run"
        before = self.previous
        return self._store(before.by_vertex, before.lower, before.upper, restores=True)

    def _store(
        self,
        by_vertex: Mapping[VertexId, int],
        lower: Mapping[VertexId, int],
        upper: Mapping[VertexId, int],
        *,
        restores: bool,
    ) -> StoreParallelism:
        assert self.settled, f"two at a time: {self._storing}"
        changes = by_vertex != self.stored.by_vertex  # otherwise the tasks need not restart
        self._restores = restores
        self._storing = Parallelism(
            version=self.stored.version + changes, by_vertex=by_vertex, lower=lower, upper=upper
        )
        return StoreParallelism(
            version=self._storing.version,
            by_vertex=by_vertex,
            lower=lower,
            upper=upper,
            must=restores,
        )

    def was_stored(self) -> None:
        assert self._storing is not None, "nothing is being stored"
        self.stored, self._storing = self._storing, None
        if self._restores:
            self.previous = None

    def was_not_stored(self) -> None:
        self._storing = None

    def apply(self) -> Mapping[VertexId, int] | None:
        """Returns the stored parallelism for the graph if the graph has a different one."""
        if self.stored.version == self.applied.version:
            return None
        self.previous = None if self._restores else self.applied
        self.applied = self.stored
        return self.applied.by_vertex

    def proved(self) -> None:
        """All tasks have run with the applied parallelism."""
        self.previous = None


def planned(graph: JobGraph, parallelism: int, by_vertex: Mapping[str, int]) -> dict[VertexId, int]:
    """Returns the parallelism that all vertices of the job have after a request. `parallelism` is
    for the vertices whose parallelism the program does not set, 0 for none; `by_vertex` has names
    of vertices. Raises CannotRescale.
    """
    if graph.batch:
        raise CannotRescale(
            "a batch job keeps its parallelism; cancel it, and run it with another one (-p)"
        )
    planned = {vertex.vertex_id: vertex.parallelism for vertex in graph.vertices}
    bound = bound_together(graph)
    if parallelism:
        _check_positive(parallelism, "the parallelism")
        followers = [members for members in bound if all(map(_follows_default, members))]
        if not followers and not by_vertex:
            raise CannotRescale(
                "the program sets the parallelism of all operators, or they run once; request that"
                f" of single vertices, such as --vertex {graph.vertices[0].name!r}=N"
            )
        planned.update((v.vertex_id, parallelism) for members in followers for v in members)
    named: dict[VertexId, tuple[str, int]] = {}
    for name, wanted in by_vertex.items():
        _check_positive(wanted, f"the parallelism of {name!r}")
        vertex = _named(graph, name)
        members = next(group for group in bound if vertex in group)
        for member in members:
            _check_vertex(vertex, member, wanted)
            other, before = named.setdefault(member.vertex_id, (name, wanted))
            if before != wanted:
                raise CannotRescale(
                    f"{other!r} and {name!r} need the same parallelism, because they are connected"
                    " by forward exchanges or are co-located; request one for both"
                )
            planned[member.vertex_id] = wanted
    for vertex in graph.vertices:
        wanted = planned[vertex.vertex_id]
        if wanted > vertex.max_parallelism:
            raise CannotRescale(
                f"{vertex.name!r} has max parallelism {vertex.max_parallelism}, less than {wanted}:"
                " its keyed state is divided into that many key groups. Request at most"
                f" {vertex.max_parallelism}, or set a higher pipeline.max-parallelism in a new job"
            )
    return planned


def bounds(graph: JobGraph, mode: SchedulerMode) -> tuple[dict[VertexId, int], dict[VertexId, int]]:
    """Returns the lowest and the highest parallelism of each vertex, if no user requests others."""
    lower = {vertex.vertex_id: vertex.parallelism for vertex in graph.vertices}
    upper = dict(lower)
    if mode is SchedulerMode.DEFAULT or graph.batch:
        return lower, upper
    for members in bound_together(graph):
        if any(vertex.scaling is Scaling.FIXED for vertex in members):
            continue
        for vertex in members:
            lower[vertex.vertex_id] = 1
            if mode is SchedulerMode.REACTIVE and all(map(_follows_default, members)):
                upper[vertex.vertex_id] = min(v.max_parallelism for v in members)
    return lower, upper


def _follows_default(vertex: JobVertex) -> bool:
    return vertex.scaling is Scaling.DEFAULT and vertex.max_parallelism > 1


def _check_positive(parallelism: int, what: str) -> None:
    if parallelism < 1:
        raise CannotRescale(f"{what} is {parallelism}; it must be at least 1")


def _check_vertex(vertex: JobVertex, member: JobVertex, wanted: int) -> None:
    """Checks that the vertex can change: `member` is the vertex itself, or changes with it."""
    if member.scaling is not Scaling.FIXED or wanted == member.parallelism:
        return
    reason = "it processes the whole stream, or its source cannot be divided"
    if member.vertex_id == vertex.vertex_id:
        raise CannotRescale(f"{vertex.name!r} always has parallelism 1: {reason}")
    raise CannotRescale(
        f"{vertex.name!r} needs the same parallelism as {member.name!r}, because they are connected"
        f" by forward exchanges or are co-located; that one always has parallelism 1: {reason}."
        " Call rebalance() between them in the program"
    )


def _named(graph: JobGraph, name: str) -> JobVertex:
    found = [v for v in graph.vertices if name in (v.vertex_id, v.name)]
    found = found or [v for v in graph.vertices if name in _names_of(v)]
    if not found and len(name) >= _PREFIX_CHARS:
        found = [vertex for vertex in graph.vertices if vertex.vertex_id.startswith(name)]
    text = name.lower()
    found = found or [vertex for vertex in graph.vertices if text in vertex.name.lower()]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(f"{vertex.vertex_id} ({vertex.name})" for vertex in found)
        raise CannotRescale(f"{name!r} is the name of several vertices; use an id: {ids}")
    names = [known for vertex in graph.vertices for known in (vertex.name, *_names_of(vertex))]
    near = difflib.get_close_matches(name, dict.fromkeys(names), n=_NEAR, cutoff=0.5)
    what = "did you mean" if near else "its vertices are"
    shown = near or [vertex.name for vertex in graph.vertices]
    raise CannotRescale(
        f"the job has no vertex {name!r}; {what} {', '.join(map(repr, shown))}{'?' if near else ''}"
    )


def _names_of(vertex: JobVertex) -> Iterable[str]:
    for operator in vertex.operators:
        yield operator.name
        if operator.uid:
            yield operator.uid


def bound_together(graph: JobGraph) -> list[list[JobVertex]]:
    """Returns the vertices in groups of equal parallelism: FORWARD edges connect them, or they are
    co-located.
    """
    group_of = {vertex.vertex_id: [vertex] for vertex in graph.vertices}

    def join(one: VertexId, other: VertexId) -> None:
        first, second = group_of[one], group_of[other]
        if first is not second:
            first += second
            group_of.update((vertex.vertex_id, first) for vertex in second)

    for edge in graph.edges:
        if edge.partitioner is Partitioner.FORWARD:
            join(edge.source_vertex_id, edge.target_vertex_id)
    co_located: dict[str, VertexId] = {}
    for vertex in graph.vertices:
        if vertex.co_location_group:
            join(
                co_located.setdefault(vertex.co_location_group, vertex.vertex_id), vertex.vertex_id
            )
    return list({id(group): group for group in group_of.values()}.values())

"""Which subtasks share a slot, and how large the slot must be (spec 003, "Share Slot"; spec 004).

Subtask i of every vertex in one slot sharing group and one resource group runs in one slot. So a
job needs, per such pair of groups, as many slots as its highest parallelism, and tasks of one
vertex never share a slot. Vertices of a co-location group are in one slot sharing group, so they
always share slots."""

from __future__ import annotations

from firesteel.common.resources import UNKNOWN, ResourceProfile
from jobmaster.core.execution_graph.build import InvalidJobGraph
from jobmaster.core.execution_graph.graph import ExecutionGraph
from jobmaster.core.execution_graph.vertex import ExecutionJobVertex
from jobmaster.core.slots.slot import ExecutionSlotSharingGroup, GroupKey


def share_slots(graph: ExecutionGraph) -> list[ExecutionSlotSharingGroup]:
    """Assigns every ExecutionVertex to its group. Raises InvalidJobGraph if a co-location group
    spans groups.
    """
    _check_co_location(graph)
    families = graph.sharing
    for job_vertex in graph.vertices:
        vertex = job_vertex.vertex
        families.setdefault((vertex.slot_sharing_group, vertex.resource_group), []).append(
            job_vertex
        )
    groups: list[ExecutionSlotSharingGroup] = []
    for (sharing, resource), job_vertices in families.items():
        profiles = _Profiles(job_vertices)
        for subtask in range(max(job_vertex.parallelism for job_vertex in job_vertices)):
            group = ExecutionSlotSharingGroup(
                GroupKey(sharing, resource, subtask), profiles(subtask)
            )
            for job_vertex in job_vertices:
                if subtask < job_vertex.parallelism:
                    job_vertex.vertices[subtask].group = group
            groups.append(group)
    return groups


class _Profiles:
    """The slot's profile by subtask. It changes only at the parallelism of a vertex, so it is
    computed once per range.
    """

    def __init__(self, job_vertices: list[ExecutionJobVertex]) -> None:
        self._job_vertices = job_vertices
        self._cache: dict[int, ResourceProfile] = {}

    def __call__(self, subtask: int) -> ResourceProfile:
        # The smallest parallelism above the subtask identifies all subtasks with the same set of
        # vertices.
        bound = min(v.parallelism for v in self._job_vertices if v.parallelism > subtask)
        profile = self._cache.get(bound)
        if profile is None:
            profile = UNKNOWN
            for job_vertex in self._job_vertices:
                if job_vertex.parallelism > subtask:
                    profile = profile + job_vertex.vertex.resources
            self._cache[bound] = profile
        return profile


def _check_co_location(graph: ExecutionGraph) -> None:
    homes: dict[str, ExecutionJobVertex] = {}
    for job_vertex in graph.vertices:
        vertex = job_vertex.vertex
        if not vertex.co_location_group:
            continue
        first = homes.setdefault(vertex.co_location_group, job_vertex).vertex
        if (first.slot_sharing_group, first.resource_group) != (
            vertex.slot_sharing_group,
            vertex.resource_group,
        ):
            raise InvalidJobGraph(
                f"co-location group {vertex.co_location_group!r} has {first.name!r} and "
                f"{vertex.name!r}, which are in different slot sharing or resource groups and so "
                "can never share a slot; give them the same groups"
            )

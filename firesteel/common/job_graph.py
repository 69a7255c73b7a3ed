"""The JobGraph, which a program compiles to and a cluster runs (spec 002), and the ids of the
partitions of its results.

Domain types only. `firesteel.common.rpc.convert` turns them into their messages and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from firesteel.common.ids import JobId, OperatorId, ResultId, VertexId
from firesteel.common.resources import UNKNOWN, ResourceProfile


class DistributionPattern(Enum):
    POINTWISE = 0
    ALL_TO_ALL = 1


class Partitioner(Enum):
    FORWARD = 0
    REBALANCE = 1
    RESCALE = 2
    HASH = 3
    BROADCAST = 4
    WATERMARKS = 5  # no rows, to all subtasks

    @property
    def pattern(self) -> DistributionPattern:
        pointwise = self in (Partitioner.FORWARD, Partitioner.RESCALE)
        return DistributionPattern.POINTWISE if pointwise else DistributionPattern.ALL_TO_ALL


class ResultType(Enum):
    PIPELINED = 0  # producer and consumer run together; same region
    BLOCKING = 1  # kept by the TaskExecutor; a region's boundary


class Scaling(Enum):
    """Which requests change the parallelism of a vertex while the job runs."""

    DEFAULT = 0  # the parallelism of the job: the program sets none
    CHOSEN = 1  # only a request that names the vertex: the program sets its parallelism
    FIXED = 2  # nothing: it processes the whole stream, or its source cannot be divided


class BlobKind(Enum):
    FILE = 0
    ARCHIVE = 1
    REQUIREMENTS = 2
    MODULES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A user file, identified by the hash of its content (xxhash3-128, 32 hex)."""

    hash: str
    name: str  # base name
    kind: BlobKind
    size_bytes: int
    target_dir: str = ""  # archives only


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    operator_id: OperatorId
    name: str
    kind: str  # "Source", "Transform", ...: the spec's class without "Spec"
    spec: bytes  # cloudpickle of firesteel.operators.<kind>Spec; opened in slots only
    uid: str = ""
    # For each input, the indices of the operators in the same chain that feed it; () if JobEdges
    # do.
    inputs: tuple[tuple[int, ...], ...] = ()
    coordinator_kind: str = ""
    coordinator_options_json: str = ""
    runs_on_spark: bool = False
    place: str = ""  # where the program adds it, for messages: "job.py, line 7"

    def says(self, problem: str) -> str:
        """Returns the problem of this operator, with its place in the program as a prefix."""
        return f"{self.place}: {problem}" if self.place else problem


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVertex:
    """One task per subtask runs this chain of operators (a DAG, in topological order)."""

    vertex_id: VertexId
    name: str
    parallelism: int
    max_parallelism: int
    operators: tuple[Operator, ...]
    slot_sharing_group: str = "default"
    co_location_group: str = ""
    resource_group: str = ""
    resources: ResourceProfile = UNKNOWN
    scaling: Scaling = Scaling.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEdge:
    """Connects an operator of one vertex to an input of an operator of another, through one
    intermediate result.
    """

    result_id: ResultId
    source_vertex_id: VertexId
    source_operator: int
    target_vertex_id: VertexId
    target_operator: int
    target_input: int
    partitioner: Partitioner
    key_columns: tuple[str, ...] = ()
    result_type: ResultType = ResultType.PIPELINED
    side_output_tag: str = ""

    @property
    def pattern(self) -> DistributionPattern:
        return self.partitioner.pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGraph:
    job_id: JobId
    name: str
    vertices: tuple[JobVertex, ...]  # topological order
    edges: tuple[JobEdge, ...]
    config: dict[str, str] = field(default_factory=dict)
    blobs: tuple[Blob, ...] = ()
    batch: bool = False

    def vertex(self, vertex_id: VertexId) -> JobVertex:
        return next(v for v in self.vertices if v.vertex_id == vertex_id)

    def with_parallelism(self, by_vertex: Mapping[VertexId, int]) -> JobGraph:
        """Returns the graph with a different parallelism of these vertices."""
        vertices = (
            replace(v, parallelism=by_vertex.get(v.vertex_id, v.parallelism)) for v in self.vertices
        )
        return replace(self, vertices=tuple(vertices))

    def operator(self, operator_id: OperatorId) -> Operator:
        operators = (o for v in self.vertices for o in v.operators)
        return next(o for o in operators if o.operator_id == operator_id)


def pointwise_consumers(producer: int, producers: int, consumers: int) -> range:
    """Returns the consumers that read from `producer` on a POINTWISE edge.

    Both sides are cut into runs of (almost) equal length. So i feeds i where both are equal, and
    `consumer in pointwise_consumers(p, ...)` exactly when `p in pointwise_producers(consumer,
    ...)`.
    """
    if producers <= consumers:
        return range(
            -(-producer * consumers // producers), -(-(producer + 1) * consumers // producers)
        )
    index = producer * consumers // producers
    return range(index, index + 1)


def pointwise_producers(consumer: int, producers: int, consumers: int) -> range:
    """Returns the producers of a consumer on a POINTWISE edge (see `pointwise_consumers`)."""
    if producers <= consumers:
        index = consumer * producers // consumers
        return range(index, index + 1)
    return range(-(-consumer * producers // consumers), -(-(consumer + 1) * producers // consumers))


class ResultPartitionId(NamedTuple):
    """The output of one attempt of one producer of a job's result."""

    result_id: ResultId
    producer: int  # its subtask
    attempt: int

    def __str__(self) -> str:
        return (
            f"partition of producer subtask {self.producer}, attempt {self.attempt}, of result"
            f" {self.result_id}"
        )


class StoredPartition(NamedTuple):
    """A complete partition. Its TaskExecutor serves it until it is released or the job ends."""

    id: ResultPartitionId
    size_bytes: int  # the size of its file
    rows: int
    path: str = ""  # its file, as the process that wrote it left it

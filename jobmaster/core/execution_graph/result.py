"""IntermediateResult and its partitions: what one vertex produces for another along one JobEdge.

Edges between subtasks are never stored. They follow from the pattern: every consumer reads from all
producers (ALL_TO_ALL), or from a range of neighbours (POINTWISE). So a result takes O(producers)
memory, not O(producers x consumers).
"""

from __future__ import annotations

from enum import Enum

from firesteel.common.job_graph import (
    DistributionPattern,
    JobEdge,
    ResultType,
    pointwise_consumers,
    pointwise_producers,
)
from firesteel.common.states import ExecutionState
from jobmaster.core.execution_graph.vertex import ExecutionJobVertex, ExecutionVertex


class PartitionState(Enum):
    """The progress of one partition, derived from its producer's current execution."""

    CREATED = 0  # its producer does not run yet
    CONSUMABLE = 1  # pipelined and being produced, or complete
    LOST = 2  # its producer ended without completing it, or the complete partition is gone


class IntermediateResultPartition:
    """One producer subtask's contribution to a result (firesteel.common.job_graph)."""

    __slots__ = ("producer", "result")

    def __init__(self, result: IntermediateResult, producer: ExecutionVertex) -> None:
        self.result = result
        self.producer = producer

    @property
    def state(self) -> PartitionState:
        match self.producer.current.state:
            case ExecutionState.FINISHED:
                lost = self.producer.subtask in self.result.lost
                return PartitionState.LOST if lost else PartitionState.CONSUMABLE
            case ExecutionState.INITIALIZING | ExecutionState.RUNNING:
                pipelined = self.result.edge.result_type is ResultType.PIPELINED
                return PartitionState.CONSUMABLE if pipelined else PartitionState.CREATED
            case ExecutionState.FAILED | ExecutionState.CANCELED | ExecutionState.CANCELING:
                return PartitionState.LOST
            case _:
                return PartitionState.CREATED

    @property
    def consumers(self) -> range:
        return self.result.consumers_of(self.producer.subtask)


class IntermediateResult:
    __slots__ = ("consumer", "edge", "lost", "partitions", "producer")

    def __init__(
        self, edge: JobEdge, producer: ExecutionJobVertex, consumer: ExecutionJobVertex
    ) -> None:
        self.edge = edge
        self.producer = producer
        self.consumer = consumer
        # Producers whose partitions of a BLOCKING result must not be read: they are unreadable or
        # about to be produced again.
        self.lost: set[int] = set()
        self.partitions = [
            IntermediateResultPartition(self, vertex) for vertex in producer.vertices
        ]

    def consumers_of(self, producer: int) -> range:
        """Returns the subtasks that read from this producer subtask."""
        if self.edge.pattern is DistributionPattern.ALL_TO_ALL:
            return range(self.consumer.parallelism)
        return pointwise_consumers(producer, self.producer.parallelism, self.consumer.parallelism)

    def producers_of(self, consumer: int) -> range:
        """Returns the subtasks that this consumer subtask reads from."""
        if self.edge.pattern is DistributionPattern.ALL_TO_ALL:
            return range(self.producer.parallelism)
        return pointwise_producers(consumer, self.producer.parallelism, self.consumer.parallelism)

"""The operators of one task as a DAG of nodes.

Calls up to `open` go from the last node to the first, so that an operator finds its consumers ready
when it starts. Calls from `finish` on go from the first node to the last, so that an operator finds
its consumers still open when it ends (spec 000).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from firesteel.common.ids import OperatorId
from firesteel.common.job_graph import JobEdge
from firesteel.elements import CheckpointBarrier, EndOfData, EndOfPartition, StreamEvent
from firesteel.operator import StreamOperator
from taskexecutor.executor.state import (
    CreateKeyedState,
    OperatorStateSnapshot,
    TaskOperatorState,
    key_group_range,
)
from taskexecutor.executor.task.chain.node import ChainNode, NodeTarget
from taskexecutor.executor.task.chain.output import PartitionTarget
from taskexecutor.executor.task.config import TaskConfig
from taskexecutor.executor.task.interfaces import ResultPartition


class ChainEntry(NamedTuple):
    node: ChainNode
    input_index: int


class OperatorChain:
    """The nodes in topological order."""

    def __init__(self, nodes: Sequence[ChainNode], partitions: Sequence[ResultPartition]) -> None:
        self.nodes = tuple(nodes)
        self.partitions = tuple(partitions)
        self._node_of_operator = {
            operator_id: node for node in self.nodes for operator_id in node.member_ids
        }
        self._watermark_alignments = [
            node.watermark_alignment for node in self.nodes if node.watermark_alignment is not None
        ]
        self._with_limits = [
            node.operator
            for node in self.nodes
            if type(node.operator).full is not StreamOperator.full
        ]
        self._downstream_of_emitters_at_end = _downstream_of_emitters_at_end(self.nodes)
        self._node_of_index = {index: node for node in self.nodes for index in node.members}

    def entry(self, edge: JobEdge) -> ChainEntry:
        """Returns where an in_edge enters the chain."""
        return ChainEntry(self._node_of_index[edge.target_operator], edge.target_input)

    @property
    def stopped(self) -> bool:
        """Returns whether the task must take no input now because it is ahead of its watermark
        alignment group.
        """
        return any(alignment.stopped for alignment in self._watermark_alignments)

    @property
    def full(self) -> bool:
        """Returns whether the task must take no input now because an operator holds its maximum of
        rows.
        """
        return any(operator.full for operator in self._with_limits)

    @property
    def overdrawn(self) -> bool:
        """Returns whether the task must take no input now because its consumers lag."""
        return any(partition.overdrawn for partition in self.partitions)

    def target_of(self, partition: ResultPartition) -> PartitionTarget:
        return next(
            target
            for node in self.nodes
            for target in node.output.targets
            if isinstance(target, PartitionTarget) and target.partition is partition
        )

    def node_of(self, operator_id: str) -> ChainNode | None:
        return self._node_of_operator.get(operator_id)

    # -- last to first

    def setup(self, check: Callable[[], None]) -> None:
        for node in reversed(self.nodes):
            check()
            node.setup()

    def initialize_state(
        self,
        config: TaskConfig,
        create_keyed_state: CreateKeyedState,
        key_group_of: Callable[[object], int],
        check: Callable[[], None],
    ) -> None:
        key_groups = key_group_range(
            config.subtask, config.vertex.parallelism, config.vertex.max_parallelism
        )
        for node in reversed(self.nodes):
            check()
            restored = None
            if config.restored is not None:
                restored = next(
                    (state for i, state in config.restored.items() if i in node.member_ids), None
                )
            node.initialize_state(
                TaskOperatorState(
                    create_keyed_state(key_groups, key_group_of),
                    restored,
                    max_parallelism=config.vertex.max_parallelism,
                )
            )

    def open(self, check: Callable[[], None]) -> None:
        for node in reversed(self.nodes):
            check()
            node.open()

    # -- checkpoints

    def check_checkpointed(self) -> None:
        """Raises FiresteelError if an operator has state that no checkpoint includes."""
        for node in self.nodes:
            node.check_checkpointed()

    def prepare_barrier(self, checkpoint_id: int) -> None:
        """Emits everything that belongs before the barrier."""
        for node in self.nodes:
            node.prepare_barrier(checkpoint_id)

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Emits the barrier, after everything that belongs to the checkpoint."""
        self._emit_event(barrier)

    def snapshot(self, checkpoint_id: int) -> list[tuple[OperatorId, OperatorStateSnapshot]]:
        """Takes the synchronous part of the snapshot, in constant time with respect to keyed
        state.
        """
        return [node.snapshot(checkpoint_id) for node in self.nodes]

    def notify_checkpoint(self, checkpoint_id: int, *, completed: bool) -> None:
        for node in self.nodes:
            node.notify_checkpoint(checkpoint_id, completed=completed)

    # -- first to last

    def flush(self) -> None:
        """Emits everything that is held back, because the input ran dry."""
        for node in self.nodes:
            node.flush()

    def advance_to_end_of_event_time(self) -> None:
        """Advances event time to MAX_WATERMARK, which fires every event-time timer. Skips nodes
        that still receive rows from an operator that emits at its end.
        """
        for node in self.nodes:
            if node not in self._downstream_of_emitters_at_end:
                node.advance_to_end_of_event_time()

    def finish(self, check: Callable[[], None]) -> None:
        for node in self.nodes:
            check()
            if node in self._downstream_of_emitters_at_end:
                node.advance_to_end_of_event_time()
            node.finish()

    def stop(self) -> None:
        """Stops the operators for a savepoint: they emit nothing afterwards."""
        for node in self.nodes:
            node.stop()

    def emit_end_of_data(self, finished: bool) -> None:
        self._emit_event(EndOfData(finished))

    def emit_end_of_partition(self) -> None:
        self._emit_event(EndOfPartition())

    def close(self) -> list[BaseException]:
        """Closes every operator that was set up and is not closed, even if others raise. Returns
        the errors.
        """
        failures: list[BaseException] = []
        for node in self.nodes:
            try:
                node.close()
            except BaseException as error:
                failures.append(error)
        return failures

    def _emit_event(self, event: StreamEvent) -> None:
        for partition in self.partitions:
            partition.emit_event(event)


def _downstream_of_emitters_at_end(nodes: Sequence[ChainNode]) -> frozenset[ChainNode]:
    """Returns the nodes downstream of an operator that emits at its end."""
    downstream: set[ChainNode] = set()
    for node in nodes:
        if node.operator.emits_at_end or node in downstream:
            downstream.update(
                target.node for target in node.output.targets if isinstance(target, NodeTarget)
            )
    return frozenset(downstream)

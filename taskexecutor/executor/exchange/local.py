"""Channels whose producer and consumer are in the same process."""

from __future__ import annotations

from taskexecutor.executor.exchange.errors import ProtocolError
from taskexecutor.executor.exchange.gate import InputGate
from taskexecutor.executor.exchange.partition import (
    AttachedPartition,
    ResultPartition,
    Wakeup,
)
from taskexecutor.executor.exchange.registry import PartitionRegistry


class LocalChannel:
    """Connects the two halves by calls: the consumer polls the same batch object that the producer
    emits.
    """

    __slots__ = ("_gate", "_gate_index", "_index", "_partition", "_registry")

    def __init__(self, registry: PartitionRegistry, gate: InputGate, gate_index: int) -> None:
        self._registry = registry
        self._gate = gate
        self._gate_index = gate_index
        self._partition: ResultPartition | None = None
        self._index = 0

    # -- until the partition exists

    def found(self, partition: AttachedPartition) -> None:
        # complete partitions are in the TaskExecutor's process
        assert isinstance(partition, ResultPartition)

        def carrier(index: int) -> LocalChannel:
            self._partition, self._index = partition, index
            return self

        wakeups: list[Wakeup] = []
        try:
            partition.attach(self._gate.consumer, carrier, wakeups)
        except ProtocolError as error:
            self.not_found(str(error))
            return
        for wakeup in wakeups:
            wakeup()
        if self._gate.closed:  # closed while the partition appeared: only this call can notify it
            self.close()

    def not_found(self, reason: str) -> None:
        if self._gate.fail(self._gate_index, reason):
            self._gate.on_available()

    # -- to the consumer

    def ready(self, wakeups: list[Wakeup]) -> None:
        partition = self._partition
        assert partition is not None
        wake = False
        while (parcel := partition.take_locked(self._index)) is not None:
            element = parcel.event if parcel.event is not None else parcel.batches[0]
            wake |= self._gate.receive(
                self._gate_index,
                element,
                sequence=parcel.sequence,
                count=parcel.count,
                size_bytes=parcel.size_bytes,
            )
        if (reason := partition.abort_reason(self._index)) is not None:
            wake |= self._gate.fail(self._gate_index, reason)
        if wake:
            wakeups.append(self._gate.on_available)

    # -- to the producer

    def grant(self, size_bytes: int, events: int) -> None:
        if self._partition is not None:
            self._partition.granted(self._index, size_bytes, events)

    def consumed(self) -> None:
        if self._partition is not None:
            self._partition.consumed(self._index)

    def close(self) -> None:
        self._registry.forget(self)
        if self._partition is not None:
            self._partition.abandoned(self._index, "it was cancelled or failed")

"""The exchange of one process: its partitions, its gates, the channels between them, its Flight
server and its connections.
"""

from __future__ import annotations

import atexit
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firesteel.common.job_graph import DistributionPattern, Partitioner, pointwise_producers
from firesteel.elements import MAX_WATERMARK, EndOfData, EndOfPartition
from taskexecutor.executor.exchange.blocking import BlockingPartition, ResultFolders
from taskexecutor.executor.exchange.client import Connections
from taskexecutor.executor.exchange.errors import LocalProtocolError, ProtocolError
from taskexecutor.executor.exchange.gate import InputGate, Producer
from taskexecutor.executor.exchange.partition import (
    AttachedPartition,
    PartitionId,
    ResultPartition,
    Wakeup,
)
from taskexecutor.executor.exchange.partitioning import Routing, make_routing
from taskexecutor.executor.exchange.registry import PartitionRegistry
from taskexecutor.executor.exchange.security import ExchangeSecurity
from taskexecutor.executor.exchange.server import ExchangeServer


@dataclass(frozen=True, slots=True)
class Locations:
    """Where the partitions of one result are. The second and third field have one entry per
    producer subtask.
    """

    addresses: tuple[str, ...]  # distinct, host:port
    address_index: Sequence[int]  # into addresses
    attempts: Sequence[int]
    ended: bool = False  # all producers had finished before the job was restored; no entries


class Exchange:
    """The exchange of one PySpark executor process. Thread-safe."""

    def __init__(
        self,
        *,
        host: str,
        window_bytes: int,
        batch_rows: int,
        partition_timeout_s: float,
        folders: ResultFolders | None = None,
        security: ExchangeSecurity | None = None,
    ) -> None:
        """Starts serving on a free port of `host`. `folders` are for BLOCKING results. Without
        `security`, it serves every caller.
        """
        self._window_bytes = window_bytes
        self._batch_rows = batch_rows
        self._registry = PartitionRegistry(timeout_s=partition_timeout_s)
        self._connections = Connections(security)
        self._lock = threading.Lock()
        self._gates: set[InputGate] = set()
        self._folders = folders
        self._written: set[BlockingPartition] = set()  # partitions that are not closed
        self._closed = False
        self._server = ExchangeServer(self._registry, host, security)
        self.address: str = self._server.address
        # An interpreter that exits while Flight's threads run would hang.
        atexit.register(self.close)

    def create_partition(
        self,
        *,
        job_id: str,
        result_id: str,
        producer: int,
        attempt: int,
        partitioner: Partitioner,
        producers: int,
        consumers: int,
        max_parallelism: int,
        key_columns: Sequence[str],
        on_credit: Callable[[], None] | None = None,
        blocking: bool = False,
    ) -> ResultPartition | BlockingPartition:
        """Creates the producer's end of an edge. Consumers find it immediately, a `blocking` one at
        its TaskExecutor once it is complete. `max_parallelism` is that of the consumers.
        `on_credit`: see ResultPartition.
        """
        routing = make_routing(
            partitioner,
            producer=producer,
            producers=producers,
            consumers=consumers,
            max_parallelism=max_parallelism,
            key_columns=key_columns,
            batch_rows=self._batch_rows,
        )
        partition_id = PartitionId(job_id, result_id, producer, attempt)
        if blocking:
            return self._create_blocking(partition_id, routing)
        partition = ResultPartition(
            partition_id,
            routing,
            window_bytes=self._window_bytes,
            batch_rows=self._batch_rows,
            on_close=self._registry.remove,
            on_credit=on_credit,
        )
        self._registry.add(partition)
        return partition

    def _create_blocking(self, partition_id: PartitionId, routing: Routing) -> BlockingPartition:
        if self._folders is None:
            raise LocalProtocolError(f"this process has no folder for the {partition_id}")
        partition = BlockingPartition(
            partition_id,
            routing,
            folders=self._folders,
            batch_rows=self._batch_rows,
            on_close=self._forget_written,
        )
        with self._lock:
            if self._closed:
                raise LocalProtocolError("the exchange is closed")
            self._written.add(partition)
        return partition

    def create_gate(
        self,
        *,
        job_id: str,
        result_id: str,
        consumer: int,
        producers: int,
        consumers: int,
        pattern: DistributionPattern,
        locations: Locations,
        on_available: Callable[[], None],
    ) -> InputGate:
        """Creates the consumer's end of an edge and connects it to its producers, without waiting
        for them. If the producers had finished before, the gate already contains their end events.
        """
        pointwise = pattern is DistributionPattern.POINTWISE
        subtasks = (
            pointwise_producers(consumer, producers, consumers) if pointwise else range(producers)
        )
        gate = InputGate(
            job_id=job_id,
            result_id=result_id,
            consumer=consumer,
            producers=[_producer(locations, p) for p in subtasks],
            window_bytes=self._window_bytes,
            on_available=on_available,
            on_close=self._forget_gate,
        )
        with self._lock:
            if self._closed:
                raise LocalProtocolError("the exchange is closed")
            self._gates.add(gate)
        for index, producer in enumerate(gate.producers):
            if locations.ended:
                for sequence, event in enumerate((MAX_WATERMARK, EndOfData(), EndOfPartition())):
                    gate.receive(index, event, sequence=sequence, count=1, size_bytes=0)
            elif producer.address == self.address:
                channel = LocalChannel(self._registry, gate, index)
                gate.connect(index, channel)
                self._registry.ask(
                    PartitionId(job_id, result_id, producer.subtask, producer.attempt), channel
                )
            else:
                self._connections.open_channel(producer.address, gate, index)
        if gate.closed:  # release_job was called in the meantime
            gate.disconnect()
        return gate

    @property
    def partitions_awaited(self) -> int:
        """Returns the number of channels whose partition consumers requested and which does not
        exist yet.
        """
        return self._registry.waiting

    def release_job(self, job_id: str) -> None:
        """Drops all partitions and gates of a job; tasks that still use them get an error
        immediately.
        """
        with self._lock:
            gates = [gate for gate in self._gates if gate.job_id == job_id]
            written = [partition for partition in self._written if partition.id.job_id == job_id]
        for gate in gates:
            gate.close()
        for partition in self._registry.partitions(job_id):
            partition.abort("its job was released")
            partition.close()
        for blocking in written:
            blocking.close()
        self._registry.forget_job(job_id)
        if self._folders is not None:  # complete partitions of a task that failed afterwards
            for folder in (self._folders.memory, self._folders.disk):
                if folder is not None:
                    shutil.rmtree(folder / job_id, ignore_errors=True)

    def close(self) -> None:
        """Closes all partitions and gates: peers see their producers or consumers gone."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            gates = list(self._gates)
            written = list(self._written)
        atexit.unregister(self.close)
        for gate in gates:
            gate.close()
        for partition in self._registry.partitions():
            partition.abort("its process is shutting down")
            partition.close()
        for blocking in written:
            blocking.close()
        self._registry.close()
        self._connections.close()
        self._server.stop()

    def _forget_written(self, partition: BlockingPartition) -> None:
        with self._lock:
            self._written.discard(partition)

    def _forget_gate(self, gate: InputGate) -> None:
        with self._lock:
            self._gates.discard(gate)


def _producer(locations: Locations, subtask: int) -> Producer:
    if locations.ended:
        return Producer(subtask=subtask, attempt=-1, address="")
    address = locations.addresses[locations.address_index[subtask]]
    return Producer(subtask=subtask, attempt=locations.attempts[subtask], address=address)


class LocalChannel:
    """Connects the two halves of a channel within this process by calls: the consumer polls the
    same batch object that the producer emits.
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

"""The producer side of the network: one Flight server per process, one `ProducerStream` per
DoExchange call.

A stream has two threads: Flight's own, which reads the consumer's records (channels to open,
credit), and a writer, which takes from the channels in turn and sends. So a task waits for credit
but never for the network, and can be cancelled regardless of the peer. The stream lives until the
consumer's process closes it or dies.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any, assert_never

import pyarrow as pa
import pyarrow.flight as flight

import taskexecutor.executor.exchange.wire as wire
from firesteel.common.logs import get_logger
from taskexecutor.executor.exchange.channels import Parcel
from taskexecutor.executor.exchange.errors import (
    TRANSPORT_ERRORS,
    ProtocolError,
    RemoteProtocolError,
    SchemaChanged,
)
from taskexecutor.executor.exchange.partition import AttachedPartition, PartitionId, Wakeup
from taskexecutor.executor.exchange.registry import PartitionRegistry
from taskexecutor.executor.exchange.schema import different_schema
from taskexecutor.executor.exchange.security import ExchangeSecurity, server_arguments

log = get_logger(__name__)

MAX_METADATA_BYTES = 64 * 2**10  # limit of records combined into one message


class ExchangeServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves this process's partitions, from its construction until `stop`."""

    def __init__(
        self, registry: PartitionRegistry, host: str, security: ExchangeSecurity | None = None
    ) -> None:
        """Without `security`, it serves every caller."""
        self._registry = registry  # set before the first call
        self._security = security
        super().__init__(**server_arguments(security, host))
        self.address = f"{host}:{self.port}"

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        try:
            job_id, result_id = wire.decode_descriptor(descriptor.command)
        except RemoteProtocolError as error:
            raise flight.FlightServerError(str(error)) from None
        if self._security is not None:
            self._security.check(context, job_id)
        ProducerStream(self._registry, job_id, result_id, writer).run(reader)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Waits for the streams to end, which they do once the consumers are notified that their
        producers are gone. If a peer hangs, only its thread stays; the process continues.
        """
        stopper = threading.Thread(target=self._shutdown, name="exchange-shutdown", daemon=True)
        stopper.start()
        stopper.join(timeout_s)

    def _shutdown(self) -> None:
        self.shutdown()
        self.wait()


class RemoteChannel:
    """The carrier of one channel on a stream. Until the partition exists, it is the registry's
    asker.
    """

    __slots__ = ("_open", "_stream", "closed", "index", "partition", "scheduled")

    def __init__(self, stream: ProducerStream, request: wire.Open) -> None:
        self._stream = stream
        self._open = request
        self.partition: AttachedPartition | None = None
        self.index = 0
        self.closed = False  # by the consumer
        self.scheduled = False  # in the writer's queue; guarded by the partition's lock

    @property
    def number(self) -> int:
        return self._open.channel

    def found(self, partition: AttachedPartition) -> None:
        def carrier(index: int) -> RemoteChannel:
            self.partition, self.index = partition, index
            return self

        try:
            partition.attach(self._open.consumer, carrier, [])
        except ProtocolError as error:
            self.not_found(str(error))
            return
        # closed while the partition did not exist and could not be notified
        if self._stream.ended or self.closed:
            partition.abandoned(self.index, "it disconnected while its channel was being opened")

    def not_found(self, reason: str) -> None:
        self._stream.send_soon(wire.encode_failed(self.number, reason))

    def ready(self, wakeups: list[Wakeup]) -> None:
        if not self.scheduled:
            self.scheduled = True
            self._stream.send_soon(self)


class ProducerStream:
    """One DoExchange call, in which a consumer process reads the partitions of one result."""

    def __init__(
        self, registry: PartitionRegistry, job_id: str, result_id: str, writer: Any
    ) -> None:
        self.ended = False
        self._registry = registry
        self._job_id = job_id
        self._result_id = result_id
        self._writer = writer
        self._schema: pa.Schema | None = None
        self._writing_ended = threading.Event()
        self._channels: dict[int, RemoteChannel] = {}
        # Channels with elements to send, and encoded records. Bounded: at most one entry per
        # channel.
        self._to_send: queue.SimpleQueue[RemoteChannel | bytes | None] = queue.SimpleQueue()

    def send_soon(self, what: RemoteChannel | bytes) -> None:
        self._to_send.put(what)

    # -- the reading thread

    def run(self, reader: Any) -> None:
        writing = threading.Thread(
            target=self._write, name=f"exchange-writer-{self._result_id[:8]}", daemon=True
        )
        writing.start()
        reason = "the connection to its process was lost"
        try:
            while True:
                try:
                    message = reader.read_chunk()
                except StopIteration:
                    break
                for record in wire.decode_to_producer(
                    message.app_metadata.to_pybytes() if message.app_metadata else b""
                ):
                    self._handle(record)
        except TRANSPORT_ERRORS:
            pass  # the consumer's process has died, or has taken nothing for a long time
        except ProtocolError as error:
            reason = f"its process broke the protocol: {error}"
            log.warning(
                "exchange stream closed after a protocol error",
                result_id=self._result_id,
                reason=str(error),
            )
            raise flight.FlightServerError(str(error)) from None
        finally:
            self.ended = True
            for channel in self._channels.values():
                self._registry.forget(channel)
                if channel.partition is not None:
                    channel.partition.abandoned(channel.index, reason)
            self._to_send.put(None)
            # it uses the call's writer, which is invalid once this returns
            self._writing_ended.wait()

    def _handle(self, record: wire.ToProducer) -> None:
        if isinstance(record, wire.Open):
            if record.channel in self._channels:
                raise RemoteProtocolError(f"channel {record.channel} was opened twice")
            channel = self._channels[record.channel] = RemoteChannel(self, record)
            self._registry.ask(
                PartitionId(self._job_id, self._result_id, record.producer, record.attempt), channel
            )
            return
        known = self._channels.get(record.channel)
        if known is None:
            raise RemoteProtocolError(f"channel {record.channel} was never opened")
        partition = known.partition
        match record:
            case wire.GrantCredit():
                if partition is None:
                    raise RemoteProtocolError(
                        f"credit arrived for channel {record.channel} before anything was sent on "
                        "it"
                    )
                partition.granted(known.index, record.size_bytes, record.events)
            case wire.Consumed():
                if partition is None:
                    raise RemoteProtocolError(
                        f"channel {record.channel} was acknowledged before anything was sent on it"
                    )
                partition.consumed(known.index)
                del self._channels[record.channel]
            case wire.Close():
                known.closed = True
                self._registry.forget(known)
                if (partition := known.partition) is not None:
                    partition.abandoned(known.index, "it was cancelled or failed")
                del self._channels[record.channel]
            case _:
                assert_never(record)

    # -- the writing thread

    def _write(self) -> None:
        try:
            while (item := self._to_send.get()) is not None:
                if not self._send(item):
                    return
        except TRANSPORT_ERRORS as error:
            # The consumer is gone (the reading thread also sees that), or the message cannot be
            # sent.
            self._give_up(f"sending failed: {str(error).splitlines()[0][:300]}")
        except Exception as error:  # otherwise tasks would wait forever
            log.exception("exchange stream failed", result_id=self._result_id)
            self._give_up(f"sending failed: {error!r}")
        finally:
            self._writing_ended.set()

    def _give_up(self, reason: str) -> None:
        failed = bytearray()
        for channel in list(self._channels.values()):
            failed += wire.encode_failed(channel.number, reason)
            if channel.partition is not None:
                channel.partition.abandoned(channel.index, reason)
        with contextlib.suppress(*TRANSPORT_ERRORS):
            self._writer.write_metadata(pa.py_buffer(bytes(failed)))

    def _send(self, item: RemoteChannel | bytes | None) -> bool:
        """Sends one message: records of the channels in turn, up to and including the first batch.
        Returns False at the end.
        """
        records = bytearray()
        batches: tuple[pa.RecordBatch, ...] = ()
        while item is not None:
            if isinstance(item, bytes):
                records += item
            else:
                batches = self._gather(item, records)
            if batches or len(records) > MAX_METADATA_BYTES:
                break
            try:
                item = self._to_send.get_nowait()
            except queue.Empty:
                break
        if batches:
            if self._schema is None:
                self._schema = batches[0].schema
                self._writer.begin(self._schema)
            self._writer.write_with_metadata(joined(batches), pa.py_buffer(bytes(records)))
        elif records:
            self._writer.write_metadata(pa.py_buffer(bytes(records)))
        return item is not None

    def _gather(self, channel: RemoteChannel, records: bytearray) -> tuple[pa.RecordBatch, ...]:
        """Adds the next record of a channel, and returns the batches for the message's body, if
        any.
        """
        partition = channel.partition
        assert partition is not None  # only attached channels are ready
        parcel = partition.take(channel, channel.index)
        if parcel is None:
            if (reason := partition.abort_reason(channel.index)) is not None:
                records += wire.encode_failed(channel.number, reason)
            return ()
        if parcel.event is not None:
            records += wire.encode_event(channel.number, parcel.sequence, parcel.event)
            return ()
        if self._schema is not None and not parcel.batches[0].schema.equals(self._schema):
            partition.fail(
                SchemaChanged(
                    different_schema(str(partition.id), self._schema, parcel.batches[0].schema)
                )
            )
            return ()
        return self._with_header(channel, parcel, records)

    def _with_header(
        self, channel: RemoteChannel, parcel: Parcel, records: bytearray
    ) -> tuple[pa.RecordBatch, ...]:
        records += wire.encode_batch_header(
            channel.number, parcel.sequence, parcel.count, parcel.size_bytes
        )
        return parcel.batches


def joined(batches: tuple[pa.RecordBatch, ...]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

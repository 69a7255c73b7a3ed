"""The consumer side of the network: one connection per producing process, one stream per result and
process.

A stream has one thread, which connects and then reads; the tasks' threads write their channels' few
records (open, credit, close) themselves. The producer's process always reads, so these writes do
not block.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import Any, assert_never

import pyarrow as pa
import pyarrow.flight as flight

import taskexecutor.executor.exchange.wire as wire
from firesteel.common.logs import get_logger
from taskexecutor.executor.exchange.errors import (
    TRANSPORT_ERRORS,
    LocalProtocolError,
    RemoteProtocolError,
)
from taskexecutor.executor.exchange.gate import InputGate
from taskexecutor.executor.exchange.security import ExchangeSecurity, open_client

log = get_logger(__name__)


@dataclass(slots=True)
class _Connection:
    client: Any  # a FlightClient
    streams: int = 0  # streams that use it


class Connections:
    """Connections and streams of this process to the processes that it reads from."""

    def __init__(self, security: ExchangeSecurity | None = None) -> None:
        self._security = security
        self._lock = threading.Lock()
        self._clients: dict[str, _Connection] = {}  # by address
        # By address, job and result: the streams to which channels can be added.
        self._streams: dict[tuple[str, str, str], ConsumerStream] = {}
        self._running: set[ConsumerStream] = set()  # streams whose thread has not ended
        self._closed = False

    def open_channel(self, address: str, gate: InputGate, index: int) -> None:
        """Opens channel `index` of a gate. Failures are reported to the gate."""
        with self._lock:
            if self._closed:
                raise LocalProtocolError("the exchange is closed")
            key = (address, gate.job_id, gate.result_id)
            stream = self._streams.get(key)
            if stream is None or not stream.add(gate, index):
                stream = self._streams[key] = ConsumerStream(
                    self, address, gate.job_id, gate.result_id
                )
                self._running.add(stream)
                stream.add(gate, index)
                stream.start()

    def close(self, timeout_s: float = 5.0) -> None:
        with self._lock:
            self._closed = True
            running = list(self._running)
        for stream in running:
            stream.cancel()
        for stream in running:
            stream.join(timeout_s)

    def client(self, address: str) -> Any:
        """Returns the connection to a process, and counts one more stream on it."""
        with self._lock:
            connection = self._clients.get(address)
            if connection is None:
                connection = _Connection(open_client(self._security, address))
                self._clients[address] = connection
            connection.streams += 1
            return connection.client

    def call_options(self, job_id: str) -> Any:
        """Returns the options of a call that reads partitions of the job."""
        return None if self._security is None else self._security.call_options(job_id)

    def ended(self, stream: ConsumerStream, connected: bool) -> None:
        """Removes a stream whose thread ends; the last stream closes the connection."""
        with self._lock:
            self._running.discard(stream)
            self.retired(stream)
            if not connected:
                return
            connection = self._clients[stream.address]
            connection.streams -= 1
            if connection.streams:
                return
            del self._clients[stream.address]
        connection.client.close()

    def retired(self, stream: ConsumerStream) -> None:
        """Marks that no channels can be added to the stream. (A dict operation: needs no lock.)"""
        key = (stream.address, stream.job_id, stream.result_id)
        if self._streams.get(key) is stream:
            self._streams.pop(key, None)


class RemoteUpstream:
    """Returns credit and acknowledgements from a gate to one producer."""

    __slots__ = ("_number", "_stream")

    def __init__(self, stream: ConsumerStream, number: int) -> None:
        self._stream = stream
        self._number = number

    def grant(self, size_bytes: int, events: int) -> None:
        self._stream.send(
            wire.GrantCredit(channel=self._number, size_bytes=size_bytes, events=events)
        )

    def consumed(self) -> None:
        self._stream.send_last(wire.Consumed(channel=self._number))

    def close(self) -> None:
        self._stream.send_last(wire.Close(channel=self._number))


class ConsumerStream(threading.Thread):
    """One DoExchange call to a producing process. The stream ends with its last channel."""

    def __init__(self, connections: Connections, address: str, job_id: str, result_id: str) -> None:
        super().__init__(name=f"exchange-reader-{result_id[:8]}", daemon=True)
        self.address = address
        self.job_id = job_id
        self.result_id = result_id
        self._connections = connections
        self._lock = threading.Lock()  # guards everything below, and orders the writes
        self._channels: dict[int, tuple[InputGate, int]] = {}
        self._next_number = 0
        # Records written before the stream existed; None afterwards.
        self._unsent: bytearray | None = bytearray()
        self._writer: Any = None
        self._reader: Any = None
        self._ending = False  # takes no more channels; later records are dropped
        self._cancelled = False

    # -- the tasks' side

    def add(self, gate: InputGate, index: int) -> bool:
        """Opens another channel. Returns False if this stream has ended; then use a new one."""
        producer = gate.producers[index]
        with self._lock:
            if self._ending:
                return False
            number = self._next_number
            self._next_number += 1
            self._channels[number] = (gate, index)
            gate.connect(index, RemoteUpstream(self, number))
            self._put(
                wire.encode_to_producer(
                    wire.Open(
                        channel=number,
                        producer=producer.subtask,
                        attempt=producer.attempt,
                        consumer=gate.consumer,
                    )
                )
            )
            return True

    def send(self, message: wire.ToProducer) -> None:
        with self._lock:
            self._put(wire.encode_to_producer(message))

    def send_last(self, message: wire.Consumed | wire.Close) -> None:
        """Sends a channel's last message. The last channel ends the stream."""
        with self._lock:
            if self._channels.pop(message.channel, None) is None:
                return
            self._put(wire.encode_to_producer(message))
            if not self._channels:
                self._end()

    def cancel(self) -> None:
        """Ends the stream immediately, even if the peer does not respond."""
        with self._lock:
            self._ending = self._cancelled = True
            if self._reader is not None:
                self._reader.cancel()

    # -- the reading thread

    def run(self) -> None:
        connected = False
        reason = "its process has closed the stream"
        try:
            client = self._connections.client(self.address)
            connected = True
            descriptor = wire.encode_descriptor(self.job_id, self.result_id)
            writer, reader = client.do_exchange(
                flight.FlightDescriptor.for_command(descriptor),
                self._connections.call_options(self.job_id),
            )
            self._began(writer, reader)
            while True:
                try:
                    message = reader.read_chunk()
                except StopIteration:
                    break
                self._handle(
                    message.data, message.app_metadata.to_pybytes() if message.app_metadata else b""
                )
        except RemoteProtocolError as error:
            reason = f"its process broke the protocol: {error}"
            log.error(
                "exchange stream closed after a protocol error",
                result_id=self.result_id,
                address=self.address,
                reason=str(error),
            )
            self.cancel()
        except TRANSPORT_ERRORS as error:
            reason = f"the connection to its process was lost ({str(error).splitlines()[0][:300]})"
        except Exception as error:  # gates must be notified of their producer's loss in any case
            log.exception("exchange stream failed", result_id=self.result_id, address=self.address)
            reason = f"the stream could not be read: {error!r}"
            self.cancel()
        finally:
            self._fail_all(reason)
            self._connections.ended(self, connected)

    def _began(self, writer: Any, reader: Any) -> None:
        """Sends the records written so far. The first write waits for the connection, which takes
        long if the address does not respond. Therefore it does not hold the lock, which tasks take.
        """
        with self._lock:
            self._reader = reader
        while True:
            with self._lock:
                if self._cancelled:
                    reader.cancel()
                    return
                if not self._unsent:
                    self._unsent = None
                    self._writer = writer
                    if self._ending:
                        writer.done_writing()
                    return
                unsent, self._unsent = self._unsent, bytearray()
            writer.write_metadata(pa.py_buffer(bytes(unsent)))

    def _handle(self, batch: pa.RecordBatch | None, metadata: bytes) -> None:
        wakeups: list[InputGate] = []
        for record in wire.decode_to_consumer(metadata):
            channel = self._channels.get(record.channel)
            if channel is None:
                if record.channel >= self._next_number:
                    raise RemoteProtocolError(
                        f"a record was sent on channel {record.channel}, which was never opened"
                    )
                if isinstance(record, wire.BatchHeader):
                    batch = None
                continue  # sent before the channel was closed
            gate, index = channel
            match record:
                case wire.BatchHeader():
                    if batch is None:
                        raise RemoteProtocolError(
                            f"a batch header without a batch on channel {record.channel}"
                        )
                    wake = gate.receive(
                        index,
                        batch,
                        sequence=record.sequence,
                        count=record.count,
                        size_bytes=record.size_bytes,
                    )
                    batch = None
                case wire.EventRecord():
                    wake = gate.receive(
                        index, record.event, sequence=record.sequence, count=1, size_bytes=0
                    )
                case wire.Failed():
                    wake = gate.fail(index, record.reason)
                    self._drop(record.channel)
                case _:
                    assert_never(record)
            if wake:
                wakeups.append(gate)
        if batch is not None:
            raise RemoteProtocolError("a batch without its header")
        for gate in wakeups:
            gate.on_available()

    # -- inside

    def _drop(self, number: int) -> None:
        with self._lock:
            self._channels.pop(number, None)
            if not self._channels:
                self._end()

    def _fail_all(self, reason: str) -> None:
        with self._lock:
            self._ending = True
            channels = list(self._channels.values())
            self._channels.clear()
            writer, self._writer = self._writer, None
            # The connection lives as long as it is referenced, and gates reference this stream.
            self._reader = None
        for gate, index in channels:
            if gate.fail(index, reason):
                gate.on_available()
        if writer is not None:
            with contextlib.suppress(*TRANSPORT_ERRORS):
                writer.close()

    def _put(self, records: bytes) -> None:
        """Writes records. Called with the lock held."""
        if self._unsent is not None:
            self._unsent += records
        elif self._writer is not None and not self._ending:
            # the reading thread sees the error as well
            with contextlib.suppress(*TRANSPORT_ERRORS):
                self._writer.write_metadata(pa.py_buffer(records))

    def _end(self) -> None:
        """Ends writing, after which the peer ends the call. Called with the lock held."""
        if self._ending:
            return
        self._ending = True
        self._connections.retired(self)
        if self._writer is not None:
            with contextlib.suppress(*TRANSPORT_ERRORS):
                self._writer.done_writing()

"""The exchange between the slots' processes: Arrow record batches and events, with credit-based
flow control, over Arrow Flight.

Theory of operation
===================

A JobEdge has one result; each producer subtask (attempt) has one `ResultPartition` of it, each
consumer subtask one `InputGate`. A logical *channel* connects a producer to each consumer that it
feeds:

    task ─▶ ResultPartition ─▶ SenderChannel ═══▶ ReceiverChannel ─▶ InputGate ─▶ task
             partitioning/        channels/   ◀─── channels/           gate.py
             partition.py                   credit

* Both halves of a channel are pure state (channels/: states with their TRANSITIONS, credit,
  numbering, coalescing). A thin shell carries elements between them: a Flight stream between
  processes (server.py, client.py, wire.py), a call within one process (exchange.py), or a test.
* The consumer opens a channel. Its process holds one connection to each producing process, and on
  it one DoExchange stream per job and result; all channels of that result between the two processes
  share the stream. The consumer waits for a partition that does not exist yet (registry.py). Until
  the consumer opens the channel, the producer's elements wait in the channel's window.
* Order: the elements of a channel (batches and events) are numbered without a gap and arrive in
  order, once. There is no order between channels. A gap is an error and is never repaired: a broken
  stream fails its channels, and the JobMaster recovers the job.
* Credit: per channel, a producer may be `window_bytes` ahead of its consumer. `emit` blocks for
  credit only, never for the network. Therefore memory is bounded by the number of channels times
  the window, and a slow consumer stops its producer but not the other channels of the stream.
* Batches: rows are cut to `batch_rows`. Consecutive small batches in the queue are coalesced, so
  that small batches do not cost a message each. If the queue is empty, elements are sent
  immediately. A stream has one schema, that of its first batch.
* End: the consumer acknowledges EndOfPartition once it has taken it; `ResultPartition.finish` waits
  for every channel's acknowledgement.
* Failure: a producer that aborts, dies, or does not appear in time is `PartitionFailed` at the
  gate, ahead of queued elements; a consumer that closes its gate or dies is `PartitionAbandoned` at
  the producer's current or next emit. The operating system reports a process's death by closing its
  connections; the masters' heartbeats detect a machine that stops responding.
* Threads: per stream, one that reads at the consumer; one that reads and one that writes at the
  producer. A task's thread partitions and queues, polls, and sends credit. Locks are taken in the
  order partition, gate; callbacks are called without locks.

* Checkpoints that overtake data: a producer only waits for credit before it offers an element, so
  every offered element soon reaches the consumer's queue, however long it stays there. A barrier
  keeps its place in the order, uses a separate credit, and is announced when it arrives
  (`InputGate.arrived`); the data ahead of it is in the receivers' queues, and nowhere else. The
  gate records this data, and the data that arrives until the last channel's barrier does. A
  producer with an overdraft waits for credit between elements only, so that it can also take part
  at any time.

`InputGate.block` holds single channels. Partitions of BLOCKING results are files (blocking/), which
the TaskExecutor serves to all consumers that request them, with the same protocol.
"""

from taskexecutor.executor.exchange.blocking import BlockingPartition, ResultFolders
from taskexecutor.executor.exchange.channels import BlockReason
from taskexecutor.executor.exchange.errors import (
    ExchangeClosed,
    ExchangeError,
    LocalProtocolError,
    PartitionAbandoned,
    PartitionFailed,
    PartitionUnreadable,
    ProtocolError,
    RemoteProtocolError,
    ResultNotWritten,
    SchemaChanged,
    UnsupportedKey,
)
from taskexecutor.executor.exchange.exchange import Exchange, Locations
from taskexecutor.executor.exchange.gate import InputGate
from taskexecutor.executor.exchange.partition import ResultPartition

__all__ = [
    "BlockReason",
    "BlockingPartition",
    "Exchange",
    "ExchangeClosed",
    "ExchangeError",
    "InputGate",
    "LocalProtocolError",
    "Locations",
    "PartitionAbandoned",
    "PartitionFailed",
    "PartitionUnreadable",
    "ProtocolError",
    "RemoteProtocolError",
    "ResultFolders",
    "ResultNotWritten",
    "ResultPartition",
    "SchemaChanged",
    "UnsupportedKey",
]

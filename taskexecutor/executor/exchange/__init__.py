"""The exchange between the slots' processes: Arrow record batches and events, with credit, over
Arrow Flight.

Theory of operation
===================

A JobEdge has one result; each producer subtask (attempt) has one `ResultPartition` of it, each
consumer subtask one `InputGate`. A logical *channel* leads from a producer to each consumer that it
feeds:

    task ─▶ ResultPartition ─▶ SenderChannel ═══▶ ReceiverChannel ─▶ InputGate ─▶ task
             partitioning/        channels/   ◀─── channels/           gate.py
             partition.py                   credit

* Both halves of a channel are pure state (channels/: states with their TRANSITIONS, credit,
  numbering, coalescing). What carries elements between them is a thin shell: a Flight stream
  between processes (server.py, client.py, wire.py), a call within one process (local.py), or a
  test.
* The consumer opens a channel. Its process holds one connection to each producing process, and on
  it one DoExchange stream per job and result; all channels of that result between the two processes
  share the stream. The consumer waits for a partition that is not there yet
  (registry.py). What a producer emits meanwhile waits in its channels' windows.
* Order: the elements of a channel (batches and events) are numbered without a gap and arrive in
  order, once. There is no order between channels. A gap is an error, never repaired: a broken
  stream fails the channels on it, and recovery is the JobMaster's.
* Credit: per channel, a producer may be `window_bytes` ahead of what its consumer has taken. `emit`
  blocks for credit only, never for the network; so memory is bounded by channels times window, and
  a slow consumer stops its producer but not the other channels of the stream.
* Batches: rows are cut to `batch_rows`; small batches that wait behind each other are put together,
  so that a message costs what it carries. When nothing waits, what is emitted leaves at once. A
  stream has one schema, its first batch's.
* End: EndOfPartition, taken by the consumer, is acknowledged; `ResultPartition.finish` waits for
  that of every channel.
* Failure: a producer that aborts, dies, or does not appear in time is `PartitionFailed` at the
  gate, before anything still queued; a consumer that closes its gate or dies is
  `PartitionAbandoned` at the producer's next, or waiting, emit. The operating system
  reports a process's death by closing its connections; a machine that falls silent is left to the
  masters' heartbeats.
* Threads: per stream, one that reads at the consumer; one that reads and one that writes at the
  producer. A task's thread partitions and queues, polls, and sends credit. Locks are taken in the
  order partition, gate; callbacks are made with none held.

* Checkpoints that overtake: credit is asked for only when an element is offered, so all that was
  offered is soon at the consumer, however long it waits there. A barrier travels in its order, has
  a credit of its own, and is announced when it arrives (`InputGate.arrived`); what is ahead of it
  is in the receivers' queues, and nowhere else. The gate records that, with what arrives until the
  last channel's barrier does. A producer with an overdraft waits for credit between elements only,
  so that it, too, can take part at any time.

`InputGate.block` holds single channels. Partitions of BLOCKING results are files (blocking/), which
the TaskExecutor serves to any consumers that ask, with the same protocol.
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

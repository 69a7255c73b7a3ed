"""The two halves of a logical channel: pure state, no I/O, no locks, no clock.

A channel leads from one producer subtask (and attempt) to one consumer subtask. `SenderChannel` is
part of the producer's `ResultPartition`, `ReceiverChannel` of the consumer's `InputGate`. Carriers
bring the output of one half to the other: over Arrow Flight (server.py, client.py), or by a call if
both are in one process (exchange.py).

Credit: a sender may be `window_bytes` ahead of its consumer: the bytes of all elements offered and
not yet granted back stay within the window. A batch larger than the window is admitted when nothing
is outstanding. Events have a separate credit, counted in elements, so that data does not delay a
barrier, and the number of watermarks is also bounded. Elements count the same whether they are in
the sender's queue, in transit or in the receiver's queue; so memory is bounded by channels times
window.

The receiver grants credit when an element is taken: in steps of a quarter of the window, and
everything due whenever its queue runs empty, so that a sender which needs the whole window for one
large batch gets it. It also grants everything due at EndOfData and at barriers, which may follow
EndOfData: their producer waits until everything was taken (spec 001).
"""

from taskexecutor.executor.exchange.channels.elements import (
    MAX_WAITING_EVENTS,
    Grant,
    Parcel,
    Queued,
)
from taskexecutor.executor.exchange.channels.receiver import (
    RECEIVER_TRANSITIONS,
    BlockReason,
    ReceiverChannel,
    ReceiverState,
)
from taskexecutor.executor.exchange.channels.sender import (
    SENDER_TRANSITIONS,
    SenderChannel,
    SenderState,
)

__all__ = [
    "MAX_WAITING_EVENTS",
    "RECEIVER_TRANSITIONS",
    "SENDER_TRANSITIONS",
    "BlockReason",
    "Grant",
    "Parcel",
    "Queued",
    "ReceiverChannel",
    "ReceiverState",
    "SenderChannel",
    "SenderState",
]

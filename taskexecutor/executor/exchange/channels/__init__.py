"""The two halves of a logical channel: pure state, no I/O, no locks, no clock.

A channel leads from one producer subtask (and attempt) to one consumer subtask. `SenderChannel`
lives in the producer's `ResultPartition`, `ReceiverChannel` in the consumer's `InputGate`. Carriers
bring what one half hands out to the other: over Arrow Flight (server.py, client.py), or by a call
where both are in one process (local.py).

Credit: a sender may be `window_bytes` ahead of its consumer: the bytes of everything offered and
not yet granted back stay within the window. A batch larger than the window is admitted when nothing
is outstanding. Events have a credit of their own, counted in elements, so that data does not hold
up a barrier, and a flood of watermarks is bounded all the same. What waits, travels or lies in the
receiver's queue counts alike; so memory is bounded by channels times window, wherever the elements
are.

The receiver grants when an element is taken: in steps of a quarter of the window, and all that is
due whenever its queue runs empty. The latter makes sure that a sender which needs the whole window
for one large batch gets it. All that is due is granted at EndOfData, too, and at barriers, which
may follow it: their producer waits until all was taken (spec 001).
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

"""The transactional producers of one subtask.

While a prepared transaction waits for its checkpoint, the next one needs another transactional id.
Producers are reused, so that there are few ids, and because a new producer takes half a second: two
are opened at the start. Ids that the restored checkpoint holds are not used by the attempt, so that
brokers still know their last transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.clients import library
from taskexecutor.executor.connectors.kafka.producers import Sender
from taskexecutor.executor.connectors.kafka.transactions import Transactions
from taskexecutor.executor.connectors.kafka.verdicts import (
    Description,
    Prepared,
    State,
    TransactionalIds,
)

READY = 2  # producers that are kept without a transaction
_AT_ONCE_S = 0.001
_ABORT_S = 2.0


@dataclass(slots=True, kw_only=True)
class TransactionalProducer:
    """One transactional id, with one transaction at a time."""

    transactional_id: str
    sender: Sender
    producer_id: int = -1  # the broker's identity of this producer, once it is initialized
    epoch: int = -1
    records: int = 0  # of the open transaction
    size_bytes: int = 0


@dataclass(slots=True)
class ProducerPool:
    """Used by one thread."""

    ids: TransactionalIds
    transactions: Transactions
    open_sender: Callable[[str], Sender]  # for a transactional id
    held: set[str] = field(default_factory=set)  # ids of the restored checkpoint
    _ready: list[TransactionalProducer] = field(default_factory=list)
    _waiting: dict[str, TransactionalProducer] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    def open(self) -> None:
        """Opens the first producers. From now on, those of earlier attempts are fenced."""
        while len(self._ready) < READY:
            self._ready.append(self._started())
        for producer in self._ready:
            self._initialize(producer)

    def take(self) -> TransactionalProducer:
        """Returns a producer that has an open transaction. Raises FiresteelError."""
        producer = self._ready.pop(0) if self._ready else self._initialize(self._started())
        try:
            producer.sender.client.begin_transaction()
        except library().KafkaException as error:
            self.discard(producer)
            raise producer.sender.in_words(error) from error
        return producer

    def wait_for_commit(self, producer: TransactionalProducer) -> None:
        """Keeps the producer of a prepared transaction until it is taken back."""
        self._waiting[producer.transactional_id] = producer

    def living(self, prepared: Prepared) -> TransactionalProducer | None:
        """Takes the producer of a prepared transaction, if this attempt has prepared it."""
        producer = self._waiting.get(prepared.transactional_id)
        if producer is None or producer.producer_id != prepared.producer_id:
            return None
        return self._waiting.pop(prepared.transactional_id)

    def give_back(self, producer: TransactionalProducer) -> None:
        """Takes a producer without a transaction."""
        producer.records = producer.size_bytes = 0
        if len(self._ready) < READY:
            self._ready.append(producer)
        else:
            self.discard(producer)

    def discard(self, producer: TransactionalProducer) -> None:
        """Closes a producer. Brokers keep its open transaction."""
        producer.sender.close()
        self._used.discard(producer.transactional_id)

    def abort(self, producer: TransactionalProducer) -> None:
        """Aborts the producer's transaction, if the brokers answer soon, and closes it."""
        with contextlib.suppress(library().KafkaException):
            producer.sender.client.abort_transaction(_ABORT_S)
        self.discard(producer)

    @property
    def round_trip_ms(self) -> float:
        producers = [*self._ready, *self._waiting.values()]
        return max((producer.sender.round_trip_ms for producer in producers), default=0.0)

    def close(self) -> None:
        for producer in (*self._ready, *self._waiting.values()):
            producer.sender.close()
        self._ready, self._waiting = [], {}

    def _started(self) -> TransactionalProducer:
        taken = self.held | self._used
        name = next(name for name in map(self.ids.name, count()) if name not in taken)
        self._used.add(name)
        producer = TransactionalProducer(transactional_id=name, sender=self.open_sender(name))
        # Errors return when it is initialized.
        with contextlib.suppress(library().KafkaException):
            producer.sender.client.init_transactions(_AT_ONCE_S)
        return producer

    def _initialize(self, producer: TransactionalProducer) -> TransactionalProducer:
        """Fences earlier producers of the id, and finds out by which number brokers know this one,
        which the client reports only in its statistics. Raises FiresteelError.
        """
        try:
            producer.sender.call(producer.sender.client.init_transactions)
        except library().KafkaException as error:
            raise producer.sender.in_words(error) from error
        found = self.transactions.describe(producer.transactional_id)
        if found is None:
            raise FiresteelError(
                f"transactional id {producer.transactional_id}: the broker has forgotten it; "
                "restart the job"
            )
        producer.producer_id, producer.epoch = found.producer_id, found.epoch
        return producer


def check_open(producer: TransactionalProducer, found: Description | None) -> Description:
    """Returns the description. Raises FiresteelError if the producer's transaction is not open."""
    if (
        found is not None
        and found.state is State.ONGOING
        and (found.producer_id, found.epoch) == (producer.producer_id, producer.epoch)
    ):
        return found
    state = "unknown" if found is None else found.state.value
    taken = found is not None and found.epoch > producer.epoch + 1
    why = "another job or attempt uses this transactional_id_prefix" if taken else "it timed out"
    raise FiresteelError(
        f"transactional id {producer.transactional_id}: the broker has ended its transaction of"
        f" {producer.records} records before the checkpoint (state: {state}), probably because"
        f" {why}; nothing is lost, the records are written again after the restart. Raise"
        " transaction_timeout, or give each job its own prefix"
    )

"""Writes exactly once: in transactions that are committed when their checkpoint is complete.

    write     starts a transaction with a producer of the pool
    prepare   flushes it, requests its identity from the broker, and leaves it open: a committable
    commit    by the producer that wrote it or, after a failure, by an EndTxn request
    restore   commits the checkpoint's transactions, then aborts all others

Before it commits a restored transaction, it requests a description from the broker (`verdicts`). If
the transaction was aborted, the records of a complete checkpoint are lost, and the job fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from firesteel.common.backoff import Backoff
from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.logs import get_logger
from firesteel.connectors import Committer, KafkaSink, SinkWriter
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.clients import KafkaUnavailable, library
from taskexecutor.executor.connectors.kafka.evidence import was_committed
from taskexecutor.executor.connectors.kafka.outgoing import Records
from taskexecutor.executor.connectors.kafka.producer_pool import (
    ProducerPool,
    TransactionalProducer,
    check_open,
)
from taskexecutor.executor.connectors.kafka.sent import Sent
from taskexecutor.executor.connectors.kafka.transactions import Transactions
from taskexecutor.executor.connectors.kafka.verdicts import Prepared, State, Verdict, verdict

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.5
_PATIENCE_S = 60.0  # with a commit that is under way

_log = get_logger("task")


class TransactionalWriter(SinkWriter):
    def __init__(
        self,
        records: Records,
        committer: TransactionCommitter,
        sent: Sent,
        checkpoint: Callable[[], int | None],
    ) -> None:
        """`checkpoint` returns the one that is being taken."""
        self._records = records
        self._committer = committer
        self._pool = committer.pool
        self._sent = sent
        self._checkpoint = checkpoint
        self._current: TransactionalProducer | None = None

    def open(self) -> None:
        """All that this subtask has restored is committed."""
        self._committer.abort_leftovers()
        self._pool.open()
        self._sent.show_round_trip(lambda: self._pool.round_trip_ms)

    def write(self, batch: pa.RecordBatch) -> None:
        bundle = self._records.of(batch)
        if self._current is None:
            self._current = self._pool.take()
        current = self._current
        current.sender.send(bundle.records)
        current.records += bundle.count
        current.size_bytes += bundle.size_bytes
        self._sent.count(bundle.count, bundle.size_bytes)

    def prepare(self) -> Sequence[Prepared]:
        current = self._current
        if current is None:
            return ()
        current.sender.flush()
        reached(Failpoint.KAFKA_FLUSHED)
        transactions = self._committer.transactions
        found = check_open(current, transactions.describe(current.transactional_id))
        prepared = Prepared(
            transactional_id=current.transactional_id,
            producer_id=found.producer_id,
            epoch=found.epoch,
            began_ms=found.began_ms,
            checkpoint=self._checkpoint(),
            records=current.records,
            size_bytes=current.size_bytes,
            first=transactions.first_records(found.producer_id, found.partitions),
        )
        self._pool.wait_for_commit(current)
        self._current = None
        reached(Failpoint.KAFKA_PREPARED)
        return (prepared,)

    def close(self) -> None:
        self._records.close()
        current, self._current = self._current, None
        if current is not None:
            self._pool.abort(current)


class TransactionCommitter(Committer):
    def __init__(
        self,
        sink: KafkaSink,
        pool: ProducerPool,
        transactions: Transactions,
    ) -> None:
        self.pool = pool
        self.transactions = transactions
        self._sink = sink
        self._leftovers = Leftovers(pool, transactions)
        self._restored = True

    def start_over(self) -> None:
        self._restored = False

    def commit(self, committables: Sequence[Prepared]) -> None:
        for prepared in committables:
            living = self.pool.living(prepared)
            if living is None:
                self.pool.held.add(prepared.transactional_id)
                self._settle(prepared)
            else:
                self._commit_own(living, prepared)

    def abort_leftovers(self) -> None:
        """Aborts open transactions of earlier attempts. Those of another parallelism may be in the
        restored state of other subtasks, which commit them before the first checkpoint.
        """
        self._leftovers.abort_own()
        if not self._restored:
            self._leftovers.abort_inherited()

    def recovered(self) -> None:
        if self._restored:
            self._leftovers.abort_inherited()

    def abort(self, committables: Sequence[Prepared]) -> None:
        for prepared in committables:
            producer = self.pool.living(prepared)
            if producer is not None:
                self.pool.abort(producer)

    def close(self) -> None:
        self.pool.close()
        self.transactions.close()

    def _commit_own(self, producer: TransactionalProducer, prepared: Prepared) -> None:
        reached(Failpoint.KAFKA_COMMIT_BEFORE)
        try:
            producer.sender.call(producer.sender.client.commit_transaction)
        except library().KafkaException:  # the broker knows why
            self.pool.discard(producer)
            self.pool.held.add(prepared.transactional_id)
            self._settle(prepared)
        except BaseException:
            self.pool.discard(producer)
            raise
        else:
            self.pool.give_back(producer)
        reached(Failpoint.KAFKA_COMMIT_AFTER)

    def _settle(self, prepared: Prepared) -> None:
        """Commits the transaction, unless that was done. Raises FiresteelError if it is lost."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            found = verdict(prepared, self.transactions.describe(prepared.transactional_id))
            reached(Failpoint.KAFKA_DESCRIBED)
            match found:
                case Verdict.COMMIT:
                    self.transactions.end(
                        prepared.transactional_id, prepared.producer_id, prepared.epoch, commit=True
                    )
                    reached(Failpoint.KAFKA_END_AFTER)
                    return
                case Verdict.COMMITTED:
                    return
                case Verdict.ABORTED:
                    self._lost(prepared, "was aborted by the broker")
                    return
                case Verdict.UNKNOWN:
                    self._look_up(prepared)
                    return
                case Verdict.WAIT:
                    pass
            if time.monotonic() >= deadline:
                raise KafkaUnavailable(
                    f"{_data(prepared)} is being committed by the broker, but has not become"
                    f" visible within {_PATIENCE_S:.0f} s; partitions may be offline"
                )
            time.sleep(backoff.next())

    def _look_up(self, prepared: Prepared) -> None:
        committed = was_committed(self._sink.connection, prepared)
        if committed is None:
            self._lost(
                prepared,
                "cannot be found: the broker has forgotten its transaction, and the topic no longer"
                " has, or does not show, its first records",
            )
        elif not committed:
            self._lost(prepared, "was aborted by the broker")

    def _lost(self, prepared: Prepared, what: str) -> None:
        text = (
            f"{_data(prepared)} {what}: {prepared.records} records"
            f" ({prepared.size_bytes} bytes) of transactional id {prepared.transactional_id}"
            f" (producer {prepared.producer_id}, epoch {prepared.epoch}) in"
            f" {prepared.places or 'no partition'}"
        )
        if self._sink.on_aborted == "ignore":
            _log.error(f"{text}; on_aborted='ignore', so the job continues without them")
            return
        raise FiresteelError(
            f"KafkaSink: {text}. The job cannot write them again from this checkpoint. Restore an"
            " earlier savepoint, or set on_aborted='ignore' to continue without them; then raise"
            " transaction_timeout above the longest outage, and give each job its own"
            " transactional_id_prefix"
        )


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Open transactions of earlier attempts, which would hide later records from consumers."""

    pool: ProducerPool
    transactions: Transactions

    def abort_own(self) -> None:
        """Aborts those of this subtask. Its restored committables are committed by now."""
        ids = self.pool.ids
        self._abort(ids.own(self.transactions.open_ids(ids.of_subtask)))

    def abort_inherited(self) -> None:
        """Aborts those of another parallelism."""
        ids = self.pool.ids
        self._abort(ids.inherited(self.transactions.open_ids(ids.of_sink)))

    def _abort(self, names: Sequence[str]) -> None:
        for name in names:
            found = self.transactions.describe(name)
            if found is None or found.state is not State.ONGOING:
                continue
            if name in self.pool.held:
                # A later one. Its producer is not fenced, because the broker's description of the
                # id must still prove the commit of the restored one.
                self.transactions.end(name, found.producer_id, found.epoch, commit=False)
            else:
                self.transactions.fence(name, found.timeout_ms)
            _log.info("aborted an open transaction of an earlier attempt", transactional_id=name)
            reached(Failpoint.KAFKA_ABORT_AFTER)


def _data(prepared: Prepared) -> str:
    if prepared.checkpoint is None:
        return "the data of the end of the input"
    return f"the data of checkpoint {prepared.checkpoint}"

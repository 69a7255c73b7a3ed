"""KafkaSink in a slot.

At least once, records are visible when brokers have them, which a checkpoint waits for. Exactly
once, they are written in transactions (`transactional`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa

from firesteel.common.config import options
from firesteel.common.config.configuration import Configuration
from firesteel.common.logs import get_logger
from firesteel.connectors import Committer, KafkaSink, SinkWriter
from firesteel.connectors.sink import Committable
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext, StreamOperator
from taskexecutor.executor.connectors.checks import known_schema
from taskexecutor.executor.connectors.kafka.outgoing import Columns, Records
from taskexecutor.executor.connectors.kafka.producer_pool import ProducerPool
from taskexecutor.executor.connectors.kafka.producers import Sender
from taskexecutor.executor.connectors.kafka.sent import Sent
from taskexecutor.executor.connectors.kafka.topics import Topics
from taskexecutor.executor.connectors.kafka.transactional import (
    TransactionalWriter,
    TransactionCommitter,
)
from taskexecutor.executor.connectors.kafka.transactions import Transactions
from taskexecutor.executor.connectors.kafka.verdicts import TransactionalIds
from taskexecutor.executor.connectors.writer_sink import SinkWriting, WriterSink

DEFAULT_TIMEOUT_MS = 15 * 60_000  # also the default of the brokers' maximum
_MAXIMUM = "transaction.max.timeout.ms"
_ANALYSIS_PATIENCE_S = 10.0

_log = get_logger("task")


class KafkaSinkRuntime(WriterSink[KafkaSink]):
    """One runtime per subtask: its writer and its committer share the producers."""

    def __init__(self, sink: KafkaSink) -> None:
        super().__init__(sink)
        self.checkpoint: int | None = None  # that is being taken
        self._committer: TransactionCommitter | None = None

    def analyze(self, schema: pa.Schema | None) -> None:
        """Checks the columns, the topic, and the transaction's timeout against the brokers'."""
        try:
            self._check(schema)
        except FiresteelError as error:
            raise error from None  # users know the client's error by its words

    def _check(self, schema: pa.Schema | None) -> None:
        columns = Columns(self.sink, known_schema("KafkaSink", schema))
        topics = Topics(self.sink.connection)
        if columns.topic is None:
            assert self.sink.topic is not None
            topics.partitions(self.sink.topic)
        if self.sink.exactly_once:
            self._check_timeout(topics)
            transactions = Transactions(self.sink.connection, patience_s=_ANALYSIS_PATIENCE_S)
            try:  # raises if the user may not see them
                transactions.describe(f"{self.sink.transactional_id_prefix}-")
            finally:
                transactions.close()

    def operator(self) -> StreamOperator:
        return KafkaWriting(self)

    def create_committer(self, context: RuntimeContext) -> Committer | None:
        if not self.sink.exactly_once:
            return None
        topics = self._patient_topics(context)
        timeout_ms = self._timeout_ms(topics)
        _warn_of_short_timeout(context, timeout_ms)
        transactions = Transactions(self.sink.connection, cancelled=lambda: context.cancelled)

        def open_sender(transactional_id: str) -> Sender:
            return Sender(
                self.sink.connection,
                topics,
                context,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )

        assert self.sink.transactional_id_prefix is not None
        ids = TransactionalIds(
            prefix=self.sink.transactional_id_prefix,
            operator_id=context.operator_id,
            subtask=context.task.subtask,
            parallelism=context.task.parallelism,
        )
        pool = ProducerPool(ids, transactions, open_sender)
        self._committer = TransactionCommitter(self.sink, pool, transactions)
        return self._committer

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        schema = context.input_schemas[0]
        assert schema is not None, "analysis ensures that the schema is known"
        topics = self._patient_topics(context)
        records = Records(self.sink, Columns(self.sink, schema), context, topics.partitions)
        sent = Sent(context)
        if self._committer is not None:
            return TransactionalWriter(records, self._committer, sent, lambda: self.checkpoint)
        # Without transactions, records wait for brokers for as long as it takes.
        return Writer(
            records, Sender(self.sink.connection, topics, context, message_timeout_ms=0), sent
        )

    def _patient_topics(self, context: RuntimeContext) -> Topics:
        return Topics(
            self.sink.connection, patience_s=math.inf, cancelled=lambda: context.cancelled
        )

    def _check_timeout(self, topics: Topics) -> None:
        given, maximum = self.sink.transaction_timeout_ms, topics.broker_setting(_MAXIMUM)
        if given is not None and maximum and given > int(maximum):
            raise FiresteelError(
                f"KafkaSink: transaction_timeout is {given} ms, but the brokers at"
                f" {self.sink.connection.bootstrap_servers} allow at most {maximum} ms"
                f" ({_MAXIMUM}); lower it, or raise the brokers' setting"
            )

    def _timeout_ms(self, topics: Topics) -> int:
        if self.sink.transaction_timeout_ms is not None:
            return self.sink.transaction_timeout_ms
        maximum = topics.broker_setting(_MAXIMUM)
        return min(DEFAULT_TIMEOUT_MS, int(maximum)) if maximum else DEFAULT_TIMEOUT_MS


class KafkaWriting(SinkWriting):
    def __init__(self, runtime: KafkaSinkRuntime) -> None:
        super().__init__(runtime)
        self._of_kafka = runtime

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._of_kafka.checkpoint = checkpoint_id  # for messages about its transaction
        super().snapshot_state(checkpoint_id)


class Writer(SinkWriter):
    """Writes at least once."""

    def __init__(self, records: Records, sender: Sender, sent: Sent) -> None:
        self._records = records
        self._sender = sender
        self._sent = sent

    def open(self) -> None:
        self._sent.show_round_trip(lambda: self._sender.round_trip_ms)

    def write(self, batch: pa.RecordBatch) -> None:
        bundle = self._records.of(batch)
        self._sender.send(bundle.records)
        self._sent.count(bundle.count, bundle.size_bytes)

    def prepare(self) -> Sequence[Committable]:
        self._sender.flush()
        return ()

    def close(self) -> None:
        self._records.close()
        self._sender.close()


def _warn_of_short_timeout(context: RuntimeContext, timeout_ms: int) -> None:
    if context.task.subtask:
        return
    configuration = Configuration(context.config)
    interval_s = configuration.get(options.CHECKPOINT_INTERVAL)
    restart_s = configuration.get(options.HEARTBEAT_TIMEOUT) + _restart_delay_s(configuration)
    if not context.checkpoints:
        _log.warning(
            "without checkpoints, the records of a KafkaSink become visible at the end of the"
            " input, and are lost if it takes longer than the transaction's timeout",
            transaction_timeout_ms=timeout_ms,
        )
    elif timeout_ms < (interval_s + restart_s) * 1_000:
        _log.warning(
            "the transaction's timeout of a KafkaSink is less than the checkpoint interval plus the"
            " time of a restart; after a failure, brokers may have aborted the transactions of the"
            " latest checkpoint. Raise transaction_timeout",
            transaction_timeout_ms=timeout_ms,
            checkpoint_interval_s=interval_s,
            restart_s=restart_s,
        )


def _restart_delay_s(configuration: Configuration) -> float:
    """The longest time between a failure and the restart."""
    match configuration.get(options.RESTART_STRATEGY):
        case "fixed-delay":
            return configuration.get(options.RESTART_DELAY)
        case "failure-rate":
            return configuration.get(options.RESTART_FAILURE_DELAY)
        case "exponential-delay":
            return configuration.get(options.RESTART_MAX_BACKOFF)
        case _:
            return 0.0

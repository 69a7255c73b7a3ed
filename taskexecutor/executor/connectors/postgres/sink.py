"""PostgresSink: writes rows into a table by COPY, each batch in a separate transaction.

Upserts use a temporary table: COPY into it, then one INSERT ... ON CONFLICT DO UPDATE with the last
row per key. If that row is a deletion (the column `row_kind`), one DELETE comes first.

With checkpoints, rows are staged first (`staging`), and moved when their checkpoint is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from firesteel.connectors import Committer, PostgresSink, SinkWriter
from firesteel.connectors.sink import Committable
from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.checks import known_schema
from taskexecutor.executor.connectors.postgres.connection import Connection
from taskexecutor.executor.connectors.postgres.staging import (
    StagedCommitter,
    Staging,
    prepare_staging,
)
from taskexecutor.executor.connectors.postgres.tables import Target
from taskexecutor.executor.connectors.writer_sink import WriterSink

BATCH_BYTES = 32 * 2**20


class PostgresSinkRuntime(WriterSink[PostgresSink]):
    def analyze(self, schema: pa.Schema | None) -> None:
        """Checks that the database responds, that the table exists or can be created, and that its
        columns fit; and the same for the staging table.
        """
        target = Target(self.sink, known_schema("PostgresSink", schema))
        connection = target.connect()
        try:
            with target.explained(), connection, connection.cursor() as cursor:
                target.prepare(cursor)
                if self.checkpoints:
                    prepare_staging(target, cursor)
        finally:
            connection.close()

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        target = self._target(context)
        staging = Staging(target, context) if context.checkpoints else None
        return PostgresWriter(target, Connection(target, context), staging)

    def create_committer(self, context: RuntimeContext) -> Committer | None:
        return StagedCommitter(self._target(context), context) if context.checkpoints else None

    def _target(self, context: RuntimeContext) -> Target:
        schema = context.input_schemas[0]
        assert schema is not None, "analysis ensures that the schema is known"
        return Target(self.sink, schema)


class PostgresWriter(SinkWriter):
    def __init__(self, target: Target, connection: Connection, staging: Staging | None) -> None:
        self._target = target
        self._connection = connection
        self._staging = staging
        self._batch_rows = target.sink.batch_rows
        self._rows: list[pa.RecordBatch] = []
        self._count = self._size_bytes = 0

    def open(self) -> None:
        self._connection.transaction(self._prepare_tables)

    def _prepare_tables(self, cursor: Any, again: bool) -> None:
        self._target.prepare(cursor)
        if self._staging is not None:
            self._staging.open(cursor)

    def write(self, batch: pa.RecordBatch) -> None:
        for offset in range(0, batch.num_rows, self._batch_rows):
            part = batch.slice(offset, self._batch_rows)
            if self._count + part.num_rows > self._batch_rows:
                self.flush()
            self._rows.append(part)
            self._count += part.num_rows
            self._size_bytes += part.nbytes
            if self._size_bytes >= BATCH_BYTES:
                self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        table = pa.Table.from_batches(self._rows)
        self._rows, self._count, self._size_bytes = [], 0, 0
        staging = self._staging
        if staging is not None:
            self._connection.transaction(lambda cursor, again: staging.write(cursor, table, again))
            staging.written(table)
        elif self._target.sink.mode == "append":
            self._connection.transaction(
                lambda cursor, _: self._target.append(cursor, table), repeatable=False
            )
        else:
            self._connection.transaction(lambda cursor, _: self._target.upsert(cursor, table))

    def prepare(self) -> Sequence[Committable]:
        """Returns nothing: without checkpoints, rows are committed when they are flushed."""
        self.flush()
        return self._staging.prepare() if self._staging is not None else ()

    def close(self) -> None:
        self._rows = []
        try:
            connection = self._connection.open()
            if self._staging is not None and connection is not None:
                self._staging.discard(connection)
        finally:
            self._connection.close()

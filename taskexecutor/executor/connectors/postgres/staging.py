"""Staging of a PostgresSink's rows until their checkpoint is complete, in a table next to the
target: TABLE_firesteel, which all jobs that write to the target share.

The rows that a subtask writes between two checkpoints are an *epoch*. When its checkpoint is
complete, one transaction deletes the epoch's rows from the staging table and inserts them into the
target, or merges them in an upsert. So it does not matter who commits an epoch, or how often: the
first transaction finds the rows, and later ones find none, even those of an attempt that was
declared dead and continues to run.

Rows of epochs in no checkpoint are deleted when the next attempt has its first complete checkpoint,
because by then all restored epochs are committed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2
import pyarrow as pa
from psycopg2 import sql

from firesteel.common.failpoints import Failpoint, reached
from firesteel.connectors import Committer
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext, TaskInfo
from taskexecutor.executor.connectors.postgres.connection import Connection
from taskexecutor.executor.connectors.postgres.tables import (
    KIND,
    ORDER,
    Target,
    column_types,
    copy,
    identifier,
)

_EPOCH = "_firesteel_epoch"
_NAME_BYTES = 63  # of PostgreSQL, which truncates longer names
_ORDERS_OF_EPOCH = 2**40  # greater than the number of rows of an epoch


@dataclass(frozen=True, slots=True)
class Epoch:
    """A committable."""

    name: str
    rows: int


class Staging:
    """Writes epochs, within the caller's transactions."""

    def __init__(self, target: Target, context: RuntimeContext) -> None:
        self._target = target
        self._table = staging_table(target.sink.table)
        task = context.task
        self._prefix = f"{_job_and_sink(context)}{task.attempt}-{task.subtask}-{task.attempt_id}"
        self._number = 0
        self._rows = 0  # of this epoch

    def open(self, cursor: Any) -> None:
        prepare_staging(self._target, cursor)

    def write(self, cursor: Any, rows: pa.Table, again: bool) -> None:
        """Writes rows of the current epoch. `again`: they may have been written already. Call
        `written` after the commit.
        """
        if again and self._rows_there(cursor) == self._rows + rows.num_rows:
            return
        if self._target.sink.mode == "upsert":
            staged = self._target.marked(cursor, rows, first=self._rows)
        else:
            staged = rows.select(self._target.names)
        names = pa.repeat(pa.scalar(self._epoch), rows.num_rows)
        copy(cursor, identifier(self._table), staged.append_column(_EPOCH, names))

    def written(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows

    def _rows_there(self, cursor: Any) -> int:
        cursor.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE {} = %s").format(
                identifier(self._table), sql.Identifier(_EPOCH)
            ),
            (self._epoch,),
        )
        return int(cursor.fetchone()[0])

    def prepare(self) -> Sequence[Epoch]:
        if not self._rows:
            return ()
        epoch = Epoch(self._epoch, self._rows)
        self._number += 1
        self._rows = 0
        return (epoch,)

    def discard(self, connection: Any) -> None:
        """Deletes rows that were not prepared, if possible: they will never be committed."""
        if self._rows:
            with contextlib.suppress(psycopg2.Error), connection, connection.cursor() as cursor:
                _delete(cursor, self._table, [self._epoch])

    @property
    def _epoch(self) -> str:
        return f"{self._prefix}-{self._number}"


class StagedCommitter(Committer):
    def __init__(self, target: Target, context: RuntimeContext) -> None:
        self._target = target
        self._table = staging_table(target.sink.table)
        self._context = context
        self._connection = Connection(target, context)

    def commit(self, committables: Sequence[Epoch]) -> None:
        """Commits all epochs in one transaction."""
        if not committables:
            return
        self._connection.transaction(
            lambda cursor, again: self._move_all(cursor, committables, again)
        )
        reached(Failpoint.MOVED_AFTER)

    def _move_all(self, cursor: Any, committables: Sequence[Epoch], again: bool) -> None:
        if self._target.sink.mode == "append":
            into = self._target.identifier
            self._move(cursor, into, committables, self._target.columns, again)
        else:
            temporary = self._target.temporary(cursor)
            self._move(cursor, temporary, committables, self._marked_columns, again)
            self._target.merge(cursor)
        reached(Failpoint.MOVED)

    def recovered(self) -> None:
        task = self._context.task
        if task.subtask != 0 or task.attempt == 0:
            return
        left = sql.SQL(
            "DELETE FROM {staging} WHERE starts_with({epoch}, %s) "
            "AND split_part({epoch}, '-', 3)::int < %s"
        ).format(staging=identifier(self._table), epoch=sql.Identifier(_EPOCH))
        earlier = (_job_and_sink(self._context), task.attempt)
        self._connection.transaction(lambda cursor, _: cursor.execute(left, earlier))

    def abort(self, committables: Sequence[Epoch]) -> None:
        if self._connection.open() is None:
            return  # the next attempt deletes them
        connection = self._connection.open()
        with contextlib.suppress(psycopg2.Error), connection, connection.cursor() as cursor:
            _delete(cursor, self._table, [epoch.name for epoch in committables])

    def close(self) -> None:
        self._connection.close()

    @property
    def _marked_columns(self) -> sql.Composable:
        """The columns with an order over all epochs that are committed together."""
        order = sql.SQL("array_position(%(epochs)s, {epoch}) * {more} + {order}").format(
            epoch=sql.Identifier(_EPOCH),
            more=sql.Literal(_ORDERS_OF_EPOCH),
            order=sql.Identifier(ORDER),
        )
        return sql.SQL(", ").join([self._target.columns, order, sql.Identifier(KIND)])

    def _move(
        self,
        cursor: Any,
        into: sql.Composable,
        epochs: Sequence[Epoch],
        columns: sql.Composable,
        again: bool,
    ) -> None:
        """Moves the rows. Raises FiresteelError if rows are missing. `again`: they may have been
        moved already.
        """
        names = sql.SQL("")
        if into is self._target.identifier:
            names = sql.SQL("({})").format(self._target.columns)
        cursor.execute(
            sql.SQL(
                "WITH moved AS (DELETE FROM {staging} WHERE {epoch} = ANY(%(epochs)s) RETURNING *),"
                " put AS (INSERT INTO {into} {names} SELECT {columns} FROM moved)"
                " SELECT {epoch}, count(*) FROM moved GROUP BY {epoch}"
            ).format(
                staging=identifier(self._table),
                epoch=sql.Identifier(_EPOCH),
                into=into,
                names=names,
                columns=columns,
            ),
            {"epochs": [epoch.name for epoch in epochs]},
        )
        moved: dict[str, int] = dict(cursor.fetchall())
        own = f"-{self._context.task.attempt_id}-"
        for epoch in epochs:
            rows = moved.get(epoch.name, 0)
            # All rows of an earlier attempt may be gone: then they were committed.
            if rows != epoch.rows and (rows or (own in epoch.name and not again)):
                raise FiresteelError(
                    f"PostgresSink: table {self._table} has {rows} of the {epoch.rows} rows that a"
                    f" checkpoint contains for table {self._target.sink.table}: another attempt has"
                    " committed them, or they were deleted"
                )


def staging_table(table: str) -> str:
    schema, dot, name = table.rpartition(".")
    staged = f"{name}_firesteel"
    if len(staged.encode()) > _NAME_BYTES:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        staged = f"{name.encode()[:40].decode(errors='ignore')}_{digest}_firesteel"
    return f"{schema}{dot}{staged}"


def _job_and_sink(context: RuntimeContext) -> str:
    task: TaskInfo = context.task
    return f"{task.job_id}-{context.operator_id[:8]}-"


def prepare_staging(target: Target, cursor: Any) -> None:
    """Creates the staging table, with the columns of the target. An empty table with other columns
    is recreated. Raises FiresteelError if such a table is not empty.
    """
    table = staging_table(target.sink.table)
    cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (table,))
    types = column_types(cursor, target.sink.table)
    wanted = {name: types[name] for name in target.names}
    staging = identifier(table)
    present = column_types(cursor, table)
    if any(present.get(name) != type_ for name, type_ in wanted.items()) and present:
        cursor.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(staging))
        if cursor.fetchone()[0]:
            raise FiresteelError(
                f"PostgresSink: table {table} holds rows that wait for their checkpoint, but its"
                f" columns differ from those that the stream writes to {target.sink.table}; stop "
                "the jobs that write there, and drop the table if it still has rows: they belong to"
                " jobs that failed or were cancelled"
            )
        cursor.execute(sql.SQL("DROP TABLE {}").format(staging))
        present = {}
    if not present:
        cursor.execute(
            sql.SQL(
                "CREATE TABLE {staging} AS SELECT {columns}, ''::text AS {epoch}, "
                "0::bigint AS {order}, ''::text AS {kind} FROM {target} WITH NO DATA"
            ).format(
                staging=staging,
                columns=target.columns,
                epoch=sql.Identifier(_EPOCH),
                order=sql.Identifier(ORDER),
                kind=sql.Identifier(KIND),
                target=target.identifier,
            )
        )
        cursor.execute(sql.SQL("CREATE INDEX ON {} ({})").format(staging, sql.Identifier(_EPOCH)))


def _delete(cursor: Any, table: str, epochs: Sequence[str]) -> None:
    cursor.execute(
        sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(
            identifier(table), sql.Identifier(_EPOCH)
        ),
        (list(epochs),),
    )

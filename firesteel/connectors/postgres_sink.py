"""PostgresSink: rows into a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from firesteel.connectors.checks import check_at_least_one, check_choice
from firesteel.connectors.sink import Sink
from firesteel.errors import InvalidProgram

PostgresMode = Literal["append", "upsert"]


@dataclass(frozen=True, slots=True)
class PostgresSink(Sink):
    """Writes rows into a table of PostgreSQL: `PostgresSink("postgresql://me@host/db", "daily",
    mode="upsert", key=["day"])`.

    `url` is SQLAlchemy's or libpq's form; leave the password to ~/.pgpass or PGPASSWORD on the
    cluster's machines, or write it in: it is not shown in errors. `table` may have a schema in
    front of a dot. Columns are matched by name; one that the stream lacks gets its default. A table
    that does not exist is created, with types that hold the stream's (nested ones as jsonb) and,
    for upserts, with `key` as primary key.

    `mode`: "append" inserts; "upsert" replaces the row with the same `key`, which a unique index or
    the primary key must cover; of several rows with one key, the last counts. A text column
    `row_kind` of the stream is not written in this mode: where it is "delete", the row with that
    `key` is deleted, and where it is "insert", replaced. Results of windows with `allowed_lateness`
    have it if late records can make their rows invalid. Rows are written in
    batches by COPY, each in a transaction of its own: at most `batch_rows`, fewer when the input
    runs dry. When a job fails and starts over, "append" may write rows again, "upsert" writes the
    same.

    With checkpoints, each row is there once: rows are written to a table beside this one,
    TABLE_firesteel, and moved in one transaction when their checkpoint is complete. That table
    stays, empty if all jobs that write to TABLE have finished; what a job that failed for good or
    was cancelled has left in it can be deleted.

    Raises InvalidProgram for a mode or key that makes no sense.
    """

    runtime: ClassVar[str] = "taskexecutor.executor.connectors.postgres.sink:PostgresSinkRuntime"

    url: str = field(repr=False)
    table: str
    mode: PostgresMode = "append"
    key: Sequence[str] = ()
    batch_rows: int = 50_000

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key)
        )
        check_choice("PostgresSink: mode", self.mode, get_args(PostgresMode))
        if (self.mode == "upsert") != bool(self.key):
            raise InvalidProgram(
                'PostgresSink: key=["column", ...] belongs to mode="upsert", and is needed there'
            )
        check_at_least_one("PostgresSink: batch_rows", self.batch_rows)

"""PostgresSink: writes rows into a PostgreSQL table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from firesteel.connectors.checks import check_at_least_one, check_choice
from firesteel.connectors.sink import Sink
from firesteel.errors import InvalidProgram

PostgresMode = Literal["append", "upsert"]


@dataclass(frozen=True, slots=True)
class PostgresSink(Sink):
    """Writes rows into a table of PostgreSQL: `PostgresSink("postgresql://me@host/db", "daily",
    mode="upsert", key=["day"])`.

    `url` is in SQLAlchemy's or libpq's form; leave the password to ~/.pgpass or PGPASSWORD on the
    cluster's machines, or include it: it is not shown in errors. `table` may have a schema before a
    dot. Columns are matched by name; a column that the stream lacks gets its default. A table that
    does not exist is created, with types that fit the stream's (nested ones as jsonb) and, for
    upserts, with `key` as primary key.

    `mode`: "append" inserts rows; "upsert" replaces the row with the same `key`, which a unique
    index or the primary key must cover; among several rows with one key, the last one applies. In
    upsert mode, a text column `row_kind` of the stream is not written: "delete" deletes the row
    with that `key`, and "insert" replaces it. Results of windows with `allowed_lateness` have this
    column if late records can make their rows invalid. Rows are written in batches by COPY, each in
    a separate transaction: at most `batch_rows`, fewer when the input runs dry. When a job fails
    and starts over, "append" may write rows again, while "upsert" writes the same rows.

    With checkpoints, each row is written exactly once: rows are written to a table next to this
    one, TABLE_firesteel, and moved in one transaction when their checkpoint is complete. That table
    remains, and is empty if all jobs that write to TABLE have finished; rows that a failed or
    cancelled job has left in it can be deleted.

    Raises InvalidProgram for an invalid mode or key.
    """

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
                'PostgresSink: key=["column", ...] is required with mode="upsert", and only there'
            )
        check_at_least_one("PostgresSink: batch_rows", self.batch_rows)

"""The target table of a PostgresSink: its checks, and the writing of rows."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from psycopg2 import sql
from sqlalchemy.engine import make_url

from firesteel.connectors import PostgresSink
from firesteel.errors import FiresteelError
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.connectors.checks import named_columns
from taskexecutor.executor.connectors.postgres.types import as_texts, fits, postgres_type

CONNECT_TIMEOUT_S = 10
ORDER = "_firesteel_order"
KIND = "_firesteel_kind"
_ROWS = "_firesteel_rows"


class Target:
    """A sink with the schema of its rows.

    `columns` are those of the table; in an upsert, the stream's column `row_kind` marks deleted
    rows. Methods run in the transaction of their cursor.
    """

    def __init__(self, sink: PostgresSink, schema: pa.Schema) -> None:
        self.schema = _written(sink, schema)
        self.sink = _keyed_by(sink, self.schema)
        self.deletes = self.schema is not schema
        self.names: Sequence[str] = self.schema.names
        self.columns = listed(self.names)
        self.identifier = identifier(sink.table)

    def connect(self) -> Any:
        """Connects. Raises FiresteelError if the database is unreachable or refuses access."""
        return connect(self.sink)

    def prepare(self, cursor: Any) -> None:
        """Creates the table, or checks that it has the stream's columns and an index for the key.
        Raises FiresteelError.
        """
        _prepare_table(cursor, self.sink, self.schema, deletes=self.deletes)

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Converts errors to FiresteelError with PostgreSQL's message and the table."""
        return _explained(self.sink)

    def append(self, cursor: Any, rows: pa.Table) -> None:
        copy(cursor, self.identifier, rows)

    def marked(self, cursor: Any, rows: pa.Table, *, first: int = 0) -> pa.Table:
        """Returns the rows of an upsert in the form for `merge`: numbered from `first` on, with
        deletions marked. Raises FiresteelError for invalid keys and marks.
        """
        kinds = _kinds(self.sink, rows) if self.deletes else pa.nulls(rows.num_rows, pa.string())
        _check_keys(cursor, self.sink, rows)
        order = pa.array(range(first, first + rows.num_rows), pa.int64())
        return rows.select(self.names).append_column(ORDER, order).append_column(KIND, kinds)

    def upsert(self, cursor: Any, rows: pa.Table) -> None:
        marked = self.marked(cursor, rows)
        copy(cursor, self.temporary(cursor), marked)
        self.merge(cursor)

    def temporary(self, cursor: Any) -> sql.Composable:
        """Returns the connection's temporary table from which `merge` takes rows; initially
        empty.
        """
        staging = sql.Identifier(_ROWS)
        cursor.execute(
            sql.SQL(
                "CREATE TEMP TABLE IF NOT EXISTS {} ON COMMIT DELETE ROWS "
                "AS SELECT {}, 0::bigint AS {}, ''::text AS {} FROM {} WITH NO DATA"
            ).format(
                staging, self.columns, sql.Identifier(ORDER), sql.Identifier(KIND), self.identifier
            )
        )
        return staging

    def merge(self, cursor: Any) -> None:
        """Merges the rows in `temporary`, using the last row of each key."""
        staging = sql.Identifier(_ROWS)
        keys = [sql.Identifier(name) for name in self.sink.key]
        others = [sql.Identifier(name) for name in self.names if name not in self.sink.key]
        key_list = sql.SQL(", ").join(keys)
        last = sql.SQL(
            "(SELECT DISTINCT ON ({keys}) {listed}, {kind} FROM {staging} "
            "ORDER BY {keys}, {order} DESC) AS last"
        ).format(
            keys=key_list,
            listed=self.columns,
            kind=sql.Identifier(KIND),
            staging=staging,
            order=sql.Identifier(ORDER),
        )
        if self.deletes:
            cursor.execute(
                sql.SQL(
                    "DELETE FROM {target} AS present USING {last} "
                    "WHERE last.{kind} = {delete} AND {same}"
                ).format(
                    target=self.identifier,
                    last=last,
                    kind=sql.Identifier(KIND),
                    delete=sql.Literal(DELETE),
                    same=sql.SQL(" AND ").join(
                        sql.SQL("present.{0} = last.{0}").format(key) for key in keys
                    ),
                )
            )
        change = (
            sql.SQL("DO UPDATE SET {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{0} = EXCLUDED.{0}").format(column) for column in others
                )
            )
            if others
            else sql.SQL("DO NOTHING")
        )
        # Sorted by key: writers that share rows lock them in the same order, so they cannot
        # deadlock.
        cursor.execute(
            sql.SQL(
                "INSERT INTO {target} ({listed}) SELECT {listed} FROM {last} "
                "WHERE {kind} IS DISTINCT FROM {delete} ORDER BY {keys} "
                "ON CONFLICT ({keys}) {change}"
            ).format(
                target=self.identifier,
                listed=self.columns,
                keys=key_list,
                last=last,
                kind=sql.Identifier(KIND),
                delete=sql.Literal(DELETE),
                change=change,
            )
        )


def listed(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def connect(sink: PostgresSink) -> Any:
    """Connects. Raises FiresteelError if the database is unreachable or refuses access."""
    try:
        url = make_url(sink.url)
        arguments = url.set(drivername="postgresql").render_as_string(hide_password=False)
        backend = url.get_backend_name()
    except Exception:  # SQLAlchemy's message contains the url with its password
        raise _not_postgres("it does not parse") from None
    if backend not in ("postgresql", "postgres"):
        raise _not_postgres(f"{backend} is not PostgreSQL")
    try:
        connection = psycopg2.connect(
            arguments, connect_timeout=CONNECT_TIMEOUT_S, application_name="firesteel"
        )
        connection.set_client_encoding("UTF8")
        with connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TIME ZONE 'UTC'")
        return connection
    except psycopg2.OperationalError as error:
        shown = url.render_as_string(hide_password=True)
        raise FiresteelError(
            f"PostgresSink: cannot connect to {shown}: {str(error).strip()}"
        ) from None


def _not_postgres(reason: str) -> FiresteelError:
    return FiresteelError(
        f"PostgresSink: the url is not one of PostgreSQL ({reason});"
        " write postgresql://user@host/db"
    )


def _keyed_by(sink: PostgresSink, schema: pa.Schema) -> PostgresSink:
    """Returns the sink with its key's names in the stream and in the table."""
    return dataclasses.replace(
        sink, key=named_columns("PostgresSink: key column", sink.key, schema)
    )


def _written(sink: PostgresSink, schema: pa.Schema) -> pa.Schema:
    """Returns the columns of the table: in an upsert, all except the one that marks deletions.
    Raises FiresteelError if that column is not a string.
    """
    if sink.mode != "upsert" or ROW_KIND not in schema.names:
        return schema
    kind = schema.field(ROW_KIND).type
    if kind != pa.string():
        raise FiresteelError(
            f"PostgresSink: column {ROW_KIND!r} is {kind}; in an upsert it marks which rows are "
            f"deleted, as a string: {INSERT!r} or {DELETE!r}; rename it if it means "
            "something else"
        )
    return pa.schema([field for field in schema if field.name != ROW_KIND])


def _kinds(sink: PostgresSink, table: pa.Table) -> pa.ChunkedArray:
    """Returns the column that marks deletions. Raises FiresteelError for invalid values, and for
    deletions with a null key.
    """
    kinds = table.column(ROW_KIND)
    allowed = pc.is_in(kinds, value_set=pa.array([INSERT, DELETE]))
    if not pc.all(allowed).as_py():
        value = kinds.filter(pc.invert(allowed))[0].as_py()
        raise FiresteelError(
            f"PostgresSink: table {sink.table}: a row's {ROW_KIND} is {value!r}; in an upsert it "
            f"must mark whether the row is deleted: {INSERT!r} or {DELETE!r}"
        )
    deleted = table.filter(pc.equal(kinds, DELETE))
    for name in sink.key:
        if deleted.column(name).null_count:
            raise FiresteelError(
                f"PostgresSink: table {sink.table}: the key column {name!r} of a row to delete is "
                "null, so the row cannot be found; give it a value, for example by coalesce(...)"
            )
    return kinds


def _prepare_table(cursor: Any, sink: PostgresSink, schema: pa.Schema, *, deletes: bool) -> None:
    """Creates the table, or checks that it has the stream's columns and an index for the key."""
    cursor.execute("SELECT to_regclass(%s)", (identifier(sink.table).as_string(cursor),))
    if cursor.fetchone()[0] is None:
        # Several subtasks may try to create it: one does.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (sink.table,))
        cursor.execute(_create_table(sink, schema))
        return
    types = column_types(cursor, sink.table)
    _check_columns(sink, schema, types)
    if deletes and ROW_KIND in types:
        raise FiresteelError(
            f"PostgresSink: table {sink.table} has a column {ROW_KIND!r}, but in an upsert "
            "that of the stream is not written: it marks which rows are deleted; rename the "
            "table's column"
        )
    if sink.mode == "upsert" and not _unique_indexes(cursor, sink):
        keys = ", ".join(sink.key)
        raise FiresteelError(
            f"PostgresSink: table {sink.table} has no unique index over exactly ({keys}), "
            "which upserts need to find their row; "
            f"create one: CREATE UNIQUE INDEX ON {sink.table} ({keys})"
        )


def column_types(cursor: Any, table: str) -> dict[str, str]:
    """Returns types by column name, in order; empty if there is no such table."""
    cursor.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (identifier(table).as_string(cursor),),
    )
    return dict(cursor.fetchall())


def _check_columns(sink: PostgresSink, schema: pa.Schema, types: dict[str, str]) -> None:
    for field in schema:
        if field.name not in types:
            raise FiresteelError(
                f"PostgresSink: table {sink.table} has no column {field.name!r}; "
                f"it has: {', '.join(types)}. "
                f"Add it (ALTER TABLE {sink.table} ADD COLUMN ... {postgres_type(field)}), "
                "or leave it out of the stream"
            )
        if not fits(field, types[field.name]):
            raise FiresteelError(
                f"PostgresSink: column {field.name!r} of the stream is {field.type}, but that of "
                f"table {sink.table} is {types[field.name]}; "
                f"cast it, or make the table's {postgres_type(field)}"
            )


def _unique_indexes(cursor: Any, sink: PostgresSink) -> list[bool]:
    """Returns for each unique index over exactly the key whether it treats nulls as equal."""
    cursor.execute(
        "SELECT array_agg(a.attname::text), "
        "bool_or((to_jsonb(i)->>'indnullsnotdistinct')::boolean) FROM pg_index i "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
        "WHERE i.indrelid = %s::regclass AND i.indisunique "
        "AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid",
        (identifier(sink.table).as_string(cursor),),
    )
    return [bool(equal) for names, equal in cursor.fetchall() if set(names) == set(sink.key)]


def _check_keys(cursor: Any, sink: PostgresSink, table: pa.Table) -> None:
    """Raises FiresteelError if a key is null, because each update of such a row would insert a new
    row.
    """
    missing = [name for name in sink.key if table.column(name).null_count]
    if missing and not any(_unique_indexes(cursor, sink)):
        raise FiresteelError(
            f"PostgresSink: table {sink.table}: the key column {missing[0]!r} of a row is null, "
            "and the table's unique index treats nulls as distinct, so each update would insert a "
            "new row; give it a value, for example by coalesce(...), or create the index with "
            "NULLS NOT DISTINCT"
        )


def _create_table(sink: PostgresSink, schema: pa.Schema) -> sql.Composable:
    columns = [
        sql.SQL("{} " + postgres_type(field)).format(sql.Identifier(field.name)) for field in schema
    ]
    if sink.key:
        columns.append(
            sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, sink.key)))
        )
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
        identifier(sink.table), sql.SQL(", ").join(columns)
    )


def identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split(".", 1))


def copy(cursor: Any, target: sql.Composable, table: pa.Table) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, table.column_names))
    statement = sql.SQL("COPY {} ({}) FROM STDIN WITH (FORMAT csv)").format(target, columns)
    text = pa.BufferOutputStream()
    pa_csv.write_csv(
        as_texts(table), text, pa_csv.WriteOptions(include_header=False, quoting_style="needed")
    )
    cursor.copy_expert(statement, io.BytesIO(text.getvalue()))


@contextlib.contextmanager
def _explained(sink: PostgresSink) -> Iterator[None]:
    """Converts errors to FiresteelError with PostgreSQL's message and the table."""
    try:
        yield
    except psycopg2.Error as error:
        said = error.diag.message_primary or str(error).strip()
        more = "; ".join(part for part in (error.diag.message_detail, error.diag.context) if part)
        raise FiresteelError(
            f"PostgresSink: table {sink.table}: {said}" + (f" ({more[:500]})" if more else "")
        ) from error

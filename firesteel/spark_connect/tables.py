"""Tables of Spark's catalog that streaming queries write: files at the table's location."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pyspark.sql.connect.proto.commands_pb2 import WriteStreamOperationStart

from firesteel.client.spark_programs.uris import resolved
from firesteel.plan.catalyst_plan import items
from firesteel.spark_connect.refusals import Refused
from firesteel.spark_connect.sinks import FILES

DEFAULT_FORMAT = "parquet"
_TRACKS_PARTITIONS = "spark.sql.hive.manageFilesourcePartitions"


def written_to_files(
    session: Any, request: WriteStreamOperationStart, schema: Any
) -> WriteStreamOperationStart:
    """Returns the request of `toTable` as one that writes files. Creates the table if the catalog
    does not have it. `session` is one of the JVM, `schema` that of the query.

    Raises Refused, and Py4JJavaError for what Spark refuses.
    """
    name = request.table_name
    catalog = session.sessionState().catalog()
    identifier = session.sessionState().sqlParser().parseTableIdentifier(name)
    if not catalog.tableExists(identifier):  # it has no temporary views
        _create(session, request, schema)
    table = catalog.getTableMetadata(identifier)
    provider = table.provider()
    format = str(provider.get()).lower() if provider.isDefined() else "view"
    if format not in FILES:
        raise Refused(
            f"toTable({name!r}): its format is {format}; streams write tables of files:"
            f" {', '.join(FILES)}. Write other tables in foreachBatch"
        )
    asked = (request.format or DEFAULT_FORMAT).lower()
    if asked != format:
        raise Refused(
            f"toTable({name!r}): the table has the format {format}, the query writes {asked}; add"
            f" .format({format!r})"
        )
    wanted = {field.name().lower(): field.dataType().sql() for field in items(table.schema())}
    given = {field.name().lower(): field.dataType().sql() for field in items(schema)}
    partitions = {name.lower() for name in items(table.partitionColumnNames())}
    by_place = format == "csv" and _others(partitions, given) != _others(partitions, wanted)
    if by_place or not (partitions <= given.keys() and given.items() <= wanted.items()):
        which = "all columns of the table, in their order" if by_place else "columns of the table"
        raise Refused(
            f"toTable({name!r}): the query has the columns {schema.toDDL()}, and the table"
            f" {table.schema().toDDL()}; select {which}, with those that partition it"
        )
    found = WriteStreamOperationStart()
    found.CopyFrom(request)
    found.format, found.path = format, resolved(str(table.location()))
    del found.partitioning_column_names[:]
    found.partitioning_column_names.extend(items(table.partitionColumnNames()))
    found.ClearField("table_name")
    return found


def _others(partitions: Collection[str], names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in partitions]


def refresh(session: Any, name: str) -> None:
    """Lets a session see the new files and partitions of a table, if the table still exists."""
    catalog = session.sessionState().catalog()
    identifier = session.sessionState().sqlParser().parseTableIdentifier(name)
    if not catalog.tableExists(identifier):
        return
    if catalog.getTableMetadata(identifier).tracksPartitionsInCatalog():
        session.catalog().recoverPartitions(name)
    session.catalog().refreshTable(name)


def _create(session: Any, request: WriteStreamOperationStart, schema: Any) -> None:
    """Creates a table whose partitions are the folders that are there, not those that the catalog
    was told of.
    """
    conf = session.conf()
    before = conf.get(_TRACKS_PARTITIONS)
    conf.set(_TRACKS_PARTITIONS, "false")
    try:
        session.sql(_created(request, schema)).count()
    finally:
        conf.set(_TRACKS_PARTITIONS, before)


def _created(request: WriteStreamOperationStart, schema: Any) -> str:
    """Returns the statement that creates the table."""
    options = {key.lower(): value for key, value in request.options.items()}
    text = f"CREATE TABLE {request.table_name} ({schema.toDDL()})"
    text += f" USING {request.format or DEFAULT_FORMAT}"
    if request.partitioning_column_names:
        columns = (f"`{name.replace('`', '``')}`" for name in request.partitioning_column_names)
        text += f" PARTITIONED BY ({', '.join(columns)})"
    if path := options.get("path"):
        quoted = path.replace("\\", "\\\\").replace("'", "\\'")
        text += f" LOCATION '{quoted}'"
    return text

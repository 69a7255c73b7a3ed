"""Resolves column names as Spark SQL does: case-insensitively."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.text import is_utf_8

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def meant(name: str, columns: Sequence[str]) -> str | None:
    """Returns the column that `name` denotes: the one with exactly this name, or else the one whose
    name differs only in case; None if there is none.

    Raises FiresteelError if several columns match.
    """
    if name in columns:
        return name
    matches = [column for column in columns if same(column, name)]
    if len(matches) > 1:
        raise FiresteelError(
            f"the column {name!r} may be {' or '.join(map(repr, matches))};"
            " write it exactly as it is"
        )
    return matches[0] if matches else None


def column_index(schema: pa.Schema, name: str) -> int:
    """Returns the index of the column that `name` denotes, or -1 if there is none. Raises
    FiresteelError if several columns match.
    """
    index: int = schema.get_field_index(name)
    if index >= 0:
        return index
    column = meant(name, schema.names)
    return -1 if column is None else int(schema.get_field_index(column))


def same(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def check_valid(names: Sequence[str]) -> None:
    """Raises InvalidProgram for a name that UTF-8 cannot encode, such as one that was read with the
    error handler "surrogateescape".
    """
    for name in names:
        if not is_utf_8(name):
            raise InvalidProgram(f"the column name {name!r} is not valid UTF-8; rename the column")


def check_valid_fields(schema: StructType) -> None:
    """Applies `check_valid` to the columns of a schema and to the fields inside them."""
    check_valid(schema.names)
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if not is_utf_8(kind):
            raise InvalidProgram(
                f"the column {field.name!r} has a field whose name is not valid UTF-8: {kind!r};"
                " rename the field"
            )

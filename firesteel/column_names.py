"""How a program names a column: as in Spark SQL, upper and lower case are alike."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from firesteel.errors import FiresteelError


def meant(name: str, columns: Sequence[str]) -> str | None:
    """The column that `name` means: that of exactly this name, else the one that differs in upper
    and lower case only; None if there is none.

    Raises FiresteelError if there are several.
    """
    if name in columns:
        return name
    found = [column for column in columns if same(column, name)]
    if len(found) > 1:
        raise FiresteelError(
            f"the column {name!r} may be {' or '.join(map(repr, found))}; write it as it is"
        )
    return found[0] if found else None


def column_index(schema: pa.Schema, name: str) -> int:
    """Where the column is that `name` means; -1 if there is none. Raises FiresteelError if there
    are several.
    """
    index: int = schema.get_field_index(name)
    if index >= 0:
        return index
    found = meant(name, schema.names)
    return -1 if found is None else int(schema.get_field_index(found))


def same(one: str, other: str) -> bool:
    return one.lower() == other.lower()

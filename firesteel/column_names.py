"""How a program names a column: as in Spark SQL, upper and lower case are alike."""

from __future__ import annotations

from collections.abc import Sequence

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


def same(one: str, other: str) -> bool:
    return one.lower() == other.lower()

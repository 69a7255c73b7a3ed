"""Checks a connector against its columns before data flows, and raises FiresteelError.

Checks that are possible where the program runs are in firesteel.connectors.checks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from firesteel.column_names import meant
from firesteel.errors import FiresteelError


def known_schema(connector: str, schema: pa.Schema | None) -> pa.Schema:
    if schema is None:
        raise FiresteelError(
            f"{connector}: the schema of its input is unknown; declare it on the upstream operator"
        )
    return schema


def named_columns(what: str, names: Iterable[str], schema: pa.Schema) -> tuple[str, ...]:
    """Returns the stream's columns that match `names`."""
    found = []
    for name in names:
        column = meant(name, schema.names)
        if column is None:
            raise FiresteelError(
                f"{what} {name!r} is not in the stream, which has: {', '.join(schema.names)}"
            )
        found.append(column)
    return tuple(found)


def check_writable(connector: str, path: Path) -> None:
    """Checks that the folder exists or can be created."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise FiresteelError(f"{connector}: cannot write below {path}: {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FiresteelError(
            f"{connector}: cannot write below {path}: no permission to write in {existing}"
        )

"""The versions of static tables that a plan holds. While a plan is made, all functions of the
program see the same read of each table, even if the table is refreshed in the meantime.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_of_thread = threading.local()


class TableVersion:
    """The rows of one read of a static table, or of several reads with the same rows; they never
    change.
    """

    __slots__ = ("__weakref__", "frame", "rdd_id", "shared", "superseded")

    def __init__(self, frame: DataFrame, rdd_id: int, *, shared: bool) -> None:
        self.frame = frame
        self.rdd_id = rdd_id  # of its rows, which identifies the table in plans
        self.shared = shared  # with later jobs, if they read the same rows
        self.superseded = False  # new plans use a newer version


@contextmanager
def pinned() -> Iterator[dict[str, TableVersion]]:
    """Inside the `with`, this thread sees one version of each static table: the one in the mapping,
    by the table's id. Each version is added on first use. Nested blocks share the mapping.
    """
    outer = pinned_here()
    versions: dict[str, TableVersion] = {} if outer is None else outer
    _of_thread.versions = versions
    try:
        yield versions
    finally:
        _of_thread.versions = outer


def pinned_here() -> dict[str, TableVersion] | None:
    """Returns the mapping of the innermost `pinned` of this thread; None outside."""
    versions: dict[str, TableVersion] | None = getattr(_of_thread, "versions", None)
    return versions

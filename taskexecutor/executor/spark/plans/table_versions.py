"""The versions of static tables that a plan holds: while it is made, all functions of the program
see the same read of each table, whatever happens to it meanwhile.
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
    """The rows of one read of a static table, or of several that gave the same; they never
    change.
    """

    __slots__ = ("__weakref__", "frame", "rdd_id", "shared", "superseded")

    def __init__(self, frame: DataFrame, rdd_id: int, *, shared: bool) -> None:
        self.frame = frame
        self.rdd_id = rdd_id  # of its rows, by which plans are known to read nothing else
        self.shared = shared  # with the jobs that follow, if they read the same rows
        self.superseded = False  # plans that are made from now on hold another one


@contextmanager
def pinned() -> Iterator[dict[str, TableVersion]]:
    """Inside the `with`, this thread sees one version of each static table: the one in the mapping,
    by the table's id, to which each is added when it is first used. Nested blocks share it.
    """
    outer = pinned_here()
    versions: dict[str, TableVersion] = {} if outer is None else outer
    _of_thread.versions = versions
    try:
        yield versions
    finally:
        _of_thread.versions = outer


def pinned_here() -> dict[str, TableVersion] | None:
    """The mapping of the innermost `pinned` of this thread; None outside."""
    versions: dict[str, TableVersion] | None = getattr(_of_thread, "versions", None)
    return versions

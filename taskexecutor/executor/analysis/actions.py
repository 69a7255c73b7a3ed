"""Refuses transforms that run Spark on their rows: `count`, `collect`, `toPandas`, `write`, ...

While the job runs, such a method would see one bundle of the stream. The DataFrames of the analysis
cannot be read (plans.unread_frame), so any access to their rows raises Spark's error, and the
traceback shows the method.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator

import py4j
import pyspark

from firesteel.errors import FiresteelError
from firesteel.plan.source_lines import Place
from firesteel.text import text_of
from taskexecutor.executor.columnar.cached_plans.composed import UNREAD

_SPARK = tuple(f"{package.__path__[0]}/" for package in (pyspark, py4j))
_PYTHONS_OWN = sysconfig.get_path("stdlib") + "/"
_TABLE = "for rows that are not part of the stream, use env.static(...)"
_PYTHON = f"use map(...) or map_in_pandas(...) of the stream; {_TABLE}"
_WRITE = "use sink_to(...) or foreach_batch(...) of the stream"
_AGGREGATE = (
    "use window_all(...).aggregate(...) or key_by(...).window(...).aggregate(...) of the stream"
)
_INSTEAD = {
    **dict.fromkeys(("collect", "take", "tail", "head", "first", "toPandas", "toArrow"), _PYTHON),
    **dict.fromkeys(("foreach", "foreachPartition", "save", "saveAsTable", "insertInto"), _WRITE),
    **dict.fromkeys(("parquet", "csv", "json", "orc", "text", "xml", "jdbc", "append"), _WRITE),
    "show": "use print() of the stream",
}


def refuse_action(operator_name: str, error: Exception) -> None:
    """Raises FiresteelError if a function of the program raised `error` because it read rows."""
    links = list(_chain(error))
    if not any(UNREAD in text_of(link) for link in links):
        return
    method, place = next(filter(None, map(_call, links)), ("", None))
    what = (
        f"{method}()" if method.isidentifier() and method[0] != "_" else "code that reads its rows"
    )
    where = f" ({place})" if place is not None else ""
    raise FiresteelError(
        f"{operator_name}: {what}{where} works on one bundle of rows at a time, not on the whole "
        f"stream; {_INSTEAD.get(method, _AGGREGATE)}, or transform(..., per_bundle=True) if that "
        "is meant"
    ) from None


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen = set()
    while link is not None and id(link) not in seen:
        yield link
        seen.add(id(link))
        link = link.__cause__ or link.__context__


def _call(error: BaseException) -> tuple[str, Place] | None:
    """Returns the PySpark method that raised the error, and where the program calls it."""
    found = None
    caller: Place | None = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename.startswith(_SPARK):
            if found is None and caller is not None:
                found = code.co_name, caller
        elif not code.co_filename.startswith(_PYTHONS_OWN):
            caller, found = Place(code.co_filename, line), None
    return found

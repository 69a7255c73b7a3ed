"""What is meant by methods that streams do not have, and those of other libraries do."""

from __future__ import annotations

import difflib
import re
from typing import NoReturn

_AGGREGATE = 'aggregate("sum(x) AS total", ...) after key_by(...), with a window(...) between them'
_ROWS = "transform(lambda df: df.{name}(...))"
_PYTHON = "map(function, schema), flat_map(function, schema) or map_in_arrow(function, schema)"
_SINK = "sink_to(...), for example with a FileSink"
_COLLECT = "execute_and_collect(), which returns an Arrow table"
_SORTED = (
    "window_all(...).top_n(...), or window_all(...).apply(lambda df: df.{name}(...)):"
    " an endless stream has no order of its own"
)
_TOP = (
    "window_all(...).top_n(n, by=...), or for each key key_by(...).top_n(n, by=...), also with"
    " window(...) between the two"
)

# Methods of Spark's DataFrames, of Flink's streams and of pandas; what to write instead.
_INSTEAD = {
    **dict.fromkeys(("agg", "avg", "count", "max", "mean", "min", "reduce", "sum"), _AGGREGATE),
    **dict.fromkeys(("groupBy", "group_by", "groupby"), 'key_by("column")'),
    **dict.fromkeys(("dropna", "fillna", "hint", "replace", "unpivot"), _ROWS),
    **dict.fromkeys(
        ("async_wait", "ordered_wait", "unordered_wait"),
        "map_async(function, schema, ordered=...)",
    ),
    "coGroup": "connect(other).key_by(...).co_process(...)",
    **dict.fromkeys(("unionAll", "unionByName"), "union(other)"),
    "withWatermark": "assign_timestamps_and_watermarks(Watermarks.bounded(...))",
    **dict.fromkeys(("addSink", "add_sink", "save", "write", "writeStream"), _SINK),
    "foreach": "foreach_batch(function)",
    **dict.fromkeys(("collect", "toArrow", "toPandas", "to_pandas"), _COLLECT),
    **dict.fromkeys(("head", "show", "take"), f"print(), or {_COLLECT}"),
    "repartition": "rebalance(), or key_by(...)",
    **dict.fromkeys(("limit", "orderBy", "sort", "sort_values"), _SORTED),
    **dict.fromkeys(("nlargest", "nsmallest", "top", "topN"), _TOP),
    **dict.fromkeys(
        ("distinct", "dropDuplicatesWithinWatermark", "deduplicate"),
        'drop_duplicates("column", within="1 hour")',
    ),
    "flatMapGroupsWithState": "key_by(...).transform_with_state(...)",
}
_CAPITAL = re.compile("[A-Z]")
_OF_STREAMS = ("execute_and_collect", "filter", "foreach_batch", "key_by", "print", "sink_to")
_AFTER_KEY_BY = (
    "aggregate",
    "top_n",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "window",
)


def no_such_member(kind: type, name: str) -> NoReturn:
    """Raises AttributeError for a member that a `kind` of stream does not have; the message says
    what is meant.
    """
    message = f"{kind.__name__} has no {name}"
    if name == "_jdf":
        message = (
            f"a {kind.__name__} is used where PySpark takes a DataFrame; to combine streams, use"
            " union(...) or connect(...), not a DataFrame's methods"
        )
    elif not name.startswith("_"):
        message += _hint(kind, name)
    raise AttributeError(message, name=name)


def _hint(kind: type, name: str) -> str:
    if kind.__name__ == "WindowedStream" and name in _OF_STREAMS:
        return f"; call aggregate(...) or apply(...) first, which return a stream that has {name}"
    methods = [member for member in dir(kind) if not member.startswith("_")]
    ours = _CAPITAL.sub(lambda match: f"_{match[0].lower()}", name)
    if ours in methods:
        return f"; it is {ours} here: all methods are in snake_case"
    if name in _INSTEAD:
        return f"; use {_INSTEAD[name].format(name=name)}"
    if ours in _AFTER_KEY_BY:
        return f"; call key_by(...) first: key_by(...).{ours}(...)"
    spelled = {member.replace("_", ""): member for member in methods}
    close = difflib.get_close_matches(name.lower().replace("_", ""), spelled, n=1)
    return f"; did you mean {spelled[close[0]]}?" if close else ""

"""Joins by a hash table of one side that is known to fit in memory.

Spark sorts both sides of a join, unless one is small enough for a broadcast, because it does not
know their sizes and cannot spill a hash table. Spooled rows are counted: for most joins, a side has
at most the rows of one input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firesteel.plan.catalyst_plan import join_kind
from taskexecutor.executor.columnar.columns.rows import rows_read
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.local_tasks import singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Nodes with at most as many rows as their only child.
_NO_MORE_ROWS = frozenset({"Aggregate", "Filter", "GlobalLimit", "LocalLimit", "Project", "Sort"})
_HASHED_LEFT = frozenset({"INNER", "RIGHT OUTER", "FULL OUTER"})
_HASHED_RIGHT = frozenset({"INNER", "LEFT OUTER", "FULL OUTER", "LEFT SEMI", "LEFT ANTI"})
_BROADCAST_LEFT = frozenset({"INNER", "RIGHT OUTER"})
_BROADCAST_RIGHT = frozenset({"INNER", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI"})
# Memory of a hash table: per row, and per column of a row. The table doubles whenever it is full
# and copies the old one, so the bytes of its rows are needed several times.
_ROW_BYTES, _COLUMN_BYTES, _GROWTH = 120, 16, 4


def with_hash_joins(engine: SparkEngine, frame: DataFrame, room_bytes: int) -> Any:
    """Returns the physical plan of a DataFrame over spools, with hash tables of at most
    `room_bytes` each; None if no sorted join of the plan can use one.
    """
    optimized = frame._jdf.queryExecution().optimizedPlan()
    hinted = _hinted(engine, optimized, room_bytes)
    if hinted is optimized:
        return None
    session: Any = engine.session
    # Set for this thread, because new nodes request it.
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)
    execution = singleton(session._jvm, "org.apache.spark.sql.execution.QueryExecution")
    return execution.prepareExecutedPlan(session._jsparkSession, hinted)


def _hinted(engine: SparkEngine, plan: Any, room_bytes: int) -> Any:
    """Returns `plan` itself if nothing changes."""
    jvm: Any = engine.session._jvm
    given = [plan.children().apply(at) for at in range(plan.children().size())]
    children = [_hinted(engine, child, room_bytes) for child in given]
    if any(new is not old for new, old in zip(children, given, strict=True)):
        replaced = jvm.java.util.ArrayList()
        for child in children:
            replaced.append(child)
        plan = plan.withNewChildren(jvm.PythonUtils.toSeq(replaced))
    if _kind(plan) != "Join" or not _is_equal_join(jvm, plan):
        return plan
    how, left, right = plan.joinType(), plan.left(), plan.right()
    kind = join_kind(plan)
    sides = {
        "left": (left, kind in _HASHED_LEFT, kind in _BROADCAST_LEFT),
        "right": (right, kind in _HASHED_RIGHT, kind in _BROADCAST_RIGHT),
    }
    settings = engine.session._jsparkSession.sessionState().conf()  # type: ignore[union-attr]
    broadcast_bytes = settings.autoBroadcastJoinThreshold()
    tables = {}
    for side, (rows, may_be_hashed, may_be_broadcast) in sides.items():
        if may_be_broadcast and rows.stats().sizeInBytes() <= broadcast_bytes:
            return plan  # its rows pass through one generated loop, with no other table's
        size_bytes = _table_bytes(engine, rows) if may_be_hashed else None
        if size_bytes is not None and size_bytes <= room_bytes:
            tables[side] = size_bytes
    if not tables:
        return plan
    hint = _hint(jvm, on_left=min(tables, key=tables.__getitem__) == "left")
    return plan.copy(left, right, how, plan.condition(), hint)


def _is_equal_join(jvm: Any, join: Any) -> bool:
    """Returns whether the join compares columns for equality and has no hint of the program."""
    if join.hint().leftHint().isDefined() or join.hint().rightHint().isDefined():
        return False
    equal = singleton(jvm, "org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys")
    return bool(equal.unapply(join).isDefined())


def _hint(jvm: Any, *, on_left: bool) -> Any:
    some, none = singleton(jvm, "scala.Some"), singleton(jvm, "scala.None")
    logical = jvm.org.apache.spark.sql.catalyst.plans.logical
    hash_table = singleton(jvm, "org.apache.spark.sql.catalyst.plans.logical.SHUFFLE_HASH")
    info = some.apply(logical.HintInfo(some.apply(hash_table)))
    return logical.JoinHint(info, none) if on_left else logical.JoinHint(none, info)


def _table_bytes(engine: SparkEngine, side: Any) -> int | None:
    """Returns the maximum size of a hash table of its rows; None if the number of rows is
    unbounded.
    """
    leaf = side
    while _kind(leaf) in _NO_MORE_ROWS:
        leaf = leaf.children().apply(0)
    count = rows_read(engine, leaf) if _kind(leaf) == "DataSourceV2ScanRelation" else None
    if count is None:
        return None
    of_row = _ROW_BYTES + _COLUMN_BYTES * int(side.output().size())
    size_bytes = int(side.stats().sizeInBytes())
    return count * of_row + _GROWTH * size_bytes


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())

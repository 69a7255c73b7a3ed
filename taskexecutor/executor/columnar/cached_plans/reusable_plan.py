"""Caches a plan for rows that it was not made for, if that is sound.

A new plan is analyzed, optimized and compiled, and initially interpreted by the JVM, all of which
takes longer than processing a bundle or a split. A plan is cached if

* the functions of the program do not read the rows when they build the plan (no Spark job runs in
  the meantime),
* they build the same plan when they are called again, and it does not contain the current time, and
* every operator of the plan processes each partition independently. The exchange between the halves
  of the partial aggregate, the plan's last step, is removed and the halves become one: rows of one
  key in several partitions are merged later, like all partial results.

It may join rows that the plan holds itself, such as those of a static table: they are broadcast
once, when the plan is made.

Any other plan is made again for each bundle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from firesteel.common.error_report import summary_of
from firesteel.common.logs import get_logger
from firesteel.operator import PlanMeter
from firesteel.operators import Spec
from firesteel.operators.aggregates import aggregate_of
from firesteel.plan.catalyst_plan import EXISTENCE, join_kind
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.cached_plans.common_expressions import evaluated_once
from taskexecutor.executor.columnar.cached_plans.passthrough import Passthrough, passthrough_of
from taskexecutor.executor.columnar.cached_plans.row_partials import (
    GivenRows,
    row_partials,
    rows_as_partials,
)
from taskexecutor.executor.columnar.cached_plans.table_versions import TableVersion, pinned
from taskexecutor.executor.columnar.grouping.row_partials import RowPartials
from taskexecutor.executor.columnar.jvm.engine import engine_of
from taskexecutor.executor.columnar.jvm.local_tasks import singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ATTEMPTS = 3  # jobs of other tasks may be mistaken for the function's
_Plan = TypeVar("_Plan")
_log = get_logger(__name__)

ROW_BY_ROW = frozenset(
    {
        "ProjectExec",
        "FilterExec",
        "GenerateExec",
        "ExpandExec",
        "WholeStageCodegenExec",
        "InputAdapter",
    }
)
_AGGREGATION = frozenset(
    {"HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec", "SortExec"}
)
_EXCHANGE = "ShuffleExchangeExec"
_SORT = "SortExec"
# Aggregates over non-numeric values.
_BY_OBJECTS = frozenset({"ObjectHashAggregateExec", "SortAggregateExec"})
_GENERATED = frozenset({"WholeStageCodegenExec", "InputAdapter"})  # a generated loop, and its input
# Smaller Arrow data becomes a local relation, whose rows are part of plans.
LOCAL_RELATION_LIMIT = "spark.sql.execution.arrow.localRelationThreshold"
# One task at a time, because a task could otherwise restore values over those that another has just
# set.
_CONF_LOCK = threading.Lock()
_RULES = frozenset({"CombineAdjacentAggregation$", "CollapseCodegenStages"})


# Joins with rows that the plan holds, which Spark reads before the other side, by join types that
# match each row of the other side independently. The held side is the right one, or the left one.
_JOINS = frozenset({"BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec"})
_HELD_RIGHT = frozenset({"INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI", EXISTENCE})
_HELD_LEFT = frozenset({"INNER", "CROSS", "RIGHT OUTER"})
_BROADCAST = "BroadcastExchangeExec"
_LITERAL_ROWS = "LocalTableScanExec"
_RDD_ROWS = "RDDScanExec"

_WITHOUT_PYTHON = (
    ROW_BY_ROW
    | _AGGREGATION
    | _JOINS
    | {"BatchScanExec", "ColumnarToRowExec", _BROADCAST, _LITERAL_ROWS, _RDD_ROWS}
)

# Nodes that may relate rows, and need no Spark job if the rows are in one partition.
WHOLE = (
    ROW_BY_ROW
    | _AGGREGATION
    | {
        _EXCHANGE,
        "CollectLimitExec",
        "GlobalLimitExec",
        "LocalLimitExec",
        "TakeOrderedAndProjectExec",
        "WindowExec",
    }
)

_NAMES = {  # names of these nodes for users
    "ArrowEvalPythonExec": "a Python UDF",
    "ArrowWindowPythonExec": "a Python UDF",
    "BatchEvalPythonExec": "a Python UDF",
    "BroadcastHashJoinExec": "a join with rows from outside a static table",
    "BroadcastNestedLoopJoinExec": "a join with rows from outside a static table",
    "MapInArrowExec": "mapInArrow",
    "MapInPandasExec": "mapInPandas",
    "ShuffleExchangeExec": "a shuffle",
    "ShuffledHashJoinExec": "a join with rows from outside a static table",
    "SortExec": "a sort",
    "SortMergeJoinExec": "a join with rows from outside a static table",
}


class NotReusable(Exception):
    """A plan must not be cached; the message is the reason."""


class NotMergedByRow(NotReusable):
    """The rows of an aggregate have to be grouped."""


class Origin(NamedTuple):
    """The origin of a plan."""

    leaf: DataFrame
    rows: DataFrame  # after the functions of the program
    settings: Any  # of the session when it was made: java.util.Properties


class ReusablePlan(NamedTuple):
    frame: DataFrame  # of the results
    rows: DataFrame  # of the plan's rows: `frame`, unless there is `grouping` or `passthrough`
    physical: Any  # the SparkPlan, without an exchange
    tables: tuple[TableVersion, ...]  # the static tables that the plan holds
    origin: Origin | None = None  # None: the plan is part of another one
    grouping: RowPartials | None = None  # computes the results from the plan's rows
    passthrough: Passthrough | None = None  # columns that bypass the plan
    deterministic: bool = False  # the same result for equal rows; known if there is `passthrough`

    @property
    def reusable(self) -> bool:
        """Whether a later job may use it."""
        return not self.outdated and all(version.shared for version in self.tables)

    @property
    def outdated(self) -> bool:
        """Whether a static table was read again, so that the next rows need a new plan."""
        return any(version.superseded for version in self.tables)


def reusable_plan(
    session: Any,
    leaf: DataFrame,
    empty: DataFrame,
    specs: Sequence[Spec],
    allowed: frozenset[str],
    *,
    by_arrow: Callable[[GivenRows], bool] = lambda _: False,
    by_row: bool = False,
    whole: bool = False,
) -> ReusablePlan:
    """Returns the group's plan over `leaf`. Calls the functions of the program, first on `empty`, a
    leaf without rows. Raises NotReusable.

    `allowed` are the classes of nodes that the physical plan may have, besides those of the partial
    aggregate. `by_arrow` decides whether the rows' contributions are grouped after the plan.
    `by_row`: they are not grouped, each row is a partial result. `whole`: the plan gets all rows
    that it relates in one partition, so it is cached without its shuffles.
    """
    with pinned() as tables:
        return _reusable_plan(session, leaf, empty, specs, allowed, tables, by_arrow, by_row, whole)


def attempted(meter: PlanMeter, make: Callable[[], _Plan]) -> _Plan | None:
    """Returns the cached plan of `make`; None if the plan is not cached, with the reason in the
    meter.
    """
    try:
        with meter.planning:
            plan = make()
    except NotReusable as reason:
        meter.not_cached(str(reason))
        return None
    except Exception as error:
        # If it is the program's error, regular planning raises it again.
        _log.info("the plan is not cached", error=repr(error))
        meter.not_cached(f"making a plan without rows failed: {summary_of(error)}")
        return None
    meter.made()
    return plan


def _reusable_plan(
    session: Any,
    leaf: DataFrame,
    empty: DataFrame,
    specs: Sequence[Spec],
    allowed: frozenset[str],
    tables: Mapping[str, TableVersion],
    by_arrow: Callable[[GivenRows], bool],
    by_row: bool,
    whole: bool,
) -> ReusablePlan:
    if _runs_jobs(session, empty, specs) and not (
        tables and not _runs_jobs(session, empty, specs)  # the first call has read the tables
    ):
        raise NotReusable("a function reads its rows (count, first, collect, ...)")
    rows, again = _rows(leaf, specs), _rows(leaf, specs)
    origin = Origin(leaf, rows, engine_of(session).session_properties())
    frame = _aggregated(rows, specs)
    analyzed = frame._jdf.queryExecution().analyzed()
    time_of_day = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    if analyzed.containsPattern(time_of_day):
        raise NotReusable("it contains the current time")
    if not _same_result(rows, again):
        raise NotReusable("it differs from call to call, as with random numbers")
    held = frozenset(version.rdd_id for version in tables.values())
    if whole:
        physical = rows._jdf.queryExecution().executedPlan()
        _check(physical, allowed, held)
        physical = without_shuffles(session, physical)
        return ReusablePlan(frame, frame, physical, tuple(tables.values()), origin)
    if (once := evaluated_once(session, rows)) is not rows:
        rows, frame = once, _aggregated(once, specs)
    grouped = frame is not rows and not by_row
    if frame is not rows:
        aggregate = aggregate_of(specs)
        assert aggregate is not None
        if by_row:
            each = rows_as_partials(rows, aggregate, frame)
            if each is None:
                raise NotMergedByRow("its rows would not merge to exactly Spark's results")
            rows = each
        elif (given := row_partials(rows, aggregate, frame)) is not None and by_arrow(given):
            rows = given.frame
            physical = rows._jdf.queryExecution().executedPlan()
            _check(physical, allowed, held)
            held_tables = tuple(tables.values())
            return ReusablePlan(frame, rows, physical, held_tables, origin, given.grouping)
    found = None if grouped else passthrough_of(session, rows)
    if found is not None:
        passes, rows = found
        physical = rows._jdf.queryExecution().executedPlan()
        _check(physical, allowed, held)
        return ReusablePlan(
            frame,
            rows,
            physical,
            tuple(tables.values()),
            origin,
            passthrough=passes,
            deterministic=bool(analyzed.deterministic()),
        )
    plan = rows._jdf.queryExecution().executedPlan()
    _check(plan, allowed, held)
    if grouped:
        rows = frame
        plan = rows._jdf.queryExecution().executedPlan()
        _check(plan, allowed | _AGGREGATION | {_EXCHANGE}, held)
        # Set for this thread, because new nodes request it.
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)
        plan = _aggregated_once(session, plan)
    return ReusablePlan(frame, rows, plan, tuple(tables.values()), origin)


def is_still(session: Any, cached: ReusablePlan, specs: Sequence[Spec]) -> bool:
    """Returns whether the functions of the program return the cached plan when they are called
    again. `specs` have the same `cache_keys.cache_key`.
    """
    origin = cached.origin
    if origin is None or not origin.settings.equals(engine_of(session).session_properties()):
        return False
    scheduler = session._jsc.sc().dagScheduler()
    jobs_before = scheduler.numTotalJobs()
    with pinned() as tables:
        again = _rows(origin.leaf, specs)
        if tables and scheduler.numTotalJobs() != jobs_before:  # the call has read the tables
            jobs_before = scheduler.numTotalJobs()
            again = _rows(origin.leaf, specs)
    whole = composed.whole_plan(origin.rows)
    return bool(
        not cached.outdated
        and set(cached.tables) == set(tables.values())
        # Python may have computed with their rows, and its modules may have changed.
        and not (cached.tables and node_classes(cached.physical) - _WITHOUT_PYTHON)
        and scheduler.numTotalJobs() == jobs_before
        and again.schema == origin.rows.schema
        and _same_result(origin.rows, again)
        # Spark considers sums in any order equal, which sums of doubles are not.
        and whole is not None
        and whole == composed.whole_plan(again)
    )


def _same_result(one: DataFrame, other: DataFrame) -> bool:
    return bool(
        one._jdf.queryExecution().analyzed().sameResult(other._jdf.queryExecution().analyzed())
    )


def _runs_jobs(session: Any, empty: DataFrame, specs: Sequence[Spec]) -> bool:
    scheduler = session._jsc.sc().dagScheduler()
    jobs_before = scheduler.numTotalJobs()
    _rows(empty, specs)
    return bool(scheduler.numTotalJobs() != jobs_before)


@contextmanager
def temporary_conf(session: Any, values: Mapping[str, str]) -> Iterator[None]:
    """Changes settings of the session inside the `with`. Plans that other tasks make in the
    meantime may also see them, so they must be harmless.
    """
    with _CONF_LOCK:
        before = {key: session.conf.get(key, None) for key in values}
        try:
            for key, value in values.items():
                session.conf.set(key, value)
            yield
        finally:
            for key, old in before.items():
                if old is None:  # plans with different settings would not be reused
                    session.conf.unset(key)
                else:
                    session.conf.set(key, old)


def _rows(leaf: DataFrame, specs: Sequence[Spec]) -> DataFrame:
    """Returns the DataFrame after the functions of the program, or the rows' contributions to
    aggregates.
    """
    aggregate = aggregate_of(specs)
    if aggregate is None:
        return composed.apply(leaf, specs, cores=0)
    rows = composed.apply(leaf, specs[:-1], cores=0)
    if composed.by_row(rows, aggregate):
        return composed.partial_window_aggregate(rows, aggregate, cores=0)
    return rows


def _aggregated(rows: DataFrame, specs: Sequence[Spec]) -> DataFrame:
    """Returns the DataFrame after the whole group: `rows` itself if nothing is aggregated. Spark
    refuses aggregates of nondeterministic expressions.
    """
    aggregate = aggregate_of(specs)
    if aggregate is None or composed.by_row(rows, aggregate):  # they hold the contributions
        return rows
    return composed.partial_window_aggregate(rows, aggregate, cores=0)


def _children(plan: Any) -> list[Any]:
    return _items(plan.children())


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _check(plan: Any, allowed: frozenset[str], tables: frozenset[int]) -> None:
    """Raises NotReusable unless the plan only has nodes of these classes and joins of rows that it
    holds, and no subqueries. `tables` are the ids of the static tables' RDDs.
    """
    if not plan.subqueriesAll().isEmpty():
        raise NotReusable("it contains a subquery")
    children = _children(plan)
    node = _kind(plan)
    if node in _JOINS:
        held = [_is_held(child, tables) for child in children]
        if held in ([False, True], [True, False]) and join_kind(plan) in (
            _HELD_RIGHT if held[1] else _HELD_LEFT
        ):
            _check(children[held.index(False)], allowed, tables)
            return
    if node not in allowed:
        known = _NAMES.get(node)
        raise NotReusable(f"it contains {known} ({node})" if known else f"it contains {node}")
    for child in children:
        _check(child, allowed, tables)


def _is_held(plan: Any, tables: frozenset[int]) -> bool:
    """Returns whether it is a side of a join that only depends on rows that the plan holds."""
    if _kind(plan) in _GENERATED:
        return _is_held(_children(plan)[0], tables)
    if _kind(plan) == "ReusedExchangeExec":
        plan = plan.child()
    return _kind(plan) == _BROADCAST and all(
        _kind(leaf) == _LITERAL_ROWS or (_kind(leaf) == _RDD_ROWS and leaf.rdd().id() in tables)
        for leaf in _items(plan.collectLeaves())
    )


def node_classes(plan: Any) -> frozenset[str]:
    """Returns the classes of all nodes."""
    return frozenset({_kind(plan)}).union(*map(node_classes, _children(plan)))


def _kind(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())


def _aggregated_once(session: Any, plan: Any) -> Any:
    """Returns the plan without its exchange. The halves of the aggregation are then adjacent, and
    Spark's own rules combine them.

    Two halves would look up each key twice and hold all keys in memory twice.
    """

    def change(plan: Any) -> Any:
        plan = without_shuffles(session, plan)
        return _by_hashing(session._jvm, plan)

    return regenerated(session, plan, change)


def _by_hashing(jvm: Any, plan: Any) -> Any:
    """Returns the plan with one hash table in place of sorts, and of the two halves of an
    aggregation that Spark's own rules do not combine: those with a FILTER.

    Spark sorts all rows for an aggregate whose value is a string or a struct, such as `max_by(text,
    x)`. Its hash table for collections accepts any value, and only sorts if there are many keys.
    """
    if _kind(plan) in _BY_OBJECTS and _can_be_hashed(jvm, plan):
        partial = plan.child()
        if _kind(partial) == _SORT:
            partial = partial.child()
        if _kind(partial) in _BY_OBJECTS and _modes(plan) == {"Final"}:
            rows = partial.child()
            complete = singleton(
                jvm, "org.apache.spark.sql.catalyst.expressions.aggregate.Complete"
            )
            expressions = jvm.java.util.ArrayList()
            for each in _items(partial.aggregateExpressions()):
                expressions.append(
                    each.copy(
                        each.aggregateFunction(),
                        complete,
                        each.isDistinct(),
                        each.filter(),
                        each.resultId(),
                    )
                )
            return jvm.org.apache.spark.sql.execution.aggregate.ObjectHashAggregateExec(
                plan.requiredChildDistributionExpressions(),
                plan.isStreaming(),
                plan.numShufflePartitions(),
                partial.groupingExpressions(),
                jvm.PythonUtils.toSeq(expressions),
                plan.aggregateAttributes(),
                partial.initialInputBufferOffset(),
                plan.resultExpressions(),
                rows.child() if _kind(rows) == _SORT else rows,
            )
    return _with_children(jvm, plan, [_by_hashing(jvm, child) for child in _children(plan)])


def _can_be_hashed(jvm: Any, plan: Any) -> bool:
    """Returns whether equal keys are equal byte by byte, unlike strings of some collations."""
    keys = singleton(jvm, "org.apache.spark.sql.catalyst.util.UnsafeRowUtils")
    return all(keys.isBinaryStable(key.dataType()) for key in _items(plan.groupingExpressions()))


def _modes(plan: Any) -> set[str]:
    return {str(each.mode().toString()) for each in _items(plan.aggregateExpressions())}


def regenerated(session: Any, plan: Any, change: Callable[[Any], Any]) -> Any:
    """Returns the plan after `change`, which sees its operators without the loops that Spark
    generates for them; Spark then generates the loops again.
    """
    jvm = session._jvm
    plan = change(_without(jvm, plan, _GENERATED))
    nothing = singleton(jvm, "scala.None")
    rules = singleton(jvm, "org.apache.spark.sql.execution.QueryExecution").preparations(
        session._jsparkSession, nothing, False
    )
    for index in range(rules.size()):
        if rules.apply(index).getClass().getSimpleName() in _RULES:
            plan = rules.apply(index).apply(plan)
    return plan


def without_shuffles(session: Any, plan: Any) -> Any:
    """Returns a plan of the same rows, if each of the plan's leaves has one partition."""
    return _without(session._jvm, plan, frozenset({_EXCHANGE}))


def _without(jvm: Any, plan: Any, left_out: frozenset[str]) -> Any:
    """Returns the plan without its nodes of these classes, each of which has one child. The held
    side of a join keeps its exchanges, because it is computed as a whole.
    """
    if _kind(plan) == _BROADCAST:
        left_out -= {_EXCHANGE}
    children = [_without(jvm, child, left_out) for child in _children(plan)]
    if _kind(plan) in left_out:
        return children[0]
    return _with_children(jvm, plan, children)


def _with_children(jvm: Any, plan: Any, children: Sequence[Any]) -> Any:
    if not children:
        return plan
    replaced = jvm.java.util.ArrayList()
    for child in children:
        replaced.append(child)
    return plan.withNewChildren(jvm.PythonUtils.toSeq(replaced))

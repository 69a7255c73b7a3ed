"""When a plan may be kept for rows that it was not made for.

A new plan is analysed, optimised and compiled, and the JVM begins again with interpreting it, which
takes longer than the rows of a bundle or of a split. So a plan is kept where that is sound, and
only where

* the functions of the program do not look at the rows while they make their plan (no Spark job runs
  meanwhile),
* they make the same plan when they are called again, and it does not contain the time of day, and
* every operator of the plan works on each partition for itself. The exchange between the halves of
  the partial aggregate, the plan's last step, is taken out, and the halves become one: what several
  partitions have of one key is merged later, like everything partial.

Anything else is planned each time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from firesteel.plan.specs import PartialWindowAggregateSpec, Spec
from taskexecutor.executor.spark import plans
from taskexecutor.executor.spark.jvm.local_tasks import singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ATTEMPTS = 3  # other tasks' jobs may be taken for the function's own

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
_GENERATED = frozenset(
    {"WholeStageCodegenExec", "InputAdapter"}
)  # what one generated loop is made of, and what it reads
_CHANGING_SETTINGS = (
    threading.Lock()
)  # one task at a time, or one would put back what another has set
_RULES = frozenset({"CombineAdjacentAggregation$", "CollapseCodegenStages"})


class KeptPlan(NamedTuple):
    frame: DataFrame
    physical: Any  # the SparkPlan, without exchange


def keep(
    session: Any, leaf: DataFrame, empty: DataFrame, specs: Sequence[Spec], allowed: frozenset[str]
) -> KeptPlan | None:
    """The group's plan over `leaf`, if it may be kept. Calls the functions of the program, on a
    leaf without rows first.

    `allowed`: the classes of the physical plan's nodes, those of the partial aggregate apart.
    """
    scheduler = session._jsc.sc().dagScheduler()
    jobs_before = scheduler.numTotalJobs()
    _applied(empty, specs)
    if scheduler.numTotalJobs() != jobs_before:
        return None
    rows, frame = _applied(leaf, specs)
    _, again = _applied(leaf, specs)
    analyzed = frame._jdf.queryExecution().analyzed()
    time_of_day = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    if analyzed.containsPattern(time_of_day) or not analyzed.sameResult(
        again._jdf.queryExecution().analyzed()
    ):
        return None
    if not _all_in(rows._jdf.queryExecution().executedPlan(), allowed):
        return None
    plan = frame._jdf.queryExecution().executedPlan()
    if frame is not rows:
        if not _all_in(plan, allowed | _AGGREGATION | {_EXCHANGE}):
            return None
        session._jvm.SparkSession.setActiveSession(
            session._jsparkSession
        )  # of this thread: new nodes ask for it
        plan = _aggregated_once(session, plan)
    return KeptPlan(frame, plan)


@contextmanager
def temporary_conf(session: Any, values: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session. Plans that other tasks make meanwhile may get them, too: they must
    do no harm there.
    """
    with _CHANGING_SETTINGS:
        before = {key: session.conf.get(key) for key in values}
        try:
            for key, value in values.items():
                session.conf.set(key, value)
            yield
        finally:
            for key, old in before.items():
                session.conf.set(key, str(old))


def _applied(leaf: DataFrame, specs: Sequence[Spec]) -> tuple[DataFrame, DataFrame]:
    """The rows as the functions leave them; then what the whole group makes of them, the same if
    nothing is aggregated.
    """
    last = specs[-1] if specs else None
    if not isinstance(last, PartialWindowAggregateSpec):
        rows = plans.apply(leaf, specs, cores=0)
        return rows, rows
    rows = plans.apply(leaf, specs[:-1], cores=0)
    return rows, plans.partial_window_aggregate(rows, last, cores=0)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(index) for index in range(children.size())]


def _all_in(plan: Any, allowed: frozenset[str]) -> bool:
    """Whether the plan has nodes of these classes only, and no subqueries."""
    if not plan.subqueriesAll().isEmpty():
        return False
    return plan.getClass().getSimpleName() in allowed and all(
        _all_in(child, allowed) for child in _children(plan)
    )


def _aggregated_once(session: Any, plan: Any) -> Any:
    """Without the exchange, the halves of an aggregation are neighbours, which rules of Spark's own
    make one.

    Two would look up each key twice and keep all of them in memory twice.
    """
    jvm = session._jvm
    plan = _without(jvm, plan, _GENERATED | {_EXCHANGE})
    nothing = singleton(jvm, "scala.None")
    rules = singleton(jvm, "org.apache.spark.sql.execution.QueryExecution").preparations(
        session._jsparkSession, nothing, False
    )
    for index in range(rules.size()):
        if rules.apply(index).getClass().getSimpleName() in _RULES:
            plan = rules.apply(index).apply(plan)
    return plan


def _without(jvm: Any, plan: Any, left_out: frozenset[str]) -> Any:
    """The plan without its nodes of these classes, which have one child each."""
    children = [_without(jvm, child, left_out) for child in _children(plan)]
    if plan.getClass().getSimpleName() in left_out:
        return children[0]
    if not children:
        return plan
    instead = jvm.java.util.ArrayList()
    for child in children:
        instead.append(child)
    return plan.withNewChildren(jvm.PythonUtils.toSeq(instead))

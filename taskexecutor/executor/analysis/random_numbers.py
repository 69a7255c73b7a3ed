"""Random numbers in plans: seeds are refused where plans run again and again, and it is known which
plans give other rows when they run again on the same ones.

A plan runs once for each bundle of rows, piece of a file or fired window, and in each subtask, as
does that of an `apply` behind `key_by`: each run would begin with the same numbers. `uuid(7)` would
give each id many times, and `rand(7) < 0.1` would choose all bundles of one row, or none.
(Structured Streaming gives these functions other seeds in each micro-batch.)

Without a seed, Spark and PySpark draw one when the function is called or its plan is analysed; in
the plan it looks like one of the program. What tells them apart is that the next call draws
another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from firesteel.errors import FiresteelError
from taskexecutor.executor.analysis.plans import analyzed, items, kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SEEDED = frozenset({"Rand", "Randn", "RandStr", "Shuffle", "Uniform", "Uuid"})


class Seed(NamedTuple):
    function: str  # what programs write
    value: str


def check_seeds(
    what: str,
    seeds: Collection[Seed],
    again: Callable[[], Collection[Seed]],
    *,
    each_run: str = "",
    instead: str = "",
) -> None:
    """Raises FiresteelError if one of the seeds is there in another call of the function, too.

    `what`: the operator. `again`: the seeds of another call. `each_run`: what the plan runs once
    for, if a subtask runs it more than once. `instead`: what to do if the seed is to stay.
    """
    fixed = sorted(set(seeds) & set(again())) if seeds else []
    if fixed:
        function, value = fixed[0]
        raise FiresteelError(
            f"{what}: {function} has the seed {value}, with which it gives the same values again"
            f" {f'for each {each_run} and ' if each_run else ''}in each subtask; leave the seed"
            f" out{instead}"
        )


def seeds_of(node: Any) -> set[Seed]:
    """Of one node of a plan."""
    if kind_of(node) == "Sample":
        seed = node.seed()  # none: drawn for each run
        return {Seed("sample()", str(seed.get()))} if seed.isDefined() else set()
    return {
        Seed(f"{each.prettyName()}()", str(each.seedExpression().toString()))
        for each in not_deterministic(node)
        if kind_of(each) in _SEEDED
    }


def not_deterministic(node: Any) -> Iterator[Any]:
    """The expressions of one node of a plan that may differ for equal rows, with their parts that
    do.
    """
    if node.deterministic():  # with all that is below it
        return
    unseen = items(node.expressions())
    while unseen:
        expression = unseen.pop()
        if not expression.deterministic():
            yield expression
            unseen += items(expression.children())


def is_repeatable(frame: DataFrame) -> bool:
    """Whether the plan gives the same rows whenever it runs on the same ones. Functions in Python
    are taken for such as do, unless they are marked as `asNondeterministic`.
    """
    plan = analyzed(frame)
    jvm: Any = frame.sparkSession._jvm
    time_of_day = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(
        plan.deterministic() and not plan.containsPattern(time_of_day) and not _takes_samples(plan)
    )


def _takes_samples(plan: Any) -> bool:
    """Whose seed is no expression. In one call into the JVM, instead of several for each node: a
    plan that only says so is taken for one.
    """
    return "Sample " in str(plan.toString())

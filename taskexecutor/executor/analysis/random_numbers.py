"""Random functions in plans: refuses seeds where plans run repeatedly, and determines which plans
may return different rows for the same input.

A plan runs once for each bundle of rows, piece of a file or fired window, and in each subtask, as
does the plan of an `apply` after `key_by`. With a fixed seed, each run would produce the same
numbers: `uuid(7)` would return each id many times, and `rand(7) < 0.1` would choose all bundles of
one row, or none. (Structured Streaming reseeds these functions in each micro-batch.)

Without a seed, Spark and PySpark draw one when the function is called or its plan is analyzed; in
the plan it looks like a seed of the program. It is recognized by being different in the next call.
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
    function: str  # name in programs
    value: str


def check_seeds(
    what: str,
    seeds: Collection[Seed],
    again: Callable[[], Collection[Seed]],
    *,
    each_run: str = "",
    instead: str = "",
) -> None:
    """Raises FiresteelError if one of the seeds also occurs in another call of the function.

    `what` names the operator. `again` returns the seeds of another call. `each_run` names the input
    of one run of the plan, if a subtask runs it repeatedly. `instead` names the alternative if the
    seed is to stay.
    """
    fixed = sorted(set(seeds) & set(again())) if seeds else []
    if fixed:
        function, value = fixed[0]
        raise FiresteelError(
            f"{what}: {function} has the seed {value}, with which it returns the same values again"
            f" {f'for each {each_run} and ' if each_run else ''}in each subtask; remove the seed"
            f"{instead}"
        )


def seeds_of(node: Any) -> set[Seed]:
    """Returns the seeds of one node of a plan."""
    if kind_of(node) == "Sample":
        seed = node.seed()  # None: drawn for each run
        return {Seed("sample()", str(seed.get()))} if seed.isDefined() else set()
    return {
        Seed(f"{each.prettyName()}()", str(each.seedExpression().toString()))
        for each in not_deterministic(node)
        if kind_of(each) in _SEEDED
    }


def not_deterministic(node: Any) -> Iterator[Any]:
    """Yields the expressions of one node of a plan that may differ for equal rows, with their
    subexpressions that do.
    """
    if node.deterministic():  # including its children
        return
    unseen = items(node.expressions())
    while unseen:
        expression = unseen.pop()
        if not expression.deterministic():
            yield expression
            unseen += items(expression.children())


def is_repeatable(frame: DataFrame) -> bool:
    """Returns whether the plan returns the same rows whenever it runs on the same input. Python
    functions are assumed to be deterministic, unless they are marked as `asNondeterministic`.
    """
    plan = analyzed(frame)
    jvm: Any = frame.sparkSession._jvm
    time_of_day = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(
        plan.deterministic() and not plan.containsPattern(time_of_day) and not _takes_samples(plan)
    )


def _takes_samples(plan: Any) -> bool:
    """Whether there is a sample in the plan or its subqueries. Its seed is not an expression."""
    # The printed plan has the class of each node: most plans are read in this one call of the JVM.
    if "Sample " not in str(plan.toString()):
        return False
    unseen = [plan, *items(plan.subqueriesAll())]
    while unseen:
        node = unseen.pop()
        if kind_of(node) == "Sample":
            return True
        unseen += items(node.children())
    return False

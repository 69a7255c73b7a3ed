"""A stretch of a Catalyst plan that Spark has analysed elsewhere, applied to DataFrames of a slot.

Spark Connect analyses the queries of a program in the program's session. So names, types, time zone
and functions are resolved there, once, and a slot only puts the plan on top of its own rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Nodes that hold parts which cannot be serialised: their constructors' arguments travel instead,
# without the child, which is the third one.
PYTHON_MAPS = ("MapInPandas", "MapInArrow")
_CHILD = 2


@dataclass(frozen=True, slots=True)
class CatalystPlan:
    """A function from DataFrame to DataFrame.

    `pieces` are parts of the plan, the lowest first. Each is serialised (Java's serialisation): a
    LogicalPlan with one leaf, a LocalRelation, which stands for the columns of the rows below it in
    their order; or the arguments of one of PYTHON_MAPS, by its name. `text` shows the plan.
    """

    pieces: tuple[tuple[str, bytes], ...]
    text: str = ""

    def __call__(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

        session: Any = frame.sparkSession
        jvm = session._jvm
        plan = frame._jdf.queryExecution().analyzed()
        for name, content in self.pieces:
            plan = _on(jvm, name, _deserialized(jvm, content), plan)
        rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
        return ClassicDataFrame(rows, session)

    def __repr__(self) -> str:
        return self.text or "CatalystPlan"


def serialized(jvm: Any, plan: Any, text: str) -> CatalystPlan:
    """Returns a plan, whose one leaf is a LocalRelation, as a function.

    Raises Py4JJavaError if it has a part that cannot be serialised.
    """
    pieces: list[tuple[str, bytes]] = []
    _split(jvm, plan, pieces)
    return CatalystPlan(tuple(pieces), text)


def _split(jvm: Any, plan: Any, pieces: list[tuple[str, bytes]]) -> Any:
    """Adds the parts of the plan that end with a Python map to `pieces`. Returns the rest; the
    first call adds it.
    """
    chain, node = [], plan
    while items(node.children()):
        chain.append(node)
        (node,) = items(node.children())
    current = node
    for each in reversed(chain):
        name = each.getClass().getSimpleName()
        if name not in PYTHON_MAPS:
            current = each.withNewChildren(seq(jvm, [current]))
            continue
        if current is not node:
            pieces.append(("", _serialized(jvm, current)))
        arguments = items(each.productIterator().toSeq())
        arguments[_CHILD] = None
        pieces.append((name, _serialized(jvm, _array(jvm, arguments))))
        current = node = _leaf(jvm, each)
    if current is not node or not pieces:
        pieces.append(("", _serialized(jvm, current)))


def _leaf(jvm: Any, plan: Any) -> Any:
    nothing = jvm.scala.Option.apply(None)
    relation = jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation
    return relation(plan.output(), seq(jvm, []), False, nothing)


def _on(jvm: Any, name: str, piece: Any, given: Any) -> Any:
    if not name:
        return _with_leaf(jvm, piece, given)
    arguments = list(piece)
    arguments[_CHILD] = given
    return getattr(jvm.org.apache.spark.sql.catalyst.plans.logical, name)(*arguments)


def _with_leaf(jvm: Any, plan: Any, given: Any) -> Any:
    """Returns `plan` with the columns of the plan `given` in place of its leaf's."""
    children = items(plan.children())
    if children:
        (child,) = children
        return plan.withNewChildren(seq(jvm, [_with_leaf(jvm, child, given)]))
    columns = [
        alias(jvm, column, wanted)
        for column, wanted in zip(items(given.output()), items(plan.output()), strict=True)
    ]
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(seq(jvm, columns), given)


def _serialized(jvm: Any, value: Any) -> bytes:
    content = jvm.java.io.ByteArrayOutputStream()
    writer = jvm.java.io.ObjectOutputStream(content)
    writer.writeObject(value)
    writer.flush()
    return bytes(content.toByteArray())


def _deserialized(jvm: Any, content: bytes) -> Any:
    return jvm.java.io.ObjectInputStream(jvm.java.io.ByteArrayInputStream(content)).readObject()


def _array(jvm: Any, values: list[Any]) -> Any:
    found = jvm.java.util.ArrayList()
    for value in values:
        found.add(value)
    return found


def alias(jvm: Any, expression: Any, attribute: Any, name: str = "") -> Any:
    """Returns `expression` as the column that `attribute` refers to, under its name or `name`."""
    return jvm.org.apache.spark.sql.catalyst.expressions.Alias(
        expression,
        name or attribute.name(),
        attribute.exprId(),
        seq(jvm, []),
        jvm.scala.Option.apply(attribute.metadata()),
        seq(jvm, []),
    )


def items(sequence: Any) -> list[Any]:
    """Returns the elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def seq(jvm: Any, elements: Iterable[Any]) -> Any:
    """Returns a Scala sequence."""
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(elements))

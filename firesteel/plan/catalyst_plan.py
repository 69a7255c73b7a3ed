"""A stretch of a Catalyst plan that Spark has analysed elsewhere, applied to DataFrames of a slot.

Spark Connect analyses the queries of a program in the program's session. So names, types, time zone
and functions are resolved there, once, and a slot only puts the plan on top of its rows.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Nodes that hold parts which cannot be serialised: their constructors' arguments travel instead,
# without the child, which is the third one.
PYTHON_MAPS = ("MapInPandas", "MapInArrow")
_CHILD = 2
# Spark's texts append the id of the expression to a column, and the delay of its watermark.
_ID = re.compile(r"#\d+L?(-T\d+ms)?")
_PYTHON_FUNCTION = b"org.apache.spark.api.python.SimplePythonFunction"  # its name, serialised
_CATALYST = "org.apache.spark.sql.catalyst."
_LOGICAL_PLANS = f"{_CATALYST}plans.logical."


class StaticRows(Protocol):
    """Rows that slots hold: a StaticTable."""

    def dataframe(self) -> DataFrame: ...


@dataclass(frozen=True, slots=True)
class CatalystPlan:
    """A function from DataFrame to DataFrame.

    `pieces` are parts of the plan, the lowest first. Each is serialised (Java's serialisation): a
    LogicalPlan with a leaf, a LocalRelation, which stands for the columns of the rows below it in
    their order; or the arguments of one of PYTHON_MAPS, by its name. `text` shows the plan.

    A join with static rows has a second leaf: `statics` has its rows, and the id of the expression
    of its first column.
    """

    pieces: tuple[tuple[str, bytes], ...]
    text: str = ""
    statics: tuple[tuple[int, StaticRows], ...] = ()

    def __call__(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

        session: Any = frame.sparkSession
        jvm = session._jvm
        plan = frame._jdf.queryExecution().analyzed()
        statics = {
            number: rows.dataframe()._jdf.queryExecution().analyzed()
            for number, rows in self.statics
        }
        for name, content in self.pieces:
            piece = _deserialized(jvm, content)
            if _PYTHON_FUNCTION in content:
                _let_functions_import(list(piece) if name else [piece], session.sparkContext)
            plan = _on(jvm, name, piece, plan, statics)
        rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
        return ClassicDataFrame(rows, session)

    def __repr__(self) -> str:
        return self.text or "CatalystPlan"

    @property
    def likeness(self) -> object | None:
        """Returns a key that is equal for the plan of the same query, whose expressions get new ids
        whenever Spark analyses it. Different plans may have equal keys. A plan with static rows has
        none, because its text does not show them.
        """
        if self.statics:
            return None
        return without_ids(self.text), tuple(name for name, _ in self.pieces)


def serialized(
    jvm: Any, plan: Any, text: str, statics: Mapping[int, StaticRows] | None = None
) -> CatalystPlan:
    """Returns a plan as a function. Its leaves are LocalRelations, one of which is not static;
    `text` names its nodes.

    Raises Py4JJavaError if it has a part that cannot be serialised.
    """
    from py4j.protocol import Py4JJavaError

    statics = statics or {}
    if not any(name in text for name in PYTHON_MAPS):
        with contextlib.suppress(Py4JJavaError):  # spark.sql.maxPlanStringLength shortens the text
            return CatalystPlan((("", _serialized(jvm, plan)),), text, tuple(statics.items()))
    chain, node = [], plan
    while items(node.children()):
        chain.append(node)
        node = next(each for each in items(node.children()) if not _is_static(each, statics))
    pieces: list[tuple[str, bytes]] = []
    current = node
    for each in reversed(chain):
        name = each.getClass().getSimpleName()
        if name in PYTHON_MAPS:
            if current is not node or not pieces:
                pieces.append(("", _serialized(jvm, current)))
            arguments = items(each.productIterator().toSeq())
            arguments[_CHILD] = None
            pieces.append((name, _serialized(jvm, _array(jvm, arguments))))
            current = node = _leaf(jvm, each)
        else:
            below = [
                child if _is_static(child, statics) else current for child in items(each.children())
            ]
            current = each.withNewChildren(seq(jvm, below))
    if current is not node or not pieces:
        pieces.append(("", _serialized(jvm, current)))
    return CatalystPlan(tuple(pieces), text, tuple(statics.items()))


def _is_static(plan: Any, statics: Mapping[int, StaticRows]) -> bool:
    while plan.children().size() == 1:
        plan = plan.children().head()
    return not plan.children().size() and _number(plan) in statics


def _number(leaf: Any) -> int:
    """Identifies a leaf of a plan by its first column."""
    number: int = leaf.output().head().exprId().id()
    return number


def _leaf(jvm: Any, plan: Any) -> Any:
    relation = jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation
    return relation(plan.output(), seq(jvm, []), False, nothing(jvm))


def _on(jvm: Any, name: str, piece: Any, given: Any, statics: Mapping[int, Any]) -> Any:
    if not name:
        return _with_leaves(jvm, piece, given, statics)
    arguments = list(piece)
    arguments[_CHILD] = given
    return getattr(jvm.org.apache.spark.sql.catalyst.plans.logical, name)(*arguments)


def _let_functions_import(parts: Iterable[Any], context: Any) -> None:
    """Lets the Python functions in plans and expressions import the modules of the job, which are
    in a folder of the slot: the program's session knows only those of its own machine.
    """
    environment = {
        **context.environment,
        "PYTHONPATH": os.pathsep.join(context._python_includes),
    }
    for function in _python_functions(parts):
        for name, value in environment.items():
            function.envVars().put(name, value)


def _python_functions(parts: Iterable[Any]) -> Iterator[Any]:
    pending = [part for part in parts if hasattr(part, "getClass")]
    while pending:
        part = pending.pop()
        name = part.getClass().getName()
        if not name.startswith(_CATALYST):
            continue  # another argument of a node's constructor
        if name.endswith((".PythonUDF", ".PythonUDAF", ".PythonUDTF")):
            yield part.func()
        if name.startswith(_LOGICAL_PLANS):
            pending += items(part.expressions())
        pending += items(part.children())


def _with_leaves(jvm: Any, plan: Any, given: Any, statics: Mapping[int, Any]) -> Any:
    """Returns `plan` with the columns of `given`, or of static rows, in place of its leaves'."""
    children = items(plan.children())
    if children:
        below = [_with_leaves(jvm, child, given, statics) for child in children]
        return plan.withNewChildren(seq(jvm, below))
    rows = statics.get(_number(plan), given) if statics else given
    columns = [
        alias(jvm, column, wanted)
        for column, wanted in zip(items(rows.output()), items(plan.output()), strict=True)
    ]
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(seq(jvm, columns), rows)


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


EXISTENCE = "EXISTENCE"


def join_kind(join: Any) -> str:
    """Returns how a node joins, such as "LEFT SEMI". An existence join, which adds to each row
    whether it has a match, has no name in SQL.
    """
    how = join.joinType()
    return EXISTENCE if how.getClass().getSimpleName() == "ExistenceJoin" else str(how.sql())


def without_ids(text: str) -> str:
    """Returns Spark's text of a plan or an expression as it is each time that Spark analyses it."""
    return _ID.sub("", text)


def items(sequence: Any) -> list[Any]:
    """Returns the elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def entries(jvm: Any, of_java: Any) -> dict[str, str]:
    """Returns a Java map of strings."""
    return scala_entries(jvm.scala.jdk.javaapi.CollectionConverters.asScala(of_java))


def scala_entries(of_scala: Any) -> dict[str, str]:
    """Returns a Scala map of strings. Py4J alone calls the JVM several times per entry."""
    separator = uuid.uuid4().hex
    keys = of_scala.keys().mkString(separator)
    if not keys:
        return {}
    values = of_scala.values().mkString(separator)
    return dict(zip(keys.split(separator), values.split(separator), strict=True))


def seq(jvm: Any, elements: Iterable[Any]) -> Any:
    """Returns a Scala sequence."""
    scala = _scala(jvm)
    found = scala.nil
    for element in reversed(list(elements)):
        found = scala.cons(element, found)
    return found


def nothing(jvm: Any) -> Any:
    """Returns Scala's None."""
    return _scala(jvm).none


class _Scala(NamedTuple):
    """Objects of the JVM from which sequences and options are made."""

    nil: Any
    cons: Any
    none: Any


@functools.lru_cache(maxsize=4)
def _scala(jvm: Any) -> _Scala:
    immutable = jvm.scala.collection.immutable
    return _Scala(
        nil=getattr(getattr(immutable, "Nil$"), "MODULE$"),
        cons=getattr(immutable, "$colon$colon"),
        none=jvm.scala.Option.apply(None),
    )

"""Converts Columns of PySpark that a program has recorded to SQL text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firesteel.errors import InvalidProgram
from firesteel.plan.connect_columns import connect_sql, is_connect_column, referred
from firesteel.plan.deferred_columns import Call, Deferred, Member, UdfCall, deferred, is_column
from firesteel.plan.sql_text import WORD, NotSql, column_name, literal, quoted

_FUNCTIONS = ("org.apache.spark.sql.functions", "functions")

# Methods of the JVM's Column.
_BINARY = {
    "plus": "+",
    "minus": "-",
    "multiply": "*",
    "divide": "/",
    "mod": "%",
    "equalTo": "=",
    "notEqual": "<>",
    "lt": "<",
    "leq": "<=",
    "gt": ">",
    "geq": ">=",
    "eqNullSafe": "<=>",
    "and": "AND",
    "or": "OR",
    "bitwiseAND": "&",
    "bitwiseOR": "|",
    "bitwiseXOR": "^",
    "like": "LIKE",
    "rlike": "RLIKE",
    "ilike": "ILIKE",
}
_AS_FUNCTION = {
    "contains": "contains",
    "startsWith": "startswith",
    "endsWith": "endswith",
    "substr": "substring",
}
_SUFFIX = {"isNull": "IS NULL", "isNotNull": "IS NOT NULL"}

# Functions with a special syntax.
_DISTINCT = {"count_distinct": "count", "countDistinct": "count", "sum_distinct": "sum"}


def shippable(where: str, column: Any) -> Any:
    """Returns the Column in a form that can be shipped to the slots; converts one of Spark Connect.

    Raises InvalidProgram if that is not possible.
    """
    if not is_connect_column(column):
        deferred(where, column)
        return column
    from pyspark.sql import functions as sql

    if (name := referred(column)) is not None:
        return sql.col(name)
    try:
        text, names = connect_sql(column)
    except NotSql as error:
        raise InvalidProgram(
            f"{where}(): {error}, in a Column of Spark Connect; create it with"
            " pyspark.sql.functions instead of pyspark.sql.connect.functions, or write it as SQL"
            " text"
        ) from None
    return sql.expr(text).alias(*names) if names else sql.expr(text)


def expression_sql(where: str, column: Any) -> str:
    """Returns SQL text with the meaning of the Column. Raises InvalidProgram if there is none."""
    if not is_column(column):
        raise InvalidProgram(
            f'{where}() takes SQL expressions as text, or Columns such as F.sum("x").alias("s"),'
            f" not {type(column).__name__}"
        )
    try:
        return sql_of(deferred(where, shippable(where, column)))
    except NotSql as error:
        raise InvalidProgram(f"{where}(): {error}") from None


def shown(where: str, column: Any) -> str:
    """Returns a Column's display text for plans. Raises InvalidProgram if it belongs to a
    session.
    """
    recorded = deferred(where, shippable(where, column))
    try:
        return sql_of(recorded)
    except NotSql:
        return repr(recorded)


def sql_of(value: Any) -> str:
    """Returns the SQL text. Raises NotSql if there is none."""
    if is_column(value):
        return sql_of(deferred("aggregate", value))
    match value:
        case UdfCall(udf=udf):
            raise NotSql(
                f"{udf._name}() is a user-defined function, and only Spark's own"
                " can be used here: call it in an earlier transform, or in window(...).apply(...)"
            )
        case Call(function=Member(of=Member(member=room), member=name), arguments=arguments) if (
            room in _FUNCTIONS
        ):
            return _function(name, arguments)
        case Call(function=Member(of=column, member=name), arguments=arguments):
            return _method(column, name, arguments)
        case Deferred():
            raise NotSql("this Column has no known SQL text; write it as SQL text")
        case _:
            return literal(value)


def _function(name: str, arguments: Sequence[Any]) -> str:
    match name, arguments:
        case (("col" | "column"), (str(text),)):
            return column_name(text)
        case "lit", (value,):
            return sql_of(value)
        case "expr", (str(text),):
            return f"({text})"
        case "negate", (value,):
            return f"(- {sql_of(value)})"
        case "not", (value,):
            return f"(NOT {sql_of(value)})"
        case "bitwise_not", (value,):
            return f"(~ {sql_of(value)})"
        case "when", (condition, value):
            return f"CASE WHEN {sql_of(condition)} THEN {sql_of(value)} END"
        case (("first" | "last" | "any_value"), (value, False)):
            return f"{name}({sql_of(value)})"
    if name in _DISTINCT:
        return f"{_DISTINCT[name]}(DISTINCT {_list(arguments)})"
    if not WORD.fullmatch(name):
        raise NotSql(f"{name} has no SQL text; write the expression as SQL text")
    return f"{name}({_list(arguments)})"


def _method(column: Any, name: str, arguments: Sequence[Any]) -> str:
    if name == "as" and len(arguments) == 1 and isinstance(arguments[0], str):
        return f"{sql_of(column)} AS {quoted(arguments[0])}"
    if name in ("cast", "try_cast") and isinstance(arguments[0], str):
        return f"{name.upper()}({sql_of(column)} AS {arguments[0]})"
    if name in _BINARY and len(arguments) == 1:
        return f"({sql_of(column)} {_BINARY[name]} {sql_of(arguments[0])})"
    if name in _SUFFIX:
        return f"({sql_of(column)} {_SUFFIX[name]})"
    if name in _AS_FUNCTION:
        return f"{_AS_FUNCTION[name]}({_list([column, *arguments])})"
    if name == "isNaN":
        return f"isnan({sql_of(column)})"
    if name == "isin":
        return f"({sql_of(column)} IN ({_list(arguments)}))"
    if name == "getItem" or (name == "apply" and not isinstance(arguments[0], str)):
        return f"{sql_of(column)}[{sql_of(arguments[0])}]"
    if name in ("getField", "apply") and isinstance(arguments[0], str):
        return f"{sql_of(column)}.{quoted(arguments[0])}"
    if name in ("when", "otherwise") and (branches := sql_of(column)).endswith(" END"):
        return f"{branches.removesuffix(' END')} {_branch(name, arguments)} END"
    raise NotSql(f".{name}() has no known SQL text; write the expression as SQL text")


def _branch(name: str, arguments: Sequence[Any]) -> str:
    if name == "otherwise":
        return f"ELSE {sql_of(arguments[0])}"
    condition, value = arguments
    return f"WHEN {sql_of(condition)} THEN {sql_of(value)}"


def _list(arguments: Sequence[Any]) -> str:
    return ", ".join(sql_of(value) for value in _flat(arguments))


def _flat(arguments: Sequence[Any]) -> list[Any]:
    """Flattens sequences of the JVM, which are lists of arguments."""
    flat: list[Any] = []
    for value in arguments:
        match value:
            case Call(function=Member(member="toSeq"), arguments=(items,)):
                flat.extend(items)
            case _:
                flat.append(value)
    return flat

"""Converts Columns of Spark Connect (pyspark.sql.connect) to SQL text.

They are trees of expressions for a server, which slots do not have. Only trees are read here;
nothing of Spark Connect is imported unless the program does, because it needs additional packages.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from typing import Any

from firesteel.plan.sql_text import WORD, NotSql, column_name, literal, quoted

_INFIX = {
    **{
        name: name for name in ("+", "-", "*", "/", "%", "<", "<=", ">", ">=", "<=>", "&", "|", "^")
    },
    "==": "=",
    "!=": "<>",
    "and": "AND",
    "or": "OR",
    "like": "LIKE",
    "rlike": "RLIKE",
    "ilike": "ILIKE",
}
_PREFIX = {"not": "NOT", "!": "NOT", "negative": "-", "~": "~"}
_CASTS = {
    "ByteType": "TINYINT",
    "ShortType": "SMALLINT",
    "LongType": "BIGINT",
    "FloatType": "FLOAT",
}
_INT = range(-(2**31), 2**31)


def is_connect_column(value: Any) -> bool:
    columns = sys.modules.get("pyspark.sql.connect.column")
    return columns is not None and isinstance(value, columns.Column)


def referred(column: Any) -> str | None:
    """Returns the name if the Column is a plain column of the stream."""
    expression = column._expr
    if type(expression).__name__ != "ColumnReference" or expression._plan_id is not None:
        return None
    name: str = expression._unparsed_identifier
    return name


def connect_sql(column: Any) -> tuple[str, Sequence[str]]:
    """Returns the text, and the names of its alias. Raises NotSql."""
    expression, names = column._expr, ()
    if type(expression).__name__ == "ColumnAlias" and expression._metadata is None:
        expression, names = expression._child, expression._alias
    text = _sql(expression)
    if text.startswith("(") and type(expression).__name__ in (
        "UnresolvedFunction",
        "SQLExpression",
    ):
        text = text[1:-1]
    return text, names


def _sql(expression: Any) -> str:
    write = _WRITERS.get(type(expression).__name__)
    if write is None:
        raise NotSql(f"{expression} has no known SQL text")
    text: str = write(expression)
    return text


def _reference(expression: Any) -> str:
    if expression._plan_id is not None:
        raise NotSql(f"{expression} belongs to a DataFrame of a session")
    return column_name(expression._unparsed_identifier)


def _star(expression: Any) -> str:
    return expression._unparsed_target or "*"


def _value(expression: Any) -> str:
    kind, value = type(expression._dataType).__name__, expression._value
    if value is None:
        return "NULL" if kind == "NullType" else _cast("NULL", expression._dataType)
    match kind:
        case "DateType":
            return literal(datetime.date(1970, 1, 1) + datetime.timedelta(days=value))
        case "TimestampType":
            return f"timestamp_micros({value})"
        case "LongType" if value not in _INT:
            return literal(value)
        case "BooleanType" | "IntegerType" | "DoubleType" | "StringType" | "DecimalType":
            return literal(value)
    if kind in _CASTS:
        return f"CAST({literal(value)} AS {_CASTS[kind]})"
    raise NotSql(f"the value {value!r} of type {expression._dataType.simpleString()}")


def _cast(text: str, kind: Any, function: str = "CAST") -> str:
    return f"{function}({text} AS {kind if isinstance(kind, str) else kind.simpleString()})"


def _cast_expression(expression: Any) -> str:
    function = "TRY_CAST" if expression._eval_mode == "try" else "CAST"
    return _cast(_sql(expression._expr), expression._data_type, function)


def _case(expression: Any) -> str:
    branches = [f"WHEN {_sql(when)} THEN {_sql(then)}" for when, then in expression._branches]
    if expression._else_value is not None:
        branches.append(f"ELSE {_sql(expression._else_value)}")
    return f"CASE {' '.join(branches)} END"


def _function(expression: Any) -> str:
    name, given = expression._name, [_sql(argument) for argument in expression._args]
    if getattr(expression, "_is_distinct", False):
        return f"{name}(DISTINCT {', '.join(given)})"
    if name in _INFIX and len(given) == 2:
        return f"({given[0]} {_INFIX[name]} {given[1]})"
    if name in _PREFIX and len(given) == 1:
        return f"({_PREFIX[name]} {given[0]})"
    if name == "in":
        return f"({given[0]} IN ({', '.join(given[1:])}))"
    if not all(WORD.fullmatch(part) for part in name.split(".")):
        raise NotSql(f"the function {name}")
    return f"{name}({', '.join(given)})"


def _extract(expression: Any) -> str:
    child, extraction = _sql(expression._child), expression._extraction
    if type(extraction).__name__ == "LiteralExpression" and isinstance(extraction._value, str):
        return f"{child}[{literal(extraction._value)}]"
    return f"{child}[{_sql(extraction)}]"


def _variable(expression: Any) -> str:
    return ".".join(map(quoted, expression._name_parts))


def _lambda(expression: Any) -> str:
    names = ", ".join(map(_variable, expression._arguments))
    return f"({names}) -> {_sql(expression._function)}"


_WRITERS = {
    "ColumnReference": _reference,
    "UnresolvedStar": _star,
    "LiteralExpression": _value,
    "SQLExpression": lambda expression: f"({expression._expr})",
    "CastExpression": _cast_expression,
    "CaseWhen": _case,
    "UnresolvedFunction": _function,
    "CallFunction": _function,
    "UnresolvedExtractValue": _extract,
    "LambdaFunction": _lambda,
    "UnresolvedNamedLambdaVariable": _variable,
}

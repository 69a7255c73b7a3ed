"""Names and values as SQL text."""

from __future__ import annotations

import datetime
import decimal
import functools
import math
import re
from collections.abc import Callable
from typing import Any

WORD = re.compile(r"[A-Za-z_]\w*")


class NotSql(Exception):
    """The message is the part that has no SQL text."""


def column_name(text: str) -> str:
    """Quotes a name in PySpark's form: `a.b` is the field b of a."""
    if text == "*" or "`" in text:
        return text
    return ".".join("*" if part == "*" else quoted(part) for part in text.split("."))


def quoted(name: str) -> str:
    """Adds backticks where SQL needs them."""
    return name if _is_plain(name) else "`" + name.replace("`", "``") + "`"


@functools.cache
def _is_plain(name: str) -> bool:
    """Whether it is a valid name in SQL without backticks."""
    import sqlglot  # slots import this module, and most of them have no use for a parser
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    if not WORD.fullmatch(name):
        return False
    try:
        select = sqlglot.parse_one(f"SELECT max({name}) AS {name}", dialect="spark")
    except SqlglotError:
        return False
    item = select.expressions[0]
    return isinstance(item.this.this, exp.Column) and item.this.this.name == item.alias == name


def literal(value: Any) -> str:
    """Returns the SQL text of a value. Raises NotSql."""
    for kind, write in _LITERALS.items():
        if type(value) is kind:
            return write(value)
    raise NotSql(f"{value!r} has no known SQL text; write the expression as SQL text")


def _float(value: float) -> str:
    return f"{value!r}D" if math.isfinite(value) else f"double('{value}')"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_LITERALS: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "NULL",
    bool: lambda value: str(value).lower(),
    int: str,
    float: _float,
    str: _text,
    decimal.Decimal: lambda value: f"{value:f}BD",
    datetime.date: lambda value: f"DATE'{value.isoformat()}'",
}

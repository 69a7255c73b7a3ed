"""Parses and checks SQL aggregate expressions, such as "avg(dep_delay) AS avg_delay", and splits
them into two halves where possible.

The partial half is Spark SQL and runs on the rows; partials merge column by column (`split`); the
final half is arithmetic on merged partials (`finals`). An expression that cannot be split stays
whole and needs the rows. Parsing does not need Spark.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import TokenType

from firesteel.errors import InvalidProgram
from firesteel.operators import AggregateExpression
from firesteel.plan.aggregates.calls import Call, tokens_of
from firesteel.plan.aggregates.spark_functions import FUNCTIONS
from firesteel.plan.aggregates.split import NotSplittable, Split, aggregate_name, ordered_by_time
from firesteel.plan.column_sql import expression_sql

if TYPE_CHECKING:
    from pyspark.sql import Column

_RESERVED = ("window_start", "window_end", "_rows")
_SELECT = "SELECT "
_MISSING_ARGUMENT = re.compile(r"Required keyword: '\w+' missing for <class '[\w.]*\.(\w+)'>")
_EXAMPLES = "count, sum, min, max, avg or another of Spark's aggregate functions"


def parse_aggregates(
    expressions: Sequence[str | Column], *, time_column: str = ""
) -> tuple[AggregateExpression, ...]:
    """Parses the arguments of `aggregate(...)`. first() and last() use `time_column`; it is empty
    if there is no event time.

    Raises InvalidProgram, with a caret under the position if it is known.
    """
    if not expressions:
        raise InvalidProgram(
            'aggregate() needs at least one expression, such as "count(*) AS flights"'
        )
    parsed = [_parse_one(text, index, time_column) for index, text in enumerate(expressions)]
    seen: set[str] = set()
    for item in parsed:
        if item.name.lower() in seen:
            raise InvalidProgram(
                f"aggregate(): two expressions are named {item.name!r}; "
                "give each a different name with AS"
            )
        if item.name.lower() in _RESERVED:
            raise InvalidProgram(
                f"aggregate(): {item.name!r} is a column that every window has; choose another name"
            )
        seen.add(item.name.lower())
    return tuple(parsed)


def unsplittable(aggregates: Sequence[AggregateExpression]) -> list[AggregateExpression]:
    return [item for item in aggregates if not item.splittable]


def point_at(text: str, name: str) -> str:
    """Returns the line of `text` in which `name` first occurs as a word, with a caret under it;
    empty if it does not occur.
    """
    mark = re.search(rf"(?<![\w`]){re.escape(name)}(?!\w)|`{re.escape(name)}`", text, re.IGNORECASE)
    return _caret(text, mark.start()) if mark else ""


def _parse_one(text: Any, index: int, time_column: str) -> AggregateExpression:
    if not isinstance(text, str):
        text = expression_sql("aggregate", text)
    tree = _sql_tree(text)
    _check_functions(text)
    name = ""
    if isinstance(tree, exp.Alias):
        name, tree = tree.alias, tree.this
    _check_aggregates(text, tree)
    name = name or _derived_name(text, tree)

    def no_event_time(call: Call) -> InvalidProgram:
        by = "min_by" if call.name.startswith("first") else "max_by"
        return InvalidProgram(
            f"aggregate(): {call.name}() uses event time, which the stream does not have; "
            f"use {by}(value, column)\n{_caret(text, call.start)}"
        )

    whole = ordered_by_time(_without_alias(text), time_column, no_event_time)
    split = Split(f"_p{index}", whole)
    try:
        final = split.final_of(_sql_tree(whole)).sql(dialect="spark")
    except NotSplittable:
        return AggregateExpression(sql=text, name=name, partial={}, merge={}, final="", whole=whole)
    return AggregateExpression(
        sql=text,
        name=name,
        partial=split.partial,
        merge=split.merge,
        final=final,
        exact=split.exact,
        of_row=split.of_row,
        whole=whole,
    )


def _sql_tree(text: str) -> exp.Expression:
    if not text.strip():
        raise InvalidProgram("aggregate(): an empty expression")
    try:
        select = sqlglot.parse_one(f"{_SELECT}{text}", dialect="spark")
    except ParseError as error:
        detail = error.errors[0] if error.errors else {}
        # sqlglot provides the position of the last character of the unexpected token.
        ends_at = _offset(f"{_SELECT}{text}", detail.get("line", 1), detail.get("col", 0)) - len(
            _SELECT
        )
        starts_at = max(0, ends_at - max(1, len(detail.get("highlight") or "")))
        message = (
            re.sub(r"\s+", " ", str(detail.get("description") or "it is not valid SQL"))
            .strip()
            .rstrip(".")
        )
        message = _MISSING_ARGUMENT.sub(
            lambda call: f"{_sql_name(call[1])}() needs one more argument", message
        )
        place = _caret(text, min(starts_at, len(text)))
        raise InvalidProgram(f"aggregate(): this does not parse: {message}\n{place}") from None
    except TokenError:
        raise InvalidProgram(
            "aggregate(): this does not parse: an unfinished text or name\n"
            f"{_caret(text, _unclosed(text))}"
        ) from None
    if not isinstance(select, exp.Select) or {
        key for key, value in select.args.items() if value
    } - {"expressions", "kind"}:
        raise InvalidProgram(f"aggregate(): this is not one expression:\n{_caret(text, 0)}")
    if len(select.expressions) != 1:
        place = _caret(text, max(0, text.find(",")))
        raise InvalidProgram(f"aggregate(): pass each expression as a separate string:\n{place}")
    tree: exp.Expression = select.expressions[0]
    return tree


def _sql_name(class_name: str) -> str:
    kind = getattr(exp, class_name)
    return (
        aggregate_name(kind()) or kind.sql_name().lower()
        if issubclass(kind, exp.Func)
        else class_name.lower()
    )


# -- checks


def _check_functions(text: str) -> None:
    """Checks that every name before a parenthesis is one of Spark's functions."""
    tokens = tokens_of(text)
    for previous, token, following in zip([None, *tokens], tokens, tokens[1:], strict=False):
        if token.token_type is not TokenType.VAR or following.token_type is not TokenType.L_PAREN:
            continue
        name = token.text.lower()
        if name in FUNCTIONS or (
            name == "group" and previous is not None and previous.text.lower() == "within"
        ):
            continue
        near = difflib.get_close_matches(name, FUNCTIONS, n=1, cutoff=0.7)
        hint = f"; did you mean {near[0]}?" if near else "; Spark has no such function"
        raise InvalidProgram(
            f"aggregate(): unknown function {token.text}{hint}\n{_caret(text, token.start)}"
        )


def _check_aggregates(text: str, tree: exp.Expression) -> None:
    """Checks that columns are inside aggregates, and that aggregates are not nested."""
    aggregates = 0
    pending: list[exp.Expression] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, exp.Window):
            raise _wrong(text, node, "OVER is not allowed: the stream defines the window")
        if isinstance(node, (exp.Select, exp.Subquery)):
            raise _wrong(text, node, "a query is not allowed")
        if aggregate_name(node) is not None:
            aggregates += 1
            _check_arguments(text, node)
        elif isinstance(node, (exp.Filter, exp.WithinGroup)):
            pending.append(node.this)
        elif isinstance(node, exp.Column):
            raise _wrong(
                text,
                node,
                f"column {node.sql(dialect='spark')} must be inside an aggregate ({_EXAMPLES})",
            )
        elif not isinstance(node, exp.Lambda):
            pending.extend(node.iter_expressions())
    if not aggregates:
        raise _wrong(text, tree, f"it contains no aggregate; use {_EXAMPLES}")


def _check_arguments(text: str, call: exp.Expression) -> None:
    name = aggregate_name(call)
    arguments = list(call.iter_expressions())
    for argument in arguments:
        for node in argument.find_all(exp.Expression):
            if aggregate_name(node) is not None or isinstance(node, (exp.Window, exp.Select)):
                raise _wrong(text, node, f"{name} of an aggregate or query")
    if name != "count" and any(isinstance(argument, exp.Star) for argument in arguments):
        raise _wrong(text, call, f"{name}(*) has no meaning; name a column")


# -- names and errors


def _derived_name(text: str, tree: exp.Expression) -> str:
    """Names `count(*)` count and `avg(dep_delay)` avg_dep_delay; any other expression needs a
    name.
    """
    if isinstance(tree, exp.Count) and isinstance(tree.this, exp.Star):
        return "count"
    if (
        isinstance(tree, exp.AggFunc)
        and isinstance(tree.this, exp.Column)
        and len(list(tree.iter_expressions())) == 1
    ):
        return f"{tokens_of(text)[0].text.lower()}_{tree.this.name}"
    raise InvalidProgram(f'aggregate(): give the expression a name: "{text} AS ..."')


def _without_alias(text: str) -> str:
    """Returns the expression as written, up to its AS, for a valid text."""
    depth, tokens = 0, tokens_of(text)
    for token in tokens:
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if token.token_type is TokenType.ALIAS and depth == 0:
            return text[: token.start].rstrip()
    named = isinstance(_sql_tree(text), exp.Alias)  # a name without AS: "count(*) n"
    return text[: tokens[-1].start].rstrip() if named else text


def _wrong(text: str, tree: exp.Expression, why: str) -> InvalidProgram:
    return InvalidProgram(f"aggregate(): {why}\n{_caret(text, _place(text, tree))}")


def _place(text: str, tree: exp.Expression) -> int:
    """Returns the offset at which `tree` starts in `text`, as far as sqlglot records it."""
    starts = [node.meta["start"] for node in tree.walk() if "start" in node.meta]
    start = min(starts) - len(_SELECT) if starts else len(text)
    if isinstance(tree, (exp.Func, exp.Window)):  # its name precedes its first part
        call = tree.this if isinstance(tree, exp.Window) else tree
        words = (
            [call.name]
            if isinstance(call, exp.Anonymous)
            else [*getattr(call, "sql_names", list)(), aggregate_name(call) or ""]
        )
        for word in words:
            position = text.lower().rfind(f"{word.lower()}(", 0, start) if word else -1
            if position >= 0:
                return position
        if not starts:
            return 0
    return max(0, min(start, len(text)))


def _caret(text: str, column: int) -> str:
    """Returns the line of `text` that contains the offset `column`, and a caret under it."""
    before = text[:column]
    line_start = before.rfind("\n") + 1
    line_end = text.find("\n", column)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    return f"  {line}\n  {' ' * (column - line_start)}^"


def _offset(text: str, line: int, column: int) -> int:
    lines = text.split("\n")
    return sum(len(part) + 1 for part in lines[: line - 1]) + column


def _unclosed(text: str) -> int:
    return max((text.rfind(quote) for quote in "'\"`" if text.count(quote) % 2), default=0)

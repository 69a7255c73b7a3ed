"""Keeps the event time of columns that `withColumn` adds.

In a classic session, a column that is an event time or its window keeps the watermark, whichever
way it is added. Spark Connect's `withColumn` and `withColumns` lose it, and with it the expiry of
state and the rule for late rows. A projection of the same columns keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

# Functions whose result has an event time if their argument has.
_WINDOWS = ("window", "session_window", "window_time")
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")
_MAY_BE_TIME = re.compile(r"\s*(?:[\w.]|`[^`]*`)+\s*|.*window.*", re.IGNORECASE | re.DOTALL)  # SQL


def keep_event_times(
    message: Any,
    names_of: Callable[[bytes], Sequence[str] | None],
    *,
    case_sensitive: bool,
) -> bool:
    """Replaces `WithColumns` by `Project` in the relations of a message of Spark Connect, where an
    added column may be an event time. `names_of` returns the columns of a serialised `Relation`;
    None if it is not a valid stream. Returns whether the message may have an event time.
    """
    found = False
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            found |= keep_event_times(each, names_of, case_sensitive=case_sensitive)
    if message.DESCRIPTOR.name != "Relation":
        return found
    match message.WhichOneof("rel_type"):
        case "with_columns" if found:
            _replace(message, names_of, case_sensitive)
        case "with_watermark" | "sql":
            return True
        case "read":
            return found or message.read.HasField("named_table")  # it may be a view of a stream
    return found


def _replace(
    relation: Any, names_of: Callable[[bytes], Sequence[str] | None], case_sensitive: bool
) -> None:
    added = relation.with_columns
    if not any(_may_be_time(alias.expr) for alias in added.aliases):
        return
    names = _names_of_projection(added.input) or names_of(added.input.SerializeToString())
    if names is None:
        return

    def folded(name: str) -> str:
        return name if case_sensitive else name.lower()

    new = {folded(alias.name[0]): alias for alias in added.aliases}
    known = set(map(folded, names))
    if len(new) < len(added.aliases) or len(known) < len(names):
        return  # Spark knows what columns of the same name mean
    project = type(relation)().project
    project.input.CopyFrom(added.input)
    for name in names:
        column = project.expressions.add()
        if (alias := new.pop(folded(name), None)) is not None:
            column.alias.CopyFrom(alias)
        else:
            quoted = name.replace("`", "``")
            column.unresolved_attribute.unparsed_identifier = f"`{quoted}`"
    for alias in new.values():
        project.expressions.add().alias.CopyFrom(alias)
    relation.project.CopyFrom(project)


def _names_of_projection(relation: Any) -> list[str] | None:
    """Returns the columns of a projection that `_replace` has made; None for other relations."""
    names = []
    for each in relation.project.expressions:
        if each.HasField("alias") and len(each.alias.name) == 1:
            names.append(each.alias.name[0])
        elif text := _QUOTED.fullmatch(each.unresolved_attribute.unparsed_identifier):
            names.append(text[1].replace("``", "`"))
        else:
            return None
    return names


def _may_be_time(expression: Any) -> bool:
    match expression.WhichOneof("expr_type"):
        case "unresolved_attribute":
            return True
        case "expression_string":
            return _MAY_BE_TIME.fullmatch(expression.expression_string.expression) is not None
        case "unresolved_function":
            return expression.unresolved_function.function_name.lower() in _WINDOWS
        case "call_function":
            return expression.call_function.function_name.lower() in _WINDOWS
        case "alias":
            return not expression.alias.metadata and _may_be_time(expression.alias.expr)
    return False

"""Calls of aggregate functions in the program's original text, which is passed to Spark.

sqlglot's trees provide the structure of an expression, but do not always print its original text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import sqlglot
from sqlglot.tokenizer_core import Token, TokenType

from firesteel.plan.aggregates.spark_functions import AGGREGATES

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call; its parts are SQL text."""

    name: str  # in lower case
    arguments: tuple[str, ...]
    distinct: bool
    ignore_nulls: bool
    condition: str  # of the FILTER clause; empty if there is none
    start: int  # the call is text[start:stop]
    stop: int


def tokens_of(text: str) -> list[Token]:
    return list(sqlglot.tokenize(text, read="spark"))


def calls_of(text: str) -> Iterator[Call]:
    """Yields the calls of a valid text, from left to right; does not search their arguments."""
    tokens = tokens_of(text)
    at = 0
    while at + 1 < len(tokens):
        token = tokens[at]
        is_call = (
            token.token_type is not TokenType.STRING
            and tokens[at + 1].token_type is TokenType.L_PAREN
        )
        if not is_call or token.text.lower() not in AGGREGATES:
            at += 1
            continue
        start, (parts, at) = token.start, _arguments(tokens, at + 1)
        distinct = bool(parts) and bool(parts[0]) and parts[0][0].token_type is TokenType.DISTINCT
        ignore_nulls, condition = False, ""
        if [following.text.lower() for following in tokens[at : at + 3]] == [
            "filter",
            "(",
            "where",
        ]:
            (clause,), at = _arguments(tokens, at + 1)
            condition = text[clause[1].start : clause[-1].end + 1]
        words = [following.text.lower() for following in tokens[at : at + 2]]
        if words in (["ignore", "nulls"], ["respect", "nulls"]):
            ignore_nulls, at = words[0] == "ignore", at + 2
        if distinct:
            parts[0] = parts[0][1:]
        yield Call(
            name=token.text.lower(),
            arguments=tuple(text[part[0].start : part[-1].end + 1] for part in parts if part),
            distinct=distinct,
            ignore_nulls=ignore_nulls,
            condition=condition,
            start=start,
            stop=tokens[at - 1].end + 1,
        )


class _Arguments(NamedTuple):
    parts: list[list[Token]]
    after: int  # the index of the token after the closing parenthesis


def _arguments(tokens: list[Token], opening: int) -> _Arguments:
    """Returns the tokens between parentheses, split at the commas."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for at in range(opening, len(tokens)):
        kind = tokens[at].token_type
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if depth == 0:
            return _Arguments(parts, at + 1)
        if depth == 1 and kind is TokenType.COMMA:
            parts.append([])
        elif at > opening:
            parts[-1].append(tokens[at])
    raise ValueError("a parenthesis is not closed")

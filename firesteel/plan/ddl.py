"""Parses schemas written as DDL, such as "id STRING, readings ARRAY<DOUBLE>", without Spark.

Unusual schemas, and error messages, are left to Spark's own parser: `parse_ddl` then returns None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|('(?:[^'\\]|\\.)*')|([<>(),:]))")
_WORD = re.compile(r"\w+")


class _Unusual(Exception):
    """The text needs Spark's parser."""


def parse_ddl(text: str) -> StructType | None:
    """Returns the columns of `text`, or None if it needs Spark's parser."""
    try:
        parser = _Parser(_tokens(text))
        fields = parser.columns()
        parser.end()
    except _Unusual:
        return None
    from pyspark.sql.types import StructType

    return StructType(fields)


def parse_type(text: str) -> DataType | None:
    """Returns the type of `text`, such as "array<double>", or a StructType if it lists columns;
    None if it needs Spark's parser.
    """
    try:
        parser = _Parser(_tokens(text))
        kind = parser.type()
        parser.end()
    except _Unusual:
        return parse_ddl(text)
    return kind


def _tokens(text: str) -> list[str]:
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise _Unusual
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def columns(self) -> list[StructField]:
        fields = [self._column()]
        while self._take(","):
            fields.append(self._column())
        return fields

    def end(self) -> None:
        if self._at != len(self._tokens):
            raise _Unusual

    def _column(self) -> StructField:
        from pyspark.sql.types import StructField

        name = self._name()
        self._take(":")
        kind = self.type()
        nullable = True
        if self._take("not"):
            self._must_take("null")
            nullable = False
        if self._take("comment"):
            comment = self._next()
            if not comment.startswith("'") or "\\" in comment:
                raise _Unusual
            return StructField(name, kind, nullable, {"comment": comment[1:-1]})
        return StructField(name, kind, nullable)

    def type(self) -> DataType:
        from pyspark.sql import types

        word = self._next().lower()
        if word == "array":
            (element,) = self._arguments(1)
            return types.ArrayType(element)
        if word == "map":
            key, value = self._arguments(2)
            return types.MapType(key, value)
        if word == "struct":
            self._must_take("<")
            fields = [] if self._peek() == ">" else self.columns()
            self._must_take(">")
            return types.StructType(fields)
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        make = _simple_types().get(word)
        if make is None or self._peek() == "(":
            raise _Unusual
        return make()

    def _arguments(self, count: int) -> list[DataType]:
        self._must_take("<")
        arguments = [self.type()]
        while self._take(","):
            arguments.append(self.type())
        self._must_take(">")
        if len(arguments) != count:
            raise _Unusual
        return arguments

    def _decimal(self) -> DataType:
        from pyspark.sql.types import DecimalType

        if not self._take("("):
            return DecimalType(10, 0)
        precision, scale = self._number(), self._number() if self._take(",") else 0
        self._must_take(")")
        if not 0 <= scale <= precision <= 38:
            raise _Unusual
        return DecimalType(precision, scale)

    def _number(self) -> int:
        word = self._next()
        if not word.isdecimal():
            raise _Unusual
        return int(word)

    def _name(self) -> str:
        word = self._next()
        if word.startswith("`"):
            return word[1:-1].replace("``", "`")
        if not _WORD.fullmatch(word):
            raise _Unusual
        return word

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        word = self._peek()
        if not word:
            raise _Unusual
        self._at += 1
        return word

    def _take(self, word: str) -> bool:
        if self._peek().lower() != word:
            return False
        self._at += 1
        return True

    def _must_take(self, word: str) -> None:
        if not self._take(word):
            raise _Unusual


def _simple_types() -> dict[str, Callable[[], DataType]]:
    from pyspark.sql import types

    return {
        "boolean": types.BooleanType,
        "tinyint": types.ByteType,
        "byte": types.ByteType,
        "smallint": types.ShortType,
        "short": types.ShortType,
        "int": types.IntegerType,
        "integer": types.IntegerType,
        "bigint": types.LongType,
        "long": types.LongType,
        "float": types.FloatType,
        "real": types.FloatType,
        "double": types.DoubleType,
        "string": types.StringType,
        "binary": types.BinaryType,
        "date": types.DateType,
        "timestamp": types.TimestampType,
        "timestamp_ltz": types.TimestampType,
        "timestamp_ntz": types.TimestampNTZType,
    }

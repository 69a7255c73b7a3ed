"""Methods of PySpark's DataFrames that streams also have: `select`, `with_column` and similar.

Each is a transform with one call. Like every transform it is row by row, so `select` of an
aggregate or of a window function is refused. It is also checked for mistakes that PySpark ignores:
dropping or renaming columns that do not exist, and results with two columns of one name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from firesteel.column_names import same
from firesteel.errors import InvalidProgram
from firesteel.operators.assigners import SESSION_GAP
from firesteel.plan.column_sql import shippable, shown
from firesteel.plan.deferred_columns import Call, Member, deferred, is_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameMethod:
    """A function from DataFrame to DataFrame that calls one method."""

    spelling: str  # the name of the stream's method
    shown: str  # its arguments, for the operator's name
    call: Callable[[Any], Any]
    required: tuple[str, ...] = ()  # columns that its input must have
    added: tuple[str, ...] = ()  # columns that its input must not have
    hint: str = ""  # appended to Spark's errors

    def __call__(self, df: DataFrame) -> Any:
        return self.call(df)

    @property
    def title(self) -> str:
        words = "".join(word.capitalize() for word in self.spelling.split("_"))
        return f"{words}({self.shown})"


def filtered(condition: str | Column) -> FrameMethod:
    kept = _shippable("filter", condition)
    return FrameMethod(
        spelling="filter", shown=_shown("filter", kept), call=lambda df: df.where(kept)
    )


def selected(columns: Iterable[Any]) -> FrameMethod:
    """Selects `columns`: names and Columns, or one list of them."""
    chosen = _flat(columns)
    if not chosen:
        raise InvalidProgram('select() takes the columns to keep: select("shop", F.col("n") + 1)')
    for column in chosen:
        if not isinstance(column, str) and not is_column(column):
            raise InvalidProgram(
                "select() takes names of columns and Columns such as"
                f' (F.col("x") + 1).alias("y"), not {type(column).__name__} {column!r}'
                + ("; map(...) calls a function for each row" if callable(column) else "")
            )
    chosen = [_shippable("select", column) for column in chosen]
    return FrameMethod(
        spelling="select",
        shown=_listed(_shown("select", column) for column in chosen),
        call=lambda df: df.select(*chosen),
        hint="; pass SQL text to select_expr()"
        if any(isinstance(column, str) and not _is_name(column) for column in chosen)
        else "",
    )


def selected_by_sql(expressions: Iterable[Any]) -> FrameMethod:
    texts = _flat(expressions)
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidProgram(
            f"select_expr() takes SQL text, not {_listed(map(repr, texts)) or 'nothing'};"
            ' write, for example, select_expr("shop", "price * 2 AS double"),'
            " and pass Columns to select(...)"
        )
    return FrameMethod(
        spelling="select_expr", shown=_listed(texts), call=lambda df: df.selectExpr(*texts)
    )


def with_columns(columns: Any, spelling: str = "with_columns") -> FrameMethod:
    """Adds `columns`: SQL text or a Column by name."""
    if not isinstance(columns, Mapping) or not columns:
        raise InvalidProgram(
            f"{spelling}() takes a dictionary of columns by name,"
            f' such as {{"revenue": "pieces * price"}}, not {columns!r}'
        )
    for name, column in columns.items():
        _check_name(spelling, name)
        if not is_column(column) and not (isinstance(column, str) and column.strip()):
            raise InvalidProgram(
                f"{spelling}(): the column {name!r} is {type(column).__name__} {column!r};"
                " write SQL text or a Column, such as F.lit(1)"
            )
    added = {name: _shippable(spelling, column) for name, column in columns.items()}
    return FrameMethod(
        spelling=spelling,
        shown=_listed(added),
        call=lambda df: df.withColumns({name: _on_spark(added[name]) for name in added}),
    )


def with_column(name: Any, column: Any) -> FrameMethod:
    _check_name("with_column", name)
    return with_columns({name: column}, "with_column")


def renamed(old: Any, new: Any) -> FrameMethod:
    _check_name("with_column_renamed", old)
    _check_name("with_column_renamed", new)
    return FrameMethod(
        spelling="with_column_renamed",
        shown=f"{old}, {new}",
        call=lambda df: df.withColumnRenamed(old, new),
        required=(old,),
        added=() if old.casefold() == new.casefold() else (new,),
    )


def dropped(names: Iterable[Any]) -> FrameMethod:
    unwanted = _flat(names)
    if not unwanted:
        raise InvalidProgram('drop() takes the names of the columns to remove: drop("price")')
    for name in unwanted:
        _check_name("drop", name)
    return FrameMethod(
        spelling="drop",
        shown=_listed(unwanted),
        call=lambda df: df.drop(*unwanted),
        required=tuple(unwanted),
    )


class Keys(NamedTuple):
    names: tuple[str, ...]
    computed: FrameMethod | None  # adds the columns that the stream does not have


def keys(columns: Iterable[Any]) -> Keys:
    """Returns the key of key_by: names of columns, and Columns. A computed key becomes a column of
    the stream, so it needs a name that the stream does not have.
    """
    names: list[str] = []
    added: dict[str, Any] = {}
    for key in columns:
        if is_column(key):
            key = shippable("key_by", key)
            name, computed = _key("key_by", key)
            if computed:
                added[name] = key
        elif isinstance(key, str) and key:
            name = key
        else:
            raise InvalidProgram(
                "key_by() takes names of columns and Columns with a name, such as"
                f' F.upper("shop").alias("place"), not {type(key).__name__} {key!r}'
                + (_KEY_FUNCTION if callable(key) else "")
            )
        if any(same(name, other) for other in names):
            raise InvalidProgram(f"key_by() names the column {name!r} twice")
        names.append(name)
    if not names:
        raise InvalidProgram('key_by(): name at least one column, such as key_by("shop")')
    if not added:
        return Keys(tuple(names), None)
    method = FrameMethod(
        spelling="key_by",
        shown=_listed(added),
        call=lambda df: df.withColumns(added),
        added=tuple(added),
    )
    return Keys(tuple(names), method)


_KEY_FUNCTION = (
    "; compute the function's result as a column first, with with_column(name, ...) or"
    " map(function, schema), and use its name as key"
)


def _key(where: str, column: Any) -> tuple[str, bool]:
    """Returns its name, and whether it is more than a column of the stream."""
    recorded = deferred(where, column)
    if isinstance(recorded, Call) and isinstance(recorded.function, Member):
        match recorded.function.member, recorded.arguments:
            case (("col" | "column"), (str(name),)) if name.isidentifier():
                return name, False
            case "as", (str(name),) if name:
                return name, True
    raise InvalidProgram(
        f'{where}(): the key {shown(where, column)} needs a name: add .alias("...") to it'
    )


def _on_spark(column: Any) -> Any:
    if not isinstance(column, str):
        return column
    from pyspark.sql import functions as sql

    return sql.expr(column)


def _check_name(spelling: str, name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidProgram(
            f"{spelling}() takes the name of a column as text, not {type(name).__name__} {name!r}"
        )


def _flat(items: Iterable[Any]) -> list[Any]:
    """Allows one list in place of several arguments, as in PySpark."""
    listed = list(items)
    if len(listed) == 1 and isinstance(listed[0], (list, tuple)):
        return list(listed[0])
    return listed


def _shippable(spelling: str, column: Any) -> Any:
    """Raises InvalidProgram for a Column that belongs to a session."""
    return column if isinstance(column, str) else shippable(spelling, column)


def _shown(spelling: str, column: Any) -> str:
    return column if isinstance(column, str) else shown(spelling, column)


def _listed(items: Iterable[str]) -> str:
    words = list(items)
    return ", ".join(words[:_MOST_SHOWN]) + (", ..." if len(words) > _MOST_SHOWN else "")


def _is_name(text: str) -> bool:
    return text == "*" or text.replace(".", "_").isidentifier()


def session_gap_us(frame: DataFrame, gap: str) -> Column:
    """Returns the gap of each row in microseconds. Raises InvalidProgram if it is not an interval.
    The plan fails on a row whose gap is null or not longer than 0.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.types import CalendarIntervalType, DayTimeIntervalType, StringType

    kind = frame.select(sql.expr(gap)).schema.fields[0].dataType
    if not isinstance(kind, StringType | DayTimeIntervalType | CalendarIntervalType):
        raise InvalidProgram(
            f"Session.with_dynamic_gap({gap!r}): its type is {kind.simpleString()}; it must be an"
            " interval, such as make_dt_interval(0, 0, n), or its text, such as '5 minutes'"
        )
    interval = f"CAST(({gap}) AS INTERVAL)" if isinstance(kind, StringType) else f"({gap})"
    gap_us = f"unix_micros(timestamp_micros(0) + {interval})"
    error = sql.concat(
        sql.lit(f"the gap of a session must be longer than 0, and {gap} is "),
        sql.coalesce(sql.expr(f"CAST(({gap}) AS STRING)"), sql.lit("NULL")),
    )
    return sql.when(sql.expr(f"{gap_us} > 0"), sql.expr(gap_us)).otherwise(sql.raise_error(error))


def with_session_gap(gap: str) -> FrameMethod:
    """Adds the column SESSION_GAP."""
    return FrameMethod(
        spelling="with_session_gap",
        shown=gap,
        call=lambda df: df.withColumn(SESSION_GAP, session_gap_us(df, gap)),
        added=(SESSION_GAP,),
    )

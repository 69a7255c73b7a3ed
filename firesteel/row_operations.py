"""Operators that process each row independently: DataFrame methods on Spark, functions in
Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, cast

import pyarrow as pa

from firesteel.async_functions import AsyncFunction, AsyncRetryStrategy
from firesteel.column_names import same
from firesteel.durations import Duration, positive_us
from firesteel.errors import InvalidProgram
from firesteel.operators import (
    FilterSpec,
    MapAsyncSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    MapRowsSpec,
    Spec,
    TransformSpec,
)
from firesteel.plan import frame_methods
from firesteel.plan.deferred_columns import is_column
from firesteel.plan.frame_methods import FrameMethod
from firesteel.windowed_stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
PandasFunction = Callable[[Iterator[Any]], Iterator[Any]]  # of pandas DataFrames

__all__ = ["RowOperations"]


class RowOperations(Generic[Stream]):
    """Base of streams."""

    if TYPE_CHECKING:
        _time_columns: frozenset[str]

        def _add(self, name: str, spec: Spec, *, uid: str = "") -> Stream:
            """Returns the stream after a new operator."""

    def transform(
        self,
        function: Callable[[DataFrame], DataFrame],
        *,
        per_bundle: bool = False,
        name: str | None = None,
        uid: str = "",
    ) -> Stream:
        """Applies a DataFrame to DataFrame function that processes rows independently: without
        aggregation, ordering, limits or window functions. Joins with static data are allowed.

        It runs on the slot's Spark; chained transforms become one Catalyst plan. The function gets
        one bundle of rows at a time, so a job whose function relates rows to each other, or reads
        them (`count`, `collect`, ...), is refused before data flows. `per_bundle=True` allows it,
        for functions that are meant for each bundle alone.
        """
        checked_function("transform", function)
        return self._add(
            name or titled("Transform", function),
            TransformSpec(function=function, per_bundle=per_bundle),
            uid=uid,
        )

    def map_in_arrow(
        self, function: ArrowFunction, schema: Any = None, *, name: str | None = None, uid: str = ""
    ) -> Stream:
        """Applies a function of PySpark's mapInArrow: from an iterator of record batches to an
        iterator of record batches of `schema`.

        `schema` is a DDL string, a StructType or an Arrow schema; without one, the output has the
        input's schema. Columns are matched by name and cast where no value is lost. TIMESTAMPs have
        the zone of spark.sql.session.timeZone, as in PySpark.

        The function is called once per batch, with an iterator over that batch, and yields any
        number of batches, including none. So a generator can map, filter and flat-map; its local
        variables do not survive the batch.
        """
        checked_function("map_in_arrow", function)
        return self._add(
            name or titled("MapInArrow", function),
            MapInArrowSpec(function=function, schema=schema),
            uid=uid,
        )

    def map_in_pandas(
        self,
        function: PandasFunction,
        schema: Any = None,
        *,
        name: str | None = None,
        uid: str = "",
    ) -> Stream:
        """Applies a function of PySpark's mapInPandas: from an iterator of pandas DataFrames to an
        iterator of DataFrames of `schema`.

        Otherwise it works like `map_in_arrow`. Timestamps with zone are local to
        spark.sql.session.timeZone, as in PySpark. Columns are matched by name if their labels are
        strings, otherwise by position.
        """
        checked_function("map_in_pandas", function)
        spec = MapInPandasSpec(function=function, schema=schema)
        return self._add(name or titled("MapInPandas", function), spec, uid=uid)

    def filter(
        self,
        condition: str | Column | Callable[[pa.RecordBatch], Any],
        *,
        name: str | None = None,
        uid: str = "",
    ) -> Stream:
        """Keeps the rows for which `condition` is true (neither false nor null).

        SQL text or a Column (`F.col("x") > 1`) runs on Spark, as
        `transform(lambda df: df.where(condition))` does. A function takes a record batch and
        returns one boolean per row: an Arrow or NumPy array, a pandas Series or a list.
        """
        if is_column(condition) or isinstance(condition, str):
            return self._on_spark(
                frame_methods.filtered(cast("str | Column", condition)), name, uid
            )
        checked_function("filter", condition)
        return self._add(
            name or titled("Filter", condition),
            FilterSpec(function=cast(Callable[[pa.RecordBatch], Any], condition)),
            uid=uid,
        )

    def where(
        self,
        condition: str | Column | Callable[[pa.RecordBatch], Any],
        *,
        name: str | None = None,
        uid: str = "",
    ) -> Stream:
        """Same as `filter`."""
        return self.filter(condition, name=name, uid=uid)

    def select(
        self, *columns: str | Column | list[str | Column], name: str | None = None, uid: str = ""
    ) -> Stream:
        """Selects these columns: names, and Columns such as `(F.col("x") + 1).alias("y")`.

        It runs on Spark, as `transform(lambda df: df.select(...))` does. Rows are processed
        independently, so a job that selects an aggregate or a window function is refused before
        data flows.
        """
        return self._on_spark(frame_methods.selected(columns), name, uid)

    def select_expr(self, *expressions: str, name: str | None = None, uid: str = "") -> Stream:
        """Selects columns by SQL text: `select_expr("shop", "pieces * price AS revenue")`."""
        return self._on_spark(frame_methods.selected_by_sql(expressions), name, uid)

    def with_column(
        self, column_name: str, column: str | Column, *, name: str | None = None, uid: str = ""
    ) -> Stream:
        """Adds a column, or replaces the one with this name, by SQL text or a Column."""
        return self._on_spark(frame_methods.with_column(column_name, column), name, uid)

    def with_columns(
        self, columns: Mapping[str, str | Column], *, name: str | None = None, uid: str = ""
    ) -> Stream:
        """Adds or replaces several columns by name. Each expression sees the earlier columns."""
        return self._on_spark(frame_methods.with_columns(columns), name, uid)

    def with_column_renamed(
        self, existing: str, new: str, *, name: str | None = None, uid: str = ""
    ) -> Stream:
        """Renames a column. A job without a column `existing` is refused before data flows.

        If the column has the event time, the renamed column has it."""
        renamed = self._on_spark(frame_methods.renamed(existing, new), name, uid)
        columns = [new if same(column, existing) else column for column in self._time_columns]
        return renamed._with_time_columns(*columns)

    def drop(self, *columns: str, name: str | None = None, uid: str = "") -> Stream:
        """Removes columns. A job that drops a column that does not exist is refused before data
        flows.
        """
        return self._on_spark(frame_methods.dropped(columns), name, uid)

    def map(
        self,
        function: Callable[[Row], Any],
        schema: Any = None,
        *,
        name: str | None = None,
        uid: str = "",
    ) -> Stream:
        """Calls `function(row)` for each row, in Python; it returns one row of `schema`.

        `row` is a `pyspark.sql.Row`. The function returns a Row or a dictionary, whose columns are
        matched by name, or a tuple, matched by position. `schema` is a DDL string, a StructType or
        an Arrow schema; without one, the output has the input's schema. For functions that return
        no row or several, use `flat_map`; `map_in_arrow` and Spark's own functions are many times
        faster.
        """
        return self._map_rows("map", "Map", function, schema, name, uid, flat=False)

    def flat_map(
        self,
        function: Callable[[Row], Iterable[Any]],
        schema: Any = None,
        *,
        name: str | None = None,
        uid: str = "",
    ) -> Stream:
        """Calls `function(row)` for each row, in Python; it returns or yields any number of rows of
        `schema`. Otherwise it works like `map`.
        """
        return self._map_rows("flat_map", "FlatMap", function, schema, name, uid, flat=True)

    def map_async(
        self,
        function: Callable[[Row], Coroutine[Any, Any, Any]] | AsyncFunction,
        schema: Any = None,
        *,
        capacity: int = 100,
        timeout: Duration | None = "1 min",
        on_timeout: Callable[[Row], Any] | None = None,
        retry: AsyncRetryStrategy | None = None,
        ordered: bool = True,
        name: str | None = None,
        uid: str = "",
    ) -> Stream:
        """Awaits `function(row)` for each row, with many calls in flight: Flink's AsyncDataStream.
        `function` is a coroutine function (`async def`) or a `firesteel.AsyncFunction`.

        The function gets a row and returns a result as in `map`, or a list of any number of rows.
        All calls of a subtask run on one event loop, in a thread next to the task; a function that
        blocks the loop delays the other calls.

        `capacity` is the maximum number of a subtask's calls in flight; the task reads no input
        while that many rows wait. `ordered=False` emits results as they arrive; they never overtake
        a watermark. `timeout` is the maximum time for a row, including retries (None: unlimited).
        When it expires, the call is cancelled and the row gets the result of `on_timeout(row)`;
        without `on_timeout`, the job fails. `retry` retries calls:
        `FixedDelayRetryStrategy(max_attempts=3, delay="100 ms")`.

        A checkpoint contains the rows whose results are not emitted. They are called again after a
        restore, so calls are made at least once. Raises InvalidProgram for invalid arguments; a
        call that finally fails fails the job with an error that shows its row.
        """
        spec = map_async_spec(
            function,
            schema,
            capacity=capacity,
            timeout=timeout,
            on_timeout=on_timeout,
            retry=retry,
            ordered=ordered,
        )
        title = (
            f"MapAsync({type(function).__name__})"
            if isinstance(function, AsyncFunction)
            else titled("MapAsync", function)
        )
        return self._add(name or title, spec, uid=uid)

    # -- inside

    def _on_spark(self, method: FrameMethod, name: str | None, uid: str) -> Stream:
        return self._add(name or method.title, TransformSpec(function=method), uid=uid)

    def _map_rows(
        self,
        where: str,
        kind: str,
        function: Any,
        schema: Any,
        name: str | None,
        uid: str,
        *,
        flat: bool,
    ) -> Stream:
        checked_function(where, function)
        spec = MapRowsSpec(function=function, schema=schema, flat=flat)
        return self._add(name or titled(kind, function), spec, uid=uid)


def map_async_spec(
    function: Any,
    schema: Any,
    *,
    capacity: int,
    timeout: Duration | None,
    on_timeout: Any,
    retry: Any,
    ordered: bool,
) -> MapAsyncSpec:
    """Raises InvalidProgram for invalid arguments."""
    if isinstance(function, AsyncFunction):
        kind = type(function)
        if kind.async_invoke is AsyncFunction.async_invoke:
            raise InvalidProgram(f"map_async(): {kind.__name__} does not define async_invoke")
        _checked_coroutine_function(function.async_invoke, f"{kind.__name__}.async_invoke")
        if on_timeout is not None:
            raise InvalidProgram(
                f"map_async(on_timeout=...): {kind.__name__} is an AsyncFunction; define its method"
                " timeout(self, value) instead"
            )
    elif isinstance(function, type) and issubclass(function, AsyncFunction):
        raise InvalidProgram(
            f"map_async() takes an object: {function.__name__}(...), not the class"
        )
    else:
        checked_function("map_async", function)
        _checked_coroutine_function(function, _name_of(function))
    if on_timeout is not None:
        checked_function("on_timeout of map_async", on_timeout)
    if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
        raise InvalidProgram(
            f"map_async(capacity={capacity!r}): specify the number of calls in flight, 1 or more"
        )
    if not isinstance(ordered, bool):
        raise InvalidProgram(f"map_async(ordered={ordered!r}): allowed: True, False")
    if retry is not None and not isinstance(retry, AsyncRetryStrategy):
        raise InvalidProgram(
            f"map_async(retry={retry!r}): pass a strategy, such as"
            ' FixedDelayRetryStrategy(max_attempts=3, delay="100 ms")'
        )
    timeout_s = None
    if timeout is not None:
        timeout_s = positive_us(timeout, "timeout of map_async()") / 1e6
    return MapAsyncSpec(
        function=function,
        schema=schema,
        capacity=capacity,
        timeout_s=timeout_s,
        on_timeout=on_timeout,
        retry=retry,
        ordered=ordered,
    )


def _checked_coroutine_function(function: Any, name: str) -> None:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    ):
        return
    what = "an async generator" if inspect.isasyncgenfunction(function) else "an ordinary function"
    raise InvalidProgram(
        f"map_async() takes a coroutine function (async def), and {name} is {what}"
        + (
            "; return a list of rows instead of yielding them"
            if "gen" in what
            else "; use map(...)"
        )
    )


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def checked_function(where: str, function: Any, arguments: int = 1) -> None:
    """Raises InvalidProgram if it is not a function with this number of arguments."""
    if not callable(function):
        raise InvalidProgram(
            f"{where}() takes a function, not {type(function).__name__} {function!r}"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have no signature
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        count = ("no argument", "one argument", "two arguments")[arguments]
        raise InvalidProgram(
            f"{where}() takes a function of {count}, not {name}{signature}: {error}"
        ) from None


def titled(kind: str, function: Any) -> str:
    """Returns the name of an operator with this function."""
    name = getattr(function, "__name__", "")
    return kind if name in ("", "<lambda>") else f"{kind}({name})"

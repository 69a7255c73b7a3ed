"""Spark plans of fused operators: composed transforms, partially aggregated windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from firesteel.errors import FiresteelError
from firesteel.operators import (
    AggregateExpression,
    ApplySpec,
    DynamicSessionSpec,
    PartialWindowAggregateSpec,
    RowPartial,
    SessionSpec,
    SlidingSpec,
    Spec,
    TransformSpec,
    TumblingSpec,
    WindowApplySpec,
)
from firesteel.operators.aggregates import LATEST
from firesteel.plan.catalyst_plan import without_ids
from firesteel.plan.deferred_columns import made_anew
from firesteel.plan.frame_methods import session_gap_us
from firesteel.row_kind import ROW_KIND
from taskexecutor.executor.columnar.cached_plans.table_versions import pinned

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS = "_rows"
WINDOW_START = "window_start"
WINDOW_END = "window_end"
_START_US = "_window_start_us"
_FIRST_US, _LAST_US = "_session_first_us", "_session_last_us"
_ALL = "_all"
_EVERY_FIELD = 2**31 - 1
_CUT = re.compile(r"\.\.\. \d+ more characters$")  # the end of a text that Spark has cut
_TOO_LARGE = (
    "a sum of decimals has more digits than its type; sum doubles instead: sum(CAST(x AS DOUBLE))"
)


def apply(frame: DataFrame, specs: Sequence[Spec], *, cores: int) -> DataFrame:
    """Applies the operators of a group to the DataFrame, as one plan."""
    with pinned():
        for spec in specs:
            match spec:
                case TransformSpec():
                    frame = transform(frame, spec)
                case PartialWindowAggregateSpec():
                    frame = partial_window_aggregate(frame, spec, cores=cores)
                case WindowApplySpec():
                    frame = window_result(frame, spec)
                case _:
                    raise FiresteelError(f"{type(spec).__name__} does not run on Spark")
    return frame


def transform(frame: DataFrame, spec: TransformSpec, what: str = "transform") -> DataFrame:
    return _result(what, spec.function, frame)


def applied(spec: ApplySpec, frames: Sequence[DataFrame]) -> DataFrame:
    return _result("apply", spec.function, *frames)


def _result(what: str, function: Callable[..., Any], *frames: DataFrame) -> DataFrame:
    from pyspark.sql import DataFrame

    with pinned(), made_anew():
        result = function(*frames)
    if not isinstance(result, DataFrame):
        name = getattr(function, "__name__", "the function")
        kind = type(result)
        got = (
            kind.__qualname__
            if kind.__module__ == "builtins"
            else f"{kind.__module__}.{kind.__qualname__}"
        )
        raise FiresteelError(
            f"{what}({name}) returned {got}; it must return a pyspark.sql.DataFrame"
        )
    return result


def partial_window_aggregate(
    frame: DataFrame, spec: PartialWindowAggregateSpec, *, cores: int
) -> DataFrame:
    """Returns one partial row per key and pane or session. Assignment, grouping and aggregation are
    one generated loop.

    Panes are computed on integers, which Spark compiles to two operations per row, unlike its
    `window()`. A session may be divided into several rows.
    """
    from pyspark.sql import functions as sql

    if by_row(frame, spec):
        return _rows_with_partials(frame, spec)
    partials = _partials_of_group(frame, spec)
    columns = [sql.expr(text).alias(name) for name, text in partials.items()]
    names = [quoted(name) for name in partials]
    keys = [quoted(key) for key in spec.key_columns]
    grouping = [column(key) for key in spec.key_columns]
    if cores == 1:
        # With one partition, there is no shuffle between the halves of Spark's aggregation.
        frame = frame.coalesce(1)
    times: list[str] = []
    match spec.window:
        case TumblingSpec() | SlidingSpec() if spec.in_event_time:
            grouping.append(sql.expr(_pane_start(spec)).alias(_START_US))
            times = [f"{text} AS {name}" for name, text in _pane(spec, _START_US).items()]
        case DynamicSessionSpec(gap=gap) if spec.in_event_time:
            time = sql.expr(event_time_us(spec.time_column, spec.time_shift_us))
            grouping.append(time.alias(_FIRST_US))
            grouping.append((time + session_gap_us(frame, gap)).alias(_LAST_US))
            times = [
                f"timestamp_micros({_FIRST_US}) AS {WINDOW_START}",
                f"timestamp_micros({_LAST_US}) AS {WINDOW_END}",
            ]
        case SessionSpec() if spec.in_event_time:
            # Rows of a key in the same interval of length `gap` are in one session, whatever its
            # other rows are. Grouping by the interval needs no sort, unlike Spark's
            # `session_window()`; the keyed half merges sessions that touch.
            gap_us = spec.window.gap_us
            time_us = event_time_us(spec.time_column, spec.time_shift_us)
            interval = f"{time_us} - pmod({time_us}, {gap_us}L)"
            part = quoted(spec.part_column) if spec.part_column else interval
            grouping.append(sql.expr(part).alias(_START_US))
            columns.append(sql.expr(f"min({time_us})").alias(_FIRST_US))
            columns.append(sql.expr(f"max({time_us})").alias(_LAST_US))
            times = [
                f"timestamp_micros({_FIRST_US}) AS {WINDOW_START}",
                f"timestamp_micros({_LAST_US} + {gap_us}L) AS {WINDOW_END}",
            ]
    if not grouping:  # without grouping columns, zero rows would also be a group
        grouping.append(sql.lit(0).alias(_ALL))
    return frame.groupBy(*grouping).agg(*columns).selectExpr(*keys, *times, *names)


def partial_without_rows(frame: DataFrame, spec: PartialWindowAggregateSpec) -> DataFrame:
    """Returns the partial row of no rows; its keys are 1. `frame` has no rows."""
    from pyspark.sql import functions as sql

    partials = _partials_of_group(frame, spec)
    group = frame.agg(*(sql.expr(text).alias(name) for name, text in partials.items()))
    keys = [sql.lit(1).cast(frame.schema[key].dataType).alias(key) for key in spec.key_columns]
    return group.select(*keys, *map(column, partials))


def by_row(frame: DataFrame, spec: PartialWindowAggregateSpec) -> bool:
    """Returns whether rows are not aggregated yet, because the input is a changelog stream, or each
    row has its own results. (Windows over changelog streams are refused.)
    """
    return spec.window is None and (spec.whole_rows or ROW_KIND in frame.columns)


def _rows_with_partials(frame: DataFrame, spec: PartialWindowAggregateSpec) -> DataFrame:
    """Returns each row's contributions to the partial columns, with its kind or all of its
    columns.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.types import ArrayType

    partials = _partials(frame, spec.aggregates)
    kinds = frame.agg(*(sql.expr(text).alias(name) for name, text in partials.items())).schema
    columns = [] if spec.whole_rows else [column(key) for key in (*spec.key_columns, ROW_KIND)]
    for item in spec.aggregates:
        for name, how in item.merge.items():
            each, kind = item.of_row[name], kinds[name].dataType
            if name in item.exact and partials[name] == item.exact[name]:
                each = exactly(each)
            if how == "distinct":
                assert isinstance(kind, ArrayType)
                kind = kind.elementType
            columns.append(contribution(each).cast(kind).alias(name))
    return frame.select("*", *columns) if spec.whole_rows else frame.select(*columns)


def contribution(each: RowPartial) -> Column:
    from pyspark.sql import functions as sql

    if not each.condition:
        return sql.expr(each.value)
    return sql.expr(f"IF({each.condition}, {each.value}, {each.otherwise})")


def exactly(each: RowPartial) -> RowPartial:
    """Returns a row's contribution to an average's sum if that is exact: see
    `AggregateExpression.exact`.
    """
    return replace(each, value=each.value.removeprefix("double(").removesuffix(")"))


def pane_times(spec: PartialWindowAggregateSpec) -> dict[str, Column]:
    """Returns the columns of a row's pane, by name: none without event time."""
    from pyspark.sql import functions as sql

    if not spec.in_event_time:
        return {}
    return {name: sql.expr(text) for name, text in _pane(spec, _pane_start(spec)).items()}


def _pane(spec: PartialWindowAggregateSpec, start_us: str) -> dict[str, str]:
    """Returns the SQL of the start and the end of the pane that starts at `start_us`."""
    assert isinstance(spec.window, TumblingSpec | SlidingSpec)
    return {
        WINDOW_START: f"timestamp_micros({start_us})",
        WINDOW_END: f"timestamp_micros({start_us} + {spec.window.pane_us}L)",
    }


def _pane_start(spec: PartialWindowAggregateSpec) -> str:
    """Returns the SQL of the pane's start in microseconds since the epoch."""
    assert isinstance(spec.window, TumblingSpec | SlidingSpec)
    size_us, offset_us = spec.window.pane_us, spec.window.offset_us
    time_us = event_time_us(spec.time_column, spec.time_shift_us)
    return f"({time_us} - pmod({time_us} - {offset_us}L, {size_us}L))"


def _partials_of_group(frame: DataFrame, spec: PartialWindowAggregateSpec) -> dict[str, str]:
    """Returns the SQL of each column of a partial row but its keys and times."""
    latest = {LATEST: f"max({quoted(spec.latest)})"} if spec.latest else {}
    return {**_partials(frame, spec.aggregates), ROWS: "count(1)", **latest}


def _partials(frame: DataFrame, aggregates: Sequence[AggregateExpression]) -> dict[str, str]:
    """Returns the SQL of each partial column."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import DayTimeIntervalType, DecimalType

    partials = {name: text for item in aggregates for name, text in item.partial.items()}
    exact = {name: text for item in aggregates for name, text in item.exact.items()}
    if exact:
        kinds = frame.agg(*(sql.expr(text).alias(name) for name, text in exact.items())).schema
        partials |= {
            kind.name: exact[kind.name]
            for kind in kinds
            if isinstance(kind.dataType, DecimalType | DayTimeIntervalType)
        }
    sums = {name: text for name, text in partials.items() if text.startswith("sum(")}
    ansi = str(frame.sparkSession.conf.get("spark.sql.ansi.enabled")).lower()
    if sums and ansi == "false":
        kinds = frame.agg(*(sql.expr(text).alias(name) for name, text in sums.items())).schema
        partials |= {
            kind.name: _sum_or_error(sums[kind.name])
            for kind in kinds
            if isinstance(kind.dataType, DecimalType)
        }
    return partials


def _sum_or_error(total: str) -> str:
    """Raises an error for a decimal sum with too many digits. Without ANSI mode, Spark's sum would
    be null, which would be lost in a merge.
    """
    count = f"count{total.removeprefix('sum')}"
    error = f"raise_error('{_TOO_LARGE}')"
    return f"CASE WHEN {total} IS NULL AND {count} > 0 THEN {error} ELSE {total} END"


def window_result(frame: DataFrame, spec: WindowApplySpec) -> DataFrame:
    """Returns the results of fired windows, without `row_kind`. `frame` holds their rows, with the
    window's columns.
    """
    from pyspark.sql import functions as sql

    if spec.function is not None:
        result = transform(frame, TransformSpec(function=spec.function), "apply")
        if spec.retracts and ROW_KIND in result.columns:
            raise FiresteelError(
                f"apply: the function returns a column {ROW_KIND!r}, but results with "
                "allowed_lateness add a column of this name; rename it"
            )
        return result
    names = [column(name) for name in (*spec.key_columns, *spec.window_columns)]
    return frame.groupBy(*names).agg(
        *(sql.expr(item.whole).alias(item.name) for item in spec.aggregates)
    )


def event_time_us(name: str, shift_us: int) -> str:
    """Returns the SQL of a row's event time in microseconds."""
    time_us = f"unix_micros(CAST({quoted(name)} AS TIMESTAMP))"
    return f"({time_us} + {shift_us}L)" if shift_us else time_us


def column(name: str) -> Column:
    """Returns a column by its literal name, with any characters."""
    from pyspark.sql import functions as sql

    return sql.col(quoted(name))


def quoted(name: str) -> str:
    """Returns the literal name in SQL."""
    return "`" + name.replace("`", "``") + "`"


def analyzed_plan(frame: DataFrame, leaf: str) -> str:
    """Returns the plan as the program writes it, for users, with `leaf` in place of its input.
    Optimising is not worthwhile before there are rows.
    """
    execution: Any = frame._jdf.queryExecution()
    plan = str(execution.analyzed().toString()).rstrip()
    plan = re.sub(r"LogicalRDD (\[.*?\]), \w+.*", lambda match: f"{leaf} {match[1]}", plan)
    return without_ids(plan)


def whole_plan(frame: DataFrame) -> str | None:
    """Returns the analyzed plan as text, with any number of columns; None if it is so long that
    Spark cuts it.
    """
    execution: Any = frame._jdf.queryExecution()
    plan = str(execution.analyzed().treeString(True, False, _EVERY_FIELD, False, False))
    return None if _CUT.search(plan) else without_ids(plan)


def optimized_plan(frame: DataFrame) -> str:
    """Returns the optimized plan, for users."""
    execution: Any = frame._jdf.queryExecution()
    return without_ids(str(execution.optimizedPlan().toString()).rstrip())


def empty_frame(session: SparkSession, schema: StructType) -> DataFrame:
    """Returns a DataFrame without rows. The optimizer does not know that it is empty, so it keeps
    plans unchanged.
    """
    context: Any = session.sparkContext._jsc
    return _frame(session, schema, context.emptyRDD())


def unread_frame(session: SparkSession, schema: StructType) -> DataFrame:
    """Returns a DataFrame for planning: running it fails, with UNREAD in the error."""
    context: Any = session.sparkContext._jsc
    return _frame(session, schema, context.parallelize([], 0))


# raised by an RDD when its partitions are requested
UNREAD = "Positive number of partitions required"


def _frame(session: SparkSession, schema: StructType, rows: Any) -> DataFrame:
    from pyspark.sql import DataFrame

    java: Any = session._jsparkSession
    kind = java.parseDataType(schema.json())
    frame = DataFrame(java.internalCreateDataFrame(rows.rdd(), kind, False), session)
    frame._schema = schema
    return frame

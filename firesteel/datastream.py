"""Streams and their operators. Names are those of PyFlink's DataStream API; functions are those of
PySpark, unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeAlias, overload

import pyarrow as pa

from firesteel import joins, processing
from firesteel.broadcast_functions import BroadcastProcessFunction
from firesteel.common.job_graph import Partitioner, ResultType
from firesteel.connectors import CollectSink, ForeachBatchSink, PrintSink, Sink
from firesteel.durations import Duration, positive_us
from firesteel.errors import InvalidProgram
from firesteel.functions import CoProcessFunction, KeyedProcessFunction, ProcessFunction
from firesteel.latest_operator import LatestOperator, positive
from firesteel.missing_methods import no_such_member
from firesteel.operator import StreamOperator
from firesteel.operators import (
    ApplySpec,
    AssignWatermarksSpec,
    CoMapInArrowSpec,
    CoProcessSpec,
    CustomSpec,
    DropDuplicatesSpec,
    JoinSpec,
    RowTimeSpec,
    SinkSpec,
    Spec,
    TopNSpec,
)
from firesteel.plan import frame_methods
from firesteel.plan.frame_methods import with_session_gap
from firesteel.plan.stream_graph import StreamEdge, StreamNode
from firesteel.program import Program
from firesteel.row_operations import ArrowFunction, RowOperations, checked_function, titled
from firesteel.rows_between import RowsBetween
from firesteel.windowed_stream import (
    WindowedStream,
    checked_order,
    running_aggregate,
    time_column_of,
)
from firesteel.windows import Count, Watermarks, Window

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from firesteel.client.collected import BatchKind, CollectedBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """An input of the next operator: the producer and the partitioning of its output."""

    node: StreamNode
    partitioner: Partitioner | None = None
    key_columns: tuple[str, ...] = ()
    side_output_tag: str = ""
    result_type: ResultType | None = None


class DataStream(RowOperations["DataStream"], LatestOperator):
    """A stream of records in Arrow batches."""

    def __init__(
        self,
        program: Program,
        upstreams: tuple[Upstream, ...],
        *,
        time_columns: frozenset[str],
        node: StreamNode | None,
    ) -> None:
        self._program = program
        self._upstreams = upstreams
        self._time_columns = time_columns  # event-time columns of its sources
        self._node = node

    if not TYPE_CHECKING:  # a type checker knows the members

        def __getattr__(self, name: str) -> Any:
            no_such_member(type(self), name)

    def __getitem__(self, column: object) -> NoReturn:
        raise InvalidProgram(
            f"stream[{column!r}]: a stream is not a DataFrame; columns cannot be accessed by index."
            ' Name the column in SQL ("pieces > 1"), in F.col("pieces"), or inside'
            " transform(lambda df: ...)"
        )

    def __iter__(self) -> NoReturn:
        raise InvalidProgram(
            "a stream cannot be iterated over: its rows arrive while a job runs; use"
            ' execute_and_collect(iterate="arrow"), or map_in_arrow(function) for code per batch'
        )

    # -- operators

    def operator(
        self,
        name: str,
        factory: Callable[[], StreamOperator] | Spec,
        schema: Any = None,
        *,
        side_outputs: Mapping[str, Any] | None = None,
        uid: str = "",
    ) -> DataStream:
        """Adds a custom operator; `factory` creates one per subtask.

        `schema` is the schema of its output; the default is the input's. `side_outputs` maps the
        tags that the operator passes to `output.emit_side` to their schemas (None: the input's).

        Instead of a factory, `firesteel.operators.Spec` describes an operator with a separate
        analysis, which determines its schemas.
        """
        return self._add(name, _custom_spec(factory, 1, schema, side_outputs), uid=uid)

    def side_output(self, tag: str) -> DataStream:
        """Returns the side output `tag` of the operator that was just added.

        Late rows and malformed rows are side outputs, as are those that custom operators declare.
        Rows of an unread side output are dropped. Raises InvalidProgram, here or before data flows,
        if the operator has no such output.
        """
        node = self._node
        if node is None:
            raise InvalidProgram(
                f"side_output({tag!r}) belongs to the operator that was just added:"
                " call it directly after the operator, not after key_by() or union()"
            )
        known = node.spec.side_output_tags
        if tag not in known:
            raise InvalidProgram(
                f"{node} has no side output {tag!r}; it has: {', '.join(sorted(known)) or 'none'}"
            )
        upstream = Upstream(node=node, side_output_tag=tag)
        return DataStream(self._program, (upstream,), time_columns=self._time_columns, node=None)

    def assign_timestamps_and_watermarks(
        self, watermarks: Watermarks, *, name: str | None = None, uid: str = ""
    ) -> DataStream:
        """Assigns event time to the stream, for example from a column that a transform adds.

        Watermarks from upstream are discarded. Only sources can be aligned.
        """
        if not isinstance(watermarks, Watermarks):
            raise InvalidProgram(f"watermarks is {watermarks!r}; use Watermarks.bounded(...)")
        if watermarks.alignment is not None:
            raise InvalidProgram(
                "assign_timestamps_and_watermarks():"
                f" with_alignment({watermarks.alignment.group!r}) pauses sources,"
                " and this operator follows a source;"
                " pass these watermarks to from_source(..., watermarks=...)"
            )
        return self._assign_watermarks(
            watermarks, watermarks.assigner_spec(), name or "Watermarks", uid
        )

    def process(
        self,
        function: ProcessFunction | KeyedProcessFunction,
        schema: Any,
        *,
        side_outputs: Mapping[str, Any] | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Applies a `firesteel.ProcessFunction` to each row or, after `key_by`, a
        `firesteel.KeyedProcessFunction`, with states and timers per key.

        `schema` is the schema of the output: a DDL string, a StructType or an Arrow schema.
        `side_outputs` maps the tags that the function passes to `ctx.output` to their schemas
        (None: the stream's).

        Raises InvalidProgram for any other function, or without a schema. An exception in the
        function fails the job with an error that names the key.
        """
        keys = self.key_columns if isinstance(self, KeyedStream) else None
        spec = processing.process_spec(
            function, keys, schema, _side_outputs(side_outputs), _row_time(self)
        )
        return self._add(name or f"Process({type(function).__name__})", spec, uid=uid)

    # -- partitioning

    def key_by(self, *columns: str | Column) -> KeyedStream:
        """Partitions the stream by the values of `columns`: records with equal keys go to the same
        subtask.

        Column names are case-insensitive, as in Spark. A computed key, such as
        `F.upper("shop").alias("place")`, becomes an additional column of the stream.
        """
        names, computed = frame_methods.keys(columns)
        return KeyedStream(self if computed is None else self._on_spark(computed, None, ""), names)

    def union(self, *others: DataStream) -> DataStream:
        """Returns the records of all these streams, which must have the same schema."""
        for other in others:
            self._check_mine("union", other)
        upstreams = self._upstreams + tuple(u for other in others for u in other._upstreams)
        time_columns = self._time_columns.union(*(other._time_columns for other in others))
        return DataStream(self._program, upstreams, time_columns=time_columns, node=None)

    def drop_duplicates(
        self,
        *columns: str,
        keep: Literal["first", "last"] = "first",
        within: Duration | None = None,
        on: str | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Keeps the first of the records that are equal in `columns` and drops the others.

        With `within`, a record is dropped only if its event time is less than this duration away
        from that of a record that was kept, earlier or later; keys are forgotten once no such
        record can arrive. Late records are also dropped, and counted (numLateRecordsDropped). `on`
        names the event-time column; the default is the column of the source's watermarks.

        Without `within`, each key is kept until the stream ends: use it for bounded streams or few
        keys. The first record is the one that arrives first; within a batch, the one with the
        earliest event time.

        `keep="last"` keeps the latest record instead, by event time or by the column `on`; among
        equal ones, and in a stream without event time, the one that arrives last. The result has an
        additional column, `row_kind`: "insert", or "delete" for a record that was replaced. One
        record per key is kept until the stream ends; in a stream of changes, all current records
        are kept.
        """
        if len(columns) == 1 and isinstance(columns[0], (list, tuple)):  # as in PySpark
            columns = tuple(columns[0])
        if not columns or not all(isinstance(c, str) and c for c in columns):
            raise InvalidProgram(
                f"drop_duplicates{columns!r}: name the columns that identify duplicates,"
                ' such as drop_duplicates("id", within="1 hour")'
            )
        if isinstance(self, KeyedStream):
            keys = ", ".join(map(repr, dict.fromkeys((*self.key_columns, *columns))))
            raise InvalidProgram(
                f"drop_duplicates() takes all key columns as arguments, without key_by(...):"
                f" drop_duplicates({keys})"
            )
        if keep == "last":
            return self._last_records(columns, within, on, name, uid)
        if keep != "first":
            raise InvalidProgram(f'drop_duplicates(keep={keep!r}): allowed: "first", "last"')
        within_us = 0 if within is None else positive_us(within, "within of drop_duplicates()")
        time_column, shift_us = "", 0
        if within is None and on is not None:
            raise InvalidProgram(
                f"drop_duplicates(on={on!r}): event time is not used without within=..."
            )
        if within is not None:
            time_column, shift_us = (
                (on, 0)
                if on is not None
                else time_column_of(
                    self._time_columns, "drop_duplicates(within=...)", "on='column'"
                )
            )
        spec = DropDuplicatesSpec(
            key_columns=columns,
            time_column=time_column,
            time_shift_us=shift_us,
            within_us=within_us,
        )
        title = name or f"DropDuplicates({', '.join(columns)})"
        return self.key_by(*columns)._add(title, spec, uid=uid)

    def _last_records(
        self,
        columns: tuple[str, ...],
        within: Duration | None,
        on: str | None,
        name: str | None,
        uid: str,
    ) -> DataStream:
        if within is not None:
            raise InvalidProgram(
                f'drop_duplicates(within={within!r}, keep="last"): a kept record can be replaced'
                " whenever a later one arrives; omit within"
            )
        by = (on,) if on is not None else ()
        if on is None and self._time_columns:
            what = 'drop_duplicates(keep="last")'
            by = (time_column_of(self._time_columns, what, "on='column'")[0],)
        spec = TopNSpec(
            key_columns=columns,
            n=1,
            by=by,
            ascending=(False,) * len(by),
            ranked=False,
            latest_first=True,
        )
        title = name or f"DropDuplicates({', '.join(columns)}, last)"
        return self.key_by(*columns)._add(title, spec, uid=uid)

    def window_all(
        self, window: Window, *, allowed_lateness: Duration = "0 s"
    ) -> WindowedStream[DataStream]:
        """Groups all records by time, without keys: like `key_by(...).window(...)` on a stream with
        one key.

        One subtask computes the windows, whatever the parallelism. Aggregates that can be split are
        partially computed by all upstream subtasks.
        """
        if isinstance(self, KeyedStream):
            raise InvalidProgram(
                "window_all() has no keys: use window(...) after key_by(...), or leave key_by out"
            )
        return WindowedStream(_WholeStream(self), window, allowed_lateness)

    def count_window_all(self, size: int, slide: int | None = None) -> WindowedStream[DataStream]:
        """Groups all records by their number, without keys: like `key_by(...).count_window(...)` on
        a stream with one key.
        """
        if isinstance(self, KeyedStream):
            raise InvalidProgram(
                "count_window_all() has no keys: use count_window(...) after key_by(...), or leave"
                " key_by out"
            )
        return WindowedStream(_WholeStream(self), Count(size, slide), "0 s")

    def apply(
        self,
        function: Callable[[DataFrame], DataFrame],
        *,
        across_keys: bool = False,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Applies a DataFrame to DataFrame function to all rows together, once the stream has
        ended: on the slot's Spark, with any of its operators (`orderBy`, `dropDuplicates`, window
        functions, ...). Use it for bounded streams, preferably in batch mode
        (`Environment(mode="batch")`).

        After `key_by`, each subtask processes the rows of its keys. A function that relates rows of
        different keys, whose result would depend on the parallelism, is refused before data flows;
        `across_keys=True` allows it. Without keys, one subtask processes all rows, whatever the
        parallelism.

        The rows wait in files in the slot's temporary folder, and Spark spills data there that
        exceeds its heap. The job cannot take checkpoints.
        """
        checked_function("apply", function)
        given = self if isinstance(self, KeyedStream) else _WholeStream(self)
        spec = ApplySpec(
            function=function, key_columns=(given.key_columns,), across_keys=across_keys
        )
        return given._add(name or titled("Apply", function), spec, uid=uid)

    @overload
    def connect(self, other: DataStream) -> ConnectedStreams: ...

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream: ...

    def connect(
        self, other: DataStream | BroadcastStream
    ) -> ConnectedStreams | BroadcastConnectedStream:
        """Connects two streams, of any schemas, to the two inputs of one operator. `other` may be a
        broadcast stream, such as `rules.broadcast("rules")`.
        """
        if isinstance(other, BroadcastStream):
            self._check_mine("connect", other.stream)
            return BroadcastConnectedStream(self, other)
        self._check_mine("connect", other)
        return ConnectedStreams(self, other)

    def join(
        self,
        other: DataStream,
        on: joins.On,
        how: str = "inner",
        *,
        ttl: Duration | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Joins each record with the records of `other` whose columns `on` are equal, whenever they
        arrive: like PySpark's join of the two streams so far.

        `on` is a column of both streams, a list of such columns, or {"seller": "id"} for columns
        with different names. The result has the columns that have the same name in both, once and
        first, then the remaining columns of this stream and of `other`, which must have different
        names. Null keys match nothing. When a record of a stream of changes is deleted
        (`row_kind`), its joined rows are deleted, and the result has a `row_kind`.

        `how`: "inner", "left", "right" or "full" (or PySpark's other names for these). All except
        inner joins have an additional column, `row_kind`: a record without a match is in the result
        immediately, as "insert", and is emitted again as "delete" when its first match arrives.

        Both streams are kept until they end. With `ttl`, records match only those that arrived less
        than that duration before them, by the machine's clock, and older ones are forgotten. In
        batch mode, Spark joins the complete streams: no record is emitted twice, and `ttl` has no
        effect.

        The result has no event time, with or without `ttl`: the earlier record of a pair may be
        old, and its time far behind the watermark. A downstream window, or any other operator that
        needs event time, is refused before data flows, unless `assign_timestamps_and_watermarks`
        assigns event time to the result, with an out-of-orderness that covers the time between the
        records of a pair, or `interval_join` bounds that time. Event time may come from one stream
        if the other one is bounded and has no watermarks (`Tumbling(..., on=...)`); in batch mode,
        from either.

        Raises InvalidProgram for invalid arguments; columns are checked before data flows. A join
        of an unbounded stream without `ttl` causes a warning when the job is submitted.
        """
        spec = joins.join_spec(on, how, ttl)
        return self._joined("join", other, spec, name or f"Join({spec.how}, {_shown(spec)})", uid)

    def interval_join(
        self,
        other: DataStream,
        on: joins.On,
        how: str = "inner",
        *,
        between: tuple[Duration, Duration],
        times: tuple[str, str] | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Joins each record with the records of `other` whose columns `on` are equal and whose
        event time, relative to its own, is between the two bounds, both inclusive.

            bids.interval_join(auctions, on={"auction": "id"}, between=("-1 hour", "0 s"))

        returns the auctions that started in the hour before the bid. `times` names the event-time
        columns of both streams; the defaults are the columns of the sources' watermarks. The
        columns of the result are as in `join`. Records are forgotten when the watermark shows that
        no later record can match them; late records are dropped and counted
        (numLateRecordsDropped).

        `how`: "inner", "left", "right" or "full". A record without a match is in the result once no
        match can arrive, and stays there: there is no `row_kind`.

        The event time of a left or right join is that of this or of the other stream, and its
        watermarks are delayed by the longest time that a record waits for a match. An inner join
        has the later time of each pair if all matches of a record precede it, or all follow it.
        Otherwise, the result has no event time. A downstream operator may name a column of either
        stream (`Tumbling(..., on=...)`): the watermarks are then delayed by the longest time
        between the records of a pair.
        """
        self._check_mine("interval_join", other)
        event_times = joins.event_times(
            "interval_join", times, (self._time_columns, other._time_columns)
        )
        spec = joins.interval_join_spec(on, how, between, event_times)
        title = name or f"IntervalJoin({spec.how}, {_shown(spec)})"
        return self._joined("interval_join", other, spec, title, uid)._with_time_columns(
            *(spec.result_times or ())
        )

    def window_join(
        self,
        other: DataStream,
        on: joins.On,
        window: Window,
        how: str = "inner",
        *,
        times: tuple[str, str] | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Joins records of the two streams that are in the same tumbling window of event time and
        whose columns `on` are equal.

        `times` names the event-time columns of both streams; the defaults are the columns of the
        sources' watermarks. The columns of the result are as in `join`, with `window_start` and
        `window_end`. Pairs are emitted as soon as both records have arrived. A window's records are
        forgotten when the watermark passes its end; later ones are dropped and counted
        (numLateRecordsDropped).

        `how`: "inner", "left", "right" or "full". A record without a match is in the result when
        its window ends, and stays there: there is no `row_kind`.
        """
        self._check_mine("window_join", other)
        event_times = joins.event_times(
            "window_join", times, (self._time_columns, other._time_columns)
        )
        spec = joins.window_join_spec(on, window, how, event_times)
        title = name or f"WindowJoin({spec.how}, {_shown(spec)}, {window})"
        return self._joined("window_join", other, spec, title, uid)._with_time_columns("window_end")

    def as_of_join(
        self,
        other: DataStream,
        on: joins.On,
        how: str = "inner",
        *,
        tolerance: Duration | None = None,
        times: tuple[str, str] | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Joins each record with the version that is valid at its event time: of the records of
        `other` whose columns `on` are equal, the latest one that is not after it. This is Flink's
        temporal join (FOR SYSTEM_TIME AS OF) and pandas' merge_asof.

            sales.as_of_join(prices, on="item", how="left")

        returns each sale with the price at its time. `how`: "inner", or "left", which includes
        records without a version. With `tolerance`, a version is valid for at most this duration.
        Among versions of one key with equal times, the last one to arrive is valid. `times` and the
        columns of the result are as in `interval_join`. If versions have a column `row_kind`, a
        "delete" there ends the validity of the previous version, and the column is not in the
        result.

        A record waits until the watermarks of both streams have reached its time: a stream of
        versions that may be quiet needs `Watermarks.with_idleness`. Late records are dropped and
        counted (numLateRecordsDropped). Late versions are counted (numLateVersions), and are valid
        for records that still wait or arrive later. The latest version of each key is kept until
        the stream ends, or for the `tolerance`.
        """
        self._check_mine("as_of_join", other)
        event_times = joins.event_times(
            "as_of_join", times, (self._time_columns, other._time_columns)
        )
        spec = joins.as_of_join_spec(on, how, tolerance, event_times)
        title = name or f"AsOfJoin({spec.how}, {_shown(spec)})"
        joined = self._joined("as_of_join", other, spec, title, uid)
        # A column that is named here may lag behind the watermarks.
        return joined if times is not None else joined._with_time_columns(*self._time_columns)

    def _joined(
        self, what: str, other: DataStream, spec: JoinSpec, title: str, uid: str
    ) -> DataStream:
        self._check_mine(what, other)
        for stream in (self, other):
            if isinstance(stream, KeyedStream):
                raise InvalidProgram(
                    f"{what}() takes the columns to compare as an argument, without key_by(...):"
                    f' {what}(other, on="id")'
                )
        left, right = self.key_by(*spec.left_keys), other.key_by(*spec.right_keys)
        joined = ConnectedStreams(left, right)._add(title, spec, uid)
        return joined._with_time_columns()

    def forward(self) -> DataStream:
        """Sends records from subtask i to subtask i; the parallelisms must be equal."""
        return self._partitioned(Partitioner.FORWARD)

    def rebalance(self) -> DataStream:
        """Distributes records round-robin to all subtasks."""
        return self._partitioned(Partitioner.REBALANCE)

    def rescale(self) -> DataStream:
        """Distributes records round-robin to a fixed few subtasks, so that less data moves."""
        return self._partitioned(Partitioner.RESCALE)

    @overload
    def broadcast(self) -> DataStream: ...

    @overload
    def broadcast(self, *states: str) -> BroadcastStream: ...

    def broadcast(self, *states: str) -> DataStream | BroadcastStream:
        """Sends every record to every subtask.

        With names of states, as in `rules.broadcast("rules")`, the records change these states,
        which are the same in all subtasks: pass the result to `stream.connect(...)`. Raises
        InvalidProgram for invalid names.
        """
        every = self._partitioned(Partitioner.BROADCAST)
        return BroadcastStream(every, processing.checked_names(states)) if states else every

    def exchange(self, kind: Literal["pipelined", "blocking"]) -> Self:
        """Sets how the next operator, in a separate task, reads these rows in batch mode: while
        they are produced ("pipelined"), or once they are complete ("blocking"). The default is
        `execution.batch-shuffle-mode`.

        Operators that pipelined exchanges connect run at the same time, and restart together.
        """
        kinds = [each.name.lower() for each in ResultType]
        if kind not in kinds:
            raise InvalidProgram(f"exchange({kind!r}): allowed are {', '.join(map(repr, kinds))}")
        chosen = self._exchanged_as(ResultType[kind.upper()])
        chosen._node = None
        return chosen

    # -- sinks

    def sink_to(self, sink: Sink, *, name: str | None = None, uid: str = "") -> DataStreamSink:
        """Writes the stream to a sink of firesteel.connectors or a custom one."""
        if not isinstance(sink, Sink):
            raise InvalidProgram(
                "sink_to() takes a Sink, such as FileSink or CollectSink,"
                f" not {type(sink).__name__}"
            )
        sink = sink.resolved()
        title = name or f"Sink: {sink.display_name}"
        written = self._add(title, SinkSpec(sink=sink), uid=uid)
        if (committer := sink.global_committer) is not None:
            messages = written._partitioned(Partitioner.REBALANCE)
            committed = messages._add(
                f"{title} commit", SinkSpec(sink=committer), uid=f"{uid}-commit" if uid else ""
            )
            node = committed._operator()
            node.parallelism, node.whole = 1, True
        return DataStreamSink(self._program, written._operator())

    def foreach_batch(
        self, function: Callable[[DataFrame, int], None], *, name: str | None = None, uid: str = ""
    ) -> DataStreamSink:
        """Calls `function(df, batch_id)` with a DataFrame of the slot's Spark, which is valid until
        the call returns: PySpark's foreachBatch.

        Each subtask calls it with its own rows, as soon as there are any and its previous call has
        returned. Subtasks call it concurrently: a target that allows one writer needs
        `set_parallelism(1)`, or one place per `batch_id`. `batch_id` increases and is never reused,
        in one subtask or across subtasks.

        With checkpoints, a batch contains the rows between two checkpoints; it belongs to the
        second, and the function is called when that is complete. If the job fails before this is
        recorded, the function is called again with the same rows and the same `batch_id`, as in
        Structured Streaming: a function that ignores known ids, or replaces their output, processes
        each row exactly once. The rows between two checkpoints are held in memory.
        """
        checked_function("foreach_batch", function, 2)
        title = name or titled("Sink: ForeachBatch", function)
        return self.sink_to(ForeachBatchSink(function), name=title, uid=uid)

    def print(self, prefix: str = "") -> DataStreamSink:
        """Prints the rows, one line each.

        The rows appear in the terminal, or in the notebook cell, of a program with its embedded
        cluster. On a session cluster they are in the logs of the slots: `firesteel run --output`
        follows them, and `firesteel logs --output JOB` prints them. With several subtasks, each row
        is prefixed with its subtask as "3> ", or with `prefix` as "prefix:3> ".
        """
        return self.sink_to(PrintSink(prefix))

    @overload
    def execute_and_collect(
        self, job_name: str = "collect", *, limit: int | None = None
    ) -> pa.Table: ...

    @overload
    def execute_and_collect(
        self, job_name: str = "collect", *, iterate: Literal["arrow"], limit: int | None = None
    ) -> CollectedBatches[pa.RecordBatch]: ...

    @overload
    def execute_and_collect(
        self, job_name: str = "collect", *, iterate: Literal["pandas"], limit: int | None = None
    ) -> CollectedBatches[pd.DataFrame]: ...

    def execute_and_collect(
        self,
        job_name: str = "collect",
        *,
        iterate: BatchKind | None = None,
        limit: int | None = None,
    ) -> Any:
        """Runs the job that `Environment.execute` would run, with this stream, and returns the rows
        of the stream as an Arrow table.

        With `iterate`, it returns immediately: an iterator over record batches ("arrow") or
        DataFrames ("pandas") that yields them while the job runs, even if the job never ends. Use
        it in a `with` block, which cancels the job when it is left early. As in PySpark's toArrow
        and toPandas, TIMESTAMPs are in UTC in Arrow, and without zone, local to
        spark.sql.session.timeZone, in pandas.

        With `limit`, returns at most this many rows, the first ones, and cancels the job once it
        has produced them. Other sinks of the job are cancelled with it.
        """
        if limit is not None:
            positive("limit", limit)
        if iterate not in (None, "arrow", "pandas"):
            raise InvalidProgram(f'iterate is {iterate!r}; allowed: "arrow", "pandas"')
        sink = self.sink_to(CollectSink(), name="Sink: Collect")
        return self._program.collect(job_name, sink._operator(), iterate, limit)

    # -- inside

    def _add(self, name: str, spec: Spec, *, uid: str = "") -> DataStream:
        node = self._program.graph.add_node(name, spec, inputs=1)
        node.uid = uid
        self._connect_to(node, 0)
        return self._from(node)

    def _assign_watermarks(
        self, watermarks: Watermarks, spec: AssignWatermarksSpec, name: str, uid: str
    ) -> DataStream:
        stream = self._add(name, spec, uid=uid)
        if watermarks.column:
            stream._time_columns = frozenset({watermarks.column})
        return stream

    def _from(self, node: StreamNode) -> DataStream:
        return DataStream(
            self._program, (Upstream(node=node),), time_columns=self._time_columns, node=node
        )

    def _connect_to(self, node: StreamNode, input_index: int) -> None:
        for upstream in self._upstreams:
            self._program.graph.add_edge(
                StreamEdge(
                    source=upstream.node,
                    target=node,
                    target_input=input_index,
                    partitioner=upstream.partitioner,
                    key_columns=upstream.key_columns,
                    side_output_tag=upstream.side_output_tag,
                    result_type=upstream.result_type,
                )
            )

    def _partitioned(
        self, partitioner: Partitioner, key_columns: tuple[str, ...] = ()
    ) -> DataStream:
        upstreams = tuple(
            replace(upstream, partitioner=partitioner, key_columns=key_columns)
            for upstream in self._upstreams
        )
        return DataStream(self._program, upstreams, time_columns=self._time_columns, node=None)

    def _exchanged_as(self, result_type: ResultType | None) -> Self:
        upstreams = tuple(replace(each, result_type=result_type) for each in self._upstreams)
        if upstreams == self._upstreams:
            return self
        stream = copy.copy(self)
        stream._upstreams = upstreams
        return stream

    def _with_time_columns(self, *columns: str) -> DataStream:
        self._time_columns = frozenset(columns)
        return self

    def _check_mine(self, what: str, other: DataStream) -> None:
        if not isinstance(other, DataStream):
            raise InvalidProgram(f"{what}() takes a DataStream, not {type(other).__name__}")
        if other._program is not self._program:
            raise InvalidProgram(f"{what}(): the two streams belong to different environments")


class KeyedStream(DataStream):
    """A stream partitioned by key columns."""

    def __init__(self, stream: DataStream, key_columns: tuple[str, ...]) -> None:
        keyed = stream._partitioned(Partitioner.HASH, key_columns)
        super().__init__(
            keyed._program, keyed._upstreams, time_columns=keyed._time_columns, node=None
        )
        self.key_columns = key_columns
        self._unkeyed = stream._exchanged_as(None)

    def _add_in_two_halves(
        self,
        title: str,
        partial: Spec,
        final: Spec,
        *,
        uid: str,
        between: Callable[[DataStream], DataStream] = lambda partials: partials,
    ) -> DataStream:
        """Adds the partial aggregate before the shuffle, and the keyed half after it. `between`
        adds further operators before the shuffle.
        """
        before = between(_partial_half(self._unkeyed, title, partial, uid))
        before = before._exchanged_as(self._upstreams[0].result_type)
        return before._partitioned(Partitioner.HASH, self.key_columns)._add(title, final, uid=uid)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[DataStream]:
        """Groups each key's records by their number, in the order in which they arrive: in
        consecutive windows of `size` records, or in windows that start every `slide` records.

        As in PyFlink's `count_window`, a window emits its results when it is complete. Windows that
        are incomplete when the input ends have no results. The results of
        `WindowedStream.aggregate`, and the rows passed to the function of `WindowedStream.apply`,
        have the column `window_id`, the number of the key's window, starting at 0.
        """
        return WindowedStream(self, Count(size, slide), "0 s")

    def _with_session_gap(self, gap: str) -> KeyedStream:
        """Adds a column with the gap of each row."""
        before = self._unkeyed._on_spark(with_session_gap(gap), None, "")
        before = before._exchanged_as(self._upstreams[0].result_type)
        return KeyedStream(before, self.key_columns)

    def window(
        self, window: Window, *, allowed_lateness: Duration = "0 s"
    ) -> WindowedStream[DataStream]:
        """Groups each key's records by time: `Tumbling`, `Sliding` or `Session`, in event time or
        processing time. `Global` is one window per key, for use with a trigger.

        A record that arrives after its window has fired, but before the watermark is
        `allowed_lateness` past the window's end, makes the window fire again for its key: treat the
        results as updates by key and window. Where rows may become invalid without being replaced,
        as when a late record merges sessions, results have a column `row_kind` with "insert" or
        "delete". Later records are dropped and counted (numLateRecordsDropped), or sent to a side
        output by `side_output_late(tag)`.
        """
        return WindowedStream(self, window, allowed_lateness)

    def aggregate(
        self,
        *expressions: str | Column,
        changes: bool = False,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Computes a running aggregation: the key columns and one column per expression (SQL text,
        or a Column such as F.sum("x").alias("s")), over all records of the key so far.

        The result is a stream of updates by key: one row for every changed key after each bundle of
        records, after each watermark, and at the end of the input. The latest row of a key is the
        valid one. The expressions are those of `WindowedStream.aggregate` that can be split;
        partial aggregates are computed before the shuffle. Raises InvalidProgram for expressions
        that need all rows of the key, such as percentile(...).

        With `changes=True` the result is a stream of changes, which can be aggregated and joined:
        it has the additional column `row_kind`, and when a key's row changes, the earlier row is
        emitted again with "delete" and the new one with "insert". This is always so if the records
        are changes themselves: a deleted record is then retracted from the aggregates, and a key
        without records has no row.
        """
        return running_aggregate(self, expressions, changes=changes, name=name, uid=uid)

    def rows_between(
        self,
        start: int,
        end: int,
        *,
        by: str | Sequence[str],
        ascending: bool | Sequence[bool] = True,
    ) -> RowsBetween[DataStream]:
        """For each record, selects the records of its key at positions `start` to `end` relative to
        it, in the order of the columns `by`, as PySpark's
        `Window.partitionBy(...).orderBy(...).rowsBetween(...)` does: `rows_between(-9, 0,
        by="time").aggregate("avg(price) AS mean")` adds the average of the last ten prices.

        `start` must be at most 0 and `end` at least 0. Raises InvalidProgram otherwise, and for an
        invalid `by`.
        """
        return RowsBetween(self, start, end, by=by, ascending=ascending)

    def top_n(
        self,
        n: int,
        *,
        by: str | Sequence[str],
        ascending: bool | Sequence[bool] = False,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Returns the first `n` records of each key so far in the order of the columns `by`, the
        largest first, with the additional columns `rank` (1 for the first) and `row_kind`.

        The result is a stream of changes. After each bundle of records, after each watermark and at
        the end of the input, rows that are no longer among the first, or whose rank has changed,
        are emitted with the row_kind "delete" and all of their values; then the current ones with
        "insert". Write them to a PostgresSink in upsert mode whose key consists of the key columns
        and `rank`. In batch mode, the first rows are emitted once, at the end.

        `ascending` and the order are as in `WindowedStream.top_n`. `n` records per key are kept
        until the stream ends. The records may be changes themselves, such as those of
        `aggregate(..., changes=True)`: when a record is deleted, the next one takes its place, so
        all current records are kept. Raises InvalidProgram for an invalid `n` or `by`.
        """
        columns, directions = checked_order(n, by, ascending)
        spec = TopNSpec(key_columns=self.key_columns, n=n, by=columns, ascending=directions)
        return self._add(name or f"TopN({n} by {', '.join(columns)})", spec, uid=uid)

    @processing.pyspark_arguments
    def transform_with_state(
        self,
        processor: StatefulProcessor,
        output_schema: Any,
        output_mode: str = "append",
        time_mode: str = "none",
        initial_state: KeyedStream | None = None,
        *,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Runs an unchanged PySpark `StatefulProcessor` over Rows, with state and timers per key.

        `handleInputRows(key, rows, timerValues)` is called once per key and batch, with the key as
        a tuple and an iterator of `pyspark.sql.Row`, and yields Rows of `output_schema` (a DDL
        string, a StructType or an Arrow schema). It runs in Python on the stream's Arrow batches,
        without the JVM.

        `time_mode` sets the time of timers: "none" (no timers), "processing_time" (the wall clock;
        states may have a TTL) or "event_time" (timers fire when the watermark reaches them,
        remaining ones when bounded input ends, as all do in batch mode; late rows are processed
        like others). Timers, TTLs and TimerValues are in milliseconds.

        `output_mode`: "append" (a row is added to the earlier ones of its key) or "update" (it
        replaces them).

        `initial_state`, keyed by the same number of columns of the same types, must be bounded:
        each of its rows is passed to `handleInitialState(key, row, timerValues)` before the first
        row of this stream is processed.

        PySpark's argument names (`statefulProcessor`, `outputStructType`, `outputMode`, `timeMode`,
        `initialState`) and values ("Append", "EventTime") are also accepted.

        Raises InvalidProgram for invalid arguments. An exception in the processor fails the job
        with an error that names the key.
        """
        return self._with_state(
            processor, output_schema, output_mode, time_mode, initial_state, name, uid, pandas=False
        )

    @processing.pyspark_arguments
    def transform_with_state_in_pandas(
        self,
        processor: StatefulProcessor,
        output_schema: Any,
        output_mode: str = "append",
        time_mode: str = "none",
        initial_state: KeyedStream | None = None,
        *,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Runs `transform_with_state` with a processor that takes and yields pandas DataFrames.

        Per key and batch, `rows` is an iterator over one DataFrame; `handleInitialState` also gets
        a DataFrame. Columns of the output are matched by name if their labels are strings,
        otherwise by position. For many keys with few rows each, Rows are many times faster.
        """
        return self._with_state(
            processor, output_schema, output_mode, time_mode, initial_state, name, uid, pandas=True
        )

    def _with_state(
        self,
        processor: StatefulProcessor,
        output_schema: Any,
        output_mode: str,
        time_mode: str,
        initial_state: KeyedStream | None,
        name: str | None,
        uid: str,
        *,
        pandas: bool,
        late_column: str = "",
    ) -> DataStream:
        if initial_state is not None:
            if not isinstance(initial_state, KeyedStream):
                raise InvalidProgram(
                    "initial_state must be a stream with key_by(), not"
                    f" {type(initial_state).__name__}"
                )
            self._check_mine("transform_with_state", initial_state)
        graph = self._program.graph
        spec = processing.transform_with_state_spec(
            graph,
            processor=processor,
            key_columns=self.key_columns,
            output_schema=output_schema,
            output_mode=output_mode,
            time_mode=time_mode,
            pandas=pandas,
            late_column=late_column,
            nodes=[upstream.node for upstream in self._upstreams],
            initial_key_columns=None if initial_state is None else initial_state.key_columns,
            initial_nodes=[]
            if initial_state is None
            else [upstream.node for upstream in initial_state._upstreams],
        )
        node = graph.add_node(
            name or f"TransformWithState({type(processor).__name__})",
            spec,
            inputs=1 + (initial_state is not None),
        )
        node.uid = uid
        self._connect_to(node, 0)
        if initial_state is not None:
            initial_state._connect_to(node, 1)
        return self._from(node)


KeyColumns: TypeAlias = "str | Column | tuple[str | Column, ...]"


class _WholeStream(DataStream):
    """All records of a stream in one subtask, as a KeyedStream without key columns."""

    key_columns: tuple[str, ...] = ()

    def __init__(self, stream: DataStream) -> None:
        gathered = stream._partitioned(Partitioner.REBALANCE)
        super().__init__(
            gathered._program, gathered._upstreams, time_columns=gathered._time_columns, node=None
        )
        self._divided = stream._exchanged_as(None)

    def _add(self, name: str, spec: Spec, *, uid: str = "") -> DataStream:
        added = super()._add(name, spec, uid=uid)
        node = added._operator()
        node.parallelism, node.whole = 1, True
        return added

    def _add_in_two_halves(self, title: str, partial: Spec, final: Spec, *, uid: str) -> DataStream:
        before = _partial_half(self._divided, title, partial, uid)
        before = before._exchanged_as(self._upstreams[0].result_type)
        return _WholeStream(before)._add(title, final, uid=uid)

    def _with_session_gap(self, gap: str) -> _WholeStream:
        before = self._divided._on_spark(with_session_gap(gap), None, "")
        return _WholeStream(before._exchanged_as(self._upstreams[0].result_type))


def _partial_half(stream: DataStream, title: str, spec: Spec, uid: str) -> DataStream:
    """Adds the partial aggregate before the shuffle."""
    partial_uid = f"{uid}-partial" if uid else ""
    half = stream._add(f"{title} partial", spec, uid=partial_uid)
    half._operator().follows_producer = True
    return half


class ConnectedStreams:
    """Two streams that become the inputs of one operator."""

    def __init__(self, first: DataStream, second: DataStream) -> None:
        self._first = first
        self._second = second

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            no_such_member(type(self), name)

    def key_by(self, first: KeyColumns, second: KeyColumns) -> ConnectedStreams:
        """Partitions both streams by key: equal keys of the two go to the same subtask."""
        return ConnectedStreams(
            self._first.key_by(*_columns(first)), self._second.key_by(*_columns(second))
        )

    def map_in_arrow(
        self,
        first: ArrowFunction,
        second: ArrowFunction,
        schema: Any,
        *,
        name: str = "CoMapInArrow",
        uid: str = "",
    ) -> DataStream:
        """Applies one mapInArrow function per input; both yield batches of `schema`."""
        checked_function("map_in_arrow", first)
        checked_function("map_in_arrow", second)
        return self._add(name, CoMapInArrowSpec(first=first, second=second, schema=schema), uid)

    def co_process(
        self,
        function: CoProcessFunction,
        schema: Any,
        *,
        side_outputs: Mapping[str, Any] | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Applies a `firesteel.CoProcessFunction` to the rows of two keyed streams, with state and
        timers per key.

        `schema` is the schema of the output: a DDL string, a StructType or an Arrow schema.
        `side_outputs` maps the tags that the function passes to `ctx.output` to their schemas
        (None: the first stream's).

        Raises InvalidProgram if a stream is not keyed. An exception in the function fails the job
        with an error that names the key.
        """
        if not isinstance(function, CoProcessFunction):
            raise InvalidProgram(
                "co_process() takes a CoProcessFunction,"
                f" not {type(function).__name__} {function!r}"
            )
        if schema is None:
            raise InvalidProgram(
                "co_process() needs the output schema of the function,"
                ' such as "id STRING, count INT"'
            )
        first, second = self._first, self._second
        if not isinstance(first, KeyedStream) or not isinstance(second, KeyedStream):
            raise InvalidProgram(
                "co_process() has state per key: call connect(...).key_by(first, second) first"
            )
        if len(first.key_columns) != len(second.key_columns):
            raise InvalidProgram(
                f"co_process(): the keys {first.key_columns!r} and {second.key_columns!r}"
                " have different numbers of columns"
            )
        spec = CoProcessSpec(
            function=function,
            first_key_columns=first.key_columns,
            second_key_columns=second.key_columns,
            schema=schema,
            side_outputs=_side_outputs(side_outputs),
            times=(_row_time(first), _row_time(second)),
        )
        return self._add(name or f"CoProcess({type(function).__name__})", spec, uid)

    def apply(
        self,
        function: Callable[[DataFrame, DataFrame], DataFrame],
        *,
        across_keys: bool = False,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Applies a function of two DataFrames to all rows of both streams together, once they have
        ended, such as `lambda orders, lines: orders.join(lines, "order_id")`.

        Both streams must be keyed, by the same number of columns, or neither. Otherwise it works
        like `DataStream.apply`.
        """
        checked_function("apply", function, 2)
        first, second = self._first, self._second
        keyed = [stream for stream in (first, second) if isinstance(stream, KeyedStream)]
        if len({len(stream.key_columns) for stream in keyed}) + (len(keyed) == 1) > 1:
            raise InvalidProgram(
                "apply() of two streams needs rows with equal keys from both: call"
                " connect(...).key_by(first, second), with the same number of columns for each"
            )
        keys = tuple(stream.key_columns for stream in keyed) or ((), ())
        spec = ApplySpec(function=function, key_columns=keys, across_keys=across_keys)
        result = self._add(name or titled("Apply", function), spec, uid)
        if not keyed:
            node = result._operator()
            node.parallelism, node.whole = 1, True
        return result

    def operator(
        self,
        name: str,
        factory: Callable[[], StreamOperator] | Spec,
        schema: Any = None,
        *,
        side_outputs: Mapping[str, Any] | None = None,
        uid: str = "",
    ) -> DataStream:
        """Adds a custom two-input operator (`inputs = 2`).

        It works like `DataStream.operator`; the default schema is that of the first input.
        """
        return self._add(name, _custom_spec(factory, 2, schema, side_outputs), uid)

    def _add(self, name: str, spec: Spec, uid: str) -> DataStream:
        program = self._first._program
        node = program.graph.add_node(name, spec, inputs=2)
        node.uid = uid
        self._first._connect_to(node, 0)
        self._second._connect_to(node, 1)
        time_columns = self._first._time_columns | self._second._time_columns
        return DataStream(program, (Upstream(node=node),), time_columns=time_columns, node=node)


@dataclass(frozen=True, slots=True)
class BroadcastStream:
    """A stream whose every record goes to every subtask, to change broadcast states. Created by
    `DataStream.broadcast`; pass it to `stream.connect(...)`.
    """

    stream: DataStream
    states: tuple[str, ...]


class BroadcastConnectedStream:
    """A stream, connected to another one that is broadcast to its subtasks."""

    def __init__(self, first: DataStream, broadcast: BroadcastStream) -> None:
        self._first = first
        self._broadcast = broadcast

    def process(
        self,
        function: BroadcastProcessFunction,
        schema: Any,
        *,
        side_outputs: Mapping[str, Any] | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Applies a `firesteel.BroadcastProcessFunction` to the rows of both streams, or, if the
        first is keyed, a `KeyedBroadcastProcessFunction`.

        `schema` and `side_outputs` are as in `co_process`. In streaming mode, rows see the
        broadcast records that arrived before them, and event time is that of both streams. In batch
        mode, the broadcast stream is read to its end first, so it needs a separate source.

        Raises InvalidProgram for invalid arguments. An exception in the function fails the job.
        """
        first, broadcast = self._first, self._broadcast
        keys = first.key_columns if isinstance(first, KeyedStream) else None
        sides = _side_outputs(side_outputs)
        times = _row_time(first), _row_time(broadcast.stream)
        spec = processing.broadcast_process_spec(
            function, keys, broadcast.states, schema, sides, times
        )
        title = name or f"BroadcastProcess({type(function).__name__})"
        processed = ConnectedStreams(first, broadcast.stream)._add(title, spec, uid)
        return processed._with_time_columns(*first._time_columns)


class DataStreamSink(LatestOperator):
    """The end of a stream, at a sink."""

    def __init__(self, program: Program, node: StreamNode) -> None:
        self._program = program
        self._node = node


def _shown(spec: JoinSpec) -> str:
    keys = zip(spec.left_keys, spec.right_keys, strict=True)
    return ", ".join(left if left == right else f"{left} = {right}" for left, right in keys)


def _columns(columns: KeyColumns) -> tuple[str | Column, ...]:
    return tuple(columns) if isinstance(columns, (list, tuple)) else (columns,)


def _row_time(stream: DataStream) -> RowTimeSpec | None:
    """Returns None if the stream has no event time, or several event-time columns."""
    if len(stream._time_columns) != 1:
        return None
    column, shift_us = time_column_of(stream._time_columns, "", "")
    return RowTimeSpec(column=column, shift_us=shift_us)


def _custom_spec(
    factory: Callable[[], StreamOperator] | Spec,
    inputs: int,
    schema: Any,
    side_outputs: Mapping[str, Any] | None,
) -> Spec:
    if not isinstance(factory, Spec):
        checked_function("operator", factory, 0)
        sides = _side_outputs(side_outputs)
        return CustomSpec(factory=factory, inputs=inputs, schema=schema, side_outputs=sides)
    if schema is not None or side_outputs is not None:
        raise InvalidProgram(
            f"operator(): {type(factory).__name__} determines its schemas; omit schema and"
            " side_outputs"
        )
    return factory


def _side_outputs(side_outputs: Mapping[str, Any] | None) -> dict[str, Any]:
    for tag in side_outputs or {}:
        if not isinstance(tag, str) or not tag:
            raise InvalidProgram(f"side_outputs: {tag!r} is not a tag; a tag is a non-empty string")
    return dict(side_outputs or {})

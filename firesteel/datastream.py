"""Streams and their operators. Names are those of PyFlink's DataStream API; functions are PySpark's
own, unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeAlias, overload

import pyarrow as pa

from firesteel import joins, processing, stateful
from firesteel.broadcast_functions import BroadcastProcessFunction
from firesteel.broadcast_stream import checked_names, process_spec
from firesteel.common.job_graph import Partitioner, ResultType
from firesteel.connectors import CollectSink, ForeachBatchSink, PrintSink, Sink
from firesteel.durations import Duration, positive_us
from firesteel.errors import InvalidProgram
from firesteel.functions import CoProcessFunction, KeyedProcessFunction, ProcessFunction
from firesteel.latest_operator import LatestOperator, positive
from firesteel.missing_methods import no_such_member
from firesteel.operator import StreamOperator
from firesteel.plan import frame_methods
from firesteel.plan.event_time import result_times
from firesteel.plan.session_gap import with_session_gap
from firesteel.plan.specs import (
    ApplySpec,
    AssignWatermarksSpec,
    CoMapInArrowSpec,
    CoProcessSpec,
    CustomSpec,
    DropDuplicatesSpec,
    JoinSpec,
    PartialWindowAggregateSpec,
    RowTimeSpec,
    SinkSpec,
    Spec,
    TopNSpec,
    side_output_tags,
)
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
    """An input of the next operator: the producer, and how its output is partitioned."""

    node: StreamNode
    partitioner: Partitioner | None = None
    key_columns: tuple[str, ...] = ()
    side_output_tag: str = ""
    result_type: ResultType | None = None


class DataStream(RowOperations["DataStream"], LatestOperator):
    """A stream of records, in Arrow batches."""

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
        self._time_columns = time_columns  # event-time columns of the sources it comes from
        self._node = node

    if not TYPE_CHECKING:  # a type checker knows the members by itself

        def __getattr__(self, name: str) -> Any:
            no_such_member(type(self), name)

    def __getitem__(self, column: object) -> NoReturn:
        raise InvalidProgram(
            f"stream[{column!r}]: a stream is no DataFrame, and has no columns to hand out; name"
            ' the column in SQL ("pieces > 1"), in F.col("pieces"), or inside transform(lambda df:'
            " ...)"
        )

    def __iter__(self) -> NoReturn:
        raise InvalidProgram(
            "a stream cannot be iterated over: its rows come while a job runs; use"
            ' execute_and_collect(iterate="arrow"), or map_in_arrow(function) for code per batch'
        )

    # -- operators

    def operator(
        self,
        name: str,
        factory: Callable[[], StreamOperator],
        schema: Any = None,
        *,
        side_outputs: Mapping[str, Any] | None = None,
        uid: str = "",
    ) -> DataStream:
        """Adds an operator of your own; `factory` creates one per subtask.

        `schema` is that of its output, by default the input's. `side_outputs` maps the tags that it
        passes to `output.emit_side` to their schemas (None: the input's).
        """
        checked_function("operator", factory, 0)
        spec = CustomSpec(
            factory=factory, inputs=1, schema=schema, side_outputs=_side_outputs(side_outputs)
        )
        return self._add(name, spec, uid=uid)

    def side_output(self, tag: str) -> DataStream:
        """The side output `tag` of the operator just added.

        Late rows and malformed rows are side outputs, and so are those that operators of your own
        declare. Rows of a side output that nothing reads are dropped. Raises InvalidProgram, here
        or before data flows, if the operator has no such output.
        """
        node = self._node
        if node is None:
            raise InvalidProgram(
                f"side_output({tag!r}) is of the operator just added:"
                " call it right after it, not after key_by() or union()"
            )
        known = side_output_tags(node.spec)
        if tag not in known:
            raise InvalidProgram(
                f"{node} has no side output {tag!r}; it has: {', '.join(sorted(known)) or 'none'}"
            )
        upstream = Upstream(node=node, side_output_tag=tag)
        return DataStream(self._program, (upstream,), time_columns=self._time_columns, node=None)

    def assign_timestamps_and_watermarks(
        self, watermarks: Watermarks, *, name: str | None = None, uid: str = ""
    ) -> DataStream:
        """Gives the stream event time, for example that of a column that a transform adds.

        Watermarks from upstream end here. Only sources can be aligned.
        """
        if not isinstance(watermarks, Watermarks):
            raise InvalidProgram(f"watermarks is {watermarks!r}; use Watermarks.bounded(...)")
        if watermarks.alignment is not None:
            raise InvalidProgram(
                "assign_timestamps_and_watermarks():"
                f" with_alignment({watermarks.alignment.group!r}) stops sources,"
                " and this is behind one;"
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
        """Applies a `firesteel.ProcessFunction` to the rows, one by one; after `key_by`, a
        `firesteel.KeyedProcessFunction`, with states and timers per key.

        `schema` is that of the output: a DDL string, a StructType or an Arrow schema.
        `side_outputs` maps the tags that the function passes to `ctx.output` to their schemas
        (None: the stream's).

        Raises InvalidProgram for another function, or without a schema. An exception in the
        function fails the job with an error that names the key.
        """
        keys = self.key_columns if isinstance(self, KeyedStream) else None
        spec = processing.process_spec(
            function, keys, schema, _side_outputs(side_outputs), _row_time(self)
        )
        return self._add(name or f"Process({type(function).__name__})", spec, uid=uid)

    # -- partitioning

    def key_by(self, *columns: str | Column) -> KeyedStream:
        """Partitions by the values of `columns`: equal keys go to the same subtask.

        Columns are named as in Spark, where upper and lower case are alike. A key that is computed,
        such as `F.upper("shop").alias("place")`, becomes one more column of the stream.
        """
        names, computed = frame_methods.keys(columns)
        return KeyedStream(self if computed is None else self._on_spark(computed, None, ""), names)

    def union(self, *others: DataStream) -> DataStream:
        """The records of all these streams, which have the same schema."""
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
        """Keeps the first record of those that are equal in `columns`, and drops the others.

        With `within`, a record is dropped only if its event time is less than that from the one of
        a record that was kept, earlier or later; keys are forgotten once no such record can come.
        Late records are dropped, too, and counted (numLateRecordsDropped). `on` names the column of
        event time; the default is the one of the source's watermarks.

        Without `within`, each key is remembered until the stream ends: for bounded streams, or few
        keys. The first record is the one that arrives first; within a batch, the one with the
        earliest event time.

        `keep="last"` keeps the latest record instead, by event time or by the column `on`; of equal
        ones, and if the stream has no event time, the one that arrives last. The result has one
        more column, `row_kind`: "insert", or "delete" for a record in whose place another one is
        now. One record per key is kept until the stream ends; of a stream of changes, all that are
        there.
        """
        if len(columns) == 1 and isinstance(columns[0], (list, tuple)):  # as in PySpark
            columns = tuple(columns[0])
        if not columns or not all(isinstance(c, str) and c for c in columns):
            raise InvalidProgram(
                f"drop_duplicates{columns!r}: give the names of the columns in which duplicates"
                ' are equal, such as drop_duplicates("id", within="1 hour")'
            )
        if isinstance(self, KeyedStream):
            keys = ", ".join(map(repr, dict.fromkeys((*self.key_columns, *columns))))
            raise InvalidProgram(
                f"drop_duplicates() takes all columns of the key itself, without key_by(...):"
                f" drop_duplicates({keys})"
            )
        if keep == "last":
            return self._last_records(columns, within, on, name, uid)
        if keep != "first":
            raise InvalidProgram(f'drop_duplicates(keep={keep!r}): there is "first" and "last"')
        within_us = 0 if within is None else positive_us(within, "within of drop_duplicates()")
        time_column, shift_us = "", 0
        if within is None and on is not None:
            raise InvalidProgram(
                f"drop_duplicates(on={on!r}): event time plays no part without within=..."
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
                f'drop_duplicates(within={within!r}, keep="last"): a record that is kept can go'
                " away whenever a later one comes; leave out within"
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
        """Groups all records by time, without keys: `key_by(...).window(...)` of a stream with one
        key.

        The windows are those of one subtask, whatever the parallelism. Aggregates that can be split
        are computed partially by all subtasks before it.
        """
        if isinstance(self, KeyedStream):
            raise InvalidProgram(
                "window_all() has no keys: use window(...) after key_by(...), or leave key_by out"
            )
        return WindowedStream(_WholeStream(self), window, allowed_lateness)

    def count_window_all(self, size: int, slide: int | None = None) -> WindowedStream[DataStream]:
        """Groups all records by their number, without keys: `key_by(...).count_window(...)` of a
        stream with one key.
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
        """Applies a DataFrame to DataFrame function to all rows at once, when the stream has ended:
        on the slot's Spark, with any of its operators (`orderBy`, `dropDuplicates`, window
        functions, ...). For streams that end, best run as a batch (`Environment(mode="batch")`).

        Behind `key_by`, each subtask has the rows of its keys. A function that relates rows of
        different keys, whose result would depend on the parallelism, is refused before data flows;
        `across_keys=True` allows it. Without keys, one subtask has all rows, whatever the
        parallelism.

        The rows wait in files in the slot's temporary folder, and Spark spills there what does not
        fit into its heap. The job cannot take checkpoints.
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
        """Connects two streams, of any schemas, to the two inputs of one operator. One of them may
        be `rules.broadcast("rules")`.
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
        come: as PySpark's join of the two streams so far.

        `on` is a column of both, a list of such columns, or {"seller": "id"} for columns of
        different names. The result has the columns that both call the same, once and first, then
        the others of this stream and of `other`; other columns must have different names. Keys that
        are null match nothing. Where a record of a stream of changes goes (`row_kind`), what it has
        joined goes, and the result has a `row_kind`.

        `how`: "inner", "left", "right" or "full" (or PySpark's other names of these). All but inner
        joins have one more column, `row_kind`: a record without a match is in the result at once,
        as "insert", and comes again as "delete" when its first match does.

        Both streams are kept until they end. With `ttl`, records match only those that have arrived
        less than that before them, by the machine's clock, and older ones are forgotten. In batch
        mode, Spark joins both as wholes: no record comes again, and `ttl` has no effect.

        The result has no event time, with a `ttl` or without: the earlier record of a pair may be
        from long ago, and its time far behind the watermark. A window behind it, or whatever else
        needs event time, is refused before data flows, unless `assign_timestamps_and_watermarks`
        gives the result event time, with as much out-of-orderness as may be between the records of
        a pair, or `interval_join` bounds that. It may take the times of one stream if the other one
        ends and has no watermarks (`Tumbling(..., on=...)`); in batch mode, any.

        Raises InvalidProgram for bad arguments; columns are checked before data flows. A join
        without `ttl` of a stream that never ends gives a warning when the job is submitted.
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
        event times are between the two bounds after its own, both included.

            bids.interval_join(auctions, on={"auction": "id"}, between=("-1 hour", "0 s"))

        has the auctions that began in the hour before the bid. `times` names the columns of event
        time of both streams; the default are those of the sources' watermarks. Columns of the
        result are as in `join`. Records are forgotten when the watermark shows that none to come
        can match them; late ones are dropped and counted (numLateRecordsDropped).

        `how`: "inner", "left", "right" or "full". A record without a match is in the result once
        none can come any more, and stays there: there is no `row_kind`.

        The event time of a left or right join is that of this or of the other stream, and its
        watermarks are as far behind as a record waits for a match at most. An inner join has the
        later time of each pair where all matches of a record are before it, or all after it.
        Otherwise, the result has no event time. What follows may name any of both streams' columns
        (`Tumbling(..., on=...)`): then the watermarks are held back by the longest time between the
        records of a pair.
        """
        self._check_mine("interval_join", other)
        found = joins.event_times("interval_join", times, (self._time_columns, other._time_columns))
        spec = joins.interval_join_spec(on, how, between, found)
        title = name or f"IntervalJoin({spec.how}, {_shown(spec)})"
        return self._joined("interval_join", other, spec, title, uid)._with_time_columns(
            *result_times(spec)
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

        `times` names the columns of event time of both streams; the default are those of the
        sources' watermarks. Columns of the result are as in `join`, with `window_start` and
        `window_end`. Pairs come as soon as both records are there; a window's records are forgotten
        when the watermark passes its end, and those that come later are dropped and counted
        (numLateRecordsDropped).

        `how`: "inner", "left", "right" or "full". A record without a match is in the result when
        its window ends, and stays there: there is no `row_kind`.
        """
        self._check_mine("window_join", other)
        found = joins.event_times("window_join", times, (self._time_columns, other._time_columns))
        spec = joins.window_join_spec(on, window, how, found)
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
        `other` whose columns `on` are equal, the latest one that is not after it. It is Flink's
        temporal join (FOR SYSTEM_TIME AS OF) and pandas' merge_asof.

            sales.as_of_join(prices, on="item", how="left")

        has each sale with the price of its time. `how`: "inner", or "left" for records without a
        version, too. With `tolerance`, a version is valid for so long at most. Of versions of one
        key with equal times, the last to arrive is valid. `times` and the columns of the result are
        as in `interval_join`. If versions have a column `row_kind`, one with "delete" there ends
        the validity of the one before it, and the column is not in the result.

        A record waits until the watermarks of both streams have reached its time: a stream of
        versions that is quiet needs `Watermarks.with_idleness`. Late records are dropped and
        counted (numLateRecordsDropped). Late versions are counted (numLateVersions), and valid for
        the records that still wait or are to come. Of each key, the latest version is kept until
        the stream ends, or for the `tolerance`.
        """
        self._check_mine("as_of_join", other)
        found = joins.event_times("as_of_join", times, (self._time_columns, other._time_columns))
        spec = joins.as_of_join_spec(on, how, tolerance, found)
        title = name or f"AsOfJoin({spec.how}, {_shown(spec)})"
        joined = self._joined("as_of_join", other, spec, title, uid)
        # A column that is named here may be behind the watermarks.
        return joined if times is not None else joined._with_time_columns(*self._time_columns)

    def _joined(
        self, what: str, other: DataStream, spec: JoinSpec, title: str, uid: str
    ) -> DataStream:
        self._check_mine(what, other)
        for stream in (self, other):
            if isinstance(stream, KeyedStream):
                raise InvalidProgram(
                    f"{what}() takes the columns that are equal itself, without key_by(...):"
                    f' {what}(other, on="id")'
                )
        left, right = self.key_by(*spec.left_keys), other.key_by(*spec.right_keys)
        joined = ConnectedStreams(left, right)._add(title, spec, uid)
        return joined._with_time_columns()

    def forward(self) -> DataStream:
        """Sends from subtask i to subtask i; the parallelisms must be equal."""
        return self._partitioned(Partitioner.FORWARD)

    def rebalance(self) -> DataStream:
        """Sends round robin to all subtasks."""
        return self._partitioned(Partitioner.REBALANCE)

    def rescale(self) -> DataStream:
        """Sends round robin to a fixed few subtasks, so that less data moves."""
        return self._partitioned(Partitioner.RESCALE)

    @overload
    def broadcast(self) -> DataStream: ...

    @overload
    def broadcast(self, *states: str) -> BroadcastStream: ...

    def broadcast(self, *states: str) -> DataStream | BroadcastStream:
        """Sends every record to every subtask.

        With the names of states, such as `rules.broadcast("rules")`, the records are to change
        these, which all subtasks have alike: `stream.connect(...)` takes the result. Raises
        InvalidProgram for bad names.
        """
        every = self._partitioned(Partitioner.BROADCAST)
        return BroadcastStream(every, checked_names(states)) if states else every

    def exchange(self, kind: Literal["pipelined", "blocking"]) -> Self:
        """How the next operator, in a task of its own, gets these rows in a batch: as they come, or
        once they are complete. The default is `execution.batch-shuffle-mode`.

        What pipelined exchanges connect runs at the same time, and starts again together.
        """
        kinds = [each.name.lower() for each in ResultType]
        if kind not in kinds:
            raise InvalidProgram(f"exchange({kind!r}): allowed are {', '.join(map(repr, kinds))}")
        chosen = self._exchanged_as(ResultType[kind.upper()])
        chosen._node = None
        return chosen

    # -- sinks

    def sink_to(self, sink: Sink, *, name: str | None = None, uid: str = "") -> DataStreamSink:
        """Writes the stream to a sink, one of firesteel.connectors or your own."""
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
            committed._operator().parallelism = 1
        return DataStreamSink(self._program, written._operator())

    def foreach_batch(
        self, function: Callable[[DataFrame, int], None], *, name: str | None = None, uid: str = ""
    ) -> DataStreamSink:
        """PySpark's foreachBatch: calls `function(df, batch_id)` with a DataFrame of the slot's
        Spark, valid until the call returns.

        Each subtask calls it with its own rows, as soon as there are any and its previous call has
        returned. Subtasks call it concurrently: a target that allows one writer needs
        `set_parallelism(1)`, or one place per `batch_id`. `batch_id` increases and is never used
        twice, in one subtask or in two.

        With checkpoints, a batch is what comes between two of them; it is part of the second, and
        the function is called when that is complete. A job that fails at the wrong moment calls the
        function again with the same rows and the same `batch_id`, as in Structured Streaming: a
        function that ignores ids that it has seen, or replaces what they wrote, has each row once.
        The rows between two checkpoints are held in memory.
        """
        checked_function("foreach_batch", function, 2)
        title = name or titled("Sink: ForeachBatch", function)
        return self.sink_to(ForeachBatchSink(function), name=title, uid=uid)

    def print(self, prefix: str = "") -> DataStreamSink:
        """Prints the rows, one line each.

        They appear in the terminal, or the notebook's cell, of a program with its embedded
        cluster. On a session cluster they are in the logs of the slots: `firesteel run --output`
        follows them, `firesteel logs --output JOB` prints them. With several subtasks, a row has
        its subtask in front as "3> ", after `prefix` as "prefix:3> ".
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

        With `iterate` it returns at once: an iterator over record batches ("arrow") or DataFrames
        ("pandas") that yields them while the job runs, even if it never ends. Use it in a `with`
        block, which cancels the job when it is left early. As PySpark's toArrow and toPandas do,
        Arrow has TIMESTAMPs in UTC, and pandas without zone, local to spark.sql.session.timeZone.

        With `limit`, the first rows are returned, at most this many, and the job is cancelled once
        it has produced them. Other sinks of the job are cancelled with it.
        """
        if limit is not None:
            positive("limit", limit)
        if iterate not in (None, "arrow", "pandas"):
            raise InvalidProgram(f'iterate is {iterate!r}; allowed: "arrow", "pandas"')
        sink = self.sink_to(CollectSink(), name="Sink: Collect")
        return self._program.collect(job_name, sink._operator(), iterate, limit)

    # -- inside

    def _add(
        self, name: str, spec: Spec, *, uid: str = "", runs_on_spark: bool = False
    ) -> DataStream:
        node = self._program.graph.add_node(name, spec, inputs=1, runs_on_spark=runs_on_spark)
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
        self, title: str, partial: PartialWindowAggregateSpec, final: Spec, *, uid: str
    ) -> DataStream:
        """Adds the partial aggregate before the shuffle, and the keyed half after it."""
        before = _partial_half(self._unkeyed, title, partial, uid)
        before = before._exchanged_as(self._upstreams[0].result_type)
        return before._partitioned(Partitioner.HASH, self.key_columns)._add(title, final, uid=uid)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[DataStream]:
        """Groups each key's records by their number, in the order in which they arrive: windows of
        `size` records, one after the other, or one that starts with every `slide` records.

        As PyFlink's `count_window`: a window emits its results when it is complete. Those that are
        not when the input ends have no results. The results of `WindowedStream.aggregate` have the
        column `window_id`, the number of the key's window from 0, and so have the rows that the
        function of `WindowedStream.apply` gets.
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
        processing time. `Global` is one window per key, for a trigger.

        A record that arrives after its window has fired, but before the watermark is
        `allowed_lateness` past the window's end, makes the window fire again for its key: read the
        results as updates by key and window. Where rows may become invalid without being replaced,
        as those of sessions that late records join, results have a column `row_kind` that is
        "insert" or "delete". Later records are dropped and counted
        (numLateRecordsDropped), or sent to a side output by `side_output_late(tag)`.
        """
        return WindowedStream(self, window, allowed_lateness)

    def aggregate(
        self,
        *expressions: str | Column,
        changes: bool = False,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """A running aggregation: the key columns and one column per expression (SQL text, or a
        Column such as F.sum("x").alias("s")), over all records of the key so far.

        The result is a stream of updates by key: after each bundle of records, each watermark and
        at the end of the input, one row for every key that has changed; the latest row of a key is
        the valid one. The expressions are those of `WindowedStream.aggregate` that can be split;
        partial aggregates are computed before the shuffle. Raises InvalidProgram for expressions
        that need all rows of the key, such as percentile(...).

        `changes=True` makes it a stream of changes, which can be aggregated and joined: with the
        additional column `row_kind`, a key's earlier row comes again with "delete", and its new one
        with "insert", if they differ. So it is always if the records are changes themselves: then
        a record that goes is taken back, and a key without records has no row.
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
        """For each record, those of its key from `start` to `end` places behind it in the order of
        the columns `by`, as PySpark's `Window.partitionBy(...).orderBy(...).rowsBetween(...)`:
        `rows_between(-9, 0, by="time").aggregate("avg(price) AS mean")` adds the average of the
        last ten prices.

        `start` is at most 0 and `end` at least 0. Raises InvalidProgram for others, and for a bad
        `by`.
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
        """The first `n` records of each key so far in the order of the columns `by`, the largest
        first: with the additional columns `rank` (1 for the first) and `row_kind`.

        It is a stream of changes. After each bundle of records, each watermark and at the end of
        the input, rows come with the row_kind "delete" that are no longer among the first, or have
        another rank, with all of their values; then, with "insert", those that are there now. Write
        them with a PostgresSink in upsert mode whose key are the key columns and `rank`. In a
        batch, the first rows come once, at the end.

        `ascending` and the order are those of `WindowedStream.top_n`. `n` records per key are kept
        until the stream ends. The records may be changes themselves, such as those of
        `aggregate(..., changes=True)`: when one goes, the next takes its place, so all that are
        there are kept. Raises InvalidProgram for a bad `n` or `by`.
        """
        columns, directions = checked_order(n, by, ascending)
        spec = TopNSpec(key_columns=self.key_columns, n=n, by=columns, ascending=directions)
        return self._add(name or f"TopN({n} by {', '.join(columns)})", spec, uid=uid)

    @stateful.pyspark_arguments
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
        """Runs a PySpark `StatefulProcessor`, unchanged, over Rows: with state and timers per key.

        `handleInputRows(key, rows, timerValues)` is called once per key and batch, with the key as
        a tuple and an iterator of `pyspark.sql.Row`, and yields Rows of `output_schema` (a DDL
        string, a StructType or an Arrow schema). It runs in Python on the stream's Arrow batches,
        without the JVM.

        `time_mode` decides what timers mean: "none" (there are none), "processing_time" (the wall
        clock; states may have a TTL) or "event_time" (they fire when the watermark reaches them,
        the remaining ones when bounded input ends, as all do in batch mode; late rows are processed
        like others). Timers, TTLs and TimerValues are in milliseconds.

        `output_mode`: "append" (a row is added to the earlier ones of its key) or "update" (it
        replaces them).

        `initial_state`, keyed by as many columns of the same types, must be bounded: each of its
        rows is passed to `handleInitialState(key, row, timerValues)` before the first row of this
        stream is processed.

        PySpark's names of the arguments (`statefulProcessor`, `outputStructType`, `outputMode`,
        `timeMode`, `initialState`) and its values ("Append", "EventTime") are taken, too.

        Raises InvalidProgram for bad arguments. An exception in the processor fails the job with an
        error that names the key.
        """
        return self._with_state(
            processor, output_schema, output_mode, time_mode, initial_state, name, uid, pandas=False
        )

    @stateful.pyspark_arguments
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
        """`transform_with_state` with a processor that takes and yields pandas DataFrames.

        Per key and batch, `rows` is an iterator over one DataFrame; `handleInitialState` gets a
        DataFrame, too. Columns of the output are matched by name if their labels are strings, else
        by position. For many keys with few rows each, Rows are many times faster.
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
    ) -> DataStream:
        if initial_state is not None:
            if not isinstance(initial_state, KeyedStream):
                raise InvalidProgram(
                    f"initial_state is a stream with key_by(), not {type(initial_state).__name__}"
                )
            self._check_mine("transform_with_state", initial_state)
        graph = self._program.graph
        spec = stateful.transform_with_state_spec(
            graph,
            processor=processor,
            key_columns=self.key_columns,
            output_schema=output_schema,
            output_mode=output_mode,
            time_mode=time_mode,
            pandas=pandas,
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
    """All records of a stream at one subtask, as a KeyedStream without key columns."""

    key_columns: tuple[str, ...] = ()

    def __init__(self, stream: DataStream) -> None:
        gathered = stream._partitioned(Partitioner.REBALANCE)
        super().__init__(
            gathered._program, gathered._upstreams, time_columns=gathered._time_columns, node=None
        )
        self._divided = stream._exchanged_as(None)

    def _add(
        self, name: str, spec: Spec, *, uid: str = "", runs_on_spark: bool = False
    ) -> DataStream:
        added = super()._add(name, spec, uid=uid, runs_on_spark=runs_on_spark)
        node = added._operator()
        node.parallelism, node.whole = 1, True
        return added

    def _add_in_two_halves(
        self, title: str, partial: PartialWindowAggregateSpec, final: Spec, *, uid: str
    ) -> DataStream:
        before = _partial_half(self._divided, title, partial, uid)
        before = before._exchanged_as(self._upstreams[0].result_type)
        return _WholeStream(before)._add(title, final, uid=uid)

    def _with_session_gap(self, gap: str) -> _WholeStream:
        before = self._divided._on_spark(with_session_gap(gap), None, "")
        return _WholeStream(before._exchanged_as(self._upstreams[0].result_type))


def _partial_half(
    stream: DataStream, title: str, spec: PartialWindowAggregateSpec, uid: str
) -> DataStream:
    """Adds the partial aggregate before the shuffle."""
    partial_uid = f"{uid}-partial" if uid else ""
    half = stream._add(f"{title} partial", spec, uid=partial_uid, runs_on_spark=True)
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
        """KeyColumns both streams: equal keys of the two go to the same subtask."""
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

        `schema` is that of the output: a DDL string, a StructType or an Arrow schema.
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
                "co_process() needs the schema of what the function yields,"
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
        """Applies a function of two DataFrames to all rows of both streams at once, when they have
        ended, such as `lambda orders, lines: orders.join(lines, "order_id")`.

        Both streams are keyed, by as many columns, or neither is. Otherwise as `DataStream.apply`.
        """
        checked_function("apply", function, 2)
        first, second = self._first, self._second
        keyed = [stream for stream in (first, second) if isinstance(stream, KeyedStream)]
        if len({len(stream.key_columns) for stream in keyed}) + (len(keyed) == 1) > 1:
            raise InvalidProgram(
                "apply() of two streams takes rows with equal keys from both: call"
                " connect(...).key_by(first, second), with as many columns for each"
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
        factory: Callable[[], StreamOperator],
        schema: Any = None,
        *,
        side_outputs: Mapping[str, Any] | None = None,
        uid: str = "",
    ) -> DataStream:
        """Adds a two-input operator of your own (`inputs = 2`).

        As `DataStream.operator`; the default of schemas is that of the first input.
        """
        checked_function("operator", factory, 0)
        spec = CustomSpec(
            factory=factory, inputs=2, schema=schema, side_outputs=_side_outputs(side_outputs)
        )
        return self._add(name, spec, uid)

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
    """A stream of which every subtask gets every record, to change its broadcast states. For
    `stream.connect(...)`; `DataStream.broadcast` creates it.
    """

    stream: DataStream
    states: tuple[str, ...]


class BroadcastConnectedStream:
    """A stream, and one that is broadcast to its subtasks."""

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

        `schema` and `side_outputs` are those of `co_process`. In a stream, rows see what the
        broadcast stream has told until they come, and event time is that of both streams. In a
        batch, the broadcast stream is read to its end first, so it needs a source of its own.

        Raises InvalidProgram for bad arguments. An exception in the function fails the job.
        """
        first, broadcast = self._first, self._broadcast
        keys = first.key_columns if isinstance(first, KeyedStream) else None
        sides = _side_outputs(side_outputs)
        times = _row_time(first), _row_time(broadcast.stream)
        spec = process_spec(function, keys, broadcast.states, schema, sides, times)
        title = name or f"BroadcastProcess({type(function).__name__})"
        processed = ConnectedStreams(first, broadcast.stream)._add(title, spec, uid)
        return processed._with_time_columns(*first._time_columns)


class DataStreamSink(LatestOperator):
    """The end of a stream."""

    def __init__(self, program: Program, node: StreamNode) -> None:
        self._program = program
        self._node = node


def _shown(spec: JoinSpec) -> str:
    keys = zip(spec.left_keys, spec.right_keys, strict=True)
    return ", ".join(left if left == right else f"{left} = {right}" for left, right in keys)


def _columns(columns: KeyColumns) -> tuple[str | Column, ...]:
    return tuple(columns) if isinstance(columns, (list, tuple)) else (columns,)


def _row_time(stream: DataStream) -> RowTimeSpec | None:
    """None if the stream has no event time, or several columns of it."""
    if len(stream._time_columns) != 1:
        return None
    column, shift_us = time_column_of(stream._time_columns, "", "")
    return RowTimeSpec(column=column, shift_us=shift_us)


def _side_outputs(side_outputs: Mapping[str, Any] | None) -> dict[str, Any]:
    for tag in side_outputs or {}:
        if not isinstance(tag, str) or not tag:
            raise InvalidProgram(f"side_outputs: {tag!r} is no tag; a tag is a non-empty string")
    return dict(side_outputs or {})

"""Hints for methods of other libraries' streams and environments that Firesteel does not have."""

from __future__ import annotations

import difflib
import re
from typing import NoReturn

_AGGREGATE = 'aggregate("sum(x) AS total", ...) after key_by(...), with a window(...) between them'
_REDUCE = (
    _AGGREGATE
    + ', or key_by("column").process(KeyedProcessFunction, schema), which adds each row to'
    " the state of a ReducingStateDescriptor(name, function) and yields its value"
)
_ROWS = "transform(lambda df: df.{name}(...))"
_SINK = "sink_to(...), for example with a FileSink"
_COLLECT = "execute_and_collect(), which returns an Arrow table"
_SORTED = (
    "window_all(...).top_n(...), or window_all(...).apply(lambda df: df.{name}(...)):"
    " an unbounded stream is not sorted as a whole"
)
_TOP = (
    "window_all(...).top_n(n, by=...), or per key key_by(...).top_n(n, by=...), optionally with"
    " window(...) between the two"
)

_OVER_ALL = "window_all(...).apply(lambda df: df.{name}(...)), or apply(...) of a bounded stream"
_PANDAS = "map_in_pandas(function, schema), whose function gets a DataFrame per batch"
_PER_BATCH = (
    "map_in_arrow(function, schema) or map_in_pandas(function, schema), whose functions get batches"
)
_RUN = "execute() of the environment, once the stream has a sink"
_WATERMARKS = 'assign_timestamps_and_watermarks(Watermarks.bounded("time"))'
_PARALLELISM = "set_parallelism(1) of the next operator"
_FEEDBACK = (
    "a KeyedProcessFunction, which keeps what the next round needs in its state, or a topic that"
    " the program both writes and reads: a stream cannot lead back to an earlier operator"
)
_GROUPED_PANDAS = (
    'key_by("column").window(...).apply(lambda df: df.groupBy("column").{name}(...)), or'
    " transform_with_state_in_pandas(...) after key_by(...)"
)

# Methods of Spark's DataFrames, of Flink's streams and of pandas, with their replacements.
_INSTEAD = {
    **dict.fromkeys(("agg", "avg", "count", "max", "mean", "min", "sum"), _AGGREGATE),
    "reduce": _REDUCE,
    **dict.fromkeys(("max_by", "min_by"), _TOP),
    **dict.fromkeys(("groupBy", "group_by", "groupby", "keyBy"), 'key_by("column")'),
    **dict.fromkeys(("cube", "pivot", "rollup"), _OVER_ALL),
    **dict.fromkeys(("dropna", "fillna", "hint", "replace", "unpivot"), _ROWS),
    **dict.fromkeys(
        ("async_wait", "ordered_wait", "unordered_wait"),
        "map_async(function, schema, ordered=...)",
    ),
    **dict.fromkeys(("apply_in_pandas", "applyInPandas", "applyInArrow"), _GROUPED_PANDAS),
    **dict.fromkeys(
        ("applyInPandasWithState", "apply_in_pandas_with_state"),
        'key_by("column").transform_with_state_in_pandas(...), or'
        ' key_by("column").process(KeyedProcessFunction, ...)',
    ),
    **dict.fromkeys(
        ("flatMapGroupsWithState", "mapGroupsWithState"),
        'key_by("column").transform_with_state(...)',
    ),
    **dict.fromkeys(("mapPartitions", "map_partitions", "map_partition"), _PER_BATCH),
    "pandas_api": _PANDAS,
    "iterate": _FEEDBACK,
    **dict.fromkeys(("closeWith", "close_with"), _FEEDBACK),
    "coGroup": "connect(other).key_by(...).co_process(...)",
    **dict.fromkeys(("unionAll", "unionByName"), "union(other)"),
    **dict.fromkeys(("withWatermark", "with_watermark"), _WATERMARKS),
    **dict.fromkeys(
        ("addSink", "add_sink", "save", "sink", "write", "writeStream", "writeTo", "write_stream"),
        _SINK,
    ),
    "foreach": "foreach_batch(function)",
    **dict.fromkeys(
        ("awaitTermination", "execute", "executeAsync", "execute_async", "start"), _RUN
    ),
    **dict.fromkeys(("collect", "toArrow", "toPandas", "to_pandas"), _COLLECT),
    **dict.fromkeys(("head", "show", "take"), f"print(), or {_COLLECT}"),
    **dict.fromkeys(("explain", "printSchema", "print_schema"), "`firesteel info job.py`"),
    **dict.fromkeys(("repartition", "shuffle"), "rebalance(), or key_by(...)"),
    **dict.fromkeys(
        ("partitionCustom", "partition_custom"), 'key_by(F.expr("...").alias("partition"))'
    ),
    **dict.fromkeys(
        ("coalesce", "forceNonParallel", "force_non_parallel", "global_"), _PARALLELISM
    ),
    **dict.fromkeys(("project",), "select(...)"),
    **dict.fromkeys(("getSideOutput", "get_side_output"), "side_output(tag)"),
    **dict.fromkeys(("timeWindow", "time_window"), 'key_by("column").window(Tumbling("1 min"))'),
    **dict.fromkeys(
        ("createOrReplaceTempView", "createTempView"),
        "select_expr(...), filter(...) and aggregate(...), which take SQL; streams are not tables",
    ),
    **dict.fromkeys(("limit", "orderBy", "sort", "sort_values"), _SORTED),
    **dict.fromkeys(("nlargest", "nsmallest", "top", "topN"), _TOP),
    **dict.fromkeys(
        ("distinct", "dropDuplicatesWithinWatermark", "deduplicate"),
        'drop_duplicates("column", within="1 hour")',
    ),
    **dict.fromkeys(("cache", "persist"), "sink_to(...), and read the files in later programs"),
    **dict.fromkeys(("describe", "set_description", "setDescription"), "name(...)"),
    **dict.fromkeys(
        ("columns", "dtypes", "get_type", "schema"),
        "`firesteel info job.py`, or a transform, whose DataFrame has a schema",
    ),
    **dict.fromkeys(
        ("enableCheckpointing", "enable_checkpointing"),
        'Environment(configuration={{"execution.checkpointing.interval": "10 s", ...}})',
    ),
}

# Methods of two connected streams.
_OF_CONNECTED = {
    "process": (
        "co_process(function, schema) with a CoProcessFunction, after key_by(first, second)"
    ),
    **dict.fromkeys(
        ("flatMap", "flat_map", "map"), "map_in_arrow(first_function, second_function, schema)"
    ),
    "join": "join(other, on=...) of the first stream",
}

_WINDOW_FUNCTION = (
    "apply(lambda df: ...), whose DataFrame has the rows of the windows with window_start and"
    " window_end, or aggregate(...)"
)
_OF_WINDOWED = {
    **dict.fromkeys(("process", "map_groups", "flat_map"), _WINDOW_FUNCTION),
    "evictor": "apply(lambda df: ...), which can leave rows out",
}

_CONFIGURATION = "Environment(configuration={{{}}})"


def _set(*keys_and_values: str) -> str:
    pairs = zip(keys_and_values[::2], keys_and_values[1::2], strict=True)
    return _CONFIGURATION.format(", ".join(f'"{key}": "{value}"' for key, value in pairs))


_READ = "from_source(FileSource(path, format=..., schema=...)), or another of firesteel.connectors"
_SQL = (
    "from_source(...), and select_expr(...), filter(...) and aggregate(...) of the stream, which"
    " take SQL expressions; there are no tables and no SQL queries"
)
_ENVIRONMENT = "Environment(): each one is the start of a new program"
_CHECKPOINTS = _set(
    "execution.checkpointing.interval", "10 s", "execution.checkpointing.dir", "/shared/checkpoints"
)
_CLUSTERS = (
    "the command line, such as `firesteel run -m HOST:PORT job.py`: see `firesteel run --help`"
)

# Methods of PyFlink's environments and of Spark's session, with their replacements.
_OF_ENVIRONMENTS = {
    **dict.fromkeys(
        ("builder", "create", "getOrCreate", "get_execution_environment", "newSession"),
        _ENVIRONMENT,
    ),
    **dict.fromkeys(("create_local_environment", "create_remote_environment", "master"), _CLUSTERS),
    "set_parallelism": "Environment(parallelism=2), or set_parallelism(2) of an operator",
    "set_max_parallelism": _set("pipeline.max-parallelism", "128"),
    **dict.fromkeys(("enable_checkpointing", "get_checkpoint_config"), _CHECKPOINTS),
    "set_state_backend": _set("state.backend.type", "rocksdb"),
    "set_restart_strategy": _set(
        "restart-strategy.type", "fixed-delay", "restart-strategy.fixed-delay.attempts", "3"
    ),
    "set_runtime_mode": 'Environment(mode="batch")',
    "disable_operator_chaining": _set("pipeline.operator-chaining.enabled", "false"),
    **dict.fromkeys(
        ("conf", "config", "configure", "get_config", "get_configuration"),
        _set("parallelism.default", "2") + ": docs/reference/configuration.md lists the keys",
    ),
    **dict.fromkeys(
        ("set_stream_time_characteristic", "get_stream_time_characteristic"),
        'from_source(..., watermarks=Watermarks.bounded("time")) for event time',
    ),
    **dict.fromkeys(
        ("assign_timestamps_and_watermarks", "withWatermark"),
        'from_source(..., watermarks=Watermarks.bounded("time")), or'
        " assign_timestamps_and_watermarks(...) of a stream",
    ),
    **dict.fromkeys(
        (
            "create_input",
            "load",
            "read",
            "readStream",
            "read_csv",
            "read_file",
            "read_json",
            "read_parquet",
            "read_stream",
            "read_text_file",
            "textFile",
        ),
        _READ,
    ),
    **dict.fromkeys(
        ("addSource", "add_source"),
        "from_source(source), with a source of firesteel.connectors, such as FileSource",
    ),
    **dict.fromkeys(("addSink", "add_sink", "writeStream", "write"), "sink_to(...) of a stream"),
    **dict.fromkeys(("from_elements", "parallelize"), "from_collection([...], schema)"),
    "createDataFrame": "from_collection([...], schema), or from_pandas(frame)",
    **dict.fromkeys(
        ("from_parallel_collection", "generate_sequence", "range"), "from_sequence(start, end)"
    ),
    **dict.fromkeys(
        (
            "create_temporary_table",
            "create_temporary_view",
            "execute_sql",
            "from_changelog_stream",
            "from_data_stream",
            "from_path",
            "sql",
            "sql_query",
            "table",
            "to_data_stream",
        ),
        _SQL,
    ),
    **dict.fromkeys(("awaitAnyTermination", "awaitTermination", "start", "streams"), "execute()"),
    **dict.fromkeys(
        ("add_classpaths", "add_jars"),
        _set("spark.jars", "/path/to/library.jar")
        + " for Spark's plans; connectors are Python packages",
    ),
    "register_cached_file": "add_python_archive(path), or StaticTable for a table",
    **dict.fromkeys(
        ("get_execution_plan", "get_stream_graph", "explain"), "`firesteel info job.py`"
    ),
    **dict.fromkeys(
        ("set_default_savepoint_directory", "get_default_savepoint_directory"),
        _set("execution.checkpointing.savepoint-dir", "/shared/savepoints"),
    ),
    **dict.fromkeys(
        ("register_slot_sharing_group", "set_slot_sharing_group"),
        "resource_group(name, resources), and slot_sharing_group(name) of a stream",
    ),
    "set_python_executable": _set("python.executable", "/path/to/venv/bin/python"),
    "get_parallelism": "the argument of Environment(parallelism=2)",
    "get_max_parallelism": _set("pipeline.max-parallelism", "128"),
    "udf": "transform(lambda df: ...) of a stream, where PySpark's functions and UDFs work",
    "sparkContext": "a transform, whose DataFrame has its SparkSession: df.sparkSession",
    **dict.fromkeys(("close", "stop"), "nothing: a job's resources are released at its end"),
}
_CAPITAL = re.compile("[A-Z]")
_OF_STREAMS = ("execute_and_collect", "filter", "foreach_batch", "key_by", "print", "sink_to")
_AFTER_KEY_BY = (
    "aggregate",
    "top_n",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "window",
)


def no_such_member(kind: type, name: str, streams: type | None = None) -> NoReturn:
    """Raises AttributeError for a member that a `kind` of stream, or the environment, does not
    have; the message names the replacement. `streams` is the class of streams, for the environment.
    """
    message = f"{kind.__name__} has no {name}"
    if name == "_jdf":
        message = (
            f"a {kind.__name__} is used where PySpark takes a DataFrame; to combine streams, use"
            " union(...) or connect(...), not a DataFrame's methods"
        )
    elif not name.startswith("_"):
        message += _hint(kind, name) if streams is None else _environment_hint(kind, name, streams)
    raise AttributeError(message, name=name)


def _hint(kind: type, name: str) -> str:
    if kind.__name__ == "WindowedStream" and name in _OF_STREAMS:
        return f"; call aggregate(...) or apply(...) first, which return a stream that has {name}"
    if kind.__name__ == "WindowedStream" and name in _OF_WINDOWED:
        return f"; use {_OF_WINDOWED[name]}"
    if kind.__name__ == "ConnectedStreams" and name in _OF_CONNECTED:
        return f"; use {_OF_CONNECTED[name]}"
    methods = _public(kind)
    ours = _in_snake_case(name)
    if ours in methods:
        return f"; it is {ours} here: all methods are in snake_case"
    if name in _INSTEAD:
        return f"; use {_INSTEAD[name].format(name=name)}"
    if ours in _AFTER_KEY_BY:
        return f"; call key_by(...) first: key_by(...).{ours}(...)"
    if name in _OF_ENVIRONMENTS:
        return f"; use {_OF_ENVIRONMENTS[name]}"
    return _close(name, methods)


def _environment_hint(kind: type, name: str, streams: type) -> str:
    methods, ours = _public(kind), _in_snake_case(name)
    if ours in methods:
        return f"; it is {ours} here: all methods are in snake_case"
    for each in (name, ours):
        if each in _OF_ENVIRONMENTS:
            return f"; use {_OF_ENVIRONMENTS[each]}"
    if ours in _public(streams) or name in _INSTEAD:
        return "; it is a method of streams: call from_source(...) first, which returns one"
    return _close(name, methods)


def _public(kind: type) -> list[str]:
    return [member for member in dir(kind) if not member.startswith("_")]


def _in_snake_case(name: str) -> str:
    return _CAPITAL.sub(lambda match: f"_{match[0].lower()}", name)


def _close(name: str, methods: list[str]) -> str:
    spelled = {member.replace("_", ""): member for member in methods}
    close = difflib.get_close_matches(name.lower().replace("_", ""), spelled, n=1)
    return f"; did you mean {spelled[close[0]]}?" if close else ""

"""Finds every operator's schema, and every unknown column, before data flows: the plan, run on
empty DataFrames.

Nothing is executed, except that the schema of CSV and JSON files without one is inferred from the
files, once. What is wrong with a program is raised as FiresteelError, or as what Spark or the
user's own function raised.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

import cloudpickle
import pyarrow as pa

from firesteel._proto import tasks_pb2
from firesteel.common.job_graph import JobEdge, JobGraph, JobVertex, Operator
from firesteel.connectors import MALFORMED_TAG, FileSource, PythonSource, SequenceSource
from firesteel.connectors.file_source import CORRUPT_RECORD
from firesteel.connectors.python_source import PartitionPlan
from firesteel.errors import FiresteelError, summary_of
from firesteel.plan.specs import (
    AggregateExpression,
    AssignWatermarksSpec,
    CoMapInArrowSpec,
    CoProcessSpec,
    CustomSpec,
    FilterSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    PartialWindowAggregateSpec,
    RunningAggregateSpec,
    SinkSpec,
    SourceSpec,
    Spec,
    TransformSpec,
    TransformWithStateSpec,
    WatermarkSpec,
    WindowAggregateSpec,
    WindowApplySpec,
    side_output_tags,
)
from taskexecutor.executor.connectors.checks import check_sink
from taskexecutor.executor.connectors.python_data_source import PARTITION_SCHEMA, check_source
from taskexecutor.executor.spark import plans
from taskexecutor.executor.spark.files import (
    MALFORMED_SCHEMA,
    declared_schema,
    file_reader,
    read_files,
)
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.schemas import (
    declared,
    missing_column,
    shown,
    to_arrow,
    to_ipc,
    to_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

INFERRED_FORMATS = ("csv", "json")


def analyze(graph: JobGraph, engine: SparkEngine) -> list[tasks_pb2.OperatorSchema]:
    """One message per operator of the graph. Raises on the first thing that is wrong, naming it."""
    analysis = _Analysis(graph, engine)
    with engine.raising_spark_lost():
        for vertex in graph.vertices:
            for index in range(len(vertex.operators)):
                analysis.visit(vertex, index)
    return [
        tasks_pb2.OperatorSchema(
            operator_id=operator.operator_id,
            schema=to_ipc(found.schema),
            plan=found.plan,
            side_schemas={tag: to_ipc(schema) for tag, schema in found.sides.items()},
        )
        for vertex in graph.vertices
        for operator, found in zip(vertex.operators, analysis.found[vertex.vertex_id], strict=True)
    ]


@dataclass(slots=True)
class _Found:
    """What is known of an operator's output."""

    schema: pa.Schema | None
    frame: DataFrame | None = None  # the plan up to here, if Spark runs it
    leaf: str = ""  # what the plan reads, for people
    plan: str = ""
    # Of a partial aggregate: the schema that the keyed half will have.
    final: pa.Schema | None = None
    sides: dict[str, pa.Schema] = field(
        default_factory=dict
    )  # of side outputs, by tag, where known


class _Analysis:
    def __init__(self, graph: JobGraph, engine: SparkEngine) -> None:
        self._graph = graph
        self._session = engine.session
        self.found: dict[str, list[_Found]] = {vertex.vertex_id: [] for vertex in graph.vertices}

    def visit(self, vertex: JobVertex, index: int) -> None:
        operator = vertex.operators[index]
        spec: Spec = cloudpickle.loads(operator.spec)
        inputs = [
            self._producers(vertex, index, number)
            for number in range(self._input_count(vertex, index))
        ]
        self._check_unions(operator, inputs)
        found = self._find(operator, spec, [producers[0] for producers in inputs])
        declared_sides = spec.side_outputs if isinstance(spec, CustomSpec | CoProcessSpec) else {}
        for tag in side_output_tags(spec) - found.sides.keys():
            known = inputs[0][0].schema if inputs else None
            found.sides[tag] = _side_schema(operator, tag, declared_sides.get(tag), known)
        self.found[vertex.vertex_id].append(found)
        self._check_sides(vertex, index, found)
        self.__check_key_types(vertex, index, found)
        if found.frame is not None and self._ends_group(vertex, index):
            found.plan = _for_people(plans.analyzed_text(found.frame), found.leaf)

    # -- the graph

    def _input_count(self, vertex: JobVertex, index: int) -> int:
        by_edges = [
            edge.target_input + 1 for edge in self._graph.edges if _enters(edge, vertex, index)
        ]
        return max([len(vertex.operators[index].inputs), *by_edges])

    def _producers(self, vertex: JobVertex, index: int, number: int) -> list[_Found]:
        """Whatever feeds one input: chained operators and edges."""
        chained = (
            vertex.operators[index].inputs[number]
            if number < len(vertex.operators[index].inputs)
            else ()
        )
        producers = [self.found[vertex.vertex_id][producer] for producer in chained]
        for edge in self._graph.edges:
            if _enters(edge, vertex, index) and edge.target_input == number:
                producer = self.found[edge.source_vertex_id][edge.source_operator]
                if edge.side_output_tag:
                    producers.append(_Found(producer.sides[edge.side_output_tag]))
                else:
                    producers.append(
                        _Found(producer.schema, final=producer.final)
                    )  # Spark's plan ends at an edge
        if not producers:
            raise FiresteelError(f"{vertex.operators[index].name}: nothing feeds input {number}")
        return producers

    def _check_unions(self, operator: Operator, inputs: Sequence[Sequence[_Found]]) -> None:
        for producers in inputs:
            first, *others = [p.schema for p in producers]
            for other in others:
                if first is not None and other is not None and not first.equals(other):
                    raise FiresteelError(
                        f"{operator.name}: the streams that are united have different columns: {shown(first)}; {shown(other)}"
                    )

    def __check_key_types(self, vertex: JobVertex, index: int, found: _Found) -> None:
        for edge in self._graph.edges:
            if not _leaves(edge, vertex, index):
                continue
            schema = found.sides[edge.side_output_tag] if edge.side_output_tag else found.schema
            names = schema.names if schema is not None else list(edge.key_columns)
            for key in edge.key_columns:
                if key not in names:
                    raise missing_column(f'key_by("{key}")', key, names)

    def _check_sides(self, vertex: JobVertex, index: int, found: _Found) -> None:
        tags = {
            edge.side_output_tag
            for edge in self._graph.edges
            if _leaves(edge, vertex, index) and edge.side_output_tag
        }
        for tag in sorted(tags - found.sides.keys()):
            raise FiresteelError(
                f"{vertex.operators[index].name} has no side output {tag!r}; it has: {', '.join(sorted(found.sides)) or 'none'}"
            )

    def _ends_group(self, vertex: JobVertex, index: int) -> bool:
        consumers = [
            i
            for i, o in enumerate(vertex.operators)
            if any(index in chained for chained in o.inputs)
        ]
        leaves = any(
            _leaves(edge, vertex, index) and not edge.side_output_tag for edge in self._graph.edges
        )
        return leaves or len(consumers) != 1 or not vertex.operators[consumers[0]].runs_on_spark

    # -- operators

    def _find(self, operator: Operator, spec: Spec, inputs: Sequence[_Found]) -> _Found:
        known = inputs[0].schema if inputs else None
        match spec:
            case SourceSpec():
                return self._source(operator, spec)
            case TransformSpec():
                frame, leaf = self._frame(operator, inputs[0])
                return self._on_spark(plans.transform(frame, spec), leaf)
            case PartialWindowAggregateSpec():
                return self._partial_window(operator, spec, inputs[0])
            case WindowAggregateSpec() | RunningAggregateSpec():
                if inputs[0].final is None:
                    raise FiresteelError(
                        f"{operator.name}: an aggregate must follow its partial half"
                    )
                return _Found(inputs[0].final)
            case WindowApplySpec():
                return self._window_apply(operator, spec, inputs[0])
            case TransformWithStateSpec():
                return self._stateful(operator, spec, inputs)
            case MapInArrowSpec() | MapInPandasSpec():
                return _Found(_declared(operator, spec.schema, known))
            case CoMapInArrowSpec():
                return _Found(_declared(operator, spec.schema, None))
            case AssignWatermarksSpec():
                if spec.column and known is not None:
                    column = WatermarkSpec(column=spec.column, max_out_of_orderness_us=0)
                    _check_time_column(f"watermarks of {operator.name!r}", column, known)
                return _Found(known)
            case FilterSpec():
                return _Found(known)
            case CoProcessSpec():
                _check_key_types(spec, inputs[0].schema, inputs[1].schema, operator.name)
                return _Found(_declared(operator, spec.schema, None))
            case CustomSpec():
                return _Found(_declared(operator, spec.schema, known))
            case SinkSpec():
                return _Found(check_sink(spec.sink, known))
            case _:
                assert_never(spec)

    def _stateful(
        self, operator: Operator, spec: TransformWithStateSpec, inputs: Sequence[_Found]
    ) -> _Found:
        """Runs the processor's `init`, as PySpark does, so that what is wrong with it is found
        before data flows.
        """
        from taskexecutor.executor.operators.stateful.checks import (
            check_initial_state,
            check_processor,
        )

        schema = _declared(operator, spec.output_schema, None)
        if spec.initial_key_columns is not None:
            check_initial_state(spec, inputs[0].schema, inputs[1].schema, operator.name)
        check_processor(spec, operator.name)
        return _Found(schema)

    def _frame(self, operator: Operator, producer: _Found) -> tuple[DataFrame, str]:
        """The DataFrame that the operator gets: the plan so far, or an empty one at the beginning
        of a plan.
        """
        if producer.frame is not None:
            return producer.frame, producer.leaf
        if producer.schema is None:
            raise FiresteelError(
                f"{operator.name}: the schema of its input is not known; declare one on the operator before it"
            )
        return empty_frame(self._session, to_spark(producer.schema)), "Bundle"

    def _on_spark(self, frame: DataFrame, leaf: str) -> _Found:
        return _Found(to_arrow(frame.schema), frame, leaf)

    def _source(self, operator: Operator, spec: SourceSpec) -> _Found:
        match spec.source:
            case FileSource():
                schema = _file_schema(self._session, spec.source)
                if spec.watermarks is not None:
                    _check_time_column(
                        f"watermarks of {operator.name!r}", spec.watermarks, to_arrow(schema)
                    )
                frame = empty_frame(self._session, schema)
                leaf = f"Read {spec.source.format} {', '.join(spec.source.paths)}"
                sides = (
                    {MALFORMED_TAG: MALFORMED_SCHEMA}
                    if spec.source.malformed == "side_output"
                    else {}
                )
                return _Found(to_arrow(schema), frame, leaf, sides=sides)
            case SequenceSource():
                return _Found(pa.schema([(spec.source.column, pa.int64())]))
            case PartitionPlan():
                return _Found(PARTITION_SCHEMA)
            case PythonSource():
                return _Found(check_source(spec.source))
            case _:
                raise FiresteelError(
                    f"{operator.name}: {type(spec.source).__name__} is not a source"
                )

    def _partial_window(
        self, operator: Operator, spec: PartialWindowAggregateSpec, producer: _Found
    ) -> _Found:
        frame, leaf = self._frame(operator, producer)
        self._check_window(operator, spec, frame)
        try:
            partial = plans.partial_window_aggregate(frame, spec, cores=0)
            final = _final_schema(frame, spec)
        except Exception as error:
            _blame_aggregate(frame, spec.aggregates)
            raise FiresteelError(f"{operator.name}: {summary_of(error)}") from error
        _check_merges(spec.aggregates, to_arrow(partial.schema))
        found = self._on_spark(partial, leaf)
        found.final = final
        return found

    def _window_apply(self, operator: Operator, spec: WindowApplySpec, producer: _Found) -> _Found:
        frame, _ = self._frame(operator, producer)
        self._check_window(operator, spec, frame)
        rows = to_arrow(frame.schema)
        times = [
            pa.field(name, pa.timestamp("us", "UTC"))
            for name in (plans.WINDOW_START, plans.WINDOW_END)
        ]
        columns = [
            field for field in rows if field.name not in (plans.WINDOW_START, plans.WINDOW_END)
        ]
        fired = empty_frame(self._session, to_spark(pa.schema([*columns, *times])))
        try:
            result = plans.window_result(fired, spec)
        except Exception as error:
            _blame_aggregate(frame, spec.aggregates)
            if spec.function is not None:
                raise
            raise FiresteelError(f"{operator.name}: {summary_of(error)}") from error
        plan = _for_people(plans.analyzed_text(result), "Window")
        return _Found(
            to_arrow(result.schema), plan=plan, sides={spec.late_tag: rows} if spec.late_tag else {}
        )

    def _check_window(
        self,
        operator: Operator,
        spec: PartialWindowAggregateSpec | WindowApplySpec,
        frame: DataFrame,
    ) -> None:
        schema = to_arrow(frame.schema)
        for key in spec.key_columns:
            if key not in schema.names:
                raise missing_column(f'key_by("{key}")', key, schema.names)
        if spec.time_column:
            _check_time_column(
                "window", WatermarkSpec(column=spec.time_column, max_out_of_orderness_us=0), schema
            )


def _check_key_types(
    spec: CoProcessSpec, first: pa.Schema | None, second: pa.Schema | None, name: str
) -> None:
    """The keys of the two inputs must be of the same types, or they would not meet."""
    if first is None or second is None:
        return
    for ours, theirs in zip(spec.first_key_columns, spec.second_key_columns, strict=True):
        if (
            ours in first.names
            and theirs in second.names
            and first.field(ours).type != second.field(theirs).type
        ):
            raise FiresteelError(
                f"{name}: the key {ours!r} of the first stream is {first.field(ours).type} and the key {theirs!r} of the second "
                f"is {second.field(theirs).type}; cast one of them"
            )


def empty_frame(session: SparkSession, schema: StructType) -> DataFrame:
    """No rows, but not known to the optimiser to have none, so that plans stay what they are."""
    from pyspark.sql import DataFrame

    java: Any = session._jsparkSession
    context: Any = session.sparkContext._jsc
    kind = java.parseDataType(schema.json())
    frame = DataFrame(java.internalCreateDataFrame(context.emptyRDD().rdd(), kind, False), session)
    frame._schema = schema
    return frame


def _file_schema(session: SparkSession, source: FileSource) -> StructType:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql.types import StructType

    paths: list[str] = []
    for path in (path.removeprefix("file://") for path in source.paths):
        files = (
            [path]
            if "://" in path or os.path.exists(path)
            else sorted(glob.glob(path, recursive=True))
        )
        if not files and source.watch_s is None:
            raise FiresteelError(f"FileSource: no such file: {path}")
        paths += files
    if source.schema is None and source.watch_s is not None and not any(map(_has_files, paths)):
        raise FiresteelError(
            f"FileSource {', '.join(source.paths)}: there are no files yet to find the schema in; give the source a schema"
        )
    try:
        schema = declared_schema(source)
        if schema is not None:
            if source.malformed is not None and CORRUPT_RECORD in schema.names:
                raise FiresteelError(
                    f"FileSource: malformed={source.malformed!r} and a column {CORRUPT_RECORD} exclude each other: either rows "
                    "that do not fit go elsewhere, or they stay with that column set"
                )
            reader = file_reader(session, source)  # an unknown format is found when it is loaded
            if paths and source.format not in (*INFERRED_FORMATS, "parquet", "orc", "text"):
                reader.schema(schema).options(**source.options).load(paths)
        else:
            schema = read_files(session, source, paths, None).schema
    except ParseException as error:
        raise FiresteelError(
            f"FileSource schema {source.schema!r} does not parse: {summary_of(error)}"
        ) from error
    except (AnalysisException, Py4JJavaError) as error:  # an unknown format is the latter
        raise FiresteelError(
            f"FileSource {', '.join(source.paths)} as {source.format}: {summary_of(error)}"
        ) from error
    if not schema.fields:
        raise FiresteelError(f"FileSource {', '.join(source.paths)}: the files have no columns")
    return StructType([type(field)(field.name, field.dataType, True) for field in schema.fields])


def _has_files(path: str) -> bool:
    return not os.path.isdir(path) or any(
        not name.startswith((".", "_")) for _, _, names in os.walk(path) for name in names
    )


def _check_time_column(what: str, watermarks: WatermarkSpec, schema: pa.Schema) -> None:
    name = watermarks.column
    if name not in schema.names:
        raise missing_column(f"{what}: column {name!r}", name, schema.names)
    kind = schema.field(name).type
    if pa.types.is_timestamp(kind):
        return
    if pa.types.is_date(kind):
        advice = f"read it as TIMESTAMP, or make it one: df.withColumn('{name}', col('{name}').cast('timestamp'))"
    else:
        advice = f'read it as one, for example with schema="..., {name} TIMESTAMP" (and the option timestampFormat if it needs one)'
    raise FiresteelError(
        f"{what}: column {name!r} is {_spark_name(kind)}, and event time must be a timestamp; {advice}"
    )


def _spark_name(kind: pa.DataType) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    return str(from_arrow_type(kind).simpleString())


def _final_schema(frame: DataFrame, spec: PartialWindowAggregateSpec) -> pa.Schema:
    """Columns and types of the finished windows, as Spark would have them without the split."""
    from pyspark.sql import functions as sql

    whole = frame.groupBy(*(plans.column(key) for key in spec.key_columns)).agg(
        *(sql.expr(item.whole).alias(item.name) for item in spec.aggregates)
    )
    fields = list(to_arrow(whole.schema))
    keys = len(spec.key_columns)
    if spec.window is None:
        return pa.schema(fields)
    times = [
        pa.field(name, pa.timestamp("us", "UTC")) for name in (plans.WINDOW_START, plans.WINDOW_END)
    ]
    return pa.schema([*fields[:keys], *times, *fields[keys:]])


def _blame_aggregate(frame: DataFrame, aggregates: Sequence[AggregateExpression]) -> None:
    """Raises FiresteelError for the expression that Spark cannot resolve, if one is to blame."""
    from pyspark.sql import functions as sql

    for item in aggregates:
        for text in (item.whole, *item.partial.values()):
            try:
                frame.agg(sql.expr(text))
            except Exception as error:
                summary = summary_of(error)
                place = _place_of(summary, item.sql)
                raise FiresteelError(
                    f"aggregate({item.sql!r}): {summary}" + (f"\n{place}" if place else "")
                ) from error


def _place_of(summary: str, text: str) -> str:
    """The text with a caret under the first name that Spark's message quotes and the text has."""
    from firesteel.plan.aggregates.parse import point_at  # and with it a parser of SQL

    for quoted in re.findall(r"`([^`]+)`", summary):
        place = point_at(text, quoted)
        if place:
            return place
    return ""


def _check_merges(aggregates: Sequence[AggregateExpression], partial: pa.Schema) -> None:
    """Partial results of some types have an order or a sum in Spark only."""
    for item in aggregates:
        for name, how in item.merge.items():
            kind = partial.field(name).type
            mergeable = True
            if how in ("min", "max"):
                mergeable = not pa.types.is_null(kind) and not pa.types.is_interval(kind)
            elif how == "sum":
                numeric = (
                    pa.types.is_signed_integer(kind)
                    or pa.types.is_floating(kind)
                    or pa.types.is_decimal(kind)
                )
                mergeable = numeric or pa.types.is_duration(kind)
            if not mergeable:
                raise FiresteelError(
                    f"aggregate({item.sql!r}): partial results of type {_spark_name(kind)} cannot be merged; cast the value to a "
                    "number, a text or a time, or use window(...).apply(function)"
                )


def _declared(operator: Operator, schema: Any, otherwise: pa.Schema | None) -> pa.Schema | None:
    try:
        return declared(schema, otherwise)
    except FiresteelError as error:
        raise FiresteelError(f"{operator.name}: {error}") from error
    except Exception as error:
        raise FiresteelError(
            f"{operator.name}: its schema {schema!r} does not parse: {summary_of(error)}"
        ) from error


def _side_schema(operator: Operator, tag: str, schema: Any, known: pa.Schema | None) -> pa.Schema:
    found = _declared(operator, schema, known)
    if found is None:
        raise FiresteelError(
            f"{operator.name}: the schema of its side output {tag!r} is not known; declare one"
        )
    return found


def _leaves(edge: JobEdge, vertex: JobVertex, index: int) -> bool:
    return edge.source_vertex_id == vertex.vertex_id and edge.source_operator == index


def _enters(edge: Any, vertex: JobVertex, index: int) -> bool:
    return bool(edge.target_vertex_id == vertex.vertex_id and edge.target_operator == index)


def _for_people(plan: str, leaf: str) -> str:
    """Without the numbers that tell Spark's columns apart, and with what is read by its name."""
    plan = re.sub(r"LogicalRDD (\[.*?\]), \w+.*", lambda match: f"{leaf} {match[1]}", plan)
    return re.sub(r"#\d+L?", "", plan)

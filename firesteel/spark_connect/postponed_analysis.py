"""Postpones the analysis of a pipeline's flows until all of its tables are known.

Spark analyses `withColumn` and `withColumnRenamed` of a flow when the program defines it, if it
can: if an earlier run has made the table that the flow reads. Such a flow would read the table as
it was then, and would not wait for the flows that write to it. A filter by a function that exists
only when the pipeline runs prevents that.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.connect import proto

_ADDS_COLUMNS = ("with_columns", "with_columns_renamed")
# Relations that Spark analyses later, or can. It analyses all others when they are defined, and
# fails if it cannot.
_PASSES = frozenset(
    {
        *_ADDS_COLUMNS,
        *("project", "filter", "join", "lateral_join", "set_op", "aggregate", "deduplicate"),
        *("sort", "limit", "offset", "subquery_alias", "to_df", "hint", "with_relations"),
        *("repartition", "repartition_by_expression", "unpivot", "map_partitions"),
    }
)


def postpone_analysis(flow: proto.PipelineCommand.DefineFlow) -> None:
    """Filters the tables and queries that the flow reads below added columns by the function of its
    graph.
    """
    _postpone(flow.relation_flow_details, function_of(flow.dataflow_graph_id), below=False)


def function_of(graph_id: str) -> str:
    """Returns the name of the function of a graph."""
    return f"firesteel_runs_{graph_id.replace('-', '_')}"


def define_function(spark: Any, session: Any, graph_id: str) -> None:
    """Defines the function in a session: it is always true."""
    java, scala = spark.jvm.java.lang, spark.jvm.scala
    literals = getattr(spark.jvm.org.apache.spark.sql.catalyst.expressions, "Literal$")
    true = getattr(literals, "MODULE$").TrueLiteral()
    handles, anything = java.invoke.MethodHandles, java.Class.forName("java.lang.Object")
    arguments = spark.jvm.java.util.List.of(anything)
    constant = handles.dropArguments(handles.constant(anything, true), 0, arguments)
    function = java.invoke.MethodHandleProxies.asInterfaceInstance(
        java.Class.forName("java.util.function.Function"), constant
    )
    builder = scala.jdk.javaapi.FunctionConverters.asScalaFromFunction(function)
    registry = session.sessionState().functionRegistry()
    registry.createOrReplaceTempFunction(function_of(graph_id), builder, "built-in")


def _postpone(message: Any, function: str, *, below: bool) -> None:
    """`below`: whether the message is part of a relation that adds columns."""
    if message.DESCRIPTOR.name == "Relation":
        kind = message.WhichOneof("rel_type")
        if kind == "sql" or (kind == "read" and message.read.HasField("named_table")):
            if below:
                _filter(message, function)
            return
        if kind not in _PASSES:
            return
        below = below or kind in _ADDS_COLUMNS
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            _postpone(each, function, below=below)


def _filter(relation: Any, function: str) -> None:
    filtered = type(relation)()
    filtered.filter.input.CopyFrom(relation)
    filtered.filter.condition.unresolved_function.function_name = function
    relation.CopyFrom(filtered)

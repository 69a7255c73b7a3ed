"""One run of a dataflow graph that a program has registered with Spark's own server.

Spark resolves the graph, creates and changes the tables of the catalog, resets what is fully
refreshed, and runs batch flows. For a streaming flow, it returns the analysed plan and a
description of the sink.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql.connect import proto

from firesteel.client.spark_programs.imports import SPARKS_LOG, has_sparks_log
from firesteel.client.spark_programs.uris import resolved
from firesteel.plan.catalyst_plan import items, scala_entries
from firesteel.spark_connect.locations import OPTION
from firesteel.spark_connect.operations import SessionKey
from firesteel.spark_connect.refusals import Refused, SparkError
from firesteel.spark_connect.sinks import FILES
from firesteel.spark_connect.spark import Spark

SPARK_CATALOG = "spark_catalog"
_LOCATION_EXISTS = "LOCATION_ALREADY_EXISTS"
_END = ""


class PipelineEvents:
    """The events of a run, in the order in which Spark or the front records them."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._queue = jvm.java.util.concurrent.LinkedBlockingQueue()

    @property
    def callback(self) -> Any:
        """A function of Scala that adds an event."""
        java = self._jvm.java.lang
        invoke, kinds = java.invoke, java.Class
        boolean = kinds.forName("java.lang.Boolean").getField("TYPE").get(None)
        signature = invoke.MethodType.methodType(boolean, kinds.forName("java.lang.Object"))
        add = (
            invoke.MethodHandles.publicLookup()
            .findVirtual(self._queue.getClass(), "add", signature)
            .bindTo(self._queue)
        )
        consumer = invoke.MethodHandleProxies.asInterfaceInstance(
            kinds.forName("java.util.function.Consumer"), add
        )
        return self._jvm.scala.jdk.javaapi.FunctionConverters.asScalaFromConsumer(consumer)

    def close(self) -> None:
        self._queue.add(_END)

    def __iter__(self) -> Iterator[proto.PipelineEvent]:
        """Yields the events until `close`, and waits for them."""
        while (event := self._queue.take()) != _END:
            message = proto.PipelineEvent(message=str(event.messageWithError()))
            message.timestamp.FromMilliseconds(event.timestamp().getTime())
            yield message


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A flow of a resolved graph. `resolved` is Spark's object."""

    name: str
    streaming: bool
    upstream: frozenset[str]
    resolved: Any


class PipelineRun:
    """A run of a graph, from its resolution to its last flow.

    It is created, and its methods are called, in threads of which its session is the active one.
    """

    def __init__(
        self,
        spark: Spark,
        session: SessionKey,
        request: proto.PipelineCommand.StartRun,
        events: PipelineEvents,
    ) -> None:
        self._spark = spark
        self._of = session
        self._jvm = spark.jvm
        self._graphs = self._jvm.org.apache.spark.sql.pipelines.graph
        self._holder = spark.holder(session.user_id, session.session_id)
        self._session = self._holder.session()
        self._registered = self._holder.dataflowGraphRegistry().getDataflowGraphOrThrow(
            request.dataflow_graph_id
        )
        registered = self._registered.toDataflowGraph()
        names = {str(each.identifier().unquotedString()) for each in items(registered.tables())}
        refreshed, reset = self._filters(request, names)
        self._context = self._graphs.PipelineUpdateContextImpl(
            registered, events.callback, refreshed, reset, request.storage
        )
        self._log = self._context.flowProgressEventLogger()
        self._graph: Any = None
        self._planner: Any = None

    def active(self) -> AbstractContextManager[None]:
        """Makes the session of the run that of the thread."""
        return self._spark.active(self._of.user_id, self._of.session_id)

    # -- before the flows

    def prepare(self) -> list[Flow]:
        """Resolves the graph, and creates or changes its tables. Returns the flows to run.

        Raises Refused, or Py4JJavaError with Spark's reason, after the events that name the flows
        that cannot be resolved.
        """
        unresolved = self._context.unresolvedGraph()
        sensitive = self._is_case_sensitive
        graph = unresolved.resolve(sensitive)
        if not graph.resolved():
            self._context.pipelineExecution().dryRunPipeline()  # which names the failed flows
        graph = graph.validate(sensitive)
        self._refuse_changes(graph)
        if self._context.fullRefreshTables().nonEmpty():
            self._object("State").reset(graph, self._context)
        self._graph = self._materialized(graph)
        triggers = self._jvm.org.apache.spark.sql.streaming.Trigger
        available_now = self._object("scala.collection.immutable.Map").empty()
        available_now = available_now.withDefaultValue(triggers.AvailableNow())
        self._planner = self._graphs.FlowPlanner(self._graph, self._context, available_now)
        return self._flows()

    def _filters(self, request: proto.PipelineCommand.StartRun, known: set[str]) -> tuple[Any, Any]:
        """Returns which of the `known` tables are refreshed, and which are reset first."""
        every, none = self._object("AllTables"), self._object("NoTables")
        fully, partly = request.full_refresh_selection, request.refresh_selection
        if request.full_refresh_all:
            if fully or partly:
                raise Refused(
                    f"Cannot specify a subset to {'full ' if fully else ''}refresh when full"
                    " refresh all is set to true.",
                    error=SparkError.ILLEGAL_ARGUMENT,
                )
            return every, every
        if not fully and not partly:
            return every, none
        if both := set(fully) & set(partly):
            raise Refused(
                "Datasets specified for refresh and full refresh cannot overlap:"
                f" {', '.join(sorted(both))}",
                error=SparkError.ILLEGAL_ARGUMENT,
            )
        return self._tables(partly, known), self._tables(fully, known)

    def _tables(self, names: Any, known: set[str]) -> Any:
        if not names:
            return self._object("NoTables")
        manager, option = self._object("GraphIdentifierManager"), self._jvm.scala.Option
        chosen = self._jvm.java.util.HashSet()
        for name in names:
            parsed = manager.parseTableIdentifier(name, self._session)
            qualified = manager.parseAndQualifyTableIdentifier(
                parsed,
                option.apply(self._registered.defaultCatalog()),
                option.apply(self._registered.defaultDatabase()),
            )
            if str(qualified.identifier().unquotedString()) not in known:
                raise Refused(
                    f"the pipeline has no table {name} to refresh: its tables are"
                    f" {', '.join(sorted(known)) or 'none'}",
                    error=SparkError.ILLEGAL_ARGUMENT,
                )
            chosen.add(qualified.identifier())
        converters = self._jvm.scala.jdk.javaapi.CollectionConverters
        return self._graphs.SomeTables(converters.asScala(chosen).toSet())

    def _refuse_changes(self, graph: Any) -> None:
        for flow in items(graph.resolvedFlows()):
            if flow.getClass().getSimpleName().startswith("AutoCdc"):
                raise Refused(
                    f"the flow {flow.displayName()} applies changes (AUTO CDC), which Firesteel"
                    " does not do: run this pipeline with Spark's spark-pipelines, or write the"
                    " changes in a program, with MERGE in foreachBatch"
                )

    def _materialized(self, graph: Any) -> Any:
        try:
            return self._object("DatasetManager").materializeDatasets(graph, self._context)
        except Py4JJavaError as error:
            cause = error.java_exception.getCause()
            in_memory = self._session.conf().get("spark.sql.catalogImplementation") == "in-memory"
            if self._condition(cause) != _LOCATION_EXISTS or not in_memory:
                raise
            raise Refused(
                f"{cause.getMessage()} The folder is that of an earlier run, whose catalog was in"
                " memory and has been lost. Run pipelines with a catalog that is kept: with -D"
                " spark.sql.catalogImplementation=hive, it is the folder metastore_db"
            ) from None

    def _flows(self) -> list[Flow]:
        graph = self._graph
        every = items(graph.materializedFlows())
        filtered = self._context.refreshFlows().filter(graph.materializedFlows())
        chosen = {str(flow.identifier().unquotedString()) for flow in items(filtered)}
        converters = self._jvm.scala.jdk.javaapi.CollectionConverters
        flows = []
        for flow in every:
            name = str(flow.identifier().unquotedString())
            if name not in chosen:
                self._log.recordExcluded(flow)
                continue
            upstream = converters.asJava(graph.upstreamFlows(flow.identifier()))
            flows.append(
                Flow(
                    name=name,
                    streaming=flow.getClass().getSimpleName() == "StreamingFlow",
                    upstream=frozenset(str(each.unquotedString()) for each in upstream) - {name},
                    resolved=flow,
                )
            )
            self._log.recordQueued(flow)
        return flows

    # -- flows

    def execution(self, flow: Flow) -> Any:
        """Returns Spark's execution of a flow, which has not started, and records that the flow
        does.
        """
        if not flow.streaming:
            self._log.recordPlanningForBatchFlow(flow.resolved)
        execution = self._planner.plan(flow.resolved)
        self._log.recordStart(execution)
        return execution

    def run_batch(self, execution: Any) -> None:
        """Runs a batch flow on Spark. Raises Py4JJavaError if it fails."""
        execution.executeAsync()  # which records that it runs
        scala = self._jvm.scala.concurrent
        scala.Await.result(execution.getFuture(), scala.duration.Duration.Inf())

    def analyzed(self, flow: Flow) -> Any:
        """Returns the analysed plan of a flow over the tables as they are in the catalog."""
        again = self._graph.reanalyzeFlow(flow.resolved, self._is_case_sensitive)
        return again.df().queryExecution().analyzed()

    def settings(self, flow: Flow) -> dict[str, str]:
        """Returns the settings that the pipeline and the flow have for its query."""
        return scala_entries(flow.resolved.sqlConf())

    def write(self, flow: Flow, execution: Any) -> proto.WriteStreamOperationStart:
        """Describes what a streaming flow writes to, as `writeStream` does."""
        request = proto.WriteStreamOperationStart(
            output_mode="append", available_now=True, query_name=str(flow.resolved.displayName())
        )
        request.options[OPTION] = str(execution.checkpointPath())
        match execution.getClass().getSimpleName():
            case "StreamingTableWrite":
                self._write_table(flow, execution.destination(), request)
            case "SinkWrite":
                sink = execution.destination()
                request.format = str(sink.format())
                request.options.update(scala_entries(sink.options()))
            case other:
                raise Refused(
                    f"the flow {flow.name} is a {other}, which Firesteel does not run: run this"
                    " pipeline with Spark's spark-pipelines"
                )
        return request

    def _write_table(
        self, flow: Flow, table: Any, request: proto.WriteStreamOperationStart
    ) -> None:
        identifier = table.identifier()
        shown = identifier.unquotedString()
        catalog = identifier.catalog()
        if catalog.isDefined() and catalog.get() != SPARK_CATALOG:
            raise Refused(
                f"the flow {flow.name} writes to {shown}, a table of the catalog {catalog.get()}:"
                f" streaming tables are tables of files in {SPARK_CATALOG}; name that catalog in"
                " the specification, or write to a sink"
            )
        metadata = self._session.sessionState().catalog().getTableMetadata(identifier)
        format = str(metadata.provider().get()).lower()
        if format not in FILES:
            raise Refused(
                f"the flow {flow.name} writes to {shown}, whose format is {format}: streaming"
                f" tables are files; use one of {', '.join(FILES)}"
            )
        if partitions := items(metadata.partitionColumnNames()):
            raise Refused(
                f"the flow {flow.name} writes to {shown}, which is partitioned by"
                f" {', '.join(map(str, partitions))}: the catalog would not know partitions that"
                " a job adds, so that readers would miss their rows. Remove the partition columns"
                f" of the table, drop it, and run --full-refresh {shown}"
            )
        location = str(metadata.location())
        if has_sparks_log(location):
            raise Refused(
                f"the flow {flow.name} writes to {shown}, which Spark's own streams have written:"
                f" Spark reads only the files that {location}/{SPARKS_LOG} lists. Compute the"
                f" table again with --full-refresh {shown}"
            )
        request.format = format
        request.path = resolved(location)

    # -- events

    def running(self, flow: Flow) -> None:
        self._log.recordRunning(flow.resolved)

    def completed(self, flow: Flow) -> None:
        self._log.recordCompletion(flow.resolved)

    def skipped(self, flow: Flow) -> None:
        self._log.recordSkippedOnUpStreamFailure(flow.resolved)

    def failed(self, flow: Flow, error: Exception) -> None:
        if isinstance(error, Py4JJavaError):
            cause = error.java_exception
        else:
            cause = self._jvm.java.lang.Exception(str(error))
        self._log.recordFailed(flow.resolved, cause, False, self._jvm.scala.Option.apply(None))

    def stopped(self, flow: Flow) -> None:
        nothing = self._jvm.scala.Option.apply(None)
        self._log.recordStop(flow.resolved, nothing, nothing)

    # --

    def _condition(self, error: Any) -> str:
        """Returns the name of the condition of an error of Spark; empty if it has none."""
        kind = self._jvm.java.lang.Class.forName("org.apache.spark.SparkThrowable")
        return str(error.getCondition() or "") if kind.isInstance(error) else ""

    @property
    def _is_case_sensitive(self) -> bool:
        return bool(self._session.sessionState().conf().caseSensitiveAnalysis())

    def _object(self, name: str) -> Any:
        """Returns a singleton object of Scala, of the package of graphs or with its full name."""
        full = name if "." in name else f"org.apache.spark.sql.pipelines.graph.{name}"
        kinds = self._jvm.java.lang.Class
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        return kinds.forName(f"{full}$", True, loader).getField("MODULE$").get(None)

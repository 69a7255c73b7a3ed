"""Runs declarative pipelines: streaming flows as jobs, and batch flows on Spark.

Programs register the graph with Spark's server, which also answers dry runs. The front answers the
command that starts a run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql.connect import proto

from firesteel.client.execution_context import ExecutionContext
from firesteel.common.config import options
from firesteel.common.logs import get_logger
from firesteel.spark_connect.failures import Interrupted
from firesteel.spark_connect.flow_order import FlowNode, FlowOrder
from firesteel.spark_connect.operations import Operation, SessionKey
from firesteel.spark_connect.pipeline_run import Flow, PipelineEvents, PipelineRun
from firesteel.spark_connect.postponed_analysis import define_function, postpone_analysis
from firesteel.spark_connect.queries import StreamingQueries, StreamingQuery
from firesteel.spark_connect.spark import Spark
from firesteel.spark_connect.starter import JobStarter

BATCH_FLOWS = 4  # at a time, on the Spark of the run

log = get_logger(__name__)


class Pipelines:
    """Answers the command that starts a run of a pipeline. `context_of` returns how the jobs of a
    session run.
    """

    def __init__(
        self,
        spark: Spark,
        starter: JobStarter,
        context_of: Callable[[SessionKey], ExecutionContext],
    ) -> None:
        self._spark = spark
        self._starter = starter
        self._context_of = context_of
        self._lock = threading.Lock()
        self._running: set[_Executions] = set()

    def close(self) -> None:
        """Stops the running flows, and waits for their end."""
        with self._lock:
            running = list(self._running)
        for executions in running:
            executions.cancel()
        for executions in running:
            executions.join()

    def handler(self, command: proto.Command) -> Callable[[Operation], None] | None:
        pipeline = command.pipeline_command
        if pipeline.WhichOneof("command_type") != "start_run" or pipeline.start_run.dry:
            return None
        return lambda operation: self._run(operation, pipeline.start_run)

    def before(self, session: SessionKey, command: proto.PipelineCommand) -> None:
        """Called before Spark's server answers a command, which it may change."""
        if command.HasField("define_flow"):
            postpone_analysis(command.define_flow)
        elif command.HasField("start_run"):
            self._define_function(session, command.start_run)

    def _define_function(
        self, session: SessionKey, request: proto.PipelineCommand.StartRun
    ) -> None:
        holder = self._spark.holder(session.user_id, session.session_id)
        define_function(self._spark, holder.session(), request.dataflow_graph_id)

    def _run(self, operation: Operation, request: proto.PipelineCommand.StartRun) -> None:
        self._spark.prepare(operation.session.user_id, operation.session.session_id)
        self._define_function(operation.session, request)
        events = PipelineEvents(self._spark.jvm)

        def forward() -> None:
            for event in events:
                operation.respond(pipeline_event_result=proto.PipelineEventResult(event=event))

        forwarding = threading.Thread(target=forward, name="pipeline-events", daemon=True)
        forwarding.start()
        try:
            failure = self._flows(operation, request, events)
        finally:
            events.close()
            forwarding.join()
        outcome = "COMPLETED" if failure is None else "FAILED"
        event = proto.PipelineEvent(message=f"Run is {outcome}.")
        event.timestamp.GetCurrentTime()
        operation.respond(pipeline_event_result=proto.PipelineEventResult(event=event))
        if failure is not None:
            raise failure

    def _flows(
        self,
        operation: Operation,
        request: proto.PipelineCommand.StartRun,
        events: PipelineEvents,
    ) -> Exception | None:
        """Runs the flows. Returns the error of the first flow that failed."""
        session = operation.session
        with self._spark.active(session.user_id, session.session_id):
            run = PipelineRun(self._spark, session, request, events)
            flows = {flow.name: flow for flow in run.prepare()}
        order = FlowOrder(
            [
                FlowNode(name=flow.name, streaming=flow.streaming, upstream=flow.upstream)
                for flow in flows.values()
            ],
            {True: self._jobs_at_a_time(session), False: BATCH_FLOWS},
        )
        executions = _Executions(run, self._starter, operation)
        operation.on_cancel(executions.cancel)
        with self._lock:
            self._running.add(executions)
        try:
            return self._ordered(run, flows, order, executions)
        finally:
            with self._lock:
                self._running.discard(executions)

    def _ordered(
        self, run: PipelineRun, flows: dict[str, Flow], order: FlowOrder, executions: _Executions
    ) -> Exception | None:
        first: Exception | None = None
        while True:
            for name in order.start():
                executions.start(flows[name])
            if not order.running:
                return first
            name, error = executions.ended.get()
            if executions.cancelled.is_set():
                executions.join()
                raise Interrupted
            with run.active():
                if error is None:
                    run.completed(flows[name])
                    order.completed(name)
                    continue
                first = first or error
                run.failed(flows[name], error)
                for skipped in order.failed(name):
                    run.skipped(flows[skipped])

    def _jobs_at_a_time(self, session: SessionKey) -> int:
        """Returns how many streaming flows the slots of the cluster suffice for."""
        context = self._context_of(session)
        parallelism = context.conf.get(options.PARALLELISM)
        overview = context.client().cluster_overview()
        return max(1, overview.slots_total // max(1, parallelism))


class AnsweredCommands:
    """All commands that the front answers in place of Spark: see `front.Commands`."""

    def __init__(self, queries: StreamingQueries, pipelines: Pipelines) -> None:
        self._queries = queries
        self._pipelines = pipelines

    def handler(self, command: proto.Command) -> Callable[[Operation], None] | None:
        return self._queries.handler(command) or self._pipelines.handler(command)

    def before(self, session: SessionKey, plan: proto.Plan) -> None:
        self._queries.before(session, plan)
        self._pipelines.before(session, plan.command.pipeline_command)

    def release(self, session: SessionKey) -> None:
        self._queries.release(session)


class _Executions:
    """The running flows of one run, each in a thread. `ended` gets their names, with the errors of
    those that failed.
    """

    def __init__(self, run: PipelineRun, starter: JobStarter, operation: Operation) -> None:
        self.ended: queue.SimpleQueue[tuple[str, Exception | None]] = queue.SimpleQueue()
        self._run = run
        self._starter = starter
        self._operation = operation
        self._lock = threading.Lock()
        self._stops: dict[str, Callable[[], None]] = {}
        self._threads: list[threading.Thread] = []
        self.cancelled = threading.Event()

    def start(self, flow: Flow) -> None:
        thread = threading.Thread(
            target=self._execute, args=(flow,), name=f"flow-{flow.name}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def cancel(self) -> None:
        """Stops the running flows; others do not start."""
        with self._lock:
            self.cancelled.set()
            stops = list(self._stops.values())
        for stop in stops:
            with suppress(Exception):  # it has ended
                stop()
        self.ended.put(("", None))

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _execute(self, flow: Flow) -> None:
        failure: Exception | None = None
        try:
            with self._run.active():
                if flow.streaming:
                    self._stream(flow)
                else:
                    self._batch(flow)
        except Exception as error:
            log.info("a flow failed", flow=flow.name, exc_info=True)
            failure = error
        self.ended.put((flow.name, failure))

    def _batch(self, flow: Flow) -> None:
        execution = self._run.execution(flow)
        self._stops_with(flow, execution.stop)
        self._run.run_batch(execution)

    def _stream(self, flow: Flow) -> None:
        run = self._run
        request = run.write(flow, run.execution(flow))
        started = self._starter.start_analyzed(
            self._operation.session,
            request,
            analyzed=lambda: run.analyzed(flow),
            settings=run.settings(flow),
        )
        query = StreamingQuery(request.query_name, started, lambda *_: None, log.warning)
        query.follow(lambda _: None)
        self._stops_with(flow, query.stop)
        run.running(flow)
        query.ended.wait()
        if query.failure is not None:
            raise query.failure

    def _stops_with(self, flow: Flow, stop: Callable[[], None]) -> None:
        with self._lock:
            self._stops[flow.name] = stop
            cancelled = self.cancelled.is_set()
        if cancelled:
            with suppress(Exception):
                stop()
            raise Interrupted

"""The slot's process as its TaskExecutor sees it: carries out what comes over the link, tells what
the tasks report.

One thread reads the link and acts; tasks, and the analysis of a job's plan, have a thread each; one
thread watches the JVM and one reports metrics. A process serves one job at a time.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from firesteel._proto import common_pb2, executor_pb2, tasks_pb2
from firesteel.common import logs
from firesteel.common.operator_messages import OperatorEvent, ToOperator
from firesteel.common.rpc.convert import error_to_proto, job_graph_from_proto
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.operator_events import operator_event_from_proto, operator_event_to_proto
from firesteel.common.states import ExecutionState
from firesteel.errors import ErrorInfo, error_info
from taskexecutor.executor import JVM_LOST_EXIT_CODE
from taskexecutor.executor.cleaning import JobSurroundings
from taskexecutor.executor.link import Link
from taskexecutor.executor.operator_factory import CreateOperator
from taskexecutor.executor.submission import analyzed_to_proto, task_configs
from taskexecutor.executor.task import StreamTask, TaskServices

if TYPE_CHECKING:
    from taskexecutor.executor.exchange import Exchange
    from taskexecutor.executor.spark.jvm.engine import SparkEngine

log = structlog.get_logger(__name__)

JVM_METRICS_INTERVAL_S = 10.0
JOIN_TIMEOUT_S = 5.0
FLUSH_TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Running:
    job_id: str
    task: Any  # StreamTask
    thread: threading.Thread
    ended: bool = False  # its terminal state is reported


class Host:
    def __init__(
        self,
        *,
        link: Link,
        exchange: Exchange,
        engine: SparkEngine,
        create_operator: CreateOperator,
        slot: int,
        location: str,
        metrics_interval_s: float,
    ) -> None:
        self._link = link
        self._exchange = exchange
        self._engine = engine
        self._create_operator = create_operator
        self._slot = slot
        self._location = location
        self._metrics_interval_s = metrics_interval_s
        self._lock = threading.Lock()
        self._tasks: dict[str, _Running] = {}  # by attempt id; guarded by _lock
        self._job_id = ""
        self._surroundings: JobSurroundings | None = None
        self._user_roots: tuple[str, ...] = ()
        self._wake_metrics = threading.Event()

    def serve(self) -> None:
        """Acts on what comes until the link ends. The engine is warm."""
        threading.Thread(target=self._watch_jvm, name="jvm-watch", daemon=True).start()
        threading.Thread(target=self._report_metrics, name="metrics", daemon=True).start()
        for message in self._link.received():
            try:
                self._handle(message)
            except Exception:  # one bad message must not cost the slot's other tasks
                log.exception("a message could not be handled", kind=message.WhichOneof("message"))

    def _handle(self, message: executor_pb2.TaskExecutorToExecutor) -> None:
        match message.WhichOneof("message"):
            case "assign":
                self._assign(message.assign)
            case "submit":
                self._submit(message.submit)
            case "cancel":
                for attempt_id in message.cancel.attempt_ids:
                    if (running := self._running(attempt_id)) is not None:
                        running.task.cancel()
            case "operator_event":
                self._deliver(operator_event_from_proto(message.operator_event))
            case "analyze":
                self._start(self._analyze, message.analyze, name="analysis")
            case "release":
                self._release(message.release)
            case kind:
                log.warning("unknown message", kind=kind)

    def _running(self, attempt_id: str) -> _Running | None:
        with self._lock:
            return self._tasks.get(attempt_id)

    def _deliver(self, event: OperatorEvent) -> None:
        if not isinstance(event.message, ToOperator):
            raise RemoteProtocolError(f"a coordinator sent {type(event.message).__name__}")
        if (running := self._running(event.attempt_id)) is not None:
            running.task.handle_event(event.operator_id, event.message)

    def _send_event(self, event: OperatorEvent) -> None:
        message = operator_event_to_proto(event)
        self._link.send(executor_pb2.ExecutorToTaskExecutor(operator_event=message))

    # -- the slot's job

    def _assign(self, assign: executor_pb2.AssignSlot) -> None:
        self._leave()
        if assign.python_paths:
            _import_pandas()  # before there may be another one
        self._job_id = assign.job_id
        self._user_roots = tuple(path for path in (assign.job_dir, *assign.python_paths) if path)
        self._surroundings = JobSurroundings(
            self._engine.session, self._engine.jvm_pid, assign.job_dir, assign.python_paths
        )
        log.info("serving", job_id=assign.job_id, allocation_id=assign.allocation_id)

    def _release(self, release: executor_pb2.ReleaseSlot) -> None:
        self._leave()
        self._link.send(
            executor_pb2.ExecutorToTaskExecutor(
                released=executor_pb2.SlotReleased(allocation_id=release.allocation_id)
            )
        )

    def _leave(self) -> None:
        """Ends all that is still there of the job. Its tasks have ended, as a rule."""
        with self._lock:
            left = list(self._tasks.values())
        for running in left:
            running.task.cancel()
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for running in left:
            running.thread.join(max(0.0, deadline - time.monotonic()))
        if self._job_id:
            self._exchange.release_job(self._job_id)
        surroundings, self._surroundings = self._surroundings, None
        self._job_id, self._user_roots = "", ()
        with self._lock:
            self._tasks.clear()
        if surroundings is not None:
            surroundings.leave()

    def _configure(self, config: Any) -> None:
        if self._surroundings is not None:
            self._surroundings.configure(dict(config))

    # -- tasks

    def _submit(self, submit: tasks_pb2.SubmitTasks) -> None:
        with self._lock:
            fresh = [task for task in submit.tasks if task.attempt_id not in self._tasks]
        services = TaskServices(
            exchange=self._exchange,
            engine=self._engine,
            create_operator=self._create_operator,
            report_state=self._report_state,
            send_event=self._send_event,
        )
        try:
            self._configure(submit.config)
            configs = task_configs(submit, fresh)
        except Exception as error:
            told = error_info(error, location=self._location, user_code_roots=self._user_roots)
            for deployment in fresh:
                self._report_state(deployment.attempt_id, ExecutionState.FAILED, told, None)
            return
        for config in configs:
            with logs.task_context(
                job_id=config.job_id,
                vertex=config.vertex.name,
                subtask=config.subtask,
                attempt=config.attempt,
            ):
                try:
                    task = StreamTask(config, services)
                except Exception as error:
                    told = error_info(
                        error,
                        location=self._location,
                        task_name=config.info.task_name_with_subtask,
                        user_code_roots=self._user_roots,
                    )
                    log.exception("a task could not be made")
                    self._report_state(config.attempt_id, ExecutionState.FAILED, told, None)
                    continue
            thread = threading.Thread(
                target=self._run,
                args=(config, task),
                name=config.info.task_name_with_subtask,
                daemon=True,
            )
            with self._lock:
                self._tasks[config.attempt_id] = _Running(config.job_id, task, thread)
            thread.start()
        self._start(_import_pandas, name="pandas")
        self._wake_metrics.set()

    def _run(self, config: Any, task: Any) -> None:
        with logs.task_context(
            job_id=config.job_id,
            vertex=config.vertex.name,
            subtask=config.subtask,
            attempt=config.attempt,
        ):
            task.run()
        with self._lock:
            running = self._tasks.get(config.attempt_id)
            if running is not None and running.thread is threading.current_thread():
                del self._tasks[config.attempt_id]

    def _report_state(
        self,
        attempt_id: str,
        state: ExecutionState,
        error: ErrorInfo | None,
        metrics: common_pb2.TaskMetrics | None,
    ) -> None:
        with self._lock:
            running = self._tasks.get(attempt_id)
            if running is not None and running.ended:
                return
            if running is not None and state.terminal:
                running.ended = True
        change = tasks_pb2.TaskStateChange(
            attempt_id=attempt_id,
            state=common_pb2.ExecutionState.ValueType(state.value),  # type: ignore[arg-type]
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        if error is not None:
            change.error.CopyFrom(error_to_proto(error))
            change.error.location = change.error.location or self._location
        if metrics is not None:
            change.metrics.CopyFrom(metrics)
        states = tasks_pb2.TaskStateChanges(
            job_id=running.job_id if running else self._job_id, changes=[change]
        )
        self._link.send(executor_pb2.ExecutorToTaskExecutor(task_states=states))

    # -- analysis

    def _analyze(self, request: tasks_pb2.Analyze) -> None:
        result = tasks_pb2.AnalyzeResult(job_id=request.job_id)
        with logs.bound(job_id=request.job_id):
            try:
                from taskexecutor.executor.analysis.analyze import analyze

                self._configure(request.job_graph.config)
                result.schemas.extend(
                    map(
                        analyzed_to_proto,
                        analyze(job_graph_from_proto(request.job_graph), self._engine),
                    )
                )
            except Exception as error:
                log.info("the plan's analysis found an error", exc_info=True)
                told = error_info(error, location=self._location, user_code_roots=self._user_roots)
                result.error.CopyFrom(error_to_proto(told))
        self._link.send(executor_pb2.ExecutorToTaskExecutor(analyze_result=result))

    def _start(self, target: Callable[..., None], *args: Any, name: str) -> None:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()

    # -- the JVM

    def _watch_jvm(self) -> None:
        """Sleeps in the kernel until the JVM has ended; then the tasks fail with the reason and
        this process ends.
        """
        try:
            jvm = os.pidfd_open(self._engine.jvm_pid)
        except ProcessLookupError:
            pass
        else:
            waiting = select.poll()
            waiting.register(jvm, select.POLLIN)
            waiting.poll()
            os.close(jvm)
        self._engine.is_alive()  # takes note of its exit code
        lost = self._engine.lost()
        log.error("Spark's JVM has ended", reason=str(lost))
        told = error_info(lost, location=self._location)
        with self._lock:
            alive = [attempt_id for attempt_id, running in self._tasks.items() if not running.ended]
        for attempt_id in alive:
            self._report_state(attempt_id, ExecutionState.FAILED, told, None)
        self._link.send(
            executor_pb2.ExecutorToTaskExecutor(
                ending=executor_pb2.ExecutorEnding(reason=str(lost))
            )
        )
        self._link.close(FLUSH_TIMEOUT_S)
        os._exit(JVM_LOST_EXIT_CODE)

    # -- metrics

    def _report_metrics(self) -> None:
        jvm: list[common_pb2.MetricSample] = []
        jvm_due = 0.0
        while True:
            self._wake_metrics.clear()  # before the tasks are looked at: one that comes now wakes us
            with self._lock:
                tasks = [running.task for running in self._tasks.values() if not running.ended]
            if time.monotonic() >= jvm_due:
                jvm = self._jvm_samples()
                jvm_due = time.monotonic() + JVM_METRICS_INTERVAL_S
            metrics = executor_pb2.ExecutorMetrics(samples=jvm)
            for task in tasks:
                try:
                    metrics.tasks.append(task.metrics())
                    metrics.samples.extend(task.samples())
                except Exception:
                    log.exception("a task's metrics could not be read")
            self._link.send(executor_pb2.ExecutorToTaskExecutor(metrics=metrics))
            if tasks:
                time.sleep(self._metrics_interval_s)
            else:
                self._wake_metrics.wait(JVM_METRICS_INTERVAL_S)

    def _jvm_samples(self) -> list[common_pb2.MetricSample]:
        """The Status metrics of the slot's JVM, under Flink's names with the slot as one more
        label.
        """
        try:
            factory = self._engine.session._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
            heap = factory.getMemoryMXBean().getHeapMemoryUsage()
            collectors = list(factory.getGarbageCollectorMXBeans())
            values = {
                "Memory_Heap_Used": heap.getUsed(),
                "Memory_Heap_Committed": heap.getCommitted(),
                "Memory_Heap_Max": heap.getMax(),
                "Threads_Count": factory.getThreadMXBean().getThreadCount(),
                "GarbageCollector_All_Count": sum(
                    collector.getCollectionCount() for collector in collectors
                ),
                "GarbageCollector_All_Time": sum(
                    collector.getCollectionTime() for collector in collectors
                ),
            }
        except Exception:
            return []
        labels = {"slot": str(self._slot)}
        prefix = "flink_taskmanager_Status_JVM_"
        return [
            common_pb2.MetricSample(name=prefix + name, labels=labels, value=value)
            for name, value in values.items()
        ]


def _import_pandas() -> None:
    """pyarrow does, at the first value of Python's that it converts: better before records wait for
    it. A slot that has not had a job does without.
    """
    import pandas  # noqa: F401

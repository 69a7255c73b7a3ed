"""The slot's process from its TaskExecutor's point of view: executes the messages on the link and
reports what happens to the tasks.

One thread reads the link and acts; each task and each analysis of a plan has a thread; two threads
watch the JVM and one reports metrics. A process serves one job at a time.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from firesteel._proto import executor_pb2, tasks_pb2
from firesteel.common import logs
from firesteel.common.checkpoints.messages import CheckpointAnswer
from firesteel.common.error_report import error_info
from firesteel.common.inspections import ThreadStack
from firesteel.common.logs import get_logger
from firesteel.common.operator_messages import OperatorEvent, ToOperator
from firesteel.common.rpc.convert import JOB_GRAPH, JOB_KEYS, OPERATOR_EVENT
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.states import ExecutionState
from firesteel.errors import ErrorInfo
from firesteel.operator import StreamOperator
from taskexecutor.executor import (
    ABANDONED_THREAD_EXIT_CODE,
    JVM_LOST_EXIT_CODE,
    MANAGED_MEMORY,
    convert,
)
from taskexecutor.executor.analyze import analyze
from taskexecutor.executor.cleaning import JobSurroundings
from taskexecutor.executor.columnar.cached_plans.static_tables import StaticTables
from taskexecutor.executor.columnar.jvm.engine import SparkEngine, SparkLost
from taskexecutor.executor.exchange import Exchange
from taskexecutor.executor.exchange.security import SlotKeys
from taskexecutor.executor.executor_link import ExecutorLink
from taskexecutor.executor.inspection.inspections import Inspections, start_dump
from taskexecutor.executor.interpreter import import_pandas, import_pandas_aside
from taskexecutor.executor.job_threads import JobThreads
from taskexecutor.executor.jvm_status import JvmStatus
from taskexecutor.executor.operator_factory import CreateOperator, OpenedOperator
from taskexecutor.executor.running_tasks import MetricsReporter, RunningTasks
from taskexecutor.executor.state import StateBackends
from taskexecutor.executor.task import MetricSample, StreamTask, TaskConfig, TaskEnd, TaskServices
from taskexecutor.executor.task.interfaces import CheckpointServices

log = get_logger(__name__)

JOIN_TIMEOUT_S = 5.0
FLUSH_TIMEOUT_S = 2.0
_STATIC_TABLE = "flink_taskmanager_job_staticTable_"


class Host:
    def __init__(
        self,
        *,
        link: ExecutorLink,
        exchange: Exchange,
        engine: SparkEngine,
        create_operator: CreateOperator,
        slot: int,
        location: str,
        metrics_interval_s: float,
        heartbeat_interval_s: float,
        heartbeat_timeout_s: float,
        state_directory: str = "",
        job_keys: SlotKeys | None = None,
    ) -> None:
        """`state_directory` is state.backend.rocksdb.localdir. `job_keys` has the keys of the
        job for the exchange.
        """
        self._link = link
        self._job_keys = job_keys or SlotKeys()
        self._exchange = exchange
        self._engine = engine
        self._create_operator = create_operator
        self._slot = slot
        self._location = location
        self._heartbeat_interval_s = heartbeat_interval_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._tasks = RunningTasks()
        self._metrics = MetricsReporter(
            link=link,
            tasks=self._tasks,
            slot_samples=self._slot_samples,
            gc_ms=self._gc_ms,
            interval_s=metrics_interval_s,
        )
        self._inspections = Inspections(
            self._tasks,
            engine,
            lambda inspected: link.send(convert.task_inspected(inspected)),
            others=self._other_threads,
        )
        self._state_directory = state_directory
        self._state_backends = StateBackends(managed_bytes=0)  # replaced for each job
        self._job_id = ""
        self._job_threads: JobThreads | None = None
        self._surroundings: JobSurroundings | None = None
        self._static_tables: StaticTables | None = None
        self._jvm_status: JvmStatus | None = None
        self._user_roots: tuple[str, ...] = ()

    def serve(self) -> None:
        """Executes messages until the link ends. The engine must be warm."""
        self._start(self._watch_jvm, name="jvm-watch")
        self._start(self._kill_silent_jvm, name="jvm-heartbeat")
        self._metrics.start()
        for message in self._link.received():
            try:
                self._handle(message)
            except Exception as error:  # one invalid message must not end the slot's other tasks
                log.exception("a message could not be handled", kind=message.WhichOneof("message"))
                self._answer_failure(message, error)

    def _answer_failure(
        self, message: executor_pb2.TaskExecutorToExecutor, error: Exception
    ) -> None:
        """Reports the failure of a message whose outcome the JobMaster awaits."""
        match message.WhichOneof("message"):
            case "submit":
                for deployment in message.submit.tasks:
                    if self._tasks.get(deployment.attempt_id) is None:
                        self._report_failure(deployment.attempt_id, error)
            case "analyze":
                failed = convert.analysis_failed(message.analyze.job_id, self._error_info(error))
                self._link.send(failed)

    def _handle(self, message: executor_pb2.TaskExecutorToExecutor) -> None:
        match message.WhichOneof("message"):
            case "assign":
                self._assign(message.assign)
            case "submit":
                self._submit(message.submit)
            case "cancel":
                for attempt_id in message.cancel.attempt_ids:
                    if (task := self._tasks.get(attempt_id)) is not None:
                        task.cancel()
            case "trigger_checkpoint":
                trigger = message.trigger_checkpoint
                for task in self._tasks_of(trigger.attempt_ids):
                    splits = trigger.splits.get(task.config.attempt_id, 0)
                    task.trigger_checkpoint(
                        convert.BARRIER.decode(trigger),
                        splits,
                        stops=trigger.stops,
                        savepoint_path=trigger.savepoint_path,
                    )
            case "drain":
                for task in self._tasks_of(message.drain.attempt_ids):
                    task.drain(message.drain.savepoint_path)
            case "notify_checkpoint":
                notice = message.notify_checkpoint
                for task in self._tasks_of(notice.attempt_ids):
                    task.notify_checkpoint(
                        notice.checkpoint_id, completed=notice.completed, stops=notice.stops
                    )
            case "adopt":
                adopt = message.adopt
                for task in self._tasks_of(adopt.attempt_ids):
                    task.adopt(
                        lambda held: self._link.send(convert.checkpoint_answer(adopt.job_id, held))
                    )
            case "operator_event":
                self._deliver(OPERATOR_EVENT.decode(message.operator_event))
            case "analyze":
                self._start(self._analyze, message.analyze, name="analysis")
            case "job_keys":
                self._job_keys.assign(JOB_KEYS.decode(message.job_keys))
            case "inspect":
                self._inspections.begin(convert.INSPECT_TASK.decode(message.inspect))
            case "dump_threads":
                start_dump(self._slot, self._engine, self._send_threads)
            case "release":
                self._inspections.stop()
                self._leave()
                self._job_keys.assign(None)
                self._link.send(convert.slot_released(message.release.allocation_id))
            case kind:
                log.warning("unknown message", kind=kind)

    # -- the slot's job

    def _assign(self, assign: executor_pb2.AssignSlot) -> None:
        self._leave()
        if assign.python_paths:
            import_pandas()  # before the job's files can hide it
        self._job_id = assign.job_id
        self._job_threads = JobThreads()
        self._state_backends = StateBackends(
            managed_bytes=assign.managed_bytes, directory=self._state_directory
        )
        self._user_roots = tuple(path for path in (assign.job_dir, *assign.python_paths) if path)
        self._surroundings = JobSurroundings(
            self._engine.session, self._engine.jvm_pid, assign.job_dir, assign.python_paths
        )
        self._static_tables = StaticTables(self._engine)
        logs.bind_process(job_id=assign.job_id)
        log.info("serving", allocation_id=assign.allocation_id)

    def _other_threads(self) -> list[threading.Thread]:
        """Returns the threads of the job that are not those of its tasks."""
        threads, tasks = self._job_threads, self._tasks.threads()
        return [] if threads is None else [t for t in threads.alive() if t not in tasks]

    def _send_threads(self, stacks: Sequence[ThreadStack]) -> None:
        self._link.send(convert.threads(stacks))

    def _jvm(self) -> JvmStatus:
        """Runs in the metrics thread."""
        if self._jvm_status is None:
            self._jvm_status = JvmStatus(self._engine.session, self._slot)
        return self._jvm_status

    def _gc_ms(self) -> float:
        return self._jvm().gc_ms()

    def _slot_samples(self) -> list[MetricSample]:
        samples = self._jvm().samples()
        labels, state = {"slot": str(self._slot)}, self._state_backends
        samples += [
            MetricSample(f"{MANAGED_MEMORY}Used", labels, state.used_bytes),
            MetricSample(f"{MANAGED_MEMORY}Total", labels, state.managed_bytes),
        ]
        tables, job_id = self._static_tables, self._job_id
        for table in tables.status() if tables is not None else ():
            labels = {"slot": str(self._slot), "job_id": job_id, "table": table.name}
            for name, value in (
                ("age", table.age_s * 1000),
                ("numFailedRefreshes", table.failed_refreshes),
            ):
                samples.append(MetricSample(_STATIC_TABLE + name, labels, value))
        return samples

    def _leave(self) -> None:
        """Ends the rest of the job, whose tasks have usually ended. Exits the process if one of the
        job's threads survives.
        """
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        left = self._tasks.clear()
        for running in left:
            running.task.cancel()
        for running in left:
            running.thread.join(max(0.0, deadline - time.monotonic()))
        if self._static_tables is not None:
            self._static_tables.close()
            self._static_tables = None
        if self._job_id:
            self._exchange.release_job(self._job_id)
            self._state_backends.close()
        surroundings, self._surroundings = self._surroundings, None
        job_threads, self._job_threads = self._job_threads, None
        self._job_id, self._user_roots = "", ()
        if surroundings is not None:
            surroundings.leave()
        if job_threads is not None:
            self._end_if_threads_live_on(job_threads, max(0.0, deadline - time.monotonic()))
            logs.bind_process()
            log.info("the job was removed")

    def _end_if_threads_live_on(self, job_threads: JobThreads, timeout_s: float) -> None:
        threads = job_threads.join(timeout_s)
        if not threads:
            return
        for thread in threads:
            log.error(
                "a thread of the job is still running", thread=thread.name, exception=thread.stack
            )
        names = ", ".join(repr(thread.name) for thread in threads)
        self._link.send(convert.ending(f"the job left threads that do not end: {names}"))
        self._link.flush(FLUSH_TIMEOUT_S)  # this thread is the one that reads the link
        os._exit(ABANDONED_THREAD_EXIT_CODE)

    def _configure(self, config: Mapping[str, str]) -> None:
        if self._surroundings is not None:
            self._surroundings.configure(dict(config))

    # -- tasks

    def _submit(self, submit: tasks_pb2.SubmitTasks) -> None:
        new = [task for task in submit.tasks if self._tasks.get(task.attempt_id) is None]
        try:
            self._configure(submit.config)
            configs = convert.task_configs(submit, new)
            storage = convert.checkpoint_storage(submit)
            create_keyed_state = self._state_backends.of(submit.state_backend)
        except Exception as error:
            for deployment in new:
                self._report_failure(deployment.attempt_id, error)
            return

        def answer(reply: CheckpointAnswer) -> None:
            self._link.send(convert.checkpoint_answer(submit.job_id, reply))

        services = TaskServices(
            exchange=self._exchange,
            engine=self._engine,
            create_operator=self._created,
            report_state=self._report_state,
            send_event=self._send_event,
            checkpoints=None
            if storage is None
            else CheckpointServices(
                storage, answer, submit.unaligned_checkpoints, submit.inline_bytes
            ),
            create_keyed_state=create_keyed_state,
            report_metrics=self._metrics.wake,
            user_code_roots=self._user_roots,
        )
        for config in configs:
            self._start_task(config, services)
        self._metrics.wake()

    def _created(self, group: Sequence[OpenedOperator]) -> StreamOperator:
        if any(opened.spec.uses_pandas for opened in group):
            import_pandas_aside()
        return self._create_operator(group)

    def _start_task(self, config: TaskConfig, services: TaskServices) -> None:
        name = config.info.task_name_with_subtask
        with _log_context(config):
            try:
                task = StreamTask(config, services)
            except Exception as error:
                log.exception("a task could not be created")
                self._report_failure(config.attempt_id, error, task_name=name)
                return
        thread = threading.Thread(target=self._run, args=(config, task), name=name, daemon=True)
        self._tasks.add(task, thread)
        try:
            thread.start()
        except RuntimeError as error:  # the process cannot start another thread
            self._report_failure(config.attempt_id, error, task_name=name)
            self._tasks.remove(task)

    def _run(self, config: TaskConfig, task: StreamTask) -> None:
        with _log_context(config):
            try:
                task.run()
            except BaseException as error:
                log.exception("a task ended without its report")
                self._report_failure(config.attempt_id, error, config.info.task_name_with_subtask)
            sys.stdout.flush()  # flush a line that the thread has not ended
        self._tasks.remove(task)

    def _tasks_of(self, attempt_ids: Iterable[str]) -> list[StreamTask]:
        """Returns those of the tasks that run here."""
        tasks = (self._tasks.get(attempt_id) for attempt_id in attempt_ids)
        return [task for task in tasks if task is not None]

    def _deliver(self, event: OperatorEvent) -> None:
        if not isinstance(event.message, ToOperator):
            raise RemoteProtocolError(f"a coordinator sent {type(event.message).__name__}")
        if (task := self._tasks.get(event.attempt_id)) is not None:
            task.handle_event(event.operator_id, event.message)

    def _send_event(self, event: OperatorEvent) -> None:
        message = OPERATOR_EVENT.encode(event)
        self._link.send(executor_pb2.ExecutorToTaskExecutor(operator_event=message))

    def _report_failure(self, attempt_id: str, error: BaseException, task_name: str = "") -> None:
        info = self._error_info(error, task_name)
        self._report_state(attempt_id, ExecutionState.FAILED, info, None)

    def _report_state(
        self,
        attempt_id: str,
        state: ExecutionState,
        error: ErrorInfo | None,
        end: TaskEnd | None,
    ) -> None:
        if error is not None and not error.location:
            error = replace(error, location=self._location)
        if state is ExecutionState.FAILED and self._engine.has_ended:
            return  # the slot is lost, with all of its tasks: _watch_jvm reports it
        task = self._tasks.get(attempt_id)
        job_id = self._job_id if task is None else task.info.job_id
        now_ms = time.time_ns() // 1_000_000
        message = convert.task_state(job_id, attempt_id, state, error, end, now_ms)
        if self._tasks.may_report(attempt_id, state):
            self._link.send(message)

    def _error_info(self, error: BaseException, task_name: str = "") -> ErrorInfo:
        return error_info(
            error,
            location=self._location,
            task_name=task_name,
            user_code_roots=self._user_roots,
        )

    # -- analysis

    def _analyze(self, request: tasks_pb2.Analyze) -> None:
        with logs.bound(job_id=request.job_id):
            try:
                if self._surroundings is not None:
                    self._surroundings.check_modules()
                self._configure(request.job_graph.config)
                graph = JOB_GRAPH.decode(request.job_graph)
                analyzed = analyze(graph, self._engine, convert.checkpoint_storage(request))
                self._link.send(convert.analyzed(request.job_id, analyzed))
            except BaseException as error:  # the program's functions may raise SystemExit
                log.info("the analysis of the plan failed", exc_info=True)
                if isinstance(error, SparkLost) and not error.of_program:
                    return  # another slot may succeed: _watch_jvm reports that this one is lost
                failed = convert.analysis_failed(request.job_id, self._error_info(error))
                self._link.send(failed)

    # -- threads

    def _start(self, target: Callable[..., None], *args: Any, name: str) -> None:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()

    def _watch_jvm(self) -> None:
        """Ends the process, and reports why, once the JVM has ended. The slot is lost with all of
        its tasks: that is one failure of the job.
        """
        _await_end(self._engine.jvm_pid)
        self._engine.is_alive()  # reads its exit code
        lost = self._engine.lost()
        log.error("Spark's JVM has ended", reason=str(lost))
        self._link.send(convert.ending(str(lost)))
        self._link.close(FLUSH_TIMEOUT_S)
        os._exit(JVM_LOST_EXIT_CODE)

    def _kill_silent_jvm(self) -> None:
        self._engine.kill_if_silent(
            interval_s=self._heartbeat_interval_s, timeout_s=self._heartbeat_timeout_s
        )


def _log_context(config: TaskConfig) -> AbstractContextManager[None]:
    return logs.task_context(
        job_id=config.job_id,
        vertex=config.vertex.name,
        subtask=config.subtask,
        parallelism=config.vertex.parallelism,
        attempt=config.attempt,
    )


def _await_end(jvm_pid: int) -> None:
    """Blocks in the kernel until the JVM has ended."""
    try:
        jvm = os.pidfd_open(jvm_pid)
    except ProcessLookupError:
        return
    waiting = select.poll()
    waiting.register(jvm, select.POLLIN)
    waiting.poll()
    os.close(jvm)

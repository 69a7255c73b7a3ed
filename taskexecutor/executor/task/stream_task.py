"""StreamTask: one attempt of one subtask, from its creation to its last report (spec 000, 001).

    INITIALIZING  set initial state → utilities, load the chain → set operators up → task-specific
                  init → initialize operator states → open operators
    RUNNING       run
    FINISHING     MAX_WATERMARK → quiesce timers → finish operators → EndOfData
    DRAINING      [final checkpoint] → wait until all data is acknowledged (and for EndOfPartition
                  of all inputs)
    CLOSING       close operators → EndOfPartition → task-specific cleanup → common cleanup

A cancellation or a failure in any phase leads to INTERRUPTED: shut timers down → task-specific
cleanup → close operators → common cleanup, and CANCELED or FAILED. Every operator that was set up
is closed exactly once on every path; a failing close does not prevent the others; the first failure
is the one reported.

`source_task` and `input_task` hold the differences between tasks without and with inputs.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple, assert_never

import pyarrow as pa

from firesteel.common.checkpoints.messages import Stopping, TaskHeld
from firesteel.common.error_report import error_info, summary_of
from firesteel.common.ids import OperatorId, ResultId
from firesteel.common.job_graph import ResultPartitionId, ResultType, StoredPartition
from firesteel.common.key_groups import key_group
from firesteel.common.logs import get_logger, task_context
from firesteel.common.operator_messages import (
    HeldSplit,
    NoSplitYet,
    SplitAssigned,
    SplitsExhausted,
    ToOperator,
)
from firesteel.common.states import ExecutionState
from firesteel.common.task_metrics import TaskMetrics
from firesteel.elements import CheckpointBarrier
from firesteel.errors import ErrorInfo, FiresteelError
from firesteel.operator import SourceOperator
from taskexecutor.executor.exchange.errors import PartitionAbandoned, PartitionFailed
from taskexecutor.executor.task.chain import OperatorChain, build_chain
from taskexecutor.executor.task.checkpoints.task_checkpoints import TaskCheckpoints
from taskexecutor.executor.task.config import TaskConfig, TaskEnd, TaskServices
from taskexecutor.executor.task.environment import TaskEnvironment
from taskexecutor.executor.task.input_task import InputTask
from taskexecutor.executor.task.interfaces import ResultPartition
from taskexecutor.executor.task.loop import Acknowledgement, MailboxLoop, Step, TaskKind
from taskexecutor.executor.task.mailbox import Mailbox
from taskexecutor.executor.task.meters import MetricSample, TaskMeters
from taskexecutor.executor.task.metrics import CheckpointTimes, TaskMetricGroup
from taskexecutor.executor.task.phase import TaskEvent, TaskLifecycle
from taskexecutor.executor.task.source_task import SourceTask
from taskexecutor.executor.timing.clock import TaskClock, TimeKind
from taskexecutor.executor.timing.timers import TaskTimers

# A failed neighbour is a symptom. Its own failure, the cause, is on its way to the JobMaster, which
# then cancels this task. The symptom is reported only if no cancellation arrives within this time.
# It exceeds the 3 s after which the JobMaster gives up a TaskExecutor whose connection broke.
NEIGHBOUR_FAILURE_GRACE_S = 5.0

_log = get_logger("task")


class _Outcome(Enum):
    FINISHED = 0
    CANCELED = 1
    FAILED = 2


class _Stopping(NamedTuple):
    """The state of a stop with a savepoint, which the next JobMaster needs to continue the stop."""

    savepoint_path: str
    checkpoint_id: int | None = None  # None: the sources have drained for it


class StreamTask:
    """`run` takes a dedicated thread; all other methods may be called from any thread."""

    def __init__(self, config: TaskConfig, services: TaskServices) -> None:
        self.config = config
        self.info = config.info
        self.neighbour_failure_grace_s = NEIGHBOUR_FAILURE_GRACE_S
        self._services = services
        self._mailbox = Mailbox()
        self._cancelled = threading.Event()
        self._clock = TaskClock()
        self._metrics = TaskMetricGroup(self.info, self._clock)
        self._meters = TaskMeters(self._metrics)
        self._timers = TaskTimers()
        self._environment = TaskEnvironment(
            info=self.info,
            config=dict(config.config),
            engine=services.engine,
            send_event=services.send_event,
            mailbox=self._mailbox,
            clock=self._clock,
            checkpoints=services.checkpoints is not None,
        )
        self._partitions: list[ResultPartition] = []
        self._chain: OperatorChain | None = None
        self._kind: TaskKind | None = None
        self._acknowledgement: Acknowledgement | None = None
        self._checkpoints: TaskCheckpoints | None = None
        self._stopping: _Stopping | None = None
        self._input_ended = False  # and no checkpoint follows
        self._loop = MailboxLoop(self._environment, self._timers)
        self._lifecycle = TaskLifecycle(self.info.task_name_with_subtask)

    # -- any thread

    def cancel(self) -> None:
        """Ends the task at its next step, even while it waits for input or for credit. Cannot end a
        user function that does not return.
        """
        self._environment.cancelled = True
        self._cancelled.set()
        self._mailbox.wake()
        for partition in list(self._partitions):
            partition.abort()

    def trigger_checkpoint(
        self,
        barrier: CheckpointBarrier,
        splits: int = 0,
        *,
        stops: bool = False,
        savepoint_path: str = "",
    ) -> None:
        """Starts a checkpoint in this task, between two elements, once the source has received all
        `splits` that were assigned to it: its enumerator's snapshot does not include them. If
        `stops`, a source produces nothing afterwards, unless the checkpoint is aborted;
        `savepoint_path` is the savepoint's target.
        """
        self._mailbox.put_between(
            functools.partial(
                self._trigger, barrier, splits, stops=stops, savepoint_path=savepoint_path
            )
        )

    def drain(self, savepoint_path: str = "") -> None:
        """Ends a source, between two elements, as if it had reached its end. A task that has
        processed all its data reports so again. `savepoint_path` is the target of the savepoint
        that ends the job.
        """
        self._mailbox.put_between(functools.partial(self._drain, savepoint_path))

    def notify_checkpoint(
        self, checkpoint_id: int, *, completed: bool, stops: bool = False
    ) -> None:
        """Delivers the outcome of a checkpoint, between two elements. If `stops`, the task ends
        with it.
        """
        self._mailbox.put_between(
            functools.partial(
                self._checkpoint_ended, checkpoint_id, completed=completed, stops=stops
            )
        )

    def handle_event(self, operator_id: str, message: ToOperator) -> None:
        """Delivers a message from the operator's coordinator. Splits are delivered between two
        elements, in order with checkpoint triggers, so that a snapshot holds the splits that were
        assigned before it.
        """
        mail = functools.partial(self._deliver, operator_id, message)
        if isinstance(message, SplitAssigned | SplitsExhausted | NoSplitYet):
            self._mailbox.put_between(mail)
        else:
            self._mailbox.put(mail)

    def adopt(self, answer: Callable[[TaskHeld], None]) -> None:
        """Reports the state from earlier JobMasters to a new one: between two elements, after all
        messages of earlier JobMasters, or immediately if no message can change the state.
        """
        self._mailbox.put_between(lambda: answer(self._held()))
        if self._input_ended:
            answer(self._held())

    def metrics(self) -> TaskMetrics:
        return self._metrics.read()

    def collected(self, total_ms: float) -> None:
        """Takes the time that the slot's JVM has spent in garbage collection since it started."""
        self._metrics.collected(total_ms)

    def samples(self) -> list[MetricSample]:
        return self._meters.samples()

    @contextlib.contextmanager
    def tapped(self, tap: Callable[[pa.RecordBatch], None]) -> Iterator[pa.Schema | None]:
        """While it is entered, the task's thread calls `tap` with each batch that it sends through
        its first output, whose schema this returns. Raises FiresteelError if there is none.
        """
        edges, chain = [edge for edge, _, _ in self.config.out_edges], self._chain
        if not edges or chain is None:
            raise FiresteelError("the task sends no rows to other tasks: it ends with a sink")
        first = next((i for i, edge in enumerate(edges) if not edge.side_output_tag), 0)
        target = chain.target_of(self._partitions[first])
        target.tap = tap
        try:
            edge = edges[first]
            yield None if edge.side_output_tag else self.config.output_schemas[edge.source_operator]
        finally:
            target.tap = None

    # -- the task's thread

    def run(self) -> None:
        """Blocks until the task has ended and all resources are freed. Reports states; never
        raises.
        """
        info = self.info
        with task_context(
            job_id=info.job_id,
            vertex=info.task_name,
            subtask=info.subtask,
            parallelism=info.parallelism,
            attempt=info.attempt,
        ):
            failures: list[BaseException] = []
            outcome = _Outcome.FINISHED
            try:
                self._invoke()
            except BaseException as error:
                if self._environment.cancelled:
                    # any error of a cancelled task counts as its cancellation
                    outcome = _Outcome.CANCELED
                else:
                    outcome = _Outcome.FAILED
                    failures.append(error)
                failures.extend(self._interrupted())
                if failures:
                    outcome = _Outcome.FAILED
            self._report_outcome(outcome, failures)

    def _invoke(self) -> None:
        check, lifecycle = self._environment.check_cancelled, self._lifecycle
        check()
        lifecycle.on(TaskEvent.STARTED)
        self._report(ExecutionState.INITIALIZING)
        # The initial state is part of the deployment: `config.restored`.
        chain, kind = self._load()
        chain.setup(check)
        check()
        kind.init()
        chain.initialize_state(
            self.config, self._services.create_keyed_state, self._key_group, check
        )
        chain.open(check)
        check()
        lifecycle.on(TaskEvent.OPENED)
        kind.when_initialized(lambda: self._report(ExecutionState.RUNNING))
        self._loop.run(kind.step, on_dry=chain.flush, max_wait_s=lambda: kind.max_wait_s)
        lifecycle.on(TaskEvent.INPUT_ENDED)
        self._finish_data(chain, kind)
        lifecycle.on(TaskEvent.END_OF_DATA_SENT)
        self._await_acknowledgement(kind)
        lifecycle.on(TaskEvent.ACKNOWLEDGED)
        self._close(chain, kind)
        lifecycle.on(TaskEvent.CLOSED)

    def _load(self) -> tuple[OperatorChain, TaskKind]:
        config = self.config
        vertex = config.vertex
        checkpoints = self._services.checkpoints
        overtakes = checkpoints is not None and checkpoints.unaligned
        on_credit = self._mailbox.wake if overtakes else None
        for edge, consumers, max_parallelism in config.out_edges:
            self._partitions.append(
                self._services.exchange.create_partition(
                    job_id=config.job_id,
                    result_id=edge.result_id,
                    producer=config.subtask,
                    attempt=config.attempt,
                    partitioner=edge.partitioner,
                    producers=vertex.parallelism,
                    consumers=consumers,
                    max_parallelism=max_parallelism,
                    key_columns=tuple(edge.key_columns),
                    on_credit=on_credit,
                    blocking=edge.result_type is ResultType.BLOCKING,
                )
            )
        # A cancellation before the partitions existed could not abort them.
        self._environment.check_cancelled()
        chain = build_chain(
            config,
            environment=self._environment,
            timers=self._timers,
            metrics=self._metrics,
            create_operator=self._services.create_operator,
            partitions=self._partitions,
        )
        self._chain = chain
        if checkpoints is not None:
            chain.check_checkpointed()
            times = self._metrics.checkpoint_times = CheckpointTimes()
            self._checkpoints = TaskCheckpoints(
                config.attempt_id,
                chain,
                checkpoints,
                times,
                parallelism=vertex.parallelism,
                records_read=self._metrics.records_read,
            )
        kind: TaskKind
        if config.in_edges:
            kind = InputTask(
                config,
                self._services.exchange,
                chain,
                self._metrics,
                self._mailbox.wake,
                self._checkpoints,
                overtakes=overtakes,
            )
        else:
            kind = SourceTask(chain, self._checkpoints, self._services.report_metrics)
        self._kind = kind
        self._metrics.watermark_us = kind.watermark_us
        self._metrics.caught_up = lambda: kind.caught_up
        return chain, kind

    def _finish_data(self, chain: OperatorChain, kind: TaskKind) -> None:
        drained = kind.drained
        if self._checkpoints is None:
            self._input_ended = True
            while (mail := self._mailbox.take_between()) is not None:
                mail()  # the following steps may take long
        if drained:
            chain.advance_to_end_of_event_time()
        self._timers.quiesce()
        if drained:
            chain.finish(self._environment.check_cancelled)
        else:
            chain.flush()
            chain.stop()
        if self._checkpoints is not None and drained:
            self._checkpoints.operators_finished()
        chain.emit_end_of_data(drained)

    def _await_acknowledgement(self, kind: TaskKind) -> None:
        """Runs the loop until the consumers have taken EndOfData, the producers have sent
        EndOfPartition, and a checkpoint includes the results of finish().
        """
        acknowledgement = Acknowledgement(self._partitions, self._mailbox, self.info.attempt_id)
        self._acknowledgement = acknowledgement

        checkpoints = self._checkpoints

        def step() -> Step:
            if acknowledgement.failure is not None:
                raise acknowledgement.failure
            ended = kind.step_after_data()
            if ended is not Step.END:
                return ended
            committed = checkpoints is None or checkpoints.final_complete
            return Step.END if acknowledgement.acknowledged and committed else Step.DRY

        acknowledgement.start()
        # The operators have finished: there is nothing to flush.
        self._loop.run(step, on_dry=lambda: None, max_wait_s=lambda: kind.max_wait_s)

    def _close(self, chain: OperatorChain, kind: TaskKind) -> None:
        failures = chain.close()
        if failures:
            raise failures[0]
        chain.emit_end_of_partition()
        self._timers.shut_down()
        kind.cleanup()
        with self._clock.spans[TimeKind.IDLE]:  # the consumers have not taken EndOfPartition yet
            for partition in self._partitions:
                partition.finish()
        self._close_partitions()
        self._mailbox.close()

    # -- the end

    def _interrupted(self) -> list[BaseException]:
        """Interrupts the task (spec 000, "Interrupted Execution"). Returns the failures on the way,
        in order.
        """
        failures: list[BaseException] = []
        self._lifecycle.on(TaskEvent.INTERRUPTED)
        self._mailbox.close()
        self._timers.shut_down()
        if self._kind is not None:
            with _collecting(failures):
                self._kind.cleanup()
        if self._chain is not None:
            failures.extend(self._chain.close())
        for partition in self._partitions:
            with _collecting(failures):
                partition.abort()
        with _collecting(failures):
            self._close_partitions()
        self._lifecycle.on(TaskEvent.CLOSED)
        return failures

    def _close_partitions(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._acknowledgement is not None:
            self._acknowledgement.join()
        for partition in self._partitions:
            partition.close()

    def _report_outcome(self, outcome: _Outcome, failures: list[BaseException]) -> None:
        for further in failures[1:]:
            _log.warning("another failure while the task ended", error=summary_of(further))
        match outcome:
            case _Outcome.FINISHED:
                stored = (partition.stored for partition in self._partitions)
                self._report(
                    ExecutionState.FINISHED,
                    partitions=tuple(partition for partition in stored if partition is not None),
                )
            case _Outcome.CANCELED:
                self._report(ExecutionState.CANCELED)
            case _Outcome.FAILED:
                first = failures[0]
                unreadable = self._unreadable(first)
                # Only this task reports that a BLOCKING partition cannot be read.
                symptom = unreadable is None and isinstance(
                    first, (PartitionFailed, PartitionAbandoned)
                )
                if symptom and self._cancelled.wait(self.neighbour_failure_grace_s):
                    self._report(ExecutionState.CANCELED)
                    return
                self._report(ExecutionState.FAILED, self._error_info(first), unreadable=unreadable)
            case unknown:
                assert_never(unknown)

    def _unreadable(self, error: BaseException) -> ResultPartitionId | None:
        """Returns the BLOCKING partition that the task failed to read."""
        if not isinstance(error, PartitionFailed):
            return None
        blocking = {
            edge.result_id
            for edge, _, _ in self.config.in_edges
            if edge.result_type is ResultType.BLOCKING
        }
        result_id = ResultId(error.result_id)
        if result_id not in blocking:
            return None
        return ResultPartitionId(result_id, error.producer, error.attempt)

    def _error_info(self, error: BaseException) -> ErrorInfo:
        roots = self._services.user_code_roots
        info = error_info(error, task_name=self.info.task_name_with_subtask, user_code_roots=roots)
        place = self._place_of(error)
        return replace(info, summary=f"{place}: {info.summary}") if place else info

    def _place_of(self, error: BaseException) -> str:
        """Returns where the program adds the operators that raised the error: several if they form
        one plan.
        """
        operator_id = self._environment.raised_by(error)
        node = self._chain.node_of(operator_id) if self._chain is not None else None
        if node is None:
            return ""
        operators = self.config.vertex.operators
        places = [place for index in node.members if (place := operators[index].place)]
        return " to ".join(dict.fromkeys(places[:1] + places[-1:]))

    def _report(
        self,
        state: ExecutionState,
        error: ErrorInfo | None = None,
        *,
        partitions: tuple[StoredPartition, ...] = (),
        unreadable: ResultPartitionId | None = None,
    ) -> None:
        cause = {"cause": error.summary} if error is not None else {}
        _log.info("task state", state=state.name, attempt_id=self.info.attempt_id, **cause)
        if not state.terminal:
            self._services.report_state(self.info.attempt_id, state, error, None)
            return
        try:
            finished = state is ExecutionState.FINISHED and self._checkpoints is None
            splits = self._splits_held() if finished else {}
            end = TaskEnd(self._metrics.read(), partitions, unreadable, splits)
            self._services.report_state(self.info.attempt_id, state, error, end)
        except Exception as problem:
            _log.exception("the end of a task could not be reported", state=state.name)
            self._report_without_details(state, error, problem)

    def _report_without_details(
        self, state: ExecutionState, error: ErrorInfo | None, problem: Exception
    ) -> None:
        """Reports the task as FAILED with a message that is certain to be sent: a task whose end is
        not reported would count as running.
        """
        what = error.summary if error is not None else f"the task was {state.name}"
        summary = f"{what[:500]} (the full report could not be sent: {summary_of(problem)[:500]})"
        info = ErrorInfo(
            summary=summary,
            timestamp_ms=time.time_ns() // 1_000_000,
            task_name=self.info.task_name_with_subtask,
            consequence=error is not None and error.consequence,
        )
        try:
            self._services.report_state(self.info.attempt_id, ExecutionState.FAILED, info, None)
        except Exception:
            _log.exception("the failure of a task could not be reported", cause=summary)

    # -- checkpoints

    def _trigger(
        self, barrier: CheckpointBarrier, splits: int, *, stops: bool, savepoint_path: str
    ) -> None:
        assert self._kind is not None
        if stops:
            self._stopping = _Stopping(savepoint_path, barrier.checkpoint_id)
        self._kind.trigger_checkpoint(barrier, splits, stops=stops)

    def _drain(self, savepoint_path: str) -> None:
        assert self._kind is not None
        self._stopping = _Stopping(savepoint_path)
        self._kind.drain()
        if self._checkpoints is not None:
            self._checkpoints.say_if_data_ended()

    def _checkpoint_ended(self, checkpoint_id: int, *, completed: bool, stops: bool) -> None:
        assert self._kind is not None
        if not completed:
            self._kind.abort_checkpoint(checkpoint_id)
            if self._stopping is not None and self._stopping.checkpoint_id == checkpoint_id:
                self._stopping = None
        if self._checkpoints is not None:
            self._checkpoints.ended(checkpoint_id, completed=completed, stops=stops)
        if completed and stops:
            self._kind.stop()

    def _splits_held(self) -> dict[OperatorId, Sequence[HeldSplit]]:
        assert self._chain is not None
        splits: dict[OperatorId, Sequence[HeldSplit]] = {}
        for operator in self.config.vertex.operators:
            node = self._chain.node_of(operator.operator_id)
            if operator.coordinator_kind and node and isinstance(node.operator, SourceOperator):
                splits[operator.operator_id] = tuple(node.operator.splits_held)
        return splits

    def _held(self) -> TaskHeld:
        assert self._kind is not None
        checkpoints = self._checkpoints
        begun = checkpoints.open if checkpoints is not None else set()
        return TaskHeld(
            attempt_id=self.config.attempt_id,
            splits=self._splits_held(),
            open_checkpoints=tuple(sorted(begun | set(self._kind.open_checkpoints))),
            stops_with=self._kind.stops_with,
            data_ended=checkpoints is not None and checkpoints.data_ended,
            stops=Stopping(
                self._stopping.savepoint_path, drains=self._stopping.checkpoint_id is None
            )
            if self._stopping is not None
            else None,
        )

    # -- called by operators

    def _deliver(self, operator_id: str, message: ToOperator) -> None:
        node = self._chain.node_of(operator_id) if self._chain is not None else None
        if node is None:
            _log.warning(
                "dropped an event for an operator of another task",
                operator_id=operator_id,
                event_kind=type(message).__name__,
            )
            return
        node.handle_coordinator_event(message)

    def _key_group(self, key: object) -> int:
        return key_group(key, self.config.vertex.max_parallelism)


@contextlib.contextmanager
def _collecting(failures: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        failures.append(error)

"""Test doubles and harnesses: run an operator, or a whole task, in memory, without a cluster.

    harness = OperatorHarness(MyOperator(), input_schemas=[schema])
    harness.open()
    harness.process(batch)
    harness.watermark(1_000_000)
    harness.end()
    assert harness.rows() == [...]

`MemoryExchange` stands in for the exchange between slots, `RecordingOperator` and `RecordingSource`
tell in which order a task calls its operators. They follow the real classes' contracts; nothing
here patches anything.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from firesteel.common.ids import stable_id
from firesteel.common.job_graph import DistributionPattern, Partitioner, pointwise_producers
from firesteel.elements import (
    MAX_TIMESTAMP_US,
    EndOfPartition,
    StreamElement,
    StreamEvent,
    StreamStatus,
    Watermark,
)
from firesteel.operator import Output, RuntimeContext, SourceOperator, StreamOperator, TaskInfo
from firesteel.plan.specs import WatermarkAlignmentSpec
from taskexecutor.executor.exchange.errors import (
    ExchangeClosed,
    PartitionAbandoned,
    PartitionFailed,
)
from taskexecutor.executor.exchange.partitioners import make_routing
from taskexecutor.executor.state import (
    HashMapKeyedStateBackend,
    KeyGroupRange,
    OperatorStateSnapshot,
    RestoredOperatorState,
    TaskOperatorState,
)
from taskexecutor.executor.state.key_groups import key_group
from taskexecutor.executor.task.mailbox import Mailbox
from taskexecutor.executor.task.metrics import OperatorMetrics
from taskexecutor.executor.task.node import ChainNode, ChainOutput, NodeTarget
from taskexecutor.executor.task.runtime_context import OperatorContext, TaskEnvironment
from taskexecutor.executor.timing.clock import TaskClock
from taskexecutor.executor.timing.timers import TaskTimers
from taskexecutor.executor.timing.watermarks import ValveEvent

# -- operators that tell what happens to them


class Journal:
    """What was called, in order, as "<operator>.<call>"; `hooks` run inside a call and may raise or
    block.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.hooks: dict[str, Callable[[], None]] = {}

    def note(self, operator: str, call: str) -> None:
        name = f"{operator}.{call}"
        self.calls.append(name)
        hook = self.hooks.get(name)
        if hook is not None:
            hook()

    def fail_in(self, name: str, error: BaseException) -> None:
        def fail() -> None:
            raise error

        self.hooks[name] = fail

    def of(self, *calls: str) -> list[str]:
        """Only these kinds of calls, such as "open" or "close"."""
        return [name for name in self.calls if name.split(".", 1)[1].split("(", 1)[0] in calls]


class _Recording(StreamOperator):
    """Notes its life in the journal."""

    def __init__(self, name: str, journal: Journal) -> None:
        self.name = name
        self.journal = journal

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self.journal.note(self.name, "setup")

    def initialize_state(self, state: Any) -> None:
        self.state = state
        self.journal.note(self.name, "initialize_state")

    def open(self) -> None:
        self.journal.note(self.name, "open")

    def process_watermark(self, watermark: Watermark) -> None:
        at = "max" if watermark.timestamp_us == MAX_TIMESTAMP_US else watermark.timestamp_us
        self.journal.note(self.name, f"process_watermark({at})")
        super().process_watermark(watermark)

    def on_event_time(self, timestamp_us: int, key: Any, namespace: Any) -> None:
        self.journal.note(self.name, f"on_event_time({timestamp_us})")

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        self.journal.note(self.name, "on_processing_time")

    def handle_coordinator_event(self, event: Any) -> None:
        self.journal.note(self.name, f"handle_coordinator_event({type(event).__name__})")

    def end_input(self, input_index: int) -> None:
        self.journal.note(self.name, f"end_input({input_index})")

    def finish(self) -> None:
        self.journal.note(self.name, "finish")

    def close(self) -> None:
        self.journal.note(self.name, "close")


class RecordingOperator(_Recording):
    """Passes its batches on. `on_batch(operator, batch, input)` does more, such as registering
    timers.
    """

    def __init__(
        self,
        name: str,
        journal: Journal,
        inputs: int = 1,
        on_batch: Callable[[RecordingOperator, pa.RecordBatch, int], None] | None = None,
    ) -> None:
        super().__init__(name, journal)
        self.inputs = inputs
        self.on_batch = on_batch

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self.journal.note(self.name, f"process_batch({input_index})")
        if self.on_batch is not None:
            self.on_batch(self, batch, input_index)
        self.output.emit(batch)


class RecordingSource(_Recording, SourceOperator):
    """Emits what it is given, one element per poll, and then ends, or waits for mails for ever
    (`endless`).
    """

    inputs = 0
    poll_interval_s = None

    def __init__(
        self,
        name: str,
        journal: Journal,
        elements: Sequence[pa.RecordBatch | ValveEvent],
        endless: bool = False,
    ) -> None:
        super().__init__(name, journal)
        self.elements = deque(elements)
        self.endless = endless

    def poll(self, max_wait_s: float) -> bool:
        self.waiting = False
        if not self.elements:
            self.waiting = self.endless
            self.journal.note(self.name, "exhausted" if not self.endless else "waits")
            return self.endless
        self.journal.note(self.name, "poll")
        element = self.elements.popleft()
        if isinstance(element, Watermark):
            self.output.emit_watermark(element)
        elif isinstance(element, StreamStatus):
            self.output.emit_status(element)
        else:
            self.output.emit(element)
        return True


# -- an exchange in memory


class _Channel:
    """From one producer subtask to one consumer subtask."""

    def __init__(self) -> None:
        self.queue: deque[StreamElement] = deque()
        self.gate: MemoryGate | None = None
        self.index = 0  # its number in the gate
        self.blocked = False


class MemoryExchange:
    """Result partitions and input gates of one process, connected by result, producer and attempt.

    A producer may be `capacity` elements ahead of its consumer. What nobody reads is kept in
    `ResultPartition.sent` and counts as consumed, so that a task can be run without its consumers;
    `await_consumers=True` waits for them instead.
    """

    def __init__(self, capacity: int = 16, await_consumers: bool = False) -> None:
        self.capacity = capacity
        self.await_consumers = await_consumers
        self.changed = threading.Condition()
        self.partitions: dict[tuple[str, int, int], MemoryPartition] = {}
        self.gates: list[MemoryGate] = []
        self._channels: dict[tuple[str, int, int, int], _Channel] = {}

    def create_partition(
        self,
        *,
        job_id: str,
        result_id: str,
        producer: int,
        attempt: int,
        partitioner: Partitioner,
        producers: int,
        consumers: int,
        max_parallelism: int,
        key_columns: tuple[str, ...],
    ) -> MemoryPartition:
        routing = make_routing(
            partitioner,
            producer=producer,
            producers=producers,
            consumers=consumers,
            max_parallelism=max_parallelism,
            key_columns=key_columns,
            batch_rows=65536,
        )
        with self.changed:
            channels = [
                self._channel(result_id, producer, attempt, consumer)
                for consumer in routing.targets
            ]
            partition = MemoryPartition(self, result_id, producer, attempt, routing, channels)
            self.partitions[(result_id, producer, attempt)] = partition
            return partition

    def create_gate(
        self,
        *,
        job_id: str,
        result_id: str,
        consumer: int,
        producers: int,
        consumers: int,
        pattern: DistributionPattern,
        locations: Any,
        on_available: Callable[[], None],
    ) -> MemoryGate:
        """`locations` may be None: every producer's attempt is then 0."""
        pointwise = pattern is DistributionPattern.POINTWISE
        from_producers = (
            pointwise_producers(consumer, producers, consumers) if pointwise else range(producers)
        )
        attempts = [
            0 if locations is None else locations.attempts[producer] for producer in from_producers
        ]
        with self.changed:
            sources = zip(from_producers, attempts, strict=True)
            channels = [
                self._channel(result_id, producer, attempt, consumer)
                for producer, attempt in sources
            ]
            gate = MemoryGate(self, channels, on_available)
            self.gates.append(gate)
        return gate

    def _channel(self, result_id: str, producer: int, attempt: int, consumer: int) -> _Channel:
        return self._channels.setdefault((result_id, producer, attempt, consumer), _Channel())


class MemoryPartition:
    """See taskexecutor.executor.exchange.ResultPartition."""

    def __init__(
        self,
        exchange: MemoryExchange,
        result_id: str,
        producer: int,
        attempt: int,
        routing: Any,
        channels: list[_Channel],
    ) -> None:
        self.records_out = self.bytes_out = self.blocked_ns = self.write_ns = 0
        self.blocked = False
        self.out_pool_usage = 0.0
        self.sent: list[StreamElement] = []  # whatever was emitted, in order
        self.closed = False
        self.aborted = False
        self._error: Exception | None = None
        self._exchange = exchange
        self._result_id = result_id
        self._producer = producer
        self._attempt = attempt
        self._routing = routing
        self._channels = channels

    def emit(self, batch: pa.RecordBatch) -> None:
        for index, piece in self._routing.route(batch):
            self._offer(self._channels[index], piece)
        self.sent.append(batch)
        self.records_out += batch.num_rows
        self.bytes_out += batch.nbytes

    def emit_event(self, event: StreamEvent) -> None:
        for channel in self._channels:
            self._offer(channel, event)
        self.sent.append(event)

    def await_acknowledged(self) -> None:
        self._wait(lambda: all(self._consumed(channel) for channel in self._channels))

    def finish(self) -> None:
        if not self.sent or not isinstance(self.sent[-1], EndOfPartition):
            raise ValueError("finish() comes after EndOfPartition")
        self.await_acknowledged()

    def abort(self) -> None:
        with self._exchange.changed:
            if self.closed or self.aborted:
                return
            self.aborted = True
            self._error = self._error or ExchangeClosed("the partition was aborted")
            gates = [channel.gate for channel in self._channels if channel.gate is not None]
            for gate in gates:
                gate.failure = PartitionFailed(
                    result_id=self._result_id,
                    producer=self._producer,
                    attempt=self._attempt,
                    address="memory",
                    reason="aborted",
                )
            self._exchange.changed.notify_all()
        for gate in gates:
            gate.on_available()

    def close(self) -> None:
        self.closed = True

    def abandoned(self, reason: str) -> None:
        """A consumer has closed its gate too early. Called with the exchange's lock held."""
        if not self.closed and self._error is None:
            self._error = PartitionAbandoned(
                result_id=self._result_id, producer=self._producer, consumer=0, reason=reason
            )

    def feeds(self, channel: _Channel) -> bool:
        return channel in self._channels

    def _offer(self, channel: _Channel, element: StreamElement) -> None:
        self._wait(lambda: len(channel.queue) < self._exchange.capacity or self._unread(channel))
        with self._exchange.changed:
            channel.queue.append(element)
            gate = channel.gate
        if gate is not None:
            gate.on_available()

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._exchange.changed:
            self._exchange.changed.wait_for(lambda: self._error is not None or condition())
            if self._error is not None:
                raise self._error

    def _unread(self, channel: _Channel) -> bool:
        return channel.gate is None and not self._exchange.await_consumers

    def _consumed(self, channel: _Channel) -> bool:
        return not channel.queue or self._unread(channel)


class MemoryGate:
    """See taskexecutor.executor.exchange.InputGate."""

    def __init__(
        self, exchange: MemoryExchange, channels: list[_Channel], on_available: Callable[[], None]
    ) -> None:
        self.bytes_in = 0
        self.in_pool_usage = 0.0
        self.on_available = on_available
        self.failure: PartitionFailed | None = None
        self.closed = False
        self._exchange = exchange
        self._channels = channels
        self._turn = 0
        self._ended: set[int] = set()
        for index, channel in enumerate(channels):
            channel.gate, channel.index = self, index

    @property
    def channels(self) -> int:
        return len(self._channels)

    def poll(self) -> tuple[int, StreamElement] | None:
        with self._exchange.changed:
            if self.failure is not None:
                raise self.failure
            for _ in self._channels:
                index = self._turn
                self._turn = (index + 1) % len(self._channels)
                channel = self._channels[index]
                if channel.queue and not channel.blocked:
                    element = channel.queue.popleft()
                    if isinstance(element, pa.RecordBatch):
                        self.bytes_in += element.nbytes
                    elif isinstance(element, EndOfPartition):
                        self._ended.add(index)
                    self._exchange.changed.notify_all()
                    return index, element
        return None

    def block(self, channel: int) -> None:
        self._channels[channel].blocked = True

    def unblock(self, channel: int) -> None:
        self._channels[channel].blocked = False
        self.on_available()

    def close(self) -> None:
        with self._exchange.changed:
            if self.closed:
                return
            self.closed = True
            for index, channel in enumerate(self._channels):
                if index not in self._ended:
                    for partition in self._exchange.partitions.values():
                        if partition.feeds(channel):
                            partition.abandoned("the consumer closed its gate")
            self._exchange.changed.notify_all()


# -- one operator by itself


class _Collected:
    """A target that keeps what it gets."""

    def __init__(self) -> None:
        self.elements: list[StreamElement] = []

    def batch(self, batch: pa.RecordBatch) -> None:
        self.elements.append(batch)

    def event(self, event: ValveEvent) -> None:
        self.elements.append(event)

    def finished(self) -> None:
        """Nothing to do."""


class OperatorHarness:
    """Runs one operator as a task would, in the caller's thread, on the caller's time.

    `spark` is what `context.spark` gives; `sent` has what went to the coordinator. Event time is
    advanced by `watermark`, processing time by `processing_time`. `alignment` puts the operator
    into an alignment group.
    """

    def __init__(
        self,
        operator: StreamOperator,
        input_schemas: Sequence[pa.Schema | None] | None = None,
        *,
        output_schema: pa.Schema | None = None,
        name: str = "operator",
        config: dict[str, str] | None = None,
        spark: Any = None,
        subtask: int = 0,
        parallelism: int = 1,
        max_parallelism: int = 128,
        side_output_tags: Sequence[str] = (),
        restored: RestoredOperatorState | None = None,
        alignment: WatermarkAlignmentSpec | None = None,
    ) -> None:
        inputs = len(input_schemas) if input_schemas is not None else operator.inputs
        schemas = tuple(input_schemas) if input_schemas is not None else (None,) * inputs
        self.operator = operator
        self.info = TaskInfo(
            job_id=stable_id("job"),
            job_name="harness",
            vertex_id=stable_id("vertex"),
            task_name=name,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            attempt=0,
            attempt_id=stable_id("attempt"),
        )
        self.sent: list[Any] = []
        self.environment = TaskEnvironment(
            info=self.info,
            config=dict(config or {}),
            engine=_Engine(spark),
            send_event=self.sent.append,
            mailbox=Mailbox(),
            clock=TaskClock(),
        )
        self.metrics = OperatorMetrics(stable_id(name), name)
        self._output = ChainOutput(self.environment, self.metrics)
        self._node = ChainNode(
            members=(0,),
            member_ids=(self.metrics.operator_id,),
            operator=operator,
            inputs=inputs,
            metrics=self.metrics,
            output=self._output,
        )
        self._task_timers = TaskTimers()
        self.timers = self._task_timers.for_operator(
            operator.on_event_time, operator.on_processing_time
        )
        self._node.timers = self.timers
        self._node.context = OperatorContext(
            self.environment,
            metrics=self.metrics,
            timers=self.timers,
            input_schemas=schemas,
            output_schema=output_schema,
        )
        self._inputs = [NodeTarget(self._node, index) for index in range(inputs)]
        self._main = _Collected()
        self._side = {tag: _Collected() for tag in side_output_tags}
        self._output.add(self._main)
        for tag, collected in self._side.items():
            self._output.add(collected, tag)
        if alignment is not None:
            self._node.align(alignment, self._task_timers)
            assert self._node.alignment is not None
            self._output.add(self._node.alignment)
        backend = HashMapKeyedStateBackend(
            KeyGroupRange(0, max_parallelism), lambda key: key_group(key, max_parallelism)
        )
        self.state = TaskOperatorState(backend, restored)

    # -- the operator's life

    def open(self) -> OperatorHarness:
        self._node.setup()
        self._node.initialize_state(self.state)
        self.operator.open()
        return self

    def process(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self._inputs[input_index].batch(batch)

    def watermark(self, timestamp_us: int, input_index: int | None = None) -> None:
        """A watermark on one input, or on all."""
        for index in range(len(self._inputs)) if input_index is None else (input_index,):
            self._inputs[index].event(Watermark(timestamp_us))

    def idle(self, input_index: int = 0, idle: bool = True) -> None:
        self._inputs[input_index].event(StreamStatus(idle))

    def processing_time(self, now_ms: int) -> None:
        self._task_timers.fire_processing_time(now_ms)

    def run_mails(self) -> None:
        self.environment.process_mails()

    def poll(self) -> bool:
        """One turn of a source."""
        assert isinstance(self.operator, SourceOperator)
        self.run_mails()
        return self.operator.poll(0.0)

    def deliver(self, event: Any) -> None:
        """An event from the coordinator, as a mail: it is handled when the operator yields, polls
        or `run_mails` is called.
        """
        self.environment.mailbox.put(lambda: self._node.handle_coordinator_event(event))

    @property
    def stopped(self) -> bool:
        """A task would take no input now: the operator is ahead of its alignment group."""
        return self._node.alignment is not None and self._node.alignment.stopped

    def flush(self) -> None:
        self.operator.flush()

    def end_input(self, input_index: int) -> None:
        """The end of one of several inputs."""
        self._inputs[input_index].event(Watermark(MAX_TIMESTAMP_US))
        self._inputs[input_index].finished()

    def finish(self) -> None:
        """The end of all input: MAX_WATERMARK, then end_input and finish."""
        self._node.advance_to_end_of_event_time()
        self._task_timers.quiesce()
        self._node.finish()

    def close(self) -> None:
        self._task_timers.shut_down()
        self._node.close()

    def end(self) -> None:
        self.finish()
        self.close()

    def cancel(self) -> None:
        self.environment.cancelled = True
        self.environment.mailbox.wake()

    # -- what came out

    @property
    def elements(self) -> list[StreamElement]:
        return self._main.elements

    @property
    def batches(self) -> list[pa.RecordBatch]:
        return [element for element in self._main.elements if isinstance(element, pa.RecordBatch)]

    @property
    def watermarks_us(self) -> list[int]:
        return [
            element.timestamp_us
            for element in self._main.elements
            if isinstance(element, Watermark)
        ]

    def side(self, tag: str) -> list[pa.RecordBatch]:
        return [
            element for element in self._side[tag].elements if isinstance(element, pa.RecordBatch)
        ]

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]


def restored_from(snapshot: OperatorStateSnapshot) -> RestoredOperatorState:
    """What a subtask of the same parallelism gets back of a snapshot, after it has been written and
    read.
    """
    entries = [entry for _, group in snapshot.keyed.entries_by_key_group() for entry in group]
    state = RestoredOperatorState(
        keyed=entries,
        lists=snapshot.lists,
        union_lists=snapshot.union_lists,
        broadcasts=snapshot.broadcasts,
    )
    restored: RestoredOperatorState = pickle.loads(pickle.dumps(state))
    return restored


class _Engine:
    def __init__(self, session: Any) -> None:
        self.session = session

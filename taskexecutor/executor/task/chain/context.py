"""An operator's view of its task (`firesteel.operator.RuntimeContext`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import pyarrow as pa

from firesteel.common.operator_messages import FromOperator
from firesteel.common.task_metrics import TopicProgress
from firesteel.operator import TaskInfo, TimerService
from taskexecutor.executor.task.environment import TaskEnvironment
from taskexecutor.executor.task.metrics import PLAN_INTERVAL_S, OperatorCounter, OperatorMetrics
from taskexecutor.executor.timing.clock import PlanMeter, TimeKind
from taskexecutor.executor.timing.watermark_alignment import WatermarkAlignment


class OperatorContext:
    """Implements RuntimeContext for one operator."""

    def __init__(
        self,
        environment: TaskEnvironment,
        *,
        metrics: OperatorMetrics,
        timers: TimerService,
        input_schemas: tuple[pa.Schema | None, ...],
        output_schema: pa.Schema | None,
        watermark_alignment: WatermarkAlignment | None,
        chained: bool,
    ) -> None:
        self._environment = environment
        self._metrics = metrics
        self._timers = timers
        self._input_schemas = input_schemas
        self._output_schema = output_schema
        self._watermark_alignment = watermark_alignment
        self._chained = chained
        spans = environment.clock.spans
        self._plan_meter = PlanMeter(environment.clock, metrics.plan_counts)
        self._spans = {"spark": spans[TimeKind.SPARK], "python": spans[TimeKind.PYTHON]}

    @property
    def task(self) -> TaskInfo:
        return self._environment.info

    @property
    def operator_id(self) -> str:
        return self._metrics.operator_id

    @property
    def operator_name(self) -> str:
        return self._metrics.operator_name

    @property
    def input_schemas(self) -> tuple[pa.Schema | None, ...]:
        return self._input_schemas

    @property
    def output_schema(self) -> pa.Schema | None:
        return self._output_schema

    @property
    def chained(self) -> bool:
        return self._chained

    @property
    def timers(self) -> TimerService:
        return self._timers

    @property
    def spark(self) -> Any:
        return self._environment.engine.session

    @property
    def config(self) -> dict[str, str]:
        return self._environment.config

    @property
    def stopped_ms(self) -> float:
        return 0.0 if self._watermark_alignment is None else self._watermark_alignment.stopped_ms

    @property
    def busy_s(self) -> float:
        spent_ns = self._environment.clock.read_ns()
        waiting = (TimeKind.IDLE, TimeKind.EXCHANGE, TimeKind.BLOCKED)
        return (sum(spent_ns) - sum(spent_ns[kind] for kind in waiting)) / 1e9

    def counter(self, name: str) -> OperatorCounter:
        return self._metrics.counter(name)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        self._metrics.gauges[name] = read

    def pending_records(self, read: Callable[[], int]) -> None:
        self.gauge("pendingRecords", read)
        self.show_topics(lambda: TopicProgress(pending_records=read()))

    def show_topics(self, read: Callable[[], TopicProgress]) -> None:
        self._metrics.topics = read

    def time(self, kind: Literal["spark", "python"]) -> AbstractContextManager[None]:
        return self._spans[kind]

    def count_bundle(self, records: int) -> None:
        metrics = self._metrics
        metrics.bundles += 1
        metrics.bundle_records += records
        metrics.last_bundle_records = records

    @property
    def plan_meter(self) -> PlanMeter:
        return self._plan_meter

    def show_plan(self, plan: Callable[[], str]) -> None:
        metrics = self._metrics
        now_s = time.monotonic()
        if now_s - metrics.plan_read_at_s >= PLAN_INTERVAL_S:
            metrics.plan, metrics.plan_read_at_s = plan(), now_s

    def send_to_coordinator(self, event: FromOperator) -> None:
        if not isinstance(event, FromOperator):
            raise TypeError(f"{type(event).__name__} is not an operator event")
        self._environment.send_message(self.operator_id, event)

    def request_mail(self, action: Callable[[], None]) -> None:
        environment = self._environment
        environment.mailbox.put(environment.attributed(self.operator_id, action))

    def yield_to_mail(self, timeout_s: float) -> None:
        self._environment.yield_to_mail(timeout_s)

    @property
    def checkpoints(self) -> bool:
        return self._environment.checkpoints

    @property
    def cancelled(self) -> bool:
        return self._environment.cancelled

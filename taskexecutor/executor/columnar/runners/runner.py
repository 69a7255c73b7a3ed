"""The ways to run a bundle, behind one interface, and what all of them have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.operator import PlanMeter, RuntimeContext
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.jvm.engine import SparkEngine, engine_of
from taskexecutor.executor.columnar.jvm.transfer import collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Runner(ABC):
    """One way to compute the results of one bundle."""

    is_job = False  # a Spark job runs it, and not the calling thread
    computes = choose.CACHED_PLAN
    rows = 0  # of the bundle; known once it has run

    @abstractmethod
    def plan(self) -> DataFrame:
        """Returns the DataFrame of the results, and makes it unless its plan is cached."""

    @abstractmethod
    def run(self, schema: pa.Schema, job_group: str) -> Generator[pa.RecordBatch, None, None]:
        """Yields the results in batches of exactly `schema`, each computed on demand."""


class NewPlan(Runner):
    """Runs a plan that is made for the bundle, as a Spark job."""

    is_job = True
    computes = choose.NEW_PLAN

    def __init__(self, meter: PlanMeter, make: Callable[[], DataFrame], rows: int = 0) -> None:
        """`make` may call functions of the program."""
        self._meter = meter
        self._make = make
        self.rows = rows

    def plan(self) -> DataFrame:
        with self._meter.planning:
            self.frame = self._make()
        self._meter.made()
        return self.frame

    def run(self, schema: pa.Schema, job_group: str) -> Generator[pa.RecordBatch, None, None]:
        return collect(self.frame, schema, self._meter)


class TaskOnSpark:
    """Runs the bundles of one operator: in its task's job group, counted, and with its plan in
    `firesteel show`.
    """

    def __init__(self, context: RuntimeContext) -> None:
        self.engine: SparkEngine = engine_of(context.spark)
        self.job_group = f"firesteel-{context.task.attempt_id}"
        self._context = context
        self._description = f"{context.task.job_name}: {context.task.task_name_with_subtask}"

    @contextmanager
    def job(self) -> Iterator[None]:
        """Inside the `with`, this thread may run Spark jobs, also by functions of the program."""
        with (
            self._context.time("spark"),
            self.engine.job_group(self.job_group, self._description, self._cancelled),
        ):
            yield

    def run(
        self,
        runner: Runner,
        checked: Callable[[DataFrame], pa.Schema],
        emit: Callable[[pa.RecordBatch], None],
    ) -> None:
        """Runs a bundle, and counts it also if it fails. `checked` returns the schema of the
        results, and raises if the plan has different columns.
        """
        self._context.plan_meter.computed_by(runner.computes)
        try:
            with self.job() if runner.is_job else self.local():
                frame = runner.plan()
                schema = checked(frame)
                with closing(runner.run(schema, self.job_group)) as batches:
                    for batch in batches:
                        emit(batch)
                self.show(frame)
        finally:
            self._context.count_bundle(runner.rows)

    def show(self, frame: DataFrame) -> None:
        if self._context.task.subtask == 0:  # one subtask is enough
            self._context.show_plan(lambda: composed.optimized_plan(frame))

    @contextmanager
    def local(self) -> Iterator[None]:
        """Inside the `with`, this thread may run local tasks, which takes no call into the JVM."""
        with (
            self._context.time("spark"),
            self.engine.cancelling(self.job_group, self._cancelled),
        ):
            yield

    def _cancelled(self) -> bool:
        return self._context.cancelled

"""Carries out the inspections of a slot, one at a time, in a thread that serves no task.

An inspection ends by its time limit at the latest, and when the job leaves the slot.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import assert_never

from firesteel.common.error_report import summary_of
from firesteel.common.inspections import (
    Inspected,
    Inspection,
    InspectionResult,
    InspectTask,
    RowSampling,
    StackSampling,
    ThreadStack,
)
from firesteel.common.logs import get_logger
from firesteel.common.thread_stacks import python_threads
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.threads import JvmThreads
from taskexecutor.executor.inspection.flame_graph import StackSampler
from taskexecutor.executor.inspection.rows import RowTap, sampled_rows
from taskexecutor.executor.running_tasks import RunningTask, RunningTasks

log = get_logger(__name__)

_LOOK_S = 0.1


class Inspections:
    def __init__(
        self,
        tasks: RunningTasks,
        engine: SparkEngine,
        answer: Callable[[Inspected], None],
        *,
        others: Callable[[], Sequence[threading.Thread]] = lambda: (),
    ) -> None:
        """`others` returns the job's threads besides those of its tasks."""
        self._tasks = tasks
        self._engine = engine
        self._answer = answer
        self._others = others
        self._running = threading.Lock()
        self._stopped = threading.Event()

    def begin(self, request: InspectTask) -> None:
        """Starts an inspection, whose answer follows."""
        running = self._tasks.find(request.attempt_ids[0])
        if running is None:
            self._answer(Inspected(request=request, problem="the task has ended"))
        elif not self._running.acquire(blocking=False):
            problem = "another inspection runs in the slot; try again in a moment"
            self._answer(Inspected(request=request, problem=problem, busy=True))
        else:
            self._stopped.clear()
            run = functools.partial(self._run, request, running)
            threading.Thread(target=run, name="inspection", daemon=True).start()

    def stop(self) -> None:
        """Ends the current inspection soon: the job leaves the slot."""
        self._stopped.set()

    def _run(self, request: InspectTask, running: RunningTask) -> None:
        try:
            result = self._inspect(running, request.inspection)
            answer = Inspected(request=request, result=result)
        except FiresteelError as error:
            answer = Inspected(request=request, problem=str(error))
        except Exception as error:
            log.exception("an inspection failed")
            answer = Inspected(request=request, problem=f"it failed: {summary_of(error)}")
        finally:
            self._running.release()
        try:
            self._answer(answer)
        except Exception as error:  # too large
            self._answer(Inspected(request=request, problem=summary_of(error)))

    def _inspect(self, running: RunningTask, inspection: Inspection) -> InspectionResult:
        match inspection:
            case StackSampling(seconds=seconds):
                sampler = StackSampler(running.thread, others=self._others, jvm=self._jvm)
                return sampler.run(seconds, self._stopped.is_set)
            case RowSampling(count=count, seconds=seconds):
                tap = RowTap(count)
                with running.task.tapped(tap) as schema:
                    for _ in range(int(seconds / _LOOK_S)):
                        if tap.full.wait(_LOOK_S) or self._stopped.is_set():
                            break
                        if not running.thread.is_alive():
                            break
                return sampled_rows(tap.batches, schema)
            case _:
                assert_never(inspection)

    def _jvm(self) -> JvmThreads | None:
        return JvmThreads(self._engine.session) if self._engine.is_alive() else None


def start_dump(
    slot: int, engine: SparkEngine, answer: Callable[[Sequence[ThreadStack]], None]
) -> None:
    """Answers with the stacks of all threads of the slot's Python and its JVM, from a thread."""

    def dump() -> None:
        process = f"slot-{slot}"
        stacks = python_threads(process)
        try:
            for name, (state, lines) in JvmThreads(engine.session).dump():
                text = "".join(f"\tat {line}\n" for line in lines)
                stacks.append(ThreadStack(f"{process} JVM", name, f"{state}\n{text}"))
        except Exception as error:
            stacks.append(ThreadStack(f"{process} JVM", "no answer", summary_of(error)))
        answer(stacks)

    threading.Thread(target=dump, name="thread-dump", daemon=True).start()

"""Analyzes process functions: checks their states before data flows."""

from __future__ import annotations

import contextlib
from typing import Any, cast

from firesteel.broadcast_functions import BroadcastProcessFunction
from firesteel.common.error_report import summary_of
from firesteel.common.logs import get_logger
from firesteel.errors import FiresteelError
from firesteel.functions import CoProcessFunction, KeyedProcessFunction, ProcessFunction
from firesteel.operator import Counter, RuntimeContext, TaskInfo
from firesteel.operators import BroadcastProcessSpec, CoProcessSpec, ProcessSpec
from taskexecutor.executor.analysis.checks import KeyedInput, check_same_key_types
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.columnar.schemas import columns_of_key
from taskexecutor.executor.operators.process.context import FunctionContext
from taskexecutor.executor.operators.process.function_operator import current_key_of
from taskexecutor.executor.state import HashMapKeyedStateBackend, KeyGroupRange

log = get_logger(__name__)


def check_function(
    function: ProcessFunction | KeyedProcessFunction | CoProcessFunction | BroadcastProcessFunction,
    name: str,
    keys: Any = None,
    *,
    keyed: bool = True,
) -> None:
    """Calls `open` and `close` once, without data, as if for a single subtask. Raises
    FiresteelError that names the operator if `open` requests invalid states: wrong names, kinds or
    schemas. `keys` are the key columns, as Spark's JSON. `keyed`: whether the function has keys.

    Other errors of `open` are left to the task, which is restarted: for example, a server may be
    unavailable.
    """
    backend = HashMapKeyedStateBackend(KeyGroupRange(0, 1), lambda key: 0)
    task = cast(RuntimeContext, _AnalysedTask(name))  # the function's view of a task
    context = FunctionContext(
        task, backend if keyed else None, current_key_of(function), declared={}, keys=keys
    )
    try:
        function.open(context)
    except FiresteelError as problem:
        raise FiresteelError(
            f"{name}: {type(function).__name__}.open failed: {problem}"
        ) from problem
    except Exception as error:
        log.info("left to the task", operator=name, cause=summary_of(error))
    finally:
        with contextlib.suppress(Exception):
            function.close()


class _AnalysedTask:
    def __init__(self, name: str) -> None:
        self.task = TaskInfo(
            job_id="",
            job_name="",
            vertex_id="",
            task_name=name,
            subtask=0,
            parallelism=1,
            max_parallelism=1,
            attempt=0,
            attempt_id="",
        )

    @property
    def config(self) -> dict[str, str]:
        return {}

    def counter(self, name: str) -> Counter:
        return _Count()


class _Count:
    value = 0

    def inc(self, count: int = 1) -> None:
        self.value += count


def analyze_co_process(step: AnalysisStep, spec: CoProcessSpec) -> AnalyzedOutput:
    """Runs the function's `open`, to find invalid states before data flows."""
    check_same_key_types(
        step.operator_name,
        KeyedInput("the first stream", step.inputs[0].schema, spec.first_key_columns),
        KeyedInput("the second", step.inputs[1].schema, spec.second_key_columns),
    )
    schema = step.declared(spec.schema)
    check_function(
        spec.function,
        step.operator_name,
        columns_of_key(step.inputs[0].schema, spec.first_key_columns),
    )
    return AnalyzedOutput(schema=schema)


def analyze_process(step: AnalysisStep, spec: ProcessSpec | BroadcastProcessSpec) -> AnalyzedOutput:
    """Runs the function's `open`, to find invalid states before data flows."""
    keys = spec.key_columns
    schema = step.declared(spec.schema)
    check_function(
        spec.function,
        step.operator_name,
        columns_of_key(step.inputs[0].schema, keys or ()),
        keyed=keys is not None,
    )
    return AnalyzedOutput(schema=schema)

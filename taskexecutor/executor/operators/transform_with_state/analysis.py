"""Analyzes a StatefulProcessor: checks it before data flows."""

from __future__ import annotations

from typing import Any

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.operators import TransformWithStateSpec
from taskexecutor.executor.analysis.checks import KeyedInput, check_same_key_types
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.columnar.schemas import columns_of_key
from taskexecutor.executor.operators.python_rows.current_key import CurrentKey
from taskexecutor.executor.operators.transform_with_state.handle import ProcessorHandle
from taskexecutor.executor.operators.transform_with_state.processor_timers import ProcessorTimers
from taskexecutor.executor.operators.transform_with_state.transform_with_state import (
    close,
    initialise,
)
from taskexecutor.executor.state import HashMapKeyedStateBackend, KeyGroupRange
from taskexecutor.executor.timing.timers import TaskTimers


def check_processor(spec: TransformWithStateSpec, name: str, keys: Any = None) -> StateDescriptions:
    """Calls `init` and `close` once, without data, and returns the states that `init` declares.
    Raises their errors, with the operator's name. `keys` are the key columns, as Spark's JSON.
    """
    current = CurrentKey()
    backend = HashMapKeyedStateBackend(KeyGroupRange(0, 1), lambda key: 0)
    service = TaskTimers().for_operator(lambda due: None, lambda *fired: None)
    handle = ProcessorHandle(
        spec.time_mode,
        current,
        backend,
        ProcessorTimers(spec.time_mode, current, backend, service),
        keys=keys,
    )
    initialise(spec.processor, handle, name)
    close(spec.processor, name)
    return handle.declared


def analyze_transform_with_state(
    step: AnalysisStep, spec: TransformWithStateSpec
) -> AnalyzedOutput:
    """Runs the processor's `init`, as PySpark does, to find its errors before data flows."""
    schema = step.declared(spec.output_schema)
    if spec.initial_key_columns is not None:
        check_same_key_types(
            step.operator_name,
            KeyedInput("the stream", step.inputs[0].schema, spec.key_columns),
            KeyedInput("initial_state", step.inputs[1].schema, spec.initial_key_columns),
        )
    states = check_processor(
        spec, step.operator_name, columns_of_key(step.input_schema, spec.key_columns)
    )
    return AnalyzedOutput(schema=schema, states=states)

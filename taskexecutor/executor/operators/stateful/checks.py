"""Checks a StatefulProcessor before data flows."""

from __future__ import annotations

from typing import Any

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.operators import TransformWithStateSpec
from taskexecutor.executor.operators.current_key import CurrentKey
from taskexecutor.executor.operators.stateful.handle import ProcessorHandle
from taskexecutor.executor.operators.stateful.processor_timers import ProcessorTimers
from taskexecutor.executor.operators.stateful.transform_with_state import close, initialise
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

"""What can be found wrong with a StatefulProcessor before data flows."""

from __future__ import annotations

import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.plan.specs import TransformWithStateSpec
from taskexecutor.executor.operators.stateful.handle import ProcessorHandle, ProcessorTimers
from taskexecutor.executor.operators.stateful.transform_with_state import close, initialise
from taskexecutor.executor.operators.stateful.variables import CurrentKey
from taskexecutor.executor.state import HashMapKeyedStateBackend, KeyGroupRange
from taskexecutor.executor.timing.timers import TaskTimers


def check_processor(spec: TransformWithStateSpec, name: str) -> None:
    """Calls `init` and then `close`, once, away from the data. Raises what they raise, with the
    operator's name.
    """
    current = CurrentKey()
    backend = HashMapKeyedStateBackend(KeyGroupRange(0, 1), lambda key: 0)
    service = TaskTimers().for_operator(lambda *fired: None, lambda *fired: None)
    handle = ProcessorHandle(
        spec.time_mode, current, backend, ProcessorTimers(spec.time_mode, current, backend, service)
    )
    initialise(spec.processor, handle, name)
    close(spec.processor, name)


def check_initial_state(
    spec: TransformWithStateSpec, rows: pa.Schema | None, state: pa.Schema | None, name: str
) -> None:
    """The keys of the two inputs must be of the same types, or they would not meet."""
    if rows is None or state is None:
        return
    keys = zip(spec.key_columns, spec.initial_key_columns or (), strict=True)
    for ours, theirs in keys:
        if (
            ours in rows.names
            and theirs in state.names
            and rows.field(ours).type != state.field(theirs).type
        ):
            raise FiresteelError(
                f"{name}: the stream's key {ours!r} is {rows.field(ours).type} and initial_state's key {theirs!r} is "
                f"{state.field(theirs).type}; cast one of them"
            )

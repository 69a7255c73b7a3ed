"""Test doubles and harnesses that run an operator, or a whole task, in memory, without a cluster.

    harness = OperatorHarness(MyOperator(), input_schemas=[schema])
    harness.open()
    harness.process(batch)
    harness.watermark(1_000_000)
    harness.end()
    assert harness.rows() == [...]

`MemoryExchange` replaces the exchange between slots; `RecordingOperator` and `RecordingSource`
record the order in which a task calls its operators. They keep the contracts of the real classes;
nothing is patched."""

from firesteel.common.installation import make_importable

make_importable()

from taskexecutor.executor.harness import (  # noqa: E402
    Journal,
    MemoryExchange,
    MemoryGate,
    MemoryPartition,
    OperatorHarness,
    RecordingOperator,
    RecordingSource,
    restored_from,
)

__all__ = [
    "Journal",
    "MemoryExchange",
    "MemoryGate",
    "MemoryPartition",
    "OperatorHarness",
    "RecordingOperator",
    "RecordingSource",
    "restored_from",
]

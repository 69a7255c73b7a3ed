"""The test harness: runs an operator, or a whole task, in memory, without a cluster. Users import
it as `firesteel.testing`.
"""

from taskexecutor.executor.harness.memory_exchange import (
    MemoryExchange,
    MemoryGate,
    MemoryPartition,
)
from taskexecutor.executor.harness.operator_harness import OperatorHarness, restored_from
from taskexecutor.executor.harness.recording import Journal, RecordingOperator, RecordingSource

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

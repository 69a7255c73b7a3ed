"""The ExecutionGraph: the parallel version of the JobGraph, with the state of every subtask (spec
002).
"""

from jobmaster.core.execution_graph.graph import (
    ExecutionGraph,
    InvalidJobGraph,
    build,
    share_slots,
    slot_profiles,
)
from jobmaster.core.execution_graph.vertex import (
    Execution,
    ExecutionJobVertex,
    ExecutionVertex,
    IntermediateResult,
    IntermediateResultPartition,
)

__all__ = [
    "Execution",
    "ExecutionGraph",
    "ExecutionJobVertex",
    "ExecutionVertex",
    "IntermediateResult",
    "IntermediateResultPartition",
    "InvalidJobGraph",
    "build",
    "share_slots",
    "slot_profiles",
]

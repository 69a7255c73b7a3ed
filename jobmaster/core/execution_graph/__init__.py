"""The ExecutionGraph: the parallel version of the JobGraph, with the state of every subtask (spec
002).
"""

from jobmaster.core.execution_graph.build import InvalidJobGraph, build
from jobmaster.core.execution_graph.graph import ExecutionGraph
from jobmaster.core.execution_graph.result import IntermediateResult, IntermediateResultPartition
from jobmaster.core.execution_graph.slot_sharing import share_slots
from jobmaster.core.execution_graph.vertex import Execution, ExecutionJobVertex, ExecutionVertex

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
]

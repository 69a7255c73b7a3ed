"""The operators of a task, connected into a DAG: nodes, their outputs, and each operator's runtime
context.
"""

from taskexecutor.executor.task.chain.build import build_chain
from taskexecutor.executor.task.chain.chain import OperatorChain
from taskexecutor.executor.task.chain.node import ChainNode, NodeTarget, create_node
from taskexecutor.executor.task.chain.output import Target

__all__ = ["ChainNode", "NodeTarget", "OperatorChain", "Target", "build_chain", "create_node"]

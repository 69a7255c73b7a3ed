"""The operators of a task, wired into a DAG: nodes, what leads from one to the next, and what each
operator sees of its task.
"""

from taskexecutor.executor.task.chain.build import build_chain
from taskexecutor.executor.task.chain.chain import OperatorChain
from taskexecutor.executor.task.chain.node import ChainNode, NodeTarget, create_node

__all__ = ["ChainNode", "NodeTarget", "OperatorChain", "build_chain", "create_node"]

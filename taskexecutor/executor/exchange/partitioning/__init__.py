"""Assigns rows to consumer subtasks, with hashes of their keys."""

from taskexecutor.executor.exchange.partitioning.murmur3 import hash_columns
from taskexecutor.executor.exchange.partitioning.routing import (
    Broadcast,
    Routing,
    cut,
    groups_of_subtask,
    key_groups,
    make_routing,
    subtask_of_group,
)

__all__ = [
    "Broadcast",
    "Routing",
    "cut",
    "groups_of_subtask",
    "hash_columns",
    "key_groups",
    "make_routing",
    "subtask_of_group",
]

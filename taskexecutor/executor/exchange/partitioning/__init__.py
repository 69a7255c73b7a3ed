"""Which consumer subtask gets which rows, and the hashes of keys that decide it."""

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

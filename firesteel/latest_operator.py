"""Settings of the operator that was just added: uid, parallelism, chaining, slots."""

from __future__ import annotations

from typing import Self

from firesteel.common.resources import ResourceProfile
from firesteel.errors import InvalidProgram
from firesteel.plan.stream_graph import Chaining, StreamNode
from firesteel.program import Program

__all__ = ["LatestOperator"]


class LatestOperator:
    """Base of streams and sinks: changes settings of their latest operator."""

    _program: Program
    _node: StreamNode | None

    def _operator(self) -> StreamNode:
        if self._node is None:
            raise InvalidProgram(
                "uid(), name() and the other settings apply to the operator that was just added:"
                " call them directly after it, not after key_by() or union()"
            )
        return self._node

    def uid(self, uid: str) -> Self:
        """Sets the operator's identity across versions of the program; its state is stored under
        it.
        """
        self._operator().uid = uid
        return self

    def name(self, name: str) -> Self:
        """Sets the operator's name in `firesteel show`, in metrics and in errors."""
        self._operator().name = name
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Sets the number of the operator's subtasks; the default is parallelism.default."""
        node = self._operator()
        if positive("parallelism", parallelism) > 1 and node.whole:
            raise InvalidProgram(
                f"operator {node} has no keys, so one subtask processes all of its records, and"
                f" set_parallelism({parallelism}) would divide them; use key_by(...).window(...)"
            )
        node.parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Sets the number of key groups, which bounds the parallelism. It must never change."""
        self._operator().max_parallelism = positive("max parallelism", max_parallelism)
        return self

    def start_new_chain(self) -> Self:
        """Does not chain the operator with its producers; its consumers may be chained to it."""
        self._operator().chaining = Chaining.HEAD
        return self

    def disable_chaining(self) -> Self:
        """Runs the operator in a separate task."""
        self._operator().chaining = Chaining.NEVER
        return self

    def slot_sharing_group(self, group: str, resources: ResourceProfile | None = None) -> Self:
        """Only subtasks of one group share slots. `resources` is what this operator needs."""
        self._operator().slot_sharing_group = group
        return self if resources is None else self.set_resources(resources)

    def co_location_group(self, group: str) -> Self:
        """Runs subtask i of every operator of the group in the same slot."""
        self._operator().co_location_group = group
        return self

    def resource_group(self, group: str) -> Self:
        """Puts the operator into a group that `Environment.resource_group` registered: it shares
        slots only within this group.
        """
        node = self._operator()
        node.resources = self._program.resource_profile(group)
        node.resource_group = group
        return self

    def set_resources(self, resources: ResourceProfile) -> Self:
        """Sets the resources that this operator needs; a shared slot has the sum of its
        operators.
        """
        self._operator().resources = resources
        return self


def positive(what: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidProgram(f"{what} is {value!r}; it must be a whole number of at least 1")
    return value

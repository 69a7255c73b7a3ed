"""The slot half of each kind of operator: its analysis and its runtime.

The kinds of a module of `firesteel.operators` are those of the module with the same name in this
package, or, outside of Firesteel, of the module that `Spec.slot_half` names. It is imported when
the first job needs it: an idle slot does without its libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from firesteel.operators import Spec
from taskexecutor.executor.analysis.step import Analyzer
from taskexecutor.executor.lazy_imports import imported
from taskexecutor.executor.operator_factory import CreateOperator, OpenedOperator


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """The registration of a kind. A module lists its kinds as `KINDS`."""

    spec: type[Spec]
    analyze: Analyzer
    create: CreateOperator


def alone(create: Callable[[Any], StreamOperator]) -> CreateOperator:
    """Returns a factory for operators that run alone, not in a Spark plan. `create` is called with
    the spec.
    """

    def created(group: Sequence[OpenedOperator]) -> StreamOperator:
        first, *others = group
        if others:
            raise FiresteelError(
                f"operators {', '.join(opened.operator.name for opened in group)} cannot be fused:"
                " not all of them run on Spark"
            )
        return create(first.spec)

    return created


def kind_of(spec: type[Spec]) -> OperatorKind:
    module = spec.slot_half or f"{__package__}.{spec.__module__.rpartition('.')[2]}"
    kinds: Sequence[OperatorKind] = imported(module).KINDS
    for kind in kinds:
        if kind.spec is spec:
            return kind
    raise FiresteelError(f"{module}.KINDS has no operator kind for {spec.__qualname__}")


def create_operator(group: Sequence[OpenedOperator]) -> StreamOperator:
    """Creates the operator of `group`: one operator, or a linear run of operators that Spark
    executes as one plan.

    Raises FiresteelError for a group that cannot be one operator.
    """
    return kind_of(type(group[0].spec)).create(group)

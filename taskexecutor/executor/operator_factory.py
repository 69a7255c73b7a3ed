"""The interface through which a task creates its operators.

The task runtime knows operators only as `firesteel.operator.StreamOperator`; the process passes it
a `CreateOperator`, so that it imports neither operators nor connectors nor Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from firesteel.common.job_graph import Operator
from firesteel.errors import FiresteelError
from firesteel.operator import SourceOperator, StreamOperator
from firesteel.operators import Spec


@dataclass(frozen=True, slots=True)
class OpenedOperator:
    """An operator of the JobGraph with its spec unpickled and the schema that analysis found for
    its output.
    """

    operator: Operator
    spec: Spec
    output_schema: pa.Schema | None


CreateOperator: TypeAlias = Callable[[Sequence[OpenedOperator]], StreamOperator]
"""Creates one operator for a group: a single operator, or a linear run of operators that Spark
executes as one plan. Raises FiresteelError for a group that cannot be one operator.
"""


def check_checkpointed(operator: StreamOperator, name: str) -> None:
    """Raises FiresteelError if the operator has state that no checkpoint includes."""
    reason = operator.not_checkpointed
    if isinstance(operator, SourceOperator) and not operator.has_position:
        reason = reason or "it does not report how far it has read"
    if reason:
        raise FiresteelError(
            f"{name} cannot take part in checkpoints yet: {reason}. Run the job without them"
            " (execution.checkpointing.interval: 0)"
        )

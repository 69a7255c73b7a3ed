"""Access to Spark's plans from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def analyzed(frame: DataFrame) -> Any:
    execution: Any = frame._jdf.queryExecution()
    return execution.analyzed()


def kind_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]

"""Costly expressions that a condition refers to are evaluated once.

    select("user", regexp_extract(url, ...) AS id).where("id <> ''")

Spark moves the condition before the projection, where rows are fewer afterwards, and so evaluates
the expression twice for each row that stays: in the condition, and in the projection. It leaves a
condition behind some expressions that it takes for costly, but not behind these. Here, what the
condition needs is a projection of its own, and the rest of the projection follows the condition.
The former has another column, which is always true, but not for the optimiser: it moves no
condition before a projection that is not deterministic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskexecutor.executor.spark.jvm.engine import engine_of
from taskexecutor.executor.spark.jvm.local_tasks import singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CLASS = "FiresteelOnce"


def evaluated_once(session: Any, frame: DataFrame) -> DataFrame:
    """A frame with the same rows; `frame` itself if Spark evaluates nothing twice. Its plan must be
    run by this JVM.
    """
    from pyspark.sql import DataFrame

    engine = engine_of(session)
    if not engine.is_local:
        return frame
    engine.code.load(_CLASS)
    plan = engine.code.type(_CLASS).rewritten(frame._jdf.queryExecution().analyzed())
    if plan is None:
        return frame
    dataset = singleton(session._jvm, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)

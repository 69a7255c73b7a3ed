"""Evaluates costly expressions once if a condition refers to them.

select("user", regexp_extract(url, ...) AS id).where("id <> ''")

Spark pushes the condition below the projection, because there are fewer rows afterwards, and so
evaluates the expression twice for each remaining row: in the condition, and in the projection. It
does not push a condition below some expressions that it considers costly, but it does for these.
Here, the expressions that the condition needs become a separate projection, and the rest of the
projection follows the condition. The first projection has an additional column that is always true,
which the optimizer does not know: it pushes no condition below a nondeterministic projection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskexecutor.executor.columnar.jvm.engine import engine_of
from taskexecutor.executor.columnar.jvm.local_tasks import singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CLASS = "FiresteelCommonExpressions"


def evaluated_once(session: Any, frame: DataFrame) -> DataFrame:
    """Returns a DataFrame with the same rows; `frame` itself if Spark evaluates nothing twice. Its
    plan must be run by this JVM.
    """
    from pyspark.sql import DataFrame

    engine = engine_of(session)
    if not engine.is_local:
        return frame
    plan = engine.code.type(_CLASS).rewritten(frame._jdf.queryExecution().analyzed())
    if plan is None:
        return frame
    dataset = singleton(session._jvm, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)

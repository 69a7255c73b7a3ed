"""Makes a job of a PySpark program: `firesteel run --spark`. The program runs in the cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from firesteel.client.execution import run_job
from firesteel.client.execution_context import ExecutionContext, active
from firesteel.client.files import program_modules
from firesteel.client.spark_programs.detection import application_name, is_pyspark_program
from firesteel.common.config import options
from firesteel.common.ids import JobId, OperatorId, VertexId, random_id, stable_id
from firesteel.common.job_graph import JobGraph, JobVertex, Operator, Scaling
from firesteel.errors import FiresteelError
from firesteel.operators.spark_program import SparkDriverSpec, SparkExecutorsSpec
from firesteel.operators.spec import Spec
from firesteel.plan.local_modules import imports_of_file, local_modules
from firesteel.plan.source_lines import dumps_with_lines
from firesteel.text import valid_text

DRIVER, EXECUTORS = "driver", "executors"

# A lost process is replaced; an error of the program ends the job.
_RESTARTS = {
    options.RESTART_STRATEGY.key: "failure-rate",
    options.RESTART_MAX_FAILURES.key: "10",
    options.RESTART_FAILURE_INTERVAL.key: "10 min",
    options.RESTART_FAILURE_DELAY.key: "100 ms",
}


def run_spark_program(
    path: Path, arguments: Sequence[str], executors: int, context: ExecutionContext
) -> None:
    """Submits the program as a job with this number of executors. In attached mode, waits for its
    end.

    Raises FiresteelError, JobFailed or JobCanceled.
    """
    with active(context):
        search_path = list(sys.path)
        sys.path.insert(0, str(path.resolve().parent))
        try:
            if not is_pyspark_program(path):
                raise FiresteelError(
                    f"--spark runs programs that use Spark alone, and {path.name} imports"
                    " firesteel: run it without --spark"
                )
            modules = program_modules(
                local_modules(imports_of_file(path)), context.conf.get(options.MODULES_LIMIT)
            )
        finally:
            sys.path[:] = search_path
        if modules.left_behind:
            print(f"Warning: {modules.left_behind}", file=sys.stderr)
        graph = job_graph_of(path, arguments, executors, context)
        run_job(graph, context.with_modules(modules), lambda: None)


def job_graph_of(
    path: Path, arguments: Sequence[str], executors: int, context: ExecutionContext
) -> JobGraph:
    """Returns the job of the program: a driver and its executors, each in a slot."""
    file = path.resolve()
    source = file.read_bytes()
    settings = {
        key: text
        for key, text in {**context.conf.spark(), **context.overrides}.items()
        if key.startswith("spark.")
    }
    driver = SparkDriverSpec(
        file=str(file),
        source=source,
        arguments=tuple(arguments),
        folder=os.getcwd(),
        settings=settings,
    )
    return JobGraph(
        job_id=JobId(random_id()),
        name=valid_text(settings.get("spark.app.name") or application_name(source) or path.name),
        vertices=(
            _vertex(DRIVER, driver, 1, Scaling.FIXED),
            _vertex(EXECUTORS, SparkExecutorsSpec(), executors, Scaling.DEFAULT),
        ),
        edges=(),
        config=_configuration(context),
    )


def _configuration(context: ExecutionContext) -> dict[str, str]:
    """Returns the job's configuration. Settings of Spark are the program's, not those of slots."""
    own = {key: text for key, text in context.overrides.items() if not key.startswith("spark.")}
    restarts = {} if context.conf.is_set(options.RESTART_STRATEGY) else _RESTARTS
    return {
        **restarts,
        **own,
        options.RUNTIME_MODE.key: "BATCH",
        options.CHECKPOINT_INTERVAL.key: "0 s",
        options.FAILOVER_STRATEGY.key: "individual",  # an executor restarts alone
    }


def _vertex(name: str, spec: Spec, parallelism: int, scaling: Scaling) -> JobVertex:
    coordinator = spec.coordinator(parallelism, read_by_spark=False)
    assert coordinator is not None
    operator = Operator(
        operator_id=OperatorId(stable_id("spark-program", name)),
        name=name,
        kind=spec.kind,
        spec=dumps_with_lines(spec).data,
        uid=name,
        coordinator_kind=coordinator.kind,
        coordinator_options_json="{}",
    )
    return JobVertex(
        vertex_id=VertexId(stable_id("vertex", operator.operator_id)),
        name=name,
        parallelism=parallelism,
        max_parallelism=1 if scaling is Scaling.FIXED else options.MAX_PARALLELISM.default,
        operators=(operator,),
        slot_sharing_group=name,
        scaling=scaling,
    )

"""`python -m firesteel.spark_connect FOLDER`: the front of one program, until SIGTERM or the end of
the program's process. FOLDER has its request, and gets its log.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

from firesteel.client.execution_context import EmbeddedCluster, ExecutionContext, active
from firesteel.client.spark_programs.front_process import LOG, FrontRequest
from firesteel.common import logs
from firesteel.common.config import Configuration
from firesteel.common.job_graph import JobGraph
from firesteel.common.process import announce_ready, exit_reason, log_tail, watch_lifeline
from firesteel.errors import FiresteelError
from firesteel.plan.local_modules import imports_of_file, local_module
from firesteel.spark_connect.archive import archive_options
from firesteel.spark_connect.spark import Spark

JVM_ENDS_S = 2.0  # after its connection is lost
_SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.app.name": "Firesteel"}


def main(folder: Path) -> None:
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program decides
    request = FrontRequest.read(folder)
    err = _own_output(folder / LOG)
    log = logs.configure("front")
    _prepare(request)
    import pyspark.sql  # noqa: F401, before two threads import its parts

    spark = Spark({**_SETTINGS, **request.settings}, folder, archive_options())
    with ThreadPoolExecutor(1, "spark") as background:
        started = background.submit(spark.start)
        try:
            with active(_context(request, err)) as context:
                if context.embedded_cluster is not None and request.streams:
                    context.embedded_cluster.begin()
                _serve(request, context, spark, started, folder, terminated, err)
        except FiresteelError as error:
            log.exception("the front ends")
            announce_ready(error=str(error))
    spark.stop()


def _serve(
    request: FrontRequest,
    context: ExecutionContext,
    spark: Spark,
    started: Future[None],
    folder: Path,
    terminated: threading.Event,
    err: TextIO,
) -> None:
    """Serves until `terminated`. Raises FiresteelError if Spark has not `started`."""
    # These modules take seconds to import, in which the JVM starts.
    from firesteel.spark_connect.admission import OneToken
    from firesteel.spark_connect.front import Front, SparkServer
    from firesteel.spark_connect.pipelines import AnsweredCommands, Pipelines
    from firesteel.spark_connect.queries import StreamingQueries
    from firesteel.spark_connect.starter import JobStarter

    started.result()

    def warn(text: str) -> None:
        print(f"Warning: {text}", file=err, flush=True)

    starter = JobStarter(spark, lambda session: context, _modules(request), warn)
    queries = StreamingQueries(starter, warn)
    pipelines = Pipelines(spark, starter, lambda session: context)
    front = Front(
        OneToken(request.token),
        lambda: SparkServer(spark.address, spark.token),
        AnsweredCommands(queries, pipelines),
        why_lost=lambda: _why_lost(spark, folder / LOG),
    )
    front.start()
    announce_ready(port=front.port)
    logs.get_logger(__name__).info("the front serves", port=front.port)
    terminated.wait()
    pipelines.close()
    queries.close(lambda text: print(text, file=err, flush=True))
    front.stop()


def _why_lost(spark: Spark, log: Path) -> str:
    code = spark.exit_code(JVM_ENDS_S)
    if code is None:
        return ""
    tail = log_tail(log)
    return (
        f"the JVM of Spark Connect has ended with {exit_reason(code)}; spark.driver.memory decides"
        f" how much memory it has; the end of its log:\n{tail}"
    )


def _own_output(log: Path) -> TextIO:
    """Redirects this process's output and that of the JVM to the log. `sys.stdout`, to which jobs
    print, stays the program's. Returns the program's standard error.
    """
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    err = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace")
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(descriptor, target)
    os.close(descriptor)
    return err


def _prepare(request: FrontRequest) -> None:
    """Lets Spark's Python workers, which inherit the environment, find the program's modules."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    search_path = dict.fromkeys((*filter(None, inherited), *request.search_path))
    os.environ["PYTHONPATH"] = os.pathsep.join(search_path)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    known = set(sys.path)
    sys.path += [folder for folder in request.search_path if folder not in known]


def _modules(request: FrontRequest) -> frozenset[str]:
    """Returns the local modules that the program imports."""
    return frozenset(
        name
        for file in request.sources
        for name in imports_of_file(Path(file))
        if local_module(name) is not None
    )


def _context(request: FrontRequest, err: TextIO) -> ExecutionContext:
    """Returns how queries run: on the cluster of the program."""

    def submitted(job_id: str, graph: JobGraph) -> None:
        # The standard output has what the program prints.
        print(f"Job has been submitted with JobID {job_id}", file=err, flush=True)
        if url := context.client().dashboard_url():
            print(f"Dashboard: {url}#/jobs/{job_id}", file=err, flush=True)

    conf = Configuration(request.configuration)
    embedded = not request.address
    context = ExecutionContext(
        mode="embedded" if embedded else "remote",
        conf=conf,
        address=request.address,
        job_id=request.job_id,
        one_job=bool(request.job_id),
        overrides=request.overrides,
        files=request.files,
        on_submitted=submitted,
        follows_output=True,
        embedded_cluster=EmbeddedCluster(conf, task_executors=request.task_executors)
        if embedded
        else None,
    )
    return context


if __name__ == "__main__":
    watch_lifeline()
    main(Path(sys.argv[1]))

"""run and info: executes a job file, or shows its plan."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firesteel.client.cli.arguments import (
    APPLICATION,
    KUBERNETES_TARGETS,
    address_option,
    configuration,
    definitions_option,
    listed,
    python_files_options,
)
from firesteel.client.cli.targets import (
    TARGETS,
    ImageFile,
    check_version_of,
    cluster_of,
    files_of_image,
    program_of,
    start_application,
)
from firesteel.client.signals import INTERRUPTED, InterruptedJob, exiting, is_ending
from firesteel.common.config import Configuration, absolute, options, parse_definitions
from firesteel.errors import ClusterUnreachable, FiresteelError, JobCanceled, JobFailed

if TYPE_CHECKING:
    from firesteel.client.cli.program import Ran
    from firesteel.client.execution_context import ExecutionContext
    from firesteel.client.package import UnpackedProgram
    from firesteel.common.job_graph import JobGraph


SPARK_EXECUTORS = 2  # of a Spark program

_PROGRAM = {"ignore_unknown_options": False, "allow_interspersed_args": False}
_job_file = click.argument(
    "job_file", metavar="job.py", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
_job_file_or_image = click.argument("job_file", metavar="job.py", callback=program_of)
_job_arguments = click.argument(
    "job_arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED
)
_parallelism = click.option(
    "-p",
    "--parallelism",
    type=click.IntRange(min=1),
    help="Parallelism of operators without an explicit parallelism.",
)


@click.command(
    context_settings=_PROGRAM,
    epilog="\b\nExamples:\n"
    "  firesteel run job.py --input data.csv        on a running cluster, or on a new one\n"
    "  firesteel run -t local -p 4 --task-executors 2 --slots 2 job.py\n"
    "  firesteel run -m localhost:6123 job.py       on a session cluster, until the job ends\n"
    "  firesteel run -d job.py                      submits the job and returns\n"
    "  firesteel run --spark --slots 4 etl.py 2026  a PySpark program, with 4 executors\n"
    "  firesteel run -t kubernetes-application -D kubernetes.cluster-id=orders job.py\n"
    "  firesteel run --py-files lib.py,tools.zip --py-archives model.zip#model job.py\n"
    "  firesteel run -D spark.sql.ansi.enabled=false -D slot.request.timeout='30 s' job.py",
)
@click.option(
    "-s",
    "--from-savepoint",
    metavar="PATH",
    help="Start from this savepoint or retained checkpoint.",
)
@click.option(
    "-n",
    "--allow-non-restored-state",
    is_flag=True,
    help="Discard state of operators that the program no longer contains.",
)
@click.option(
    "-c",
    "--claim-mode",
    "--restore-mode",
    type=click.Choice(("claim", "no_claim", "no-claim")),
    help="With claim, the job owns the savepoint and deletes it when it has newer checkpoints. "
    "[default: no_claim]",
)
@click.option("-d", "--detached", is_flag=True, help="Return once the job is submitted.")
@click.option(
    "--output",
    is_flag=True,
    help="Copy the job's output to standard output, as an embedded cluster always does.",
)
@_parallelism
@click.option(
    "-t",
    "--target",
    type=click.Choice(TARGETS),
    help="Where to run; local and kubernetes-application start a cluster for the job, and "
    "kubernetes-session uses the one that kubernetes.cluster-id names. [default: remote if -m or "
    "its default names a cluster, else local]",
)
@address_option(otherwise="a new cluster on this machine", targets=False)
@definitions_option(
    "Set a configuration key of the job, and of the cluster of a local run. Repeatable."
)
@python_files_options
@click.option(
    "--task-executors",
    type=click.IntRange(min=1),
    help="Number of TaskExecutors of a local run. [default: 1 or 2, as the parallelism requires,"
    " and others on demand while this machine has memory for their slots]",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    help="Slots per TaskExecutor of a local run. [default: as configured, 2] With --spark: the"
    " number of executors, each in a slot. [default: 2]",
)
@click.option(
    "--spark",
    is_flag=True,
    help="Run a PySpark program as a job: its driver in one slot of the cluster, and an executor in"
    " each of --slots others.",
)
@_job_file_or_image
@_job_arguments
def run(
    from_savepoint: str | None,
    allow_non_restored_state: bool,
    claim_mode: str | None,
    detached: bool,
    output: bool,
    parallelism: int | None,
    target: str | None,
    address: str | None,
    definitions: tuple[str, ...],
    py_files: str | None,
    py_archives: str | None,
    py_requirements: str | None,
    task_executors: int | None,
    slots: int | None,
    spark: bool,
    job_file: Path | ImageFile,
    job_arguments: tuple[str, ...],
) -> None:
    """Runs a job file: a Python program that builds a pipeline and calls env.execute(), or a
    package of one (`firesteel package`).

    The job runs on the cluster that `list` and `show` would find. If there is none, `run` starts a
    cluster for it, which ends with the job. A line states which. Without -d, `run` shows the states
    and record counts of the tasks until the job ends. Ctrl-C, SIGTERM or a closed terminal (SIGHUP)
    cancels it; a second one stops waiting.

    With --spark, a program that uses Spark alone is a job: its SparkSession has an executor in each
    of --slots slots of the cluster, and its driver is in another one.

    A program that executes no job runs in this process, as with `python job.py`.

    With -t kubernetes-application, the job has its own cluster on Kubernetes, which is deleted once
    the job has ended. `local:///PATH` names a program in the image, which runs in the cluster; any
    other program runs here and submits its job.

    The exit code is that of the program: 0 if its jobs finished, 1 if one failed, or the code
    passed to sys.exit(). If a signal cancelled the job, it is 128 plus the number of the signal:
    130 after Ctrl-C.
    """
    from firesteel.client.cli.program import check_syntax, run_program
    from firesteel.client.execution_context import ExecutionContext
    from firesteel.client.package import opened_program
    from firesteel.client.progress import run_display
    from firesteel.client.spark_programs.batch import run_spark_program

    conf = configuration(definitions)
    recovery = _recovery(from_savepoint, allow_non_restored_state, claim_mode)
    cluster = cluster_of(target, address, conf)
    if detached and cluster is None:
        raise FiresteelError(
            "-d needs a cluster that outlives this command:"
            " specify its address with -m, or start one with `firesteel cluster start`"
        )
    executors = (slots or SPARK_EXECUTORS) if spark else 0
    if spark:
        _check_spark(from_savepoint, parallelism, target, job_file)
        slots = None
    if cluster is not None and (task_executors or slots):
        raise FiresteelError(
            f"--task-executors and --slots apply to a local run, but this one is on {cluster},"
            " whose number of slots was set when it was started: omit them, or add -t local"
        )
    if detached and output:
        raise FiresteelError(
            "--output shows the job's output while this command waits for it, but with -d it"
            " does not wait: use `firesteel logs --output --follow JOB` afterwards"
        )
    if isinstance(job_file, ImageFile):
        conf = conf.with_overrides(
            {
                **_job_overrides(definitions, parallelism),
                **recovery,
                **files_of_image(py_files, py_archives, py_requirements),
            }
        )
        sys.exit(_run_in_image(conf, target, job_file, job_arguments, detached))
    program = click.get_current_context().with_resource(opened_program(job_file))
    check_syntax(program.main)
    files = _files(conf, program, py_files, py_archives, py_requirements)
    job_id = start_application(conf, detached) if target == APPLICATION else ""
    own_cluster = cluster is None or bool(job_id)
    display = run_display(lambda: _address(context))

    def submitted(job_id: str, graph: JobGraph) -> None:
        click.echo(f"Job has been submitted with JobID {job_id}")
        if detached and context.client().forwards:  # they end with this command
            command = f"firesteel dashboard -m {_address(context)} {job_id}"
            click.echo(f"Dashboard: {command}", err=True)
        elif url := context.client().dashboard_url():
            log_in = "" if cluster else f" (log in: firesteel dashboard -m {_address(context)})"
            click.echo(f"Dashboard: {url}#/jobs/{job_id}{log_in}", err=True)
        if not context.follows_output and _prints(graph):
            follow = "" if detached else ", or run it with --output"
            click.echo(
                "The rows of its print() are in the logs of the slots:"
                f" firesteel logs --output --follow -m {context.address} {job_id}{follow}",
                err=True,
            )

    context = ExecutionContext(
        mode="embedded" if cluster is None else "remote",
        conf=conf,
        address="" if cluster is None else cluster.address,
        job_id=job_id,
        one_job=bool(job_id),
        overrides={
            **_job_overrides(definitions, parallelism, conf.secrets() if own_cluster else ()),
            **recovery,
        },
        attached=not detached,
        on_submitted=submitted,
        display=display,
        follows_output=output or own_cluster,
        interrupts_program=True,
    ).with_files(*files)
    where = "an embedded cluster, on this machine" if cluster is None else cluster
    click.echo(f"Jobs of {job_file.name} run on {where}", err=True)
    if cluster is not None:
        try:
            # Detects a wrong address before the program does its work.
            check_version_of(context.client())
        except ClusterUnreachable as error:
            if address is None and target not in KUBERNETES_TARGETS:
                error.add_note("With -t local, the job runs on an embedded cluster.")
            raise
    else:
        context.embedded_cluster = (
            _spark_cluster(conf, task_executors or 1, executors)
            if spark
            else _embedded_cluster(conf, task_executors, slots, parallelism)
        )
    ran: Ran | None = None
    try:
        with exiting():
            if spark:
                run_spark_program(program.main, job_arguments, executors, context)
            else:
                ran = run_program(program.main, job_arguments, context)
    except JobFailed as error:
        raise _traceback_first(error, "" if job_id else context.address) from error
    except JobCanceled as error:
        if display.interrupted:
            click.echo(f"Cancelled job {error.job_id}.")
            sys.exit(INTERRUPTED)
        raise
    except InterruptedJob as interrupted:
        if interrupted.canceled:
            click.echo(f"Cancelled job {interrupted.job_id}.")
        sys.exit(INTERRUPTED)
    except KeyboardInterrupt:
        if cluster is not None and display.interrupted:
            click.echo(
                f"Left while job {context.executed[-1]} is being cancelled;"
                f" see `firesteel list -a -m {context.address}`."
            )
        sys.exit(INTERRUPTED)
    if ran is None:
        return
    if not is_ending(ran.exit_code) and (notice := ran.notice(job_file)):
        click.echo(notice, err=True)
    sys.exit(ran.exit_code)  # type: ignore[arg-type]


@click.command(
    context_settings=_PROGRAM,
    epilog="\b\nExamples:\n  firesteel info job.py\n  firesteel info -p 8 job.py --input data.csv",
)
@_parallelism
@definitions_option()
@_job_file
@_job_arguments
def info(
    parallelism: int | None,
    definitions: tuple[str, ...],
    job_file: Path,
    job_arguments: tuple[str, ...],
) -> None:
    """Shows a job's plan without running it.

    The program runs up to its first env.execute(). Before that, it may create a SparkSession and
    DataFrames. A Spark action (count, collect, show, write, ...) is an error that names its line,
    and does not run.

    The plan shows which operators are chained into one vertex, which of them run on Spark, and how
    vertices are connected.
    """
    from firesteel.client import render
    from firesteel.client.cli.program import check_syntax, run_program
    from firesteel.client.execution_context import ExecutionContext
    from firesteel.client.package import opened_program

    console = render.console()

    def show(graph: Any) -> None:
        for part in render.plan(graph):
            console.print(part)

    program = click.get_current_context().with_resource(opened_program(job_file))
    check_syntax(program.main)
    context = ExecutionContext(
        mode="plan-only",
        conf=configuration(definitions),
        overrides=_job_overrides(definitions, parallelism),
        on_job_graph=show,
    )
    sys.exit(run_program(program.main, job_arguments, context).exit_code)  # type: ignore[arg-type]


def _prints(graph: JobGraph) -> bool:
    """Whether it has a PrintSink; specs are unpickled in slots only."""
    return any(
        b"PrintSink" in operator.spec
        for vertex in graph.vertices
        for operator in vertex.operators
        if operator.kind == "Sink"
    )


def _address(context: ExecutionContext) -> str:
    embedded = context.embedded_cluster
    return context.address if embedded is None else embedded.cluster().address


def _run_in_image(
    conf: Configuration,
    target: str | None,
    program: str,
    arguments: Sequence[str],
    detached: bool,
) -> int:
    if target != APPLICATION:
        raise FiresteelError(
            f"{program} is a file of the image of an application cluster: add -t {APPLICATION}"
        )
    from firesteel.client.cli.kubernetes import await_application

    try:
        with exiting():
            return await_application(conf, program, arguments, detached=detached)
    except JobFailed as error:
        raise _traceback_first(error, "") from error


def _job_overrides(
    definitions: tuple[str, ...], parallelism: int | None, of_cluster: Collection[str] = ()
) -> dict[str, str]:
    """`of_cluster` has the keys that are meant for the cluster that is started for the job."""
    parsed = parse_definitions(definitions)
    overrides = {key: text for key, text in parsed.items() if key not in of_cluster}
    if parallelism is not None:
        overrides[options.PARALLELISM.key] = str(parallelism)
    return overrides


def _recovery(path: str | None, allow_unmatched: bool, claim_mode: str | None) -> dict[str, str]:
    if path is None:
        if allow_unmatched or claim_mode:
            raise FiresteelError("-n and -c require a savepoint: specify one with -s")
        return {}
    chosen = {options.RECOVERY_PATH.key: absolute(path)}
    if allow_unmatched:
        chosen[options.RECOVERY_ALLOW_UNMATCHED.key] = "true"
    if claim_mode:
        chosen[options.RECOVERY_CLAIM_MODE.key] = claim_mode.upper().replace("-", "_")
    return chosen


def _files(
    conf: Configuration,
    program: UnpackedProgram,
    files: str | None,
    archives: str | None,
    requirements: str | None,
) -> tuple[list[str], list[str], str | None]:
    """Returns the files of the program's package, and those of the options, or else of the
    configuration.
    """
    named_files = listed(files) if files is not None else conf.get(options.PYTHON_FILES)
    named_archives = listed(archives) if archives is not None else conf.get(options.PYTHON_ARCHIVES)
    return (
        [*program.files, *named_files],
        [*program.archives, *named_archives],
        requirements or program.requirements or conf.get(options.PYTHON_REQUIREMENTS) or None,
    )


def _embedded_cluster(
    conf: Configuration,
    task_executors: int | None,
    slots: int | None,
    parallelism: int | None = None,
) -> Any:
    from firesteel.client.execution_context import EmbeddedCluster

    return EmbeddedCluster(
        conf, task_executors=task_executors, slots=slots, parallelism=parallelism
    )


def _check_spark(
    from_savepoint: str | None,
    parallelism: int | None,
    target: str | None,
    job_file: Path | ImageFile,
) -> None:
    """Raises FiresteelError for options that do not apply to Spark programs."""
    if from_savepoint is not None:
        raise FiresteelError("-s has no effect with --spark: a Spark program has no savepoints")
    if parallelism is not None:
        raise FiresteelError("-p has no effect with --spark: --slots is the number of executors")
    if target == APPLICATION or isinstance(job_file, ImageFile):
        raise FiresteelError(
            f"--spark does not run on -t {APPLICATION}: use a session cluster"
            " (-t kubernetes-session, remote or local)"
        )


def _spark_cluster(conf: Configuration, task_executors: int, executors: int) -> Any:
    """Returns a cluster with slots for a driver and its executors. Settings of Spark are those of
    the program.
    """
    own = {key: text for key, text in conf.to_dict().items() if not key.startswith("spark.")}
    slots = -(-(executors + 1) // task_executors)
    return _embedded_cluster(Configuration(own), task_executors, slots)


def _traceback_first(failure: JobFailed, address: str) -> FiresteelError:
    """Prints the frames of user code; returns an error of one line, with a hint where to look next.

    `address` is that of the cluster that keeps the job; empty if it ended with the run.
    """
    cause = failure.error
    error: FiresteelError = failure
    if cause is not None and cause.user_traceback:
        click.echo(cause.user_traceback.rstrip(), err=True)
        name = f" ({failure.job_name})" if failure.job_name else ""
        where = f" in {cause.task_name}" if cause.task_name else ""
        error = FiresteelError(f"job {failure.job_id}{name} failed{where}: {cause.summary}")
        for note in getattr(failure, "__notes__", ()):
            error.add_note(note)
    if address:
        error.add_note(f"See `firesteel show -m {address} {failure.job_id}` for all of its tasks.")
    return error

"""stop-task-executor: stops one TaskExecutor of a cluster, after moving its tasks or without."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from firesteel.client.cli.arguments import address_option, connect, name
from firesteel.client.signals import INTERRUPTED
from firesteel.common.units import counted
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from firesteel.client.client import Client
    from firesteel.client.job_details import StopProgress


@click.command(
    epilog="\b\nExamples:\n"
    "  firesteel cluster status                     its TaskExecutors and their ids\n"
    "  firesteel stop-task-executor --drain 3f2a\n"
    "  firesteel stop-task-executor 3f2a"
)
@click.argument("task_executor", metavar="ID", type=name)
@click.option(
    "-d", "--drain", is_flag=True, help="Move its tasks to other slots first, and wait for that."
)
@click.option(
    "--force",
    is_flag=True,
    help="With --drain, move tasks even if slots are missing, restart jobs without checkpoints "
    "from scratch, and produce stored results again.",
)
@address_option(otherwise="localhost:6123")
def stop_task_executor(task_executor: str, drain: bool, force: bool, address: str | None) -> None:
    """Ends a TaskExecutor and waits until it has ended. ID is its id or a prefix of it.

    Without --drain, it ends immediately, and jobs with tasks there recover as from a crash.

    With --drain, it gets no new tasks. Each job with tasks there acquires slots elsewhere, takes a
    checkpoint, and restarts the affected pipelines from it, without using a restart attempt. The
    drain waits for jobs without checkpoints and for results of batches that are stored there. If
    slots are missing, the command fails and changes nothing. Ctrl-C cancels the drain: the
    TaskExecutor gets tasks again, and tasks that have moved stay where they are.

    If the cluster started the TaskExecutor itself and still needs it, it starts a replacement; with
    --drain, before any task moves.
    """
    if force and not drain:
        raise click.UsageError("--force requires --drain; without --drain there is no wait")
    with connect(address) as client:
        executor_id = _resolve(client, task_executor)
        names = {job.job_id: job.name for job in client.list_jobs()}
        if drain:
            click.echo(f"Draining TaskExecutor {executor_id}: it gets no new tasks.")
        try:
            for progress in client.stop_task_executor(executor_id, drain=drain, force=force):
                if drain and (waits := _waits(progress, names)):
                    click.echo(f"Waiting for {waits}.")
        except KeyboardInterrupt:
            then = (
                "it gets tasks again, unless it had none left; tasks that have moved stay where"
                " they are"
                if drain
                else "it ends anyway"
            )
            click.echo(f"Interrupted: {then}.", err=True)
            sys.exit(INTERRUPTED)
    click.echo(f"TaskExecutor {executor_id} has ended.")


def _resolve(client: Client, task_executor: str) -> str:
    """Raises FiresteelError unless exactly one TaskExecutor matches."""
    overview = client.cluster_overview()
    if overview.resource_manager_problem:
        raise FiresteelError(overview.resource_manager_problem)
    ids = [known.task_executor_id for known in overview.task_executors]
    meant = [each for each in ids if each.startswith(task_executor.lower())]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise FiresteelError(
            f"{task_executor!r} matches {len(meant)} TaskExecutors ({', '.join(meant)});"
            " specify the whole id of one"
        )
    known = f"it has {', '.join(ids)}" if ids else "it has none"
    raise FiresteelError(
        f"there is no TaskExecutor {task_executor!r} in the cluster at {client.address}: {known}"
    )


def _waits(progress: StopProgress, names: dict[str, str]) -> str:
    parts = [
        f"{counted(slots, 'slot')} of job {names.get(job_id, '')!r} ({job_id})"
        for job_id, slots in progress.slots.items()
    ]
    if progress.stored_partitions:
        parts.append(f"{counted(progress.stored_partitions, 'result')} that it stores")
    text = ", ".join(parts)
    if text and progress.missing:
        text += f"; {counted(progress.missing, 'slot')} elsewhere missing: {progress.explanation}"
    return text

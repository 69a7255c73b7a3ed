"""list, show, cancel, remove: the jobs of a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from firesteel.client.cli.arguments import address_option, connect, name, resolve_job
from firesteel.common.security.roles import ADMINISTRATOR
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from firesteel.client.job_details import JobDetails, JobOverview

# Cancelling takes as long as the tasks take to close; after this time it continues in the
# background.
CANCEL_WAIT_S = 30.0

_address_option = address_option(otherwise="localhost:6123")
_SCHEDULED = (JobStatus.INITIALIZING, JobStatus.CREATED)


@click.command(
    "list", epilog="\b\nExamples:\n  firesteel list\n  firesteel list -a -m cluster.example:6123"
)
@click.option("-a", "--all", "everything", is_flag=True, help="Include jobs that have ended.")
@click.option("-r", "--running", is_flag=True, help="Only running jobs.")
@click.option("-s", "--scheduled", is_flag=True, help="Only jobs that are not running yet.")
@_address_option
def list_jobs(everything: bool, running: bool, scheduled: bool, address: str | None) -> None:
    """Lists running and scheduled jobs."""
    with connect(address) as client:
        jobs = client.list_jobs()
    if not (running or scheduled):
        running = scheduled = True
    if running or everything:
        now = [j for j in jobs if not j.status.globally_terminal and j.status not in _SCHEDULED]
        _section("Running/Restarting Jobs", now, "No running jobs.")
    if scheduled or everything:
        _section(
            "Scheduled/Initializing Jobs",
            [j for j in jobs if j.status in _SCHEDULED],
            "No scheduled jobs.",
        )
    if everything:
        _section(
            "Terminated Jobs",
            [j for j in jobs if j.status.globally_terminal],
            "No terminated jobs.",
        )


def _section(title: str, jobs: Iterable[JobOverview], none: str) -> None:
    lines = [job_line(job) for job in sorted(jobs, key=lambda job: job.start_ms)]
    if not lines:
        click.echo(none)
        return
    click.echo(f" {title} ".center(62, "-"))
    for line in lines:
        click.echo(line)
    click.echo("-" * 62)


def job_line(job: JobOverview) -> str:
    """Formats a job as Flink does; scripts parse this line. The name of an owner other than the
    cluster's administrator follows.
    """
    line = f"{_local_time(job.start_ms)} : {job.job_id} : {job.name} ({job.status.name})"
    return line if job.owner in ("", ADMINISTRATOR) else f"{line} by {job.owner}"


def _local_time(ms: int) -> str:
    return time.strftime("%d.%m.%Y %H:%M:%S", time.localtime(ms / 1000))


@click.command(
    epilog="\b\nExamples:\n"
    "  firesteel cancel 8a3f5f0c2d1e4b6a9c7d8e9f0a1b2c3d\n"
    "  firesteel cancel 8a3f"
)
@click.argument("job", metavar="JOB", type=name)
@_address_option
def cancel(job: str, address: str | None) -> None:
    """Cancels a job. JOB is an id, a prefix of an id, or a name.

    The exit code is 0 if the job is cancelled, or was before, and 1 if it had ended differently.
    """
    with connect(address) as client:
        job_id = resolve_job(client, job)
        before = client.job_details(job_id)
        if before.status.globally_terminal:
            _say_it_had_ended(before)
            return
        click.echo(f"Cancelling job {job_id}.")
        client.cancel(job_id)
        deadline = time.monotonic() + CANCEL_WAIT_S
        for details in client.watch_job(job_id):
            if details.status is JobStatus.CANCELED:
                click.echo(f"Cancelled job {job_id}.")
                return
            if details.status.globally_terminal:
                raise FiresteelError(f"job {job_id} was not cancelled: it is {details.status.name}")
            if time.monotonic() > deadline:
                break
    click.echo(
        f"Job {job_id} is still {details.status.name};"
        f" `firesteel show {job_id}` shows when it has ended.",
        err=True,
    )
    sys.exit(1)


def _say_it_had_ended(job: JobDetails) -> None:
    """Raises FiresteelError unless the job was cancelled."""
    from firesteel.client.render.tables import clock

    at = f" at {clock(job.end_ms)}" if job.end_ms else ""
    message = f'Job {job.job_id} ("{job.name}") had already ended{at}: it is {job.status.name}'
    if job.status is not JobStatus.CANCELED:
        raise FiresteelError(f"{message}, and cannot be cancelled")
    click.echo(f"{message}.")


@click.command(
    epilog="\b\nExamples:\n"
    "  firesteel remove 8a3f5f0c2d1e4b6a9c7d8e9f0a1b2c3d\n"
    "  firesteel remove 8a3f"
)
@click.argument("job", metavar="JOB", type=name)
@_address_option
def remove(job: str, address: str | None) -> None:
    """Deletes a job that has ended. JOB is an id, a prefix of an id, or a name.

    Also deletes its collected rows, the log of its JobMaster, and files that no other job needs.
    The job no longer appears in `list` and `show`. Its lines in the logs of slots, which it shares
    with other jobs, remain until those logs are rotated. Data written by its sinks remains.
    """
    with connect(address) as client:
        job_id = resolve_job(client, job)
        client.remove(job_id)
    click.echo(f"Removed job {job_id}.")


@click.command(
    epilog="\b\nExamples:\n  firesteel show 8a3f\n  firesteel show --full 'daily departure delays'"
)
@click.argument("job", metavar="JOB", type=name)
@click.option(
    "--full",
    is_flag=True,
    help="Include full tracebacks, the plans on Spark, and how operators run; with "
    "--checkpoints, each task's part.",
)
@click.option(
    "--checkpoints",
    is_flag=True,
    help="Show the last checkpoints and savepoints instead, with durations and reasons of "
    "failures.",
)
@_address_option
def show(job: str, full: bool, checkpoints: bool, address: str | None) -> None:
    """Shows a job's vertices, subtasks, attempts, slots, counters and errors.

    JOB is an id, a prefix of an id, or a name. Of several jobs with the name, the newest running
    one is meant, or else the newest.
    """
    from firesteel.client import render

    with connect(address) as client:
        job_id = resolve_job(client, job, newest=True)
        details = client.job_details(job_id, checkpoints=checkpoints and full)
    console = render.console()
    if checkpoints:
        parts = render.checkpoints(details, full=full)
    else:
        parts = render.job(details, full=full, width=console.width)
    for part in parts:
        console.print(part)

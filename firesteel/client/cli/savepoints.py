"""savepoint, checkpoint and stop: take the state from which a job can start."""

from __future__ import annotations

import click

from firesteel.client.cli.arguments import address_option, connect, name, resolve_job

_address_option = address_option(otherwise="localhost:6123")


@click.command(
    epilog="\b\nExamples:\n"
    "  firesteel savepoint 8a3f /shared/savepoints\n"
    "  firesteel run -s /shared/savepoints/savepoint-8a3f5f-0123456789ab job.py\n"
    "  firesteel savepoint --show /shared/savepoints/savepoint-8a3f5f-0123456789ab\n"
    "  firesteel savepoint --dispose /shared/savepoints/savepoint-8a3f5f-0123456789ab"
)
@click.argument("job", metavar="[JOB]", required=False, type=name)
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("-d", "--dispose", metavar="PATH", help="Delete this savepoint instead.")
@click.option("--show", metavar="PATH", help="List the states of this savepoint instead.")
@click.option(
    "--full", is_flag=True, help="With --show, read the states and show their rows and sizes."
)
@_address_option
def savepoint(
    job: str | None,
    directory: str | None,
    dispose: str | None,
    show: str | None,
    full: bool,
    address: str | None,
) -> None:
    """Takes a savepoint of a job, which keeps running. JOB is an id, a prefix of an id, or a name.

    A savepoint contains everything that a job needs to continue from this one, with a changed
    program or parallelism (`firesteel run -s PATH`). It is a new directory in DIR, a path or a URI
    (default: execution.checkpointing.savepoint-dir), which can be copied and moved and exists until
    it is deleted.
    """
    if [job, dispose, show].count(None) != 2:
        raise click.UsageError(
            "specify the JOB to take a savepoint of, or one to --dispose or to --show"
        )
    if show is not None:
        from firesteel.client.render.checkpoint_report import savepoint as report
        from firesteel.client.render.tables import console
        from firesteel.savepoint import read

        for part in report(read(show), full=full):
            console().print(part)
        return
    with connect(address) as client:
        if dispose is not None:
            client.dispose_savepoint(dispose)
            click.echo(f"Savepoint '{dispose}' disposed.")
            return
        assert job is not None
        job_id = resolve_job(client, job)
        click.echo(f"Triggering savepoint for job {job_id}.")
        path = client.savepoint(job_id, directory or "")
    click.echo(f"Savepoint completed. Path: {path}")


@click.command(
    epilog="\b\nExamples:\n"
    "  firesteel stop -p /shared/savepoints 8a3f\n"
    "  firesteel run -s /shared/savepoints/savepoint-8a3f5f-0123456789ab job.py"
)
@click.argument("job", metavar="JOB", type=name)
@click.option(
    "-p",
    "--savepoint-path",
    "--savepoint-dir",
    "directory",
    metavar="DIR",
    help="Parent directory of the savepoint, a path or a URI. [default: "
    "execution.checkpointing.savepoint-dir]",
)
@click.option(
    "-d",
    "--drain",
    is_flag=True,
    help="End sources permanently so that windows fire. A job that starts from the savepoint reads "
    "nothing more.",
)
@_address_option
def stop(job: str, directory: str | None, drain: bool, address: str | None) -> None:
    """Ends a running job with a savepoint. JOB is an id, a prefix of an id, or a name.

    Sources stop reading. When the savepoint is complete, sinks commit and the job is FINISHED.
    Windows do not fire: a job that starts from the savepoint continues them. If the savepoint
    fails, the job keeps running. With --drain, sources end and windows fire first.
    """
    with connect(address) as client:
        job_id = resolve_job(client, job)
        click.echo(f'Suspending job "{job_id}" with a savepoint.')
        path = client.stop(job_id, directory or "", drain=drain)
        click.echo(f"Savepoint completed. Path: {path}")
        client.wait(job_id)


@click.command(epilog="\b\nExamples:\n  firesteel checkpoint 8a3f")
@click.argument("job", metavar="JOB", type=name)
@click.option(
    "--full",
    is_flag=True,
    help="Refer to no file of an earlier checkpoint (with incremental checkpoints).",
)
@_address_option
def checkpoint(job: str, full: bool, address: str | None) -> None:
    """Takes a checkpoint of a running job now. JOB is an id, a prefix of an id, or a name."""
    with connect(address) as client:
        job_id = resolve_job(client, job)
        click.echo(f"Triggering checkpoint for job {job_id}.")
        checkpoint_id = client.checkpoint(job_id, full=full)
    click.echo(f"Checkpoint {checkpoint_id} completed.")

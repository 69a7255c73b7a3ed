"""scale: changes the parallelism of a running job."""

from __future__ import annotations

import click

from firesteel.client.cli.arguments import address_option, connect, name, resolve_job
from firesteel.client.job_details import Rescaled
from firesteel.client.render.scaling import assessments
from firesteel.client.render.tables import console
from firesteel.common.config import options
from firesteel.common.units import counted


def _vertex(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> object:
    wanted: dict[str, int] = {}
    for text in texts:
        vertex, equals, number = text.rpartition("=")
        if not equals or not vertex.strip() or not number.strip().isdecimal():
            raise click.BadParameter(f"{text!r}; expected VERTEX=N, such as 'Count=4'")
        wanted[vertex.strip()] = int(number)
    return wanted


@click.command(
    epilog="\b\nExamples:\n"
    "  firesteel scale 8a3f --parallelism 4\n"
    "  firesteel scale 8a3f --vertex Count=8\n"
    "  firesteel scale 8a3f --parallelism 2 --vertex 'Sink: hourly=1' --timeout 600\n"
    "  firesteel scale 8a3f --dry-run"
)
@click.argument("job", metavar="JOB", type=name)
@click.option(
    "-p",
    "--parallelism",
    type=click.IntRange(min=1),
    metavar="N",
    help="Parallelism of all operators whose parallelism the program does not set.",
)
@click.option(
    "--vertex",
    "vertices",
    metavar="V=N",
    multiple=True,
    callback=_vertex,
    help="Parallelism of one vertex: of that with this id, with this text in its name, or with an"
    " operator of this name or uid. May be repeated.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="How long to wait for additional slots. [default: slot.request.timeout]",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only show what would change. Without --parallelism and --vertex: what the autoscaler"
    " concludes from its measurements, even if it is off.",
)
@address_option(otherwise="localhost:6123")
def scale(
    job: str,
    parallelism: int | None,
    vertices: dict[str, int],
    timeout_s: float | None,
    dry_run: bool,
    address: str | None,
) -> None:
    """Changes the parallelism of a running job. JOB is an id, a prefix of an id, or a name.

    The job keeps running until it has the additional slots and a checkpoint. Then its tasks restart
    from the checkpoint with the new parallelism, and surplus slots are returned. If slots are
    missing or the checkpoint fails, the job continues as it was, and the exit code is 1. If a task
    fails before all of them run, the old parallelism is restored.

    A Spark program (`run --spark`) gets or loses executors while it and all others keep running.
    Any other job must take checkpoints. Vertices that are connected by forward exchanges, or co-
    located, change together. The limit is the maximum parallelism of the vertex (pipeline.max-
    parallelism).
    The new parallelism applies until it is changed again, also after failures.
    """
    if parallelism is None and not vertices and not dry_run:
        raise click.UsageError(
            "specify --parallelism N, or --vertex V=N for single vertices, or --dry-run"
        )
    with connect(address) as client:
        job_id = resolve_job(client, job)
        click.echo(f"{'Dry run for' if dry_run else 'Rescaling'} job {job_id}.")
        rescaled = client.rescale(
            job_id, parallelism, vertices=vertices, timeout_s=timeout_s, dry_run=dry_run
        )
        details = client.job_details(job_id)
        free = client.cluster_overview().slots_free if rescaled.missing_slots else 0
    if rescaled.assessments:
        _show_assessments(rescaled)
        return
    if not rescaled.changes:
        click.echo(f"Job {job_id} has this parallelism already.")
    names = {vertex.vertex_id: vertex.name for vertex in details.vertices}
    for vertex_id, (before, after) in rescaled.changes.items():
        click.echo(f"{names.get(vertex_id, vertex_id)}: {before} -> {after}")
    if dry_run and rescaled.changes:
        click.echo(f"{counted(rescaled.tasks, 'task')} would restart from a checkpoint.")
        if missing := rescaled.missing_slots:
            few = f", {missing - free} fewer than needed" if missing > free else ""
            click.echo(f"It needs {counted(missing, 'more slot')}; {free} are free now{few}.")


def _show_assessments(rescaled: Rescaled) -> None:
    found = rescaled.assessments
    measured_s = max(each.measured_s for each in found)
    click.echo(f"The load was measured for {measured_s:.0f} s of {rescaled.window_s:g} s.")
    output = console()
    for part in assessments(found):
        output.print(part)
    if not rescaled.autoscaled:
        keys = f"{options.AUTOSCALER.key}, {options.AUTOSCALER_DRY_RUN.key}"
        click.echo(f"The autoscaler does not change this job ({keys}).")

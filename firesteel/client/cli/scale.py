"""scale: changes the parallelism of a running job."""

from __future__ import annotations

import click

from firesteel.client.cli.arguments import address_option, connect, name, resolve_job


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
    "  firesteel scale 8a3f --parallelism 2 --vertex 'Sink: hourly=1' --timeout 600"
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
@address_option(otherwise="localhost:6123")
def scale(
    job: str,
    parallelism: int | None,
    vertices: dict[str, int],
    timeout_s: float | None,
    address: str | None,
) -> None:
    """Changes the parallelism of a running job. JOB is an id, a prefix of an id, or a name.

    The job keeps running until it has the additional slots and a checkpoint. Then its tasks restart
    from the checkpoint with the new parallelism, and surplus slots are returned. If slots are
    missing or the checkpoint fails, the job continues as it was, and the exit code is 1. If a task
    fails before all of them run, the old parallelism is restored.

    The job must take checkpoints. Vertices that are connected by forward exchanges, or co-located,
    change together. The limit is the maximum parallelism of the vertex (pipeline.max-parallelism).
    The new parallelism applies until it is changed again, also after failures.
    """
    if parallelism is None and not vertices:
        raise click.UsageError("specify --parallelism N, or --vertex V=N for single vertices")
    with connect(address) as client:
        job_id = resolve_job(client, job)
        click.echo(f"Rescaling job {job_id}.")
        rescaled = client.rescale(job_id, parallelism, vertices=vertices, timeout_s=timeout_s)
        names = {vertex.vertex_id: vertex.name for vertex in client.job_details(job_id).vertices}
    if not rescaled.changes:
        click.echo(f"Job {job_id} has this parallelism already.")
    for vertex_id, (before, after) in rescaled.changes.items():
        click.echo(f"{names.get(vertex_id, vertex_id)}: {before} -> {after}")

"""inspect: looks into a running task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.client.cli.arguments import address_option, connect, name, resolve_job
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from firesteel.client.job_details import JobDetails, Vertex


@click.command(
    epilog="\b\nExamples:\n"
    "  firesteel inspect 8a3f --vertex Clean --rows 10\n"
    "  firesteel inspect 8a3f --vertex Clean --subtask 2 --flamegraph clean.html\n"
    "  firesteel inspect 8a3f --vertex Clean --seconds 30 --flamegraph stacks.txt"
)
@click.argument("job", metavar="JOB", type=name)
@click.option(
    "--vertex", metavar="TEXT", default="", help="The vertex with this text in its name, or its id."
)
@click.option(
    "--subtask",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="The subtask, numbered from 1 as in `show`.",
)
@click.option(
    "--rows",
    type=click.IntRange(1, 100),
    metavar="N",
    help="Print the next rows that the task sends, as JSON.",
)
@click.option(
    "--flamegraph",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write where the task spends its time: a page to FILE.html, collapsed stacks to others.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 30),
    default=5.0,
    show_default=True,
    help="How long to sample for --flamegraph.",
)
@address_option(otherwise="localhost:6123")
def inspect(
    job: str,
    vertex: str,
    subtask: int,
    rows: int | None,
    flamegraph: Path | None,
    seconds: float,
    address: str | None,
) -> None:
    """Looks into a running task, which continues: shows rows that it sends, or where it spends its
    time.

    JOB is an id, a prefix of an id, or a name.
    """
    if (rows is None) == (flamegraph is None):
        raise click.UsageError("give one of --rows and --flamegraph")
    from firesteel.client import flame_graph

    with connect(address) as client:
        job_id = resolve_job(client, job)
        meant = _vertex(client.job_details(job_id), vertex)
        if rows is not None:
            sampled = client.sample_rows(job_id, meant.vertex_id, subtask - 1, count=rows)
            names = [column.name for column in sampled.columns]
            for row in sampled.rows:
                values = dict(zip(names, json.loads(row), strict=False))
                click.echo(json.dumps(values, ensure_ascii=False))
            if sampled.note:
                click.echo(f"Note: {sampled.note}.", err=True)
        if flamegraph is not None:
            graph = client.sample_stacks(job_id, meant.vertex_id, subtask - 1, seconds=seconds)
            title = f"{meant.name} ({subtask}/{meant.parallelism})"
            as_page = flamegraph.suffix.lower() in (".html", ".htm")
            text = flame_graph.page(graph, title) if as_page else flame_graph.collapsed(graph)
            flamegraph.write_text(text)
            click.echo(f"Wrote {graph.samples} samples of {title} to {flamegraph}.")


def _vertex(details: JobDetails, text: str) -> Vertex:
    """Returns the only vertex that is meant. Raises FiresteelError."""
    meant = [v for v in details.vertices if text in v.name or v.vertex_id.startswith(text)]
    if len(meant) == 1:
        return meant[0]
    names = ", ".join(repr(v.name) for v in meant or details.vertices)
    problem = f"{len(meant)} vertices match" if meant else "no vertex matches"
    raise FiresteelError(f"{problem} --vertex {text!r}; specify one of {names}")

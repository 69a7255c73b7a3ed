"""logs: prints the log lines of a job from all processes of the cluster."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from firesteel.client.cli.arguments import address_option, connect, name, resolve_job
from firesteel.client.signals import INTERRUPTED

if TYPE_CHECKING:
    from firesteel.common.job_log.lines import LogLine

_BEGINNING = re.compile(r"timestamp=\S+Z (level=\w+ )process=\S+ ")  # of Firesteel's lines
_JOB = re.compile(r" job_id=[0-9a-f]{32}")


@click.command(
    epilog="\b\nExamples:\n"
    "  firesteel logs 8a3f\n"
    "  firesteel logs --follow 'daily departure delays'\n"
    "  firesteel logs --output 8a3f > rows.txt\n"
    "  firesteel logs --output --subtask 2 8a3f\n"
    "  firesteel logs --vertex Clean --subtask 2 8a3f | grep level=error"
)
@click.argument("job", metavar="JOB", type=name)
@click.option("-f", "--follow", is_flag=True, help="Continue until the job has ended, or Ctrl-C.")
@click.option(
    "--output",
    is_flag=True,
    help="Only the job's output: rows of stream.print() and output of functions.",
)
@click.option(
    "--vertex", metavar="TEXT", help="Only lines that name a vertex with this text in its name."
)
@click.option(
    "--subtask",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only lines that name this subtask, numbered from 1 as in `show` (subtask=0 in the line).",
)
@address_option(otherwise="localhost:6123")
def logs(
    job: str,
    follow: bool,
    output: bool,
    vertex: str | None,
    subtask: int | None,
    address: str | None,
) -> None:
    """Prints the log lines of a job from all processes of the cluster, in the order of time.

    JOB is an id, a prefix of an id, or a name. Of several jobs with the name, the newest running
    one is meant, or else the newest. A line starts with its time, its process and, for a slot, its
    TaskExecutor. Lines that Spark and its Python workers log and print (UDFs, mapInPandas in a
    transform) belong to the job but name no task. The time of a printed line is accurate to about a
    second. Missing lines, because logs have a limited length, are reported on standard error.

    With --output, lines are as the job prints them. They start with their subtask, as in "3> ", if
    there are several.
    """
    try:
        with connect(address) as client:
            job_id = resolve_job(client, job, newest=True)
            number = None if subtask is None else subtask - 1
            for line in client.logs(
                job_id, follow=follow, output=output, vertex=vertex, subtask=number
            ):
                if line.is_notice:
                    click.echo(f"Note: {line.text}.", err=True)
                else:
                    click.echo(line.text if output else shown(line))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def shown(line: LogLine) -> str:
    at = datetime.fromtimestamp(line.time_us / 1_000_000, UTC)
    process = line.process
    if line.task_executor_id:
        process += f"@{line.task_executor_id[:8]}"
    text = line.text
    if beginning := _BEGINNING.match(text):  # the prefix is known, or shown before the line
        text = beginning[1] + _JOB.sub("", text[beginning.end() :], count=1)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z {process} {text}"

"""service: runs one process of a cluster, in the foreground."""

from __future__ import annotations

import os
import sys

import click

from firesteel.common.installation import SERVICES, service_environment


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="\b\nExamples:\n"
    "  firesteel service resourcemanager --port 6124 --driver none\n"
    "  firesteel service dispatcher --port 6123 --resource-manager localhost:6124\n"
    "  firesteel service taskexecutor --resource-manager localhost:6124\n"
    "  firesteel service taskexecutor --help",
)
@click.argument("name", type=click.Choice([name for name in SERVICES if name != "jobmaster"]))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def service(name: str, arguments: tuple[str, ...]) -> None:
    """Runs one process of a cluster in the foreground, for clusters of several machines.

    `cluster start` starts all processes of a cluster on one machine. This command becomes the
    process of one service, with its options, until it receives SIGTERM.
    """
    argv = [sys.executable, "-m", name, *arguments]
    os.execve(argv[0], argv, service_environment(os.environ))

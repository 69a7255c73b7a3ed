"""cluster start, status, stop: a session cluster on this machine. service: one process of a
cluster, in the foreground.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.client.cli.arguments import (
    APPLICATION,
    KUBERNETES_TARGETS,
    cluster_address,
    configuration,
    definitions_option,
)
from firesteel.client.cluster.directory import ClusterDirectory, ClusterState, default_directory
from firesteel.client.signals import INTERRUPTED
from firesteel.common import metrics_targets
from firesteel.common.config import Configuration, check_heartbeats, options
from firesteel.common.installation import SERVICES, service_environment
from firesteel.common.process import module_command
from firesteel.common.security.listening import uses_tls
from firesteel.errors import FiresteelError
from firesteel.high_availability import ZOOKEEPER, is_elected

if TYPE_CHECKING:
    from firesteel.client.client import Client
    from firesteel.client.job_details import ClusterOverview


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of its state and logs. [default: $FIRESTEEL_DIR, or ~/.firesteel/cluster]",
)

SLOTS_TIMEOUT_S = 180.0
# The modules of the processes that `service` becomes.
_SERVED = {name: name for name in SERVICES if name != "jobmaster"}
_SERVED["masters"] = "firesteel.client.masters"


_target = click.option(
    "-t",
    "--target",
    type=click.Choice(("local", *KUBERNETES_TARGETS)),
    default="local",
    show_default=True,
    help="Where the cluster runs: on this machine, or on Kubernetes under the name of "
    "kubernetes.cluster-id.",
)

_PORT_TAKEN = "Another process, perhaps another cluster, has that port. Choose one with"


@click.group()
def cluster() -> None:
    """Starts, shows and stops a session cluster on this machine or on Kubernetes."""


@cluster.command(
    epilog="\b\nExamples:\n"
    "  firesteel cluster start\n"
    "  firesteel cluster start --task-executors 4 --slots 1\n"
    "  firesteel cluster start --masters 3\n"
    "  firesteel cluster start --dir /tmp/second -D jobmanager.rpc.port=6124\n"
    "  firesteel cluster start -t kubernetes-session -D kubernetes.cluster-id=orders"
)
@click.option(
    "--task-executors",
    type=click.IntRange(min=0),
    help="Number of TaskExecutors to keep running. [default: 2; on Kubernetes 0: jobs start them]",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    help="Slots of each TaskExecutor, one PySpark executor per slot. [default: 2]",
)
@click.option(
    "--masters",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of Dispatchers and of ResourceManagers, of which one each leads. The ZooKeeper "
    "servers of high-availability.zookeeper.quorum elect them; without a quorum, three "
    "servers are started on this machine to try it out.",
)
@_target
@directory_option
@definitions_option()
@click.option(
    "--wait/--no-wait",
    default=True,
    help="Whether to wait until all slots are warm. [default: wait]",
)
def start(
    task_executors: int | None,
    slots: int | None,
    masters: int,
    target: str,
    directory: Path | None,
    definitions: tuple[str, ...],
    wait: bool,
) -> None:
    """Starts a cluster and waits until the Spark sessions of all slots are warm."""
    from firesteel.client.client import Client
    from firesteel.client.cluster import start_detached

    conf = configuration(definitions)
    check_heartbeats(conf)
    if slots is not None:
        conf = conf.with_overrides({options.TASK_SLOTS.key: str(slots)})
    if target != "local":
        _start_on_kubernetes(conf, target, directory, task_executors or 0, masters, wait)
        return
    task_executors = 2 if task_executors is None else task_executors
    where = ClusterDirectory(directory or default_directory())
    begin = time.monotonic()
    _check_spark_connect_port(conf)
    try:
        try:
            state = start_detached(where, conf, task_executors=task_executors, masters=masters)
        except FiresteelError as error:
            # text only: the error quotes the log of the process that could not start
            if os.strerror(errno.EADDRINUSE) in str(error):
                error.add_note(
                    f"{_PORT_TAKEN} -D {options.RPC_PORT.key}=PORT; 0 takes any free port."
                )
            raise
        started = (
            f"Cluster started: Dispatcher at {state.dispatcher_address}, logs in {where.logs}."
        )
        if state.rest_address:
            started += f"\nDashboard: http{'s' * uses_tls(conf)}://{state.rest_address}/"
        if state.spark_connect_url:
            started += f"\nSpark Connect: {state.spark_connect_url}"
        click.echo(started)
        if wait:
            with Client(state.dispatcher_address, conf=conf) as client:
                _show_warming(client, task_executors * conf.get(options.TASK_SLOTS), where, begin)
    except KeyboardInterrupt:
        click.echo(_interrupted(where, directory), err=True)
        sys.exit(INTERRUPTED)
    _show_next_steps(state, where, directory)


def _check_spark_connect_port(conf: Configuration) -> None:
    """Raises FiresteelError if the port is taken. A Dispatcher would wait for it."""
    host, port = conf.get(options.BIND_HOST), conf.get(options.SPARK_CONNECT_PORT)
    if port:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            key = options.SPARK_CONNECT_PORT.key
            raise FiresteelError(
                f"{key}={port}: cannot listen on {host}:{port}: {error.strerror}. {_PORT_TAKEN} -D"
                f" {key}=PORT"
            ) from error


def _start_on_kubernetes(
    conf: Configuration,
    target: str,
    directory: Path | None,
    task_executors: int,
    masters: int,
    wait: bool,
) -> None:
    from firesteel.client.cli.kubernetes import start_session

    if target == APPLICATION:
        raise FiresteelError(
            f"an application cluster starts with its job: use `firesteel run -t {APPLICATION}`"
        )
    _no_directory(directory)
    if masters > 1:
        conf = conf.with_overrides({options.KUBERNETES_JM_REPLICAS.key: str(masters)})
    start_session(conf, task_executors=task_executors, wait=wait)


def _no_directory(directory: Path | None) -> None:
    if directory is not None:
        raise FiresteelError("--dir applies to a cluster on this machine: omit it, or -t")


def _interrupted(where: ClusterDirectory, directory: Path | None) -> str:
    try:
        address = where.read().dispatcher_address
    except FiresteelError:
        return "Interrupted: no cluster was started."
    return (
        f"Interrupted: the cluster at {address} keeps running, and its slots are warming up;"
        f" `firesteel cluster stop{_dir_option(where, directory)}` stops it."
    )


def _show_warming(client: Client, slots: int, where: ClusterDirectory, begin: float) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from firesteel.client.cluster import wait_for_slots
    from firesteel.client.render import console

    columns = (
        BarColumn(),
        TextColumn("{task.completed} of {task.total} slots warm"),
        TimeElapsedColumn(),
    )
    out = console()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("", total=slots)

        def update(overview: ClusterOverview) -> None:
            bar.update(task, completed=min(slots, overview.slots_warm))

        wait_for_slots(client, slots, logs=where.logs, timeout_s=SLOTS_TIMEOUT_S, progress=update)
    click.echo(f"{slots} of {slots} slots warm after {time.monotonic() - begin:.1f} s.")


def _dir_option(where: ClusterDirectory, directory: Path | None) -> str:
    return "" if directory is None else f" --dir {where.path}"


def _show_next_steps(state: ClusterState, where: ClusterDirectory, directory: Path | None) -> None:
    is_default = cluster_address(None, Configuration.load()) == state.dispatcher_address
    at = "" if is_default else f" {_address_option(state.dispatcher_address)}"
    click.echo(
        "\nNext:\n"
        f"  firesteel run{at} job.py\n"
        f"  firesteel list{at}\n"
        f"  firesteel dashboard{at}\n"
        f"  firesteel cluster stop{_dir_option(where, directory)}"
    )


def _address_option(address: str) -> str:
    if not address.startswith(ZOOKEEPER):
        return f"-m {address}"
    servers, _, path = address.removeprefix(ZOOKEEPER).partition("/")
    return f"-z {servers}/{path.rpartition('/')[2]}"


@cluster.command()
@_target
@directory_option
@definitions_option()
def status(target: str, directory: Path | None, definitions: tuple[str, ...]) -> None:
    """Shows the processes, slots and jobs of the cluster, and which of several masters lead."""
    if target != "local":
        from firesteel.client.cli.kubernetes import show_status

        _no_directory(directory)
        show_status(configuration(definitions))
        return
    from firesteel.client import render
    from firesteel.client.client import Client

    where = ClusterDirectory(directory or default_directory())
    state, conf = where.read(), configuration(definitions)
    console = render.console()
    if is_elected(state.dispatcher_address):
        from firesteel.high_availability.find import incumbents_at

        leaders = incumbents_at(state.dispatcher_address, conf)
        for part in render.masters(state, leaders):
            console.print(part)
    with Client(state.dispatcher_address, conf=conf) as client:
        overview = client.cluster_overview()
    served = metrics_targets.targets(where.metrics)
    for part in (
        *render.cluster(state, overview, where.logs),
        *render.metrics(served, where.metrics),
    ):
        console.print(part)


@cluster.command(
    epilog="\b\nExample:\n"
    "  firesteel cluster update -t kubernetes-session -D kubernetes.cluster-id=orders \\\n"
    "    -D kubernetes.container.image.ref=registry.example/firesteel:0.2.0"
)
@click.option(
    "-t",
    "--target",
    type=click.Choice(KUBERNETES_TARGETS),
    required=True,
    help="The cluster on Kubernetes that kubernetes.cluster-id and kubernetes.namespace name.",
)
@definitions_option("Change a configuration key. Repeatable.")
@click.option(
    "--unset",
    metavar="KEY",
    multiple=True,
    help="Return a configuration key to its default. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change.")
def update(
    target: str, definitions: tuple[str, ...], unset: tuple[str, ...], dry_run: bool
) -> None:
    """Changes the image or the configuration of a cluster on Kubernetes whose jobs keep running.

    The cluster keeps the options that this command neither sets nor unsets. A new pod of masters
    has to be ready before an earlier one ends; the leader's ends last. TaskExecutors are
    drained one after the other. If a pod of masters does not become ready, the masters keep the
    earlier configuration.
    """
    from firesteel.client.cli.kubernetes import update_cluster

    update_cluster(configuration(definitions), unset=unset, dry_run=dry_run)


@cluster.command()
@_target
@directory_option
@definitions_option()
def stop(target: str, directory: Path | None, definitions: tuple[str, ...]) -> None:
    """Stops the cluster and all its jobs, and waits until every process has ended.

    Unfinished jobs with checkpoints continue when a cluster starts in the same directory: to end
    them, use `firesteel stop` or `firesteel cancel` before.
    """
    if target != "local":
        from firesteel.client.cli.kubernetes import stop_cluster

        _no_directory(directory)
        stop_cluster(configuration(definitions))
        return
    where = ClusterDirectory(directory or default_directory())
    state = where.stop()
    click.echo(f"Cluster stopped: {state.dispatcher_address}, on {where.path}.")


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="\b\nExamples:\n"
    "  firesteel service resourcemanager --port 6124 --driver none\n"
    "  firesteel service dispatcher --port 6123 --resource-manager localhost:6124\n"
    "  firesteel service taskexecutor --resource-manager localhost:6124\n"
    "  firesteel service taskexecutor --help",
)
@click.argument("name", type=click.Choice([*_SERVED]))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def service(name: str, arguments: tuple[str, ...]) -> None:
    """Runs one process of a cluster in the foreground, for clusters of several machines.

    `cluster start` starts all processes of a cluster on one machine. This command becomes the
    process of one service, with its options, until it receives SIGTERM.
    """
    argv = module_command(_SERVED[name], *arguments)
    os.execve(argv[0], argv, service_environment(os.environ))

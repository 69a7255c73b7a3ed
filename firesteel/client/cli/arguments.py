"""Options that several verbs share, and their resolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from firesteel.common.config import Configuration, options, parse_definitions
from firesteel.common.config.redaction import remember
from firesteel.common.ids import is_id

if TYPE_CHECKING:
    from firesteel.client.client import Client
    from firesteel.client.job_details import JobOverview


# In a command's context: the values of -z, -t and -D.
_ZOOKEEPER = "firesteel.zookeeper"
_TARGET = "firesteel.target"
_DEFINITIONS = "firesteel.definitions"
SESSION, APPLICATION = "kubernetes-session", "kubernetes-application"
KUBERNETES_TARGETS = (SESSION, APPLICATION)


def address_option(otherwise: str, *, targets: bool = True) -> Callable[[Any], Any]:
    """Returns `-m`, `-z` and, with `targets`, `-t` and `-D` as one argument. `otherwise` describes
    what the verb uses if it finds no cluster.
    """
    of_cluster = click.option(
        "-m",
        "--jobmanager",
        "address",
        metavar="HOST:PORT",
        callback=_address_or_zookeeper,
        help="Address of the cluster. [default: the configured one (jobmanager.rpc.address, .port);"
        f" else that of the cluster started by `cluster start`; else {otherwise}]",
    )
    in_zookeeper = click.option(
        "-z",
        "--zookeeper",
        metavar="HOST:PORT,...[/ID]",
        is_eager=True,
        expose_value=False,
        callback=_kept(_ZOOKEEPER),
        help="ZooKeeper servers that elect the Dispatcher, and the cluster's id"
        f" [default: the configured ones ({options.HA_TYPE.key}: zookeeper)]",
    )
    of_target = click.option(
        "-t",
        "--target",
        "cluster_target",
        type=click.Choice(("remote", *KUBERNETES_TARGETS)),
        is_eager=True,
        expose_value=False,
        callback=_kept(_TARGET),
        help="Use the cluster on Kubernetes that kubernetes.cluster-id and kubernetes.namespace"
        " name.",
    )
    defined = click.option(
        "-D",
        "cluster_definitions",
        multiple=True,
        metavar="KEY=VALUE",
        is_eager=True,
        expose_value=False,
        callback=_kept(_DEFINITIONS),
        help="Set a configuration key of this command. Repeatable.",
    )
    if not targets:
        return lambda command: of_cluster(in_zookeeper(command))
    return lambda command: of_cluster(in_zookeeper(of_target(defined(command))))


def _kept(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        context.meta[key] = value

    return keep


def _address_or_zookeeper(
    context: click.Context, parameter: click.Parameter, address: str | None
) -> str | None:
    quorum = context.meta.get(_ZOOKEEPER)
    on_kubernetes = context.meta.get(_TARGET) in KUBERNETES_TARGETS
    named = {"-m": address, "-z": quorum, "-t": on_kubernetes}
    given = [name for name, value in named.items() if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} each name a cluster: omit one of them")
    if on_kubernetes:
        from firesteel.client.kubernetes_cluster import kubernetes_address

        return kubernetes_address(configuration())
    if not quorum:
        return address
    from firesteel.high_availability import elected_address

    return elected_address(Configuration.load(), quorum)


def name(text: str) -> str:
    """Parses an argument that is an id, the start of one, or a name.

    An empty text is refused: it is a prefix of every id, and it is often an unset variable of a
    script.
    """
    if not text.strip():
        raise click.BadParameter("it is empty")
    return text


def listed(text: str) -> list[str]:
    """Parses a comma-separated list."""
    return [item.strip() for item in text.split(",") if item.strip()]


def definitions_option(
    help: str = "Set a configuration key. Repeatable.",
) -> Callable[[Any], Any]:
    return click.option("-D", "definitions", multiple=True, metavar="KEY=VALUE", help=help)


def python_files_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --py-files, --py-archives and --py-requirements."""
    for option in (
        click.option(
            "--py-requirements", metavar="FILE", help="A requirements.txt to install for the job."
        ),
        click.option(
            "--py-archives",
            metavar="ARCHIVES",
            help="Comma-separated archives to unpack in the job's directory: a.zip#dir,...",
        ),
        click.option(
            "--py-files",
            metavar="FILES",
            help="Comma-separated .py, .zip and .whl files and directories to add to the job's"
            " sys.path.",
        ),
    ):
        command = option(command)
    return command


def configuration(definitions: tuple[str, ...] = ()) -> Configuration:
    """Returns the configuration, overridden by `-D`; prints a warning for each unknown key.

    Raises ConfigurationError.
    """
    context = click.get_current_context(silent=True)
    kept = context.meta.get(_DEFINITIONS, ()) if context is not None else ()
    conf = Configuration.load(overrides=parse_definitions((*kept, *definitions)))
    remember(conf.to_dict())
    for warning in conf.warnings:
        click.echo(f"Warning: {warning}", err=True)
    return conf


class FoundCluster(NamedTuple):
    address: str
    found_by: str  # the option or folder that names it

    def __str__(self) -> str:
        return f"the cluster at {self.address} ({self.found_by})"


def find_cluster(address: str | None, conf: Configuration) -> FoundCluster | None:
    """Applies the rule of all verbs: returns the cluster of -m, else the configured one, else the
    one that runs in the default folder, else None.
    """
    from firesteel.client.cluster.directory import ClusterDirectory, NoCluster, default_directory
    from firesteel.high_availability import elected, elected_address

    if address:
        return FoundCluster(address, _found_by(address))
    if elected(conf):
        return FoundCluster(elected_address(conf), "configured")
    if {options.RPC_ADDRESS.key, options.RPC_PORT.key} & conf.to_dict().keys():
        return FoundCluster(_configured_address(conf), "configured")
    directory = ClusterDirectory(default_directory())
    try:
        return FoundCluster(directory.read().dispatcher_address, f"running in {directory.path}")
    except NoCluster:
        return None


def _found_by(address: str) -> str:
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_TARGET):
        return f"of -t {context.meta[_TARGET]}"
    return "of -z" if address.startswith("zookeeper:") else "of -m"


def cluster_address(address: str | None, conf: Configuration) -> str:
    """Returns the address of the cluster that was found, else localhost:6123."""
    cluster = find_cluster(address, conf)
    return cluster.address if cluster is not None else _configured_address(conf)


def _configured_address(conf: Configuration) -> str:
    return f"{conf.get(options.RPC_ADDRESS)}:{conf.get(options.RPC_PORT)}"


def connect(address: str | None) -> Client:
    """Connects to the cluster. Raises ClusterUnreachable."""
    from firesteel.client.client import Client
    from firesteel.client.cluster.directory import default_directory
    from firesteel.errors import ClusterUnreachable

    conf = configuration()
    cluster = find_cluster(address, conf)
    try:
        return Client(cluster.address if cluster else _configured_address(conf), conf=conf)
    except ClusterUnreachable as error:
        if cluster is None:
            error.add_note(f"No cluster is configured, and none runs in {default_directory()}.")
        elif address is None:
            error.add_note(f"This is {cluster}.")
        raise


def resolve_job(client: Client, job: str, *, newest: bool = False) -> str:
    """Returns the id of a job that is given by its id, by the start of its id, or by its name.

    Raises JobNotFound unless exactly one job matches.
    """
    from firesteel.errors import JobNotFound

    if is_id(job):
        return job
    meant = jobs_meant(client.list_jobs(), job, newest=newest)
    if len(meant) > 1:
        ids = ", ".join(j.job_id for j in meant)
        raise JobNotFound(f"{job!r} matches {len(meant)} jobs ({ids}); specify the whole id of one")
    if not meant:
        raise JobNotFound(
            f"there is no job {job!r} on the cluster at {client.address};"
            " `firesteel list -a` shows all jobs"
        )
    return meant[0].job_id


def jobs_meant(jobs: Sequence[JobOverview], job: str, *, newest: bool = False) -> list[JobOverview]:
    """Returns jobs whose id starts with `job` or whose name it is: only those that have not ended,
    if there are any. Among several jobs with one name, returns the newest if all have ended or with
    `newest`.
    """
    matching = [j for j in jobs if j.job_id.startswith(job.lower()) or j.name == job]
    live = [j for j in matching if not j.status.globally_terminal]
    meant = live or matching
    if meant and (newest or not live) and all(j.name == job for j in meant):
        return [max(meant, key=lambda j: j.start_ms)]
    return meant

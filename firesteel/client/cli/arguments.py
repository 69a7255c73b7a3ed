"""Options that several verbs share, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from firesteel.common.config import Configuration, options, parse_definitions
from firesteel.common.ids import is_id

if TYPE_CHECKING:
    from firesteel.client.client import Client


def address_option(otherwise: str) -> Callable[[Any], Any]:
    """`otherwise`: what the verb uses if there is no cluster to find."""
    return click.option(
        "-m",
        "--jobmanager",
        "address",
        metavar="HOST:PORT",
        help="The cluster's address. [default: the configured one (jobmanager.rpc.address, .port);"
        f" else that of the cluster that `cluster start` has started; else {otherwise}]",
    )


def definitions_option(
    help: str = "Sets a configuration key. Repeatable.",
) -> Callable[[Any], Any]:
    return click.option("-D", "definitions", multiple=True, metavar="KEY=VALUE", help=help)


def configuration(definitions: tuple[str, ...] = ()) -> Configuration:
    """The configuration with `-D` over it; prints a warning for each unknown key.

    Raises ConfigurationError.
    """
    conf = Configuration.load(overrides=parse_definitions(definitions))
    for warning in conf.warnings:
        click.echo(f"Warning: {warning}", err=True)
    return conf


class FoundCluster(NamedTuple):
    address: str
    found_by: str  # what names it

    def __str__(self) -> str:
        return f"the cluster at {self.address} ({self.found_by})"


def find_cluster(address: str | None, conf: Configuration) -> FoundCluster | None:
    """The one rule of all verbs: the cluster of -m, else the configured one, else the one that runs
    in the default folder, else none.
    """
    from firesteel.client.cluster.directory import ClusterDirectory, NoCluster, default_directory

    if address:
        return FoundCluster(address, "of -m")
    if {options.RPC_ADDRESS.key, options.RPC_PORT.key} & conf.to_dict().keys():
        return FoundCluster(_configured_address(conf), "configured")
    directory = ClusterDirectory(default_directory())
    try:
        return FoundCluster(directory.read().dispatcher_address, f"running in {directory.path}")
    except NoCluster:
        return None


def cluster_address(address: str | None, conf: Configuration) -> str:
    """That of the cluster found, else localhost:6123."""
    found = find_cluster(address, conf)
    return found.address if found is not None else _configured_address(conf)


def _configured_address(conf: Configuration) -> str:
    return f"{conf.get(options.RPC_ADDRESS)}:{conf.get(options.RPC_PORT)}"


def connect(address: str | None) -> Client:
    """Raises ClusterUnreachable."""
    from firesteel.client.client import Client

    conf = configuration()
    return Client(cluster_address(address, conf), conf=conf)


def resolve_job(client: Client, job: str) -> str:
    """The id of a job that is given by its id, by the beginning of its id, or by its name.

    Raises JobNotFound unless exactly one job matches.
    """
    from firesteel.errors import JobNotFound

    if is_id(job):
        return job
    jobs = client.list_jobs()
    found = [j for j in jobs if j.job_id.startswith(job.lower()) or j.name == job]
    if len(found) > 1:  # a running job is preferred to ended ones
        found = [j for j in found if not j.status.globally_terminal] or found
    if len(found) == 1:
        return found[0].job_id
    if found:
        ids = ", ".join(j.job_id for j in found)
        raise JobNotFound(f"{job!r} matches {len(found)} jobs ({ids}); give the whole id of one")
    raise JobNotFound(
        f"there is no job {job!r} on the cluster at {client.address};"
        " `firesteel list -a` shows all jobs"
    )

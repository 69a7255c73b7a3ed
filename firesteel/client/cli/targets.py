"""The clusters that `run` runs jobs on, and programs in their images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.client.cli.arguments import (
    KUBERNETES_TARGETS,
    FoundCluster,
    cluster_address,
    find_cluster,
)
from firesteel.common.config import Configuration, options
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from firesteel.client.client import Client

TARGETS = ("local", "remote", *KUBERNETES_TARGETS)
IN_IMAGE = "local://"


class ImageFile(str):
    """A program in the image of a cluster: local:///PATH."""


def program_of(context: click.Context, parameter: click.Parameter, text: str) -> Path | ImageFile:
    """Parses a file of this machine, or local:///PATH of the image."""
    if text.startswith(IN_IMAGE):
        return ImageFile(text)
    found: Path = click.Path(exists=True, dir_okay=False, path_type=Path).convert(
        text, parameter, context
    )
    return found


def cluster_of(target: str | None, address: str | None, conf: Configuration) -> FoundCluster | None:
    """Returns the cluster to run on; None: the run starts an embedded one."""
    match target:
        case "local" if address is not None:
            raise FiresteelError(
                "-t local runs on an embedded cluster, -m on another one: specify only one of them"
            )
        case "local":
            return None
        case "remote":
            return find_cluster(address, conf) or FoundCluster(
                cluster_address(address, conf), "the default address"
            )
        case "kubernetes-session" | "kubernetes-application" if address is not None:
            raise FiresteelError(
                f"-t {target} and -m each name a cluster: specify only one of them"
            )
        case "kubernetes-session" | "kubernetes-application":
            from firesteel.client.kubernetes_cluster import kubernetes_address

            return FoundCluster(kubernetes_address(conf), f"of -t {target}")
        case _:
            return find_cluster(address, conf)


def start_application(conf: Configuration, detached: bool) -> str:
    """Starts an application cluster, which ends with this command; returns the id of its job."""
    from firesteel.client.cli.kubernetes import application_cluster
    from firesteel.kubernetes.cluster import Application

    cluster = click.get_current_context().with_resource(
        application_cluster(conf, Application(), detached=detached)
    )
    return cluster.job_id


def files_of_image(
    files: str | None, archives: str | None, requirements: str | None
) -> dict[str, str]:
    given = {
        options.PYTHON_FILES.key: files,
        options.PYTHON_ARCHIVES.key: archives,
        options.PYTHON_REQUIREMENTS.key: requirements,
    }
    return {key: value for key, value in given.items() if value is not None}


def check_version_of(client: Client) -> None:
    """Raises ClusterUnreachable if the image of a cluster has another version."""
    from firesteel.high_availability import KUBERNETES

    if client.address.startswith(KUBERNETES):
        from firesteel.client.kubernetes_cluster import check_version

        check_version(client)

"""cluster secrets: the Secrets of a cluster on Kubernetes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click
import yaml

from firesteel.client.cli.arguments import configuration, definitions_option

if TYPE_CHECKING:
    from firesteel.common.config import Configuration


@click.command(
    epilog="\b\nExample:\n"
    "  firesteel cluster secrets -D kubernetes.cluster-id=orders | kubectl apply -f -"
)
@definitions_option()
def secrets(definitions: tuple[str, ...]) -> None:
    """Prints the Secrets of a cluster on Kubernetes, for `kubectl apply -f -`.

    They have new keys, or those of the cluster's Secrets if these exist, and the secret values of
    the configuration. The credentials of Prometheus, and those of this user, are new.
    """
    click.echo(asyncio.run(_made(configuration(definitions))), nl=False)


async def _made(conf: Configuration) -> str:
    # Imported only where needed: aiohttp, cryptography.
    from firesteel.kubernetes.client import KubernetesClient
    from firesteel.kubernetes.configuration import access_of
    from firesteel.kubernetes.errors import NotFound
    from firesteel.kubernetes.security import cluster_secrets, read_keys, save_client

    async with KubernetesClient(access_of(conf)) as client:
        try:
            existing = await read_keys(client, conf)
        except NotFound:
            existing = {}
    made = cluster_secrets(conf, existing)
    used = save_client(conf, client.access, made.client)
    if made.client:
        directory = used.to_dict()["security.directory"]
        click.echo(f"The credentials of this user are in {directory}.", err=True)
    for manifest in made.secrets:
        manifest["metadata"]["namespace"] = client.namespace
    return str(yaml.safe_dump_all(made.secrets, sort_keys=False))

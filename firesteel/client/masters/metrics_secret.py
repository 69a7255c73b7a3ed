"""Renews the credentials of Prometheus in the Secret `<id>-metrics`.

The keys that sign them are in the pod's folder. Every pod with a Dispatcher does so: the later ones
find credentials that are fresh. A Secret that does not exist is not created.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from firesteel.common.config import Configuration, options
from firesteel.common.logs import get_logger
from firesteel.common.security.keys import Keys
from firesteel.errors import FiresteelError
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.configuration import access_of, cluster_id_of
from firesteel.kubernetes.errors import Conflict, NotFound
from firesteel.kubernetes.resources import SECRETS
from firesteel.kubernetes.security import METRICS, data_of, renewed_metrics, secret_name

log = get_logger(__name__)

PAUSE_S = 6 * 3600.0  # between two looks at credentials that are valid for months


class MetricsSecret:
    def __init__(self, conf: Configuration) -> None:
        self._name = secret_name(cluster_id_of(conf), METRICS)
        self._access = access_of(conf)
        directory = conf.get(options.SECURITY_DIRECTORY)
        self._keys = Keys(Path(directory)) if directory else None
        self._signs = conf.get(options.SECURITY_ENABLED) and self._keys is not None

    async def run(self) -> None:
        """Runs until it is cancelled. An error is logged once, and the attempt is repeated."""
        reason = ""
        while True:
            if self._signs:
                try:
                    async with KubernetesClient(self._access) as client:
                        await self.renew(client)
                except FiresteelError as error:
                    if str(error) != reason:  # text only: the log does not repeat itself
                        reason = str(error)
                        log.warning(
                            "the masters cannot renew the credentials of Prometheus; `firesteel"
                            " cluster secrets` does",
                            secret=self._name,
                            reason=reason,
                        )
            await asyncio.sleep(PAUSE_S)

    async def renew(self, client: KubernetesClient) -> bool:
        """Replaces credentials that are due; returns whether it has. Raises KubernetesError, and
        FiresteelError for unusable keys.
        """
        assert self._keys is not None
        try:
            secret = await client.get(SECRETS, self._name)
        except NotFound:
            return False
        renewed = renewed_metrics(self._keys, data_of(secret))
        if not renewed:
            return False
        version = secret["metadata"]["resourceVersion"]
        data = {name: base64.b64encode(content).decode() for name, content in renewed.items()}
        changes = {"metadata": {"resourceVersion": version}, "data": data}
        try:
            await client.patch(SECRETS, self._name, changes)
        except Conflict:  # another pod was faster
            return False
        log.info("the credentials of Prometheus were renewed", secret=self._name)
        return True

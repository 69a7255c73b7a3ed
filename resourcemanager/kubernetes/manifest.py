"""Builds the manifests of TaskExecutors' pods."""

from __future__ import annotations

import copy
import hashlib
import json

from firesteel.kubernetes.pods.template import HOME, main_container, pod_of
from firesteel.kubernetes.resources import Object
from resourcemanager.core.events import WorkerId
from resourcemanager.kubernetes.pod import ATTEMPT_LABEL, NUMBER_LABEL, TEMPLATE_LABEL, WORKER_LABEL
from resourcemanager.kubernetes.settings import KubernetesSettings


class Manifests:
    """Raises ConfigurationError if the template cannot be used."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._pod = pod_of(settings.pod)
        content = json.dumps([self._pod, *settings.arguments], sort_keys=True)
        # Differs between pods that differ in more than their names and labels.
        self.template = hashlib.sha256(content.encode()).hexdigest()[:16]

    def pod(
        self,
        *,
        name: str,
        attempt: int,
        number: int,
        worker_id: WorkerId,
        resource_manager_address: str,
        owner: Object | None,
    ) -> Object:
        """Returns the manifest of a pod. `owner` is its owner reference."""
        pod = copy.deepcopy(self._pod)
        metadata = pod["metadata"]
        metadata["name"] = name
        metadata["labels"] |= {
            ATTEMPT_LABEL: str(attempt),
            NUMBER_LABEL: str(number),
            WORKER_LABEL: worker_id,
            TEMPLATE_LABEL: self.template,
        }
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        address = self._settings.resource_manager_address or resource_manager_address
        main_container(pod)["args"] = [
            *(("--resource-manager", address) if address else ()),
            *("--worker-id", worker_id, "--host", "$(POD_IP)", "--dir", f"{HOME}/taskexecutor"),
            *self._settings.arguments,
        ]
        return pod

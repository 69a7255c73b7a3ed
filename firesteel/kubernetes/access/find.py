"""Selects the configuration of the client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.access.in_cluster import HOST, in_cluster
from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.errors import KubernetesConfigurationError


def find_access(
    *,
    file: str = "",
    context: str = "",
    namespace: str = "",
    environment: Mapping[str, str] = os.environ,
) -> ClusterAccess:
    """Returns the first of these that applies: the kubeconfig `file`, the files of KUBECONFIG, the
    ServiceAccount of this pod (unless `context` is given), ~/.kube/config. Raises
    KubernetesConfigurationError.
    """
    home = Path(environment.get("HOME") or Path.home()) / ".kube" / "config"
    configured = [Path(p) for p in environment.get("KUBECONFIG", "").split(os.pathsep) if p]
    paths = [Path(file).expanduser()] if file else configured
    if not paths and environment.get(HOST) and not context:
        return in_cluster(environment, namespace)
    if not paths and not home.exists():
        raise KubernetesConfigurationError(
            f"there is no access to Kubernetes: {home} does not exist, KUBECONFIG is not set, and"
            " this process is not in a pod"
        )
    return from_kubeconfig(
        paths or [home], context=context, namespace=namespace, environment=environment
    )

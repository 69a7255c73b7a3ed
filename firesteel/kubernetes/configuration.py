"""Reads the options of Kubernetes from a cluster's configuration."""

from __future__ import annotations

import re

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.access.find import find_access

# The names of objects add up to 18 characters, and those of Services may have 63.
LONGEST_CLUSTER_ID = 45
_CLUSTER_ID = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def access_of(conf: Configuration) -> ClusterAccess:
    """Raises KubernetesConfigurationError."""
    return find_access(
        file=conf.get(options.KUBERNETES_CONFIG_FILE),
        context=conf.get(options.KUBERNETES_CONTEXT),
        namespace=conf.get(options.KUBERNETES_NAMESPACE),
    )


def cluster_id_of(conf: Configuration) -> str:
    """Raises ConfigurationError unless names of objects may start with the id."""
    cluster_id = conf.get(options.KUBERNETES_CLUSTER_ID)
    if not cluster_id:
        raise ConfigurationError(
            f"{options.KUBERNETES_CLUSTER_ID.key} is not set; it names the cluster:"
            f" -D {options.KUBERNETES_CLUSTER_ID.key}=ID"
        )
    if _CLUSTER_ID.fullmatch(cluster_id) is None or len(cluster_id) > LONGEST_CLUSTER_ID:
        raise ConfigurationError(
            f"{options.KUBERNETES_CLUSTER_ID.key}: {cluster_id!r} is not allowed; expected 1 to"
            f" {LONGEST_CLUSTER_ID} lower-case letters, digits and '-', with a letter first and no"
            " '-' at the end"
        )
    return cluster_id

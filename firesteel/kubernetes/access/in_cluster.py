"""The API server and the identity that Kubernetes mounts into every pod with a ServiceAccount."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.access.credentials import TokenFile
from firesteel.kubernetes.access.proxies import proxy_of
from firesteel.kubernetes.access.tls import Pem, Tls
from firesteel.kubernetes.errors import KubernetesConfigurationError

MOUNTED = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
# Replaces the folder above, for processes that are not in a container.
FOLDER = "FIRESTEEL_SERVICE_ACCOUNT_DIR"


def in_cluster(environment: Mapping[str, str], namespace: str = "") -> ClusterAccess:
    """Raises KubernetesConfigurationError."""
    folder = Path(environment.get(FOLDER) or MOUNTED)
    origin = "the ServiceAccount of this pod"
    missing = [name for name in (HOST, PORT) if not environment.get(name)]
    if missing:
        raise KubernetesConfigurationError(
            f"{' and '.join(missing)} are not set: this process is not in a pod of Kubernetes"
        )
    if not (folder / "token").is_file():
        raise KubernetesConfigurationError(
            f"{folder / 'token'} does not exist: the pod has no token of a ServiceAccount; remove"
            " automountServiceAccountToken: false from it and from its ServiceAccount"
        )
    host = environment[HOST]
    host = f"[{host}]" if ":" in host else host
    server = f"https://{host}:{environment[PORT]}"
    return ClusterAccess(
        origin=origin,
        server=server,
        namespace=namespace or _namespace(folder / "namespace"),
        in_pod=True,
        credentials=TokenFile(folder / "token", origin=origin),
        tls=Tls(authority=Pem(origin=origin, path=folder / "ca.crt")),
        proxy=proxy_of(server, environment),
    )


def _namespace(path: Path) -> str:
    try:
        return path.read_text().strip() or "default"
    except OSError as error:
        raise KubernetesConfigurationError(
            f"{path} cannot be read: {error.strerror}; it has the namespace of the pod"
        ) from None

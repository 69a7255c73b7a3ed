"""The Secrets of a cluster, what its pods mount of them, and the credentials of its clients.

    <id>-masters         all keys of the cluster
    <id>-taskexecutors   public keys, the secret of the jobs' keys, and an authority that signs for
                         TaskExecutors and slots only
    <id>-metrics         the token and the certificate of Prometheus, which the masters renew

The first two also have the secret values of the configuration, as JSON in FIRESTEEL_SECRETS. A pod
mounts the keys read-only as its `security.directory`, and its processes sign their certificates in
memory. The client that creates the Secrets is an administrator: it has a folder with its own token
and certificate. So is everybody who may read the Secret of the masters.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firesteel.common.config import Configuration, options
from firesteel.common.config.configuration import SECRETS
from firesteel.common.config.redaction import is_sensitive
from firesteel.common.security.folder import MASTERS, TASK_EXECUTORS, SecurityFolder
from firesteel.common.security.keys import TOKENS_VALID_S, Keys
from firesteel.common.security.roles import ADMINISTRATOR, Role
from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.configuration import cluster_id_of
from firesteel.kubernetes.errors import KubernetesError
from firesteel.kubernetes.resources import SECRETS as SECRETS_RESOURCE
from firesteel.kubernetes.resources import Object

DIRECTORY = "/etc/firesteel-security"  # in pods; below no other mount
METRICS = "metrics"
_VOLUME = "firesteel-security"
_MODE = 0o400  # with the pod's fsGroup: 0440
_METRICS_VALID_S = 365 * 86_400.0  # the masters renew them after half of it
_MADE = ("authority.pem", "authority.key", "tokens.pem", "tokens.key", "jobs.key")
_INTERMEDIATE = ("taskexecutors.pem", "taskexecutors.key")
_FILES = {
    MASTERS: (*_MADE, *_INTERMEDIATE, "holder"),
    TASK_EXECUTORS: ("authority.pem", "tokens.pem", "jobs.key", *_INTERMEDIATE, "holder"),
    METRICS: ("authority.pem", "metrics.token", "metrics.pem", "metrics.key"),
}
# TaskExecutors do not connect to the job store.
_MASTERS_ONLY = frozenset({options.DATABASE_URL.key})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSecrets:
    secrets: Sequence[Object]  # the manifests, without an owner
    client: Mapping[str, bytes]  # the files of the administrator's folder; empty without security


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSecurity:
    """The parts of a pod's manifest that give its main container its keys and secret values."""

    volumes: Sequence[Object] = ()
    mounts: Sequence[Object] = ()
    variables: Sequence[Object] = ()
    values: Mapping[str, str]  # of the configuration, for its arguments


def secret_name(cluster_id: str, holder: str) -> str:
    return f"{cluster_id}-{holder}"


def cluster_secrets(
    conf: Configuration, existing: Mapping[str, bytes] | None = None
) -> ClusterSecrets:
    """Returns the Secrets of a cluster with new keys, or with those of an `existing` Secret of its
    masters, and new credentials for Prometheus and an administrator.
    """
    cluster_id = cluster_id_of(conf)
    files = _files(existing or {}) if conf.get(options.SECURITY_ENABLED) else {}
    secrets = []
    for holder, names in _FILES.items():
        data = {name: files[holder][name] for name in names if files}
        if holder != METRICS and (values := _secret_values(conf, holder)):
            data[SECRETS] = json.dumps(values).encode()
        if data:
            secrets.append(_secret(cluster_id, holder, data))
    return ClusterSecrets(secrets=secrets, client=files.get("client", {}))


def renewed_metrics(keys: Keys, existing: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns new credentials of Prometheus, signed with the keys of the masters; nothing if these
    keys verify the existing token, and it is valid for more than half of its time.
    """
    token = existing.get("metrics.token", b"").decode(errors="replace").strip()
    fresh = keys.is_fresh(token, valid_s=_METRICS_VALID_S)
    return {} if fresh else keys.metrics_files(valid_s=_METRICS_VALID_S)


def pod_security(conf: Configuration, holder: str) -> PodSecurity:
    """Returns the security of the pods of MASTERS or TASK_EXECUTORS. A user who mounts a Secret at
    `security.directory` provides the keys.
    """
    secret = secret_name(cluster_id_of(conf), holder)
    # Without it, masters would use another job store.
    required = holder == MASTERS and bool(_secret_values(conf, holder))
    reference = {"name": secret, "key": SECRETS, "optional": not required}
    variables = [{"name": SECRETS, "valueFrom": {"secretKeyRef": reference}}]
    if not conf.get(options.SECURITY_ENABLED):
        return PodSecurity(variables=variables, values={})
    directory = conf.get(options.SECURITY_DIRECTORY)
    mounted = [text.partition(":")[2] for text in conf.get(options.KUBERNETES_SECRETS)]
    if directory and directory in mounted:
        return PodSecurity(variables=variables, values={options.SECURITY_DIRECTORY.key: directory})
    items = [{"key": name, "path": name} for name in _FILES[holder]]
    source = {"secretName": secret, "defaultMode": _MODE, "items": items}
    return PodSecurity(
        volumes=[{"name": _VOLUME, "secret": source}],
        mounts=[{"name": _VOLUME, "mountPath": DIRECTORY, "readOnly": True}],
        variables=variables,
        values={options.SECURITY_DIRECTORY.key: DIRECTORY},
    )


def _secret_values(conf: Configuration, holder: str) -> dict[str, str]:
    hidden = _MASTERS_ONLY if holder == TASK_EXECUTORS else ()
    return {k: v for k, v in conf.to_dict().items() if is_sensitive(k) and k not in hidden}


def _secret(cluster_id: str, holder: str, data: Mapping[str, bytes]) -> Object:
    return {
        "apiVersion": SECRETS_RESOURCE.api_version,
        "kind": SECRETS_RESOURCE.kind,
        "metadata": {
            "name": secret_name(cluster_id, holder),
            "labels": {
                "app": cluster_id,
                "app.kubernetes.io/name": "firesteel",
                "app.kubernetes.io/instance": cluster_id,
            },
        },
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in data.items()},
    }


def _files(existing: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """Returns the files of each holder, and of the client. Makes the missing ones."""
    with tempfile.TemporaryDirectory() as path:
        folder = SecurityFolder(Path(path))
        for name in _MADE:
            if name in existing:
                folder.write(name, existing[name])
        keys = Keys.open(folder.path)
        keys.write_metrics(valid_s=_METRICS_VALID_S)
        made = {name: keys.read(name) for name in {*_MADE, *_FILES[METRICS]}}
        made |= {name: existing[name] for name in _INTERMEDIATE if name in existing}
        if "taskexecutors.key" not in made:
            made |= zip(_INTERMEDIATE, keys.authority().certify_task_executors(), strict=True)
        found = {holder: made | {"holder": holder.encode()} for holder in _FILES}
        return found | {"client": _client_files(keys)}


def _client_files(keys: Keys) -> dict[str, bytes]:
    """Returns the folder of an administrator; see firesteel.common.security.folder."""
    token = keys.issuer().issue(ADMINISTRATOR, Role.ADMIN, valid_s=TOKENS_VALID_S)
    authority = keys.authority()
    own = authority.certify(ADMINISTRATOR, Role.ADMIN, hosts=(), valid_s=TOKENS_VALID_S)
    return {
        "authority.pem": own.authority,
        "client.pem": own.certificate,
        "client.key": own.key,
        "client.token": f"{token}\n".encode(),
    }


# ------------------------------------------------------------ clients


def client_directory(conf: Configuration, access: ClusterAccess) -> Path:
    """Returns the folder with this user's credentials for a cluster."""
    server = hashlib.sha256(access.server.encode()).hexdigest()[:12]  # may have a cluster like it
    of_user = Path.home() / ".firesteel" / "kubernetes"
    return of_user / server / access.namespace / cluster_id_of(conf)


def save_client(
    conf: Configuration, access: ClusterAccess, files: Mapping[str, bytes]
) -> Configuration:
    """Stores the credentials of a client. Returns the configuration that uses them."""
    folder = SecurityFolder(client_directory(conf, access))
    if files:
        folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in files.items():
            folder.write(name, content)
    return _with_folder(conf, folder.path)


def _with_folder(conf: Configuration, path: Path) -> Configuration:
    """The client may reach the cluster through a loopback port."""
    if not conf.get(options.SECURITY_ENABLED):
        return conf
    values = {options.SECURITY_DIRECTORY.key: str(path)}
    if conf.get(options.SECURITY_TLS) == "auto":
        values[options.SECURITY_TLS.key] = "always"
    return conf.with_overrides(values)


async def read_keys(client: KubernetesClient, conf: Configuration) -> dict[str, bytes]:
    """Returns the content of the Secret of the masters. Raises KubernetesError."""
    name = secret_name(cluster_id_of(conf), MASTERS)
    return data_of(await client.get(SECRETS_RESOURCE, name))


def data_of(secret: Object) -> dict[str, bytes]:
    return {key: base64.b64decode(text) for key, text in (secret.get("data") or {}).items()}


async def client_configuration(client: KubernetesClient, conf: Configuration) -> Configuration:
    """Returns the configuration with which this client connects to the cluster.

    Creates or renews the credentials of this user, if the user may read the Secret of the masters.
    Else, those of an earlier time are used, if any, or those that `conf` names.
    """
    given = SecurityFolder(Path(conf.get(options.SECURITY_DIRECTORY) or "/"))
    if not conf.get(options.SECURITY_ENABLED) or given.is_clients or given.holder:
        return conf
    folder = SecurityFolder(client_directory(conf, client.access))
    try:
        existing = await read_keys(client, conf)
    except KubernetesError:
        return _with_folder(conf, folder.path) if folder.is_clients else conf
    if "authority.key" not in existing:
        return conf
    if _is_current(folder, existing):
        return _with_folder(conf, folder.path)
    return save_client(conf, client.access, _files(existing)["client"])


def _is_current(folder: SecurityFolder, existing: Mapping[str, bytes]) -> bool:
    """Whether the folder has credentials of these keys that are valid for weeks."""
    if not folder.is_clients or folder.read("authority.pem") != existing["authority.pem"]:
        return False
    with tempfile.TemporaryDirectory() as path:
        keys = Keys(Path(path))
        keys.write("tokens.pem", existing["tokens.pem"])
        return keys.is_fresh(folder.token("client.token"))

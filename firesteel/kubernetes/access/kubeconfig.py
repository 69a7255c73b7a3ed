"""Reads kubeconfig files, as kubectl does: of several files, the first one that has a name
counts.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.access.credentials import (
    Credentials,
    FixedCredentials,
    Impersonating,
    TokenFile,
)
from firesteel.kubernetes.access.exec_plugin import API_VERSIONS, ExecPlugin, Plugin
from firesteel.kubernetes.access.proxies import checked, proxy_of
from firesteel.kubernetes.access.tls import ClientCertificate, Pem, Tls
from firesteel.kubernetes.errors import KubernetesConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """One cluster, user or context, with the file that has it."""

    path: Path
    title: str  # such as "user alice"
    fields: Mapping[str, Any]

    @property
    def origin(self) -> str:
        return f"{self.title} in {self.path}"

    def text(self, key: str) -> str:
        value = self.fields.get(key)
        if value is not None and not isinstance(value, str):
            raise KubernetesConfigurationError(f"{self.origin}: {key} is not a text")
        return value or ""

    def file(self, key: str) -> Path | None:
        """Paths are relative to the folder of the file that names them."""
        value = self.text(key)
        return self.path.parent / value if value else None

    def pem(self, key: str) -> Pem | None:
        """Returns `key` or `key`-data; the data has priority."""
        if data := self.text(f"{key}-data"):
            try:
                decoded = base64.b64decode(data, validate=True)
            except binascii.Error:
                raise KubernetesConfigurationError(
                    f"{self.origin}: {key}-data is not in base64"
                ) from None
            return Pem(origin=f"{key}-data of {self.origin}", data=decoded)
        if path := self.file(key):
            return Pem(origin=f"{key} of {self.origin}", path=path)
        return None


def from_kubeconfig(
    paths: Sequence[Path],
    *,
    context: str = "",
    namespace: str = "",
    environment: Mapping[str, str] = os.environ,
) -> ClusterAccess:
    """Returns the access of a context, by default of the current one. Files that do not exist are
    skipped if there are several. Raises KubernetesConfigurationError.
    """
    files = _read(paths)
    name = context or next((f["current-context"] for _, f in files if f.get("current-context")), "")
    names = ", ".join(str(path) for path, _ in files)
    if not name:
        raise KubernetesConfigurationError(
            f"{names} has no current-context; name a context, one of: {_known(files, 'context')}"
        )
    chosen = _find(files, "context", name)
    if chosen is None:
        raise KubernetesConfigurationError(
            f"{names} has no context {name!r}; its contexts are: {_known(files, 'context')}"
        )
    cluster = _referred(files, chosen, "cluster")
    if cluster is None:
        raise KubernetesConfigurationError(f"{chosen.origin} names no cluster")
    server = cluster.text("server").rstrip("/")
    if urlsplit(server).scheme not in ("http", "https") or not urlsplit(server).hostname:
        raise KubernetesConfigurationError(
            f"{cluster.origin}: server {server!r} is not a URL such as https://HOST:PORT"
        )
    user = _referred(files, chosen, "user")
    tls = Tls(
        authority=cluster.pem("certificate-authority"),
        insecure=cluster.fields.get("insecure-skip-tls-verify") is True,
        server_name=cluster.text("tls-server-name") or None,
    )
    proxy = cluster.text("proxy-url")
    return ClusterAccess(
        origin=chosen.origin,
        server=server,
        namespace=namespace or chosen.text("namespace") or "default",
        credentials=_credentials(user, cluster) if user else FixedCredentials(),
        tls=tls,
        proxy=checked(proxy, f"proxy-url of {cluster.origin}")
        if proxy
        else proxy_of(server, environment),
    )


def _read(paths: Sequence[Path]) -> list[tuple[Path, Mapping[str, Any]]]:
    found: list[tuple[Path, Mapping[str, Any]]] = []
    for path in paths:
        try:
            content = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise KubernetesConfigurationError(f"{path} cannot be read: {error}") from None
        except yaml.YAMLError as error:
            raise KubernetesConfigurationError(f"{path} is not valid YAML: {error}") from None
        if not isinstance(content, dict):
            raise KubernetesConfigurationError(f"{path} is not a kubeconfig file")
        found.append((path, content))
    if not found:
        names = ", ".join(map(str, paths))
        raise KubernetesConfigurationError(f"the kubeconfig file {names} does not exist")
    return found


def _entries(
    path: Path, content: Mapping[str, Any], kind: str
) -> list[tuple[str, Mapping[str, Any]]]:
    entries = content.get(f"{kind}s") or []
    try:
        return [(entry["name"], entry.get(kind) or {}) for entry in entries]
    except (TypeError, KeyError, AttributeError):
        raise KubernetesConfigurationError(
            f"{path}: an entry of {kind}s has no name, or is not a mapping"
        ) from None


def _find(files: Sequence[tuple[Path, Mapping[str, Any]]], kind: str, name: str) -> _Section | None:
    for path, content in files:
        for its_name, fields in _entries(path, content, kind):
            if its_name == name:
                return _Section(path=path, title=f"{kind} {name}", fields=fields)
    return None


def _referred(
    files: Sequence[tuple[Path, Mapping[str, Any]]], context: _Section, kind: str
) -> _Section | None:
    name = context.text(kind)
    if not name:
        return None
    section = _find(files, kind, name)
    if section is None:
        raise KubernetesConfigurationError(
            f"{context.origin} names the {kind} {name!r}, which does not exist; there are:"
            f" {_known(files, kind)}"
        )
    return section


def _known(files: Sequence[tuple[Path, Mapping[str, Any]]], kind: str) -> str:
    names = [name for path, content in files for name, _ in _entries(path, content, kind)]
    return ", ".join(names) or "none"


def _credentials(user: _Section, cluster: _Section) -> Credentials:
    """A token has priority over an exec plugin, and both over a password."""
    certificate = _certificate(user)
    credentials: Credentials
    if user.fields.get("auth-provider"):
        raise KubernetesConfigurationError(
            f"{user.origin} uses auth-provider, which Kubernetes 1.26 removed; configure the exec"
            " plugin of the provider instead"
        )
    if path := user.file("tokenFile"):
        credentials = TokenFile(path, origin=user.origin, certificate=certificate)
    elif user.text("token") or not user.fields.get("exec"):
        credentials = FixedCredentials(
            token=user.text("token"),
            user=user.text("username"),
            password=user.text("password"),
            certificate=certificate,
        )
    else:
        credentials = ExecPlugin(_plugin(user, cluster))
    if impersonated := _impersonated(user):
        return Impersonating(credentials, impersonated)
    return credentials


def _certificate(user: _Section) -> ClientCertificate | None:
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    if certificate is not None and key is not None:
        return ClientCertificate(certificate=certificate, key=key)
    if certificate is not None or key is not None:
        missing = "client-key" if key is None else "client-certificate"
        raise KubernetesConfigurationError(f"{user.origin} has no {missing}")
    return None


def _plugin(user: _Section, cluster: _Section) -> Plugin:
    found = user.fields["exec"]
    if not isinstance(found, dict):
        raise KubernetesConfigurationError(f"{user.origin}: exec is not a mapping")
    section = _Section(path=user.path, title=f"exec of {user.title}", fields=found)
    api_version = section.text("apiVersion")
    if api_version not in API_VERSIONS:
        raise KubernetesConfigurationError(
            f"{section.origin}: apiVersion {api_version!r} is not supported; expected"
            f" {API_VERSIONS[0]}"
        )
    command = section.text("command")
    if not command:
        raise KubernetesConfigurationError(f"{section.origin} names no command")
    if os.sep in command:
        command = str(section.path.parent / command)
    return Plugin(
        origin=section.origin,
        command=command,
        arguments=_list(section, "args", str),
        environment=dict(_list(section, "env", lambda pair: (pair["name"], pair["value"]))),
        api_version=api_version,
        install_hint=section.text("installHint"),
        interactive=section.text("interactiveMode") or "IfAvailable",
        cluster=_cluster_info(cluster) if found.get("provideClusterInfo") else None,
    )


def _list(section: _Section, key: str, decode: Callable[[Any], Any]) -> list[Any]:
    try:
        return [decode(entry) for entry in section.fields.get(key) or ()]
    except (TypeError, KeyError):
        raise KubernetesConfigurationError(f"{section.origin}: {key} is malformed") from None


def _cluster_info(cluster: _Section) -> dict[str, Any]:
    info: dict[str, Any] = {"server": cluster.text("server")}
    if authority := cluster.pem("certificate-authority"):
        info["certificate-authority-data"] = base64.b64encode(authority.read()).decode()
    for key in ("tls-server-name", "insecure-skip-tls-verify", "proxy-url"):
        if cluster.fields.get(key):
            info[key] = cluster.fields[key]
    return info


def _impersonated(user: _Section) -> dict[str, str]:
    headers = {"Impersonate-User": user.text("as"), "Impersonate-Uid": user.text("as-uid")}
    if groups := _list(user, "as-groups", str):
        if len(groups) > 1:
            raise KubernetesConfigurationError(
                f"{user.origin}: as-groups has {len(groups)} groups; only one is supported"
            )
        headers["Impersonate-Group"] = groups[0]
    return {name: value for name, value in headers.items() if value}

"""The credentials with which tests call services and read metrics."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from firesteel.common.config import Configuration
from firesteel.common.rpc.bearer import carry_token
from firesteel.common.rpc.server import channel
from firesteel.common.security.folder import security_directory
from firesteel.common.security.keys import Keys
from firesteel.common.security.roles import Role

PATIENCE_S = 120.0


def folder() -> Keys:
    """The keys of the clusters that tests start."""
    return Keys.open(security_directory(Configuration.load()))


def scrape(address: str, keys: Path | None = None) -> str:
    """Returns the metrics that a process serves at host:port, as Prometheus reads them: with `keys`,
    over TLS.
    """
    context = None
    if keys is not None:
        context = ssl.create_default_context(cafile=keys / "authority.pem")
        context.load_cert_chain(keys / "metrics.pem", keys / "metrics.key")
    token = Keys(keys or folder().path).token("metrics.token")
    request = urllib.request.Request(
        f"{'http' if keys is None else 'https'}://{address}/metrics",
        headers={"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
        text: str = answer.read().decode()
        return text


def get(address: str, route: str) -> str:
    """Returns what the REST API at host:port answers to an administrator, also an error."""
    request = urllib.request.Request(
        f"http://{address}{route}", headers={"Authorization": f"Bearer {folder().token()}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        return str(error.read().decode(errors="replace"))


def channel_as(role: Role, address: str) -> grpc.Channel:
    """Returns a channel to host:port whose calls have the role of a person, or of a process."""
    token = folder().issuer().issue(f"test-{os.getpid()}", role, valid_s=600)
    opened = channel(address)
    carry_token(opened, lambda: token)
    return opened


def fixed_key(key: Ed25519PublicKey) -> Callable[[], tuple[Ed25519PublicKey, ...]]:
    """Returns the keys for a TokenVerifier whose key is not replaced."""
    keys = (key,)
    return lambda: keys

"""The security of a client: its token, and its certificate."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from firesteel.common.config import Configuration, options
from firesteel.common.security.credentials import TOKEN_VARIABLE
from firesteel.common.security.folder import MASTERS, SecurityFolder, security_directory
from firesteel.common.security.listening import is_loopback_host
from firesteel.common.security.roles import ADMINISTRATOR, Role
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    import ssl

    from firesteel.common.security.credentials import Certificate
    from firesteel.common.security.keys import Keys


_VALID_S = 86_400.0  # of a token that this process issues for itself


class ClientSecurity:
    """The security of a client: its token, and a certificate where it connects beyond loopback.

    A user who has the keys of the cluster needs nothing else. Another one gets a folder with a
    token, and a certificate, from an administrator.
    """

    def __init__(
        self,
        conf: Configuration,
        *,
        own_cluster: bool = False,
        token: Callable[[], str] | None = None,
    ) -> None:
        """`own_cluster`: this process has started the cluster, and is its administrator, whatever
        token its environment has for another one. `token` returns the token of the user
        on whose behalf this process calls.
        """
        self._given = token
        self._conf = conf
        self._own_cluster = own_cluster
        self._issued, self._issue_at_s = "", 0.0

    def token(self) -> str:
        """Returns the client's token. Raises FiresteelError if it cannot be read."""
        if self._given is not None:
            return self._given()
        folder = SecurityFolder(security_directory(self._conf))
        if folder.holder == MASTERS:  # this process runs beside the masters, as an administrator
            if time.monotonic() >= self._issue_at_s:
                issuer = self._keys().issuer()
                self._issued = issuer.issue(ADMINISTRATOR, Role.ADMIN, valid_s=_VALID_S)
                self._issue_at_s = time.monotonic() + _VALID_S / 2
            return self._issued
        if self._own_cluster:
            return folder.token()
        if given := os.environ.get(TOKEN_VARIABLE, "").strip():
            return given
        if path := self._conf.get(options.SECURITY_TOKEN_FILE):
            try:
                return Path(path).expanduser().read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise FiresteelError(
                    f"the token cannot be read ({options.SECURITY_TOKEN_FILE.key}): {error}"
                ) from None
        if folder.is_clients:
            return folder.token("client.token")
        if not (folder.path / "admin.token").exists():
            self._keys()
        return folder.token()

    def channel_credentials(self, address: str) -> grpc.ChannelCredentials | None:
        """Returns the credentials of a channel to HOST:PORT; None without TLS."""
        mode = self._conf.get(options.SECURITY_TLS)
        if mode == "never" or (mode == "auto" and is_loopback_host(address.rpartition(":")[0])):
            return None
        own = self._certificate()
        return grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)

    def http_context(self) -> ssl.SSLContext:
        """Returns the context of HTTPS connections."""
        import ssl

        own = self._certificate()
        context = ssl.create_default_context(cadata=own.authority.decode())
        with tempfile.NamedTemporaryFile() as chain:  # 0600; ssl reads files only
            chain.write(own.certificate + own.key)
            chain.flush()
            context.load_cert_chain(chain.name)
        return context

    def _certificate(self) -> Certificate:
        folder = SecurityFolder(security_directory(self._conf))
        return (
            folder.client_certificate()
            if folder.is_clients
            else self._keys().certificate_of_client()
        )

    def _keys(self) -> Keys:
        # Imported only where needed: cryptography, which commands on loopback do without.
        from firesteel.common.security.keys import Keys

        return Keys.open(security_directory(self._conf))

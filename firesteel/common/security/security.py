"""The security of one process: how it proves who it is, and how it finds out who calls it.

On loopback addresses, calls carry tokens. As soon as the cluster listens on any other address, all
connections use mutual TLS as well. Tokens and certificates of a process are short-lived, and
replaced while it runs.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from firesteel.common.config import Configuration, options
from firesteel.common.logs import get_logger
from firesteel.common.security.credentials import BEARER, Certificate, SlotCredentials
from firesteel.common.security.folder import security_directory
from firesteel.common.security.job_keys import JobKeys, past_epoch
from firesteel.common.security.keys import Keys
from firesteel.common.security.limits import CallLimits
from firesteel.common.security.listening import uses_tls
from firesteel.common.security.roles import Identity, Role
from firesteel.common.security.tokens import TokenIssuer, TokenVerifier
from firesteel.errors import FiresteelError

log = get_logger(__name__)

VALID_S = 86_400.0  # of tokens
# A channel keeps its certificate, and needs it whenever it connects again.
CERTIFICATE_VALID_S = 90 * 86_400.0
SLOT_STARTS_WITHIN_S = 600.0
SLOT_LIVES_S = 365 * 86_400.0
_LOOK_EVERY_S = 3600.0


class Security:
    """Thread-safe."""

    def __init__(
        self,
        folder: Keys,
        *,
        subject: str,
        role: Role,
        tls: bool,
        hosts: tuple[str, ...] = (),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`hosts`: the names under which others reach this process."""
        self.tls = tls
        self._folder = folder
        self._subject = subject
        self._role = role
        self._hosts = hosts
        self._now_s = now_s
        self._lock = threading.Lock()
        self._token = ""
        self._token_expires_s = 0.0
        self._token_stamp: object = None
        self._certificate: Certificate | None = None
        self._certificate_stamp: object = None
        # TaskExecutors in pods cannot sign tokens of the cluster. Their slots' tokens are for
        # themselves alone.
        own_key = Ed25519PrivateKey.generate()
        self._slot_tokens = TokenIssuer(own_key, now_s=now_s)
        # Called for calls that are refused, and for those that the table of access wants audited.
        self.audit: Callable[[Any], None] = lambda call: None
        # Returns the name of a job's owner; None: this process does not know the job.
        self.owner_of: Callable[[str], str | None] = lambda job_id: None
        # The epochs of the JobMasters whose slots this process hosts.
        self.job_epochs: dict[str, int] = {}
        self.limits = CallLimits()  # of its gRPC server
        self.revoked: set[str] = set()  # the ids of tokens that this process refuses
        self._verifier = folder.verifier(self.revoked.__contains__, further=(own_key.public_key(),))
        self._renew_at_s = 0.0

    @classmethod
    def of_process(cls, conf: Configuration, role: Role, host: str) -> Security | None:
        """Returns the security of a service that binds `host`; None if it is disabled."""
        if not conf.get(options.SECURITY_ENABLED):
            return None
        folder = Keys.open(security_directory(conf))
        folder.renew()
        security = cls(
            folder,
            subject=f"{role.value}-{os.getpid()}",
            role=role,
            tls=uses_tls(conf),
            hosts=(
                *(host, socket.gethostname(), "localhost", "127.0.0.1", "::1"),
                *conf.get(options.REST_HOSTS),
                *conf.get(options.SECURITY_HOSTS),
                *filter(None, (conf.get(options.KUBERNETES_RM_ADDRESS).rpartition(":")[0],)),
            ),
        )
        if not folder.signs_tokens and not security.tls:
            raise folder.unusable(
                "holder",
                "says that this process has no tokens, so its connections need TLS; set"
                f" {options.SECURITY_TLS.key} to auto or always",
            )
        security.limits = CallLimits(conf)
        return security

    @property
    def carries_tokens(self) -> bool:
        """Whether calls of this process carry tokens. Else its certificate says who it is."""
        return self._folder.signs_tokens

    def token(self) -> str:
        """Returns a token of this process that is valid for hours."""
        with self._lock:
            now_s, stamp = self._now_s(), self._folder.stamp("tokens.key")
            if self._token_expires_s - now_s < VALID_S / 2 or stamp != self._token_stamp:
                self._token = self._folder.issuer().issue(
                    self._subject, self._role, valid_s=VALID_S
                )
                self._token_expires_s, self._token_stamp = now_s + VALID_S, stamp
            return self._token

    def slot_credentials(self, executor_id: str) -> SlotCredentials:
        """Returns the credentials of a slot's process, which this process starts now. The slot
        uses the token once, for its link, and its certificate as long as it lives.
        """
        token = self._slot_tokens.issue(executor_id, Role.SLOT, valid_s=SLOT_STARTS_WITHIN_S)
        return SlotCredentials(token=token, certificate=self.exchange_certificate(executor_id))

    def exchange_certificate(self, subject: str) -> Certificate | None:
        """Returns a certificate for the exchange, whose servers cannot replace theirs; None without
        TLS.
        """
        if not self.tls:
            return None
        return self._folder.authority().certify(
            subject, Role.SLOT, hosts=self._hosts, valid_s=SLOT_LIVES_S
        )

    def token_for(self, subject: str, role: Role, *, valid_s: float, own_jobs: bool = False) -> str:
        """Returns a token for somebody else."""
        return self._folder.issuer().issue(subject, role, valid_s=valid_s, own_jobs=own_jobs)

    def client_certificate(self, subject: str, role: Role, valid_s: float) -> Certificate:
        """Returns a certificate for a client, with which it connects over TLS."""
        return self._folder.authority().certify(subject, role, hosts=(), valid_s=valid_s)

    def job_keys(self, job_id: str) -> JobKeys:
        """Returns the keys of a job under the epoch of now, for the slots that work for it."""
        return self._folder.job_keys(job_id, self.job_epochs.get(job_id, 0))

    def find_job_key(self, job_id: str, epoch: int, expiry_s: int) -> bytes:
        """As `FindKey`, of all jobs."""
        if epoch < (current := self.job_epochs.get(job_id, 0)):
            raise past_epoch(job_id, epoch, current)
        return self._folder.find_job_key(job_id, epoch, expiry_s)

    @property
    def verifier(self) -> TokenVerifier:
        return self._verifier

    def certificate(self) -> Certificate:
        """Returns a certificate of this process that is valid for weeks."""
        with self._lock:
            current, stamp = self._certificate, self._folder.authority_stamp
            if (
                current is None
                or current.expires_s - self._now_s() < CERTIFICATE_VALID_S / 2
                or stamp != self._certificate_stamp
            ):
                self._certificate = current = self._folder.authority().certify(
                    self._subject, self._role, hosts=self._hosts, valid_s=CERTIFICATE_VALID_S
                )
                self._certificate_stamp = stamp
            return current

    def server_credentials(self, *, certified: bool = True) -> grpc.ServerCredentials | None:
        """Returns the credentials of a server, whose certificate is renewed; None without TLS.
        `certified`: its clients need certificates.
        """
        if not self.tls:
            return None
        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(),
            self._server_configuration,
            require_client_authentication=certified,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the credentials of a channel that is opened now; None without TLS."""
        if not self.tls:
            return None
        own = self.certificate()
        return grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)

    def revoke(self, token_ids: Iterable[str]) -> None:
        """Refuses tokens from now on, as do the metrics endpoints of processes on this machine."""
        self.revoked.update(token_ids)
        try:
            self._folder.write_revoked(self.revoked)
        except OSError as error:  # a folder that is mounted read-only
            log.warning("metrics endpoints do not learn of revoked tokens", reason=str(error))

    def identify(self, authorization: str) -> Identity:
        """Returns the caller that a header proves, for servers that learn of new keys and revoked
        tokens from the folder. Raises FiresteelError.
        """
        with self._lock:
            now_s = self._now_s()
            if now_s >= self._renew_at_s:
                self._folder.renew()
                self._renew_at_s = now_s + _LOOK_EVERY_S
            self.revoked |= self._folder.revoked()
        return self._verifier.verify(authorization.removeprefix(BEARER))

    def http_refusal(self, authorization: str | None) -> str | None:
        """Returns why a viewer's HTTP request is refused; None: it is not."""
        if authorization is None:
            return "the request carries no token"
        try:
            identity = self.identify(authorization)
        except FiresteelError as error:
            return str(error)
        if identity.role.includes(Role.VIEWER):
            return None
        return f"{identity} may not see this"

    def http_context(self) -> ssl.SSLContext | None:
        """Returns the context of an HTTPS server with the certificate of now; None without TLS."""
        if not self.tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        self.renew_http_context(context)
        return context

    def renew_http_context(self, context: ssl.SSLContext) -> None:
        """Gives new connections of a server the certificate of now."""
        own = self.certificate()
        context.load_verify_locations(cadata=own.authority.decode())
        with tempfile.NamedTemporaryFile() as chain:  # 0600; ssl reads files only
            chain.write(own.certificate + own.key)
            chain.flush()
            context.load_cert_chain(chain.name)

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        own = self.certificate()
        return grpc.ssl_server_certificate_configuration(
            [(own.key, own.certificate)], own.authority
        )

"""The cluster's certificate authority: it signs the short-lived certificates of processes.

A certificate names the role of its process in a URI of its subject alternative names, next to the
hosts that it serves. Servers and clients trust this authority alone, and take the role of a peer
from its certificate.

An intermediate authority signs for TaskExecutors that must not have the key of the cluster's. Its
name limits the roles in its certificates: `identity_of` refuses others. A certificate of such a
process includes that of the intermediate authority.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from firesteel.common.security.credentials import Certificate
from firesteel.common.security.roles import Identity, Role
from firesteel.errors import FiresteelError

_DAY_S = 86_400.0
_AUTHORITY_VALID_S = 10 * 365 * _DAY_S
_CLOCKS_DIFFER_S = 300.0  # between machines, at most
_ROLE_URI = "firesteel://role/"
_NAME = "Firesteel cluster authority"
_TASK_EXECUTORS = "Firesteel TaskExecutors' authority"
_ROLES_OF = {_TASK_EXECUTORS: (Role.TASK_EXECUTOR, Role.SLOT)}  # by the name of the issuer


class CertificateAuthority:
    def __init__(
        self, certificate: bytes, key: bytes, *, root: bytes = b"", now_s: Callable[[], float]
    ) -> None:
        """All are in PEM. `certificate` may have further authorities that are trusted, while keys
        are replaced. `root`: the authorities that are trusted, if this one is intermediate. Raises
        FiresteelError if they are not usable.
        """
        self.certificate = root or certificate
        self._chain = certificate if root else b""
        self._now_s = now_s
        try:
            loaded = load_pem_private_key(key, password=None)
            known = x509.load_pem_x509_certificates(certificate)
        except ValueError as error:
            raise FiresteelError(f"the certificate authority cannot be read: {error}") from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise FiresteelError("the key of the certificate authority must be on a curve of ECDSA")
        own = [each for each in known if each.public_key() == loaded.public_key()]
        if not own:
            raise FiresteelError("the key of the certificate authority belongs to another one")
        self._key, self._issuer = loaded, own[0]

    @classmethod
    def create(cls, *, now_s: Callable[[], float]) -> tuple[CertificateAuthority, bytes]:
        """Returns a new authority, and its private key in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named(_NAME)
        certificate = _authority(
            _builder(name, name, key.public_key(), now_s(), _AUTHORITY_VALID_S), key, path_length=1
        ).sign(key, hashes.SHA256())
        pem = _pem(key)
        return cls(certificate.public_bytes(Encoding.PEM), pem, now_s=now_s), pem

    def certify_task_executors(self) -> tuple[bytes, bytes]:
        """Returns the certificate and the key of an authority that signs for TaskExecutors and
        slots only.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        valid_s = self._issuer.not_valid_after_utc.timestamp() - self._now_s()
        builder = _builder(
            _named(_TASK_EXECUTORS), self._issuer.subject, key.public_key(), self._now_s(), valid_s
        )
        certificate = (
            _authority(builder, key, path_length=0)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM), _pem(key)

    def certify(
        self, subject: str, role: Role, *, hosts: Sequence[str], valid_s: float
    ) -> Certificate:
        """Signs a certificate for a new key of `subject`, which serves `hosts` (names or IP
        addresses).
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now_s = self._now_s()
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(f"{_ROLE_URI}{role.value}"),
            *(_general_name(host) for host in hosts),
        ]
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(_named(subject[:64]), self._issuer.subject, key.public_key(), now_s, valid_s)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
            .sign(self._key, hashes.SHA256())
        )
        return Certificate(
            certificate=certificate.public_bytes(Encoding.PEM) + self._chain,
            key=_pem(key),
            authority=self.certificate,
            expires_s=now_s + valid_s,
        )


def identity_of(certificate: bytes) -> Identity:
    """Returns the identity in a peer's certificate (PEM or DER), which TLS has verified.

    Raises FiresteelError if it names no role, or one that its issuer may not give.
    """
    is_pem = certificate.startswith(b"-----")
    load = x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate
    loaded = load(certificate)
    subject = str(loaded.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        (name,) = (uri.removeprefix(_ROLE_URI) for uri in uris if uri.startswith(_ROLE_URI))
        role = Role(name)
    except (x509.ExtensionNotFound, ValueError):
        raise FiresteelError(
            f"the certificate of {subject!r} names no role of this cluster; have the cluster's"
            " authority sign it"
        ) from None
    issuer = str(loaded.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    if role not in _ROLES_OF.get(issuer, Role):
        raise FiresteelError(f"{issuer} may not give {subject!r} the role {role.value}")
    return Identity(subject=subject, role=role, expires_s=loaded.not_valid_after_utc.timestamp())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _authority(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, *, path_length: int
) -> x509.CertificateBuilder:
    return (
        builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=path_length), critical=True
        )
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        # All authorities have one name: peers distinguish them by their keys.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now_s: float,
    valid_s: float,
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(seconds=_CLOCKS_DIFFER_S))
        .not_valid_after(now + datetime.timedelta(seconds=valid_s))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

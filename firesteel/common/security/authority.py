"""The cluster's certificate authority: it signs the short-lived certificates of processes.

A certificate names the role of its process in a URI of its subject alternative names, next to the
hosts that it serves. Servers and clients trust this authority alone, and take the role of a peer
from its certificate.
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


class CertificateAuthority:
    def __init__(self, certificate: bytes, key: bytes, *, now_s: Callable[[], float]) -> None:
        """`certificate` and `key` are in PEM. Raises FiresteelError if they are not usable."""
        self.certificate = certificate
        self._now_s = now_s
        try:
            self._issuer = x509.load_pem_x509_certificate(certificate)
            loaded = load_pem_private_key(key, password=None)
        except ValueError as error:
            raise FiresteelError(f"the certificate authority cannot be read: {error}") from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise FiresteelError("the key of the certificate authority must be on a curve of ECDSA")
        self._key = loaded

    @classmethod
    def create(cls, *, now_s: Callable[[], float]) -> tuple[CertificateAuthority, bytes]:
        """Returns a new authority, and its private key in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Firesteel cluster authority")])
        certificate = (
            _builder(name, name, key.public_key(), now_s(), _AUTHORITY_VALID_S)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            # All authorities have one name: peers distinguish them by their keys.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        pem = _pem(key)
        return cls(certificate.public_bytes(Encoding.PEM), pem, now_s=now_s), pem

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
        common_name = x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])
        certificate = (
            _builder(
                x509.Name([common_name]), self._issuer.subject, key.public_key(), now_s, valid_s
            )
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
            certificate=certificate.public_bytes(Encoding.PEM),
            key=_pem(key),
            authority=self.certificate,
            expires_s=now_s + valid_s,
        )


def identity_of(certificate: bytes) -> Identity:
    """Returns the identity in a peer's certificate (PEM or DER), which TLS has verified.

    Raises FiresteelError if it names no role.
    """
    is_pem = certificate.startswith(b"-----")
    load = x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate
    loaded = load(certificate)
    subject = str(loaded.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        (role,) = (uri.removeprefix(_ROLE_URI) for uri in uris if uri.startswith(_ROLE_URI))
        return Identity(
            subject=subject, role=Role(role), expires_s=loaded.not_valid_after_utc.timestamp()
        )
    except (x509.ExtensionNotFound, ValueError):
        raise FiresteelError(
            f"the certificate of {subject!r} names no role of this cluster; have the cluster's"
            " authority sign it"
        ) from None


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

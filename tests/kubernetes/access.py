"""Certificates of the API server, the identities of callers, and their permissions."""

from __future__ import annotations

import datetime
import ipaddress
import secrets
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.kubernetes.failure import Failure
from tests.kubernetes.kinds import Kind
from tests.kubernetes.store import Store

ADMIN = "kubernetes-admin"


class Certificates:
    """An authority with a certificate for the server, in files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "ca.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
        own = self._build(self._name, self._key, authority=True)
        self.authority.write_bytes(own.public_bytes(serialization.Encoding.PEM))
        self.issue("server", hosts=("localhost", "kubernetes.default.svc", "127.0.0.1"))

    def issue(self, name: str, *, hosts: tuple[str, ...] = ()) -> tuple[Path, Path]:
        """Returns the files of a new certificate for this user or server, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._build(subject, key, hosts=hosts)
        paths = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.crt", self.folder / "server.key")
        context.load_verify_locations(self.authority)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _build(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        hosts: tuple[str, ...] = (),
        authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if authority:
            usage = {
                name: name in ("key_cert_sign", "crl_sign", "digital_signature")
                for name in (
                    *("digital_signature", "content_commitment", "key_encipherment"),
                    *("data_encipherment", "key_agreement", "key_cert_sign", "crl_sign"),
                    *("encipher_only", "decipher_only"),
                )
            }
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        if hosts:
            names = [_name(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """Requests that are denied, whatever roles say; an empty field matches all."""

    verb: str = ""
    resource: str = ""  # plural, or plural/subresource
    user: str = ""


@dataclass(slots=True)
class Access:
    """The users by their tokens. The administrator may do everything; ServiceAccounts may do what
    Roles and RoleBindings permit.
    """

    store: Store
    users: dict[str, str] = field(default_factory=dict)
    denials: list[Denial] = field(default_factory=list)

    def token(self, user: str = ADMIN) -> str:
        token = secrets.token_hex(16)
        self.users[token] = user
        return token

    def revoke(self, token: str) -> None:
        self.users.pop(token, None)

    def user(self, authorization: str, certificate: Any) -> str:
        """Raises Failure."""
        scheme, _, token = authorization.partition(" ")
        if scheme == "Bearer" and token in self.users:
            return self.users[token]
        if not authorization and certificate:
            names = {k: v for part in certificate["subject"] for k, v in part}
            return str(names["commonName"])
        raise Failure(401, "Unauthorized", "Unauthorized")

    def check(
        self, user: str, verb: str, kind: Kind, namespace: str, name: str, subresource: str
    ) -> None:
        """Raises Failure."""
        if self.may(user, verb, kind, namespace, name, subresource):
            return
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        full = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        raise Failure(
            403,
            "Forbidden",
            f'{full} "{name}" is forbidden: User "{user}" cannot {verb} resource "{resource}" in'
            f' API group "{kind.group}" {where}'.replace(' ""', "", 1 if not name else 0),
        )

    def may(
        self, user: str, verb: str, kind: Kind, namespace: str, name: str, subresource: str
    ) -> bool:
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        for denial in self.denials:
            given = ((denial.verb, verb), (denial.resource, resource), (denial.user, user))
            if all(denied in ("", its) for denied, its in given):
                return False
        if not user.startswith("system:serviceaccount:") or kind.create_only:
            return True
        return any(
            _grants(rule, verb, kind.group, resource, name) for rule in self._rules(user, namespace)
        )

    def _rules(self, user: str, namespace: str) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = []
        bindings = self.store.all("ClusterRoleBinding")
        if namespace:
            bindings += self.store.all("RoleBinding", namespace)
        for binding in bindings:
            if not any(_is(subject, user, binding) for subject in binding.get("subjects") or ()):
                continue
            reference = binding["roleRef"]
            scope = namespace if reference["kind"] == "Role" else ""
            for role in self.store.all(reference["kind"], scope):
                if role["metadata"]["name"] == reference["name"]:
                    rules += role.get("rules") or []
        return rules


def _is(subject: dict[str, Any], user: str, binding: dict[str, Any]) -> bool:
    if subject["kind"] == "User":
        return bool(subject["name"] == user)
    namespace = subject.get("namespace") or binding["metadata"].get("namespace", "")
    return user == f"system:serviceaccount:{namespace}:{subject['name']}"


def _grants(rule: dict[str, Any], verb: str, group: str, resource: str, name: str) -> bool:
    def includes(field: str, value: str) -> bool:
        return value in (rule.get(field) or ()) or "*" in (rule.get(field) or ())

    names = rule.get("resourceNames")
    return (
        includes("verbs", verb)
        and includes("apiGroups", group)
        and includes("resources", resource)
        and (not names or name in names)
    )


def kubeconfig(server: str, authority: Path, token: str, namespace: str = "default") -> str:
    cluster = {"server": server, "certificate-authority": str(authority)}
    context = {"cluster": "tests", "user": "tests", "namespace": namespace}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": context}],
        }
    )

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_der_x509_certificate

from firesteel.common.security.authority import CertificateAuthority, identity_of
from firesteel.common.security.credentials import Certificate
from firesteel.common.security.roles import Role
from firesteel.errors import FiresteelError


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority.create(now_s=time.time)[0]


def _context(certificate: Certificate, folder: Path, *, server: bool) -> ssl.SSLContext:
    chain = folder / f"{'server' if server else 'client'}.pem"
    chain.write_bytes(certificate.certificate + certificate.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(chain)
    context.load_verify_locations(cadata=certificate.authority.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[bytes, bytes]:
    """Returns the certificates that the server and the client saw, in PEM. Raises the error of the
    one that refused the other, which may see a broken connection only.
    """
    seen: list[bytes] = []
    errors: list[OSError] = []  # ssl.SSLError is one
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted, _ = listening.accept()
            try:
                with server.wrap_socket(accepted, server_side=True) as stream:
                    seen.append(_peer(stream))
                    stream.recv(1)
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname()) as connection,
                client.wrap_socket(connection, server_hostname=host) as stream,
            ):
                at_client = _peer(stream)
                stream.send(b"x")
        except OSError as error:
            errors.append(error)
        finally:
            thread.join()
    for error in sorted(
        errors, key=lambda error: not isinstance(error, ssl.SSLCertVerificationError)
    ):
        raise error
    return seen[0], at_client


def _peer(stream: ssl.SSLSocket) -> bytes:
    certificate = stream.getpeercert(binary_form=True)
    assert certificate is not None
    return load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)


def test_peers_know_each_others_roles(authority, tmp_path):
    server = authority.certify("rm", Role.RESOURCE_MANAGER, hosts=["127.0.0.1"], valid_s=60)
    client = authority.certify("worker-1", Role.TASK_EXECUTOR, hosts=["worker-1"], valid_s=60)
    at_server, at_client = _handshake(
        _context(server, tmp_path, server=True),
        _context(client, tmp_path, server=False),
        "127.0.0.1",
    )
    assert str(identity_of(at_server)) == "worker-1 (task-executor)"
    assert str(identity_of(at_client)) == "rm (resource-manager)"


@pytest.mark.parametrize(
    ("host", "signed_for", "valid_s"),
    [
        ("localhost", "127.0.0.1", 60),
        ("127.0.0.1", "localhost", 60),
        ("localhost", "localhost", -1),
    ],
)
def test_a_server_must_prove_its_name_in_time(host, signed_for, valid_s, authority, tmp_path):
    server = authority.certify("rm", Role.RESOURCE_MANAGER, hosts=[signed_for], valid_s=valid_s)
    client = authority.certify("worker", Role.TASK_EXECUTOR, hosts=[], valid_s=60)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(
            _context(server, tmp_path, server=True), _context(client, tmp_path, server=False), host
        )


def test_a_client_of_another_cluster_is_refused(authority, tmp_path):
    server = authority.certify("rm", Role.RESOURCE_MANAGER, hosts=["127.0.0.1"], valid_s=60)
    other, _ = CertificateAuthority.create(now_s=time.time)
    stranger = other.certify("worker", Role.TASK_EXECUTOR, hosts=[], valid_s=60)
    context = _context(stranger, tmp_path, server=False)
    context.load_verify_locations(cadata=authority.certificate.decode())
    with pytest.raises(ssl.SSLError, match="verify failed"):
        _handshake(_context(server, tmp_path, server=True), context, "127.0.0.1")


def test_a_process_cannot_sign_certificates(authority, tmp_path):
    own = authority.certify("worker", Role.TASK_EXECUTOR, hosts=[], valid_s=60)
    forged = CertificateAuthority(own.certificate, own.key, now_s=time.time).certify(
        "boss", Role.ADMIN, hosts=["127.0.0.1"], valid_s=60
    )
    chained = Certificate(
        certificate=forged.certificate + own.certificate,
        key=forged.key,
        authority=authority.certificate,
        expires_s=0,
    )
    with pytest.raises(ssl.SSLError, match="verify failed|unknown ca|invalid CA"):
        _handshake(
            _context(chained, tmp_path, server=True),
            _context(own, tmp_path, server=False),
            "127.0.0.1",
        )


def test_the_authority_itself_has_no_role(authority):
    with pytest.raises(FiresteelError, match="names no role of this cluster"):
        identity_of(authority.certificate)


def test_an_unreadable_authority_says_so():
    with pytest.raises(FiresteelError, match="the certificate authority cannot be read"):
        CertificateAuthority(b"x", b"y", now_s=time.time)

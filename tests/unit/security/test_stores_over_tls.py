"""Connections to stores over TLS: which authorities they trust."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.job_store import JobStore
from firesteel.common.checkpoints.storage import CheckpointStorage, StorageError
from firesteel.common.config import Configuration
from firesteel.common.security.authority import CertificateAuthority
from firesteel.common.security.roles import Role
from firesteel.errors import FiresteelError


class _Empty(http.server.BaseHTTPRequestHandler):
    """An object store without objects."""

    def do_HEAD(self) -> None:
        self.send_error(404)

    do_GET = do_HEAD

    def log_message(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def _object_store(authority: CertificateAuthority, folder: Path) -> Iterator[str]:
    own = authority.certify("s3", Role.VIEWER, hosts=("localhost", "127.0.0.1"), valid_s=3600)
    chain = folder / "s3.pem"
    chain.write_bytes(own.certificate + own.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Empty)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("trusted", [True, False])
def test_an_object_store_is_trusted_if_the_configured_authority_signed_it(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, _ = CertificateAuthority.create(now_s=time.time)
    other, _ = CertificateAuthority.create(now_s=time.time)
    ca = tmp_path / "ca.pem"
    ca.write_bytes((authority if trusted else other).certificate)
    with _object_store(authority, tmp_path) as endpoint:
        conf = Configuration(
            {
                "s3.endpoint": endpoint,
                "s3.endpoint.ca-file": str(ca),
                "s3.endpoint.region": "us-east-1",
                "s3.access-key": "x",
                "s3.secret-key": "y",
            }
        )
        for name, value in conf.to_environment().items():
            monkeypatch.setenv(name, value)
        storage = CheckpointStorage("s3://bucket/checkpoints")
        if trusted:
            assert not storage.exists("none")
        else:
            with pytest.raises((StorageError, OSError), match="(?i)certificate"):
                storage.exists("none")


def test_parameters_of_the_url_reach_postgresql() -> None:
    """A server that offers no TLS is refused, before any password is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        received = []

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                received.append(connection.recv(100))
                connection.sendall(b"N")  # no TLS
                received.append(connection.recv(100))

        server = threading.Thread(target=answer)
        server.start()
        port = listener.getsockname()[1]
        url = f"postgresql+psycopg2://ada:hush@127.0.0.1:{port}/jobs?sslmode=require"
        with pytest.raises(FiresteelError, match="SSL") as error:
            JobStore(url)
        server.join()
    assert "hush" not in str(error.value)
    assert received == [b"\x00\x00\x00\x08\x04\xd2\x16/", b""]  # the request for TLS

"""The job store in PostgreSQL over TLS: which servers it trusts.

The PostgreSQL server of the tests is built without TLS. A process in front of it speaks TLS, as
PgBouncer does.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from dispatcher.job_store import JobStore
from firesteel.common.security.authority import CertificateAuthority
from firesteel.common.security.roles import Role
from firesteel.errors import FiresteelError
from tests.integration.job_stores import JOB, store_with_a_job
from tests.postgres import Postgres

_LENGTH, _TLS, _GSS = 8, 80877103, 80877104  # requests of PostgreSQL's protocol


class TlsFront:
    """Decrypts the connections to a PostgreSQL server. `versions` are those of its connections."""

    def __init__(
        self, server: str, authority: CertificateAuthority, host: str, folder: Path
    ) -> None:
        own = authority.certify("db", Role.VIEWER, hosts=(host,), valid_s=3600)
        chain = folder / "db.pem"
        chain.write_bytes(own.certificate + own.key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(chain)
        self._socket = f"{parse_qs(urlsplit(server).query)['host'][0]}/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.versions: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while (request := struct.unpack(">II", client.recv(_LENGTH)))[1] == _GSS:
                client.sendall(b"N")
            assert request == (_LENGTH, _TLS), "the client does not ask for TLS"
            client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as decrypted,
                socket.socket(socket.AF_UNIX) as server,
            ):
                self.versions.append(decrypted.version() or "")
                server.connect(self._socket)
                threading.Thread(target=_pump, args=(server, decrypted), daemon=True).start()
                _pump(decrypted, server)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def authority() -> CertificateAuthority:
    return CertificateAuthority.create(now_s=time.time)[0]


@contextlib.contextmanager
def front(
    server: Postgres, authority: CertificateAuthority, folder: Path, host: str = "localhost"
) -> Iterator[TlsFront]:
    tls = TlsFront(server.url, authority, host, folder)
    try:
        yield tls
    finally:
        tls.close()


def url(server: Postgres, tls: TlsFront, ca: Path, mode: str = "verify-full") -> str:
    user = urlsplit(server.url).username
    return (
        f"postgresql+psycopg2://{user}:hush@localhost:{tls.port}/postgres"
        f"?sslmode={mode}&sslrootcert={ca}"
    )


def test_a_server_of_the_configured_authority_keeps_jobs(
    server: Postgres, authority: CertificateAuthority, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    with front(server, authority, tmp_path) as tls:
        with store_with_a_job(url(server, tls, ca)) as store:
            assert [job.job_id for job in store.jobs()] == [JOB]
        assert set(tls.versions) == {"TLSv1.3"}


@pytest.mark.parametrize(
    ("authority_is", "host", "says"),
    [
        ("another", "localhost", "certificate verify failed"),
        ("the configured one", "db.example.com", 'server certificate for "db.example.com"'),
    ],
)
def test_another_server_is_refused_before_it_learns_the_password(
    authority_is: str,
    host: str,
    says: str,
    server: Postgres,
    authority: CertificateAuthority,
    tmp_path: Path,
) -> None:
    other = CertificateAuthority.create(now_s=time.time)[0]
    ca = tmp_path / "ca.pem"
    ca.write_bytes((other if authority_is == "another" else authority).certificate)
    with (
        front(server, authority, tmp_path, host) as tls,
        pytest.raises(FiresteelError, match=says) as refused,
    ):
        JobStore(url(server, tls, ca))
    assert str(refused.value).endswith("check database.url and --dir")
    assert f"localhost:{tls.port}" in str(refused.value)
    assert "hush" not in str(refused.value)

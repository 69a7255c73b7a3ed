"""A real API server with its etcd, for the tests of the contract.

Both are built from Go modules, which takes about an hour of one core, once for each version and
machine: `python -m tests.kubernetes.real`. There is no controller, no scheduler and no kubelet.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from firesteel.client.cluster.supervisor import reserved_port
from firesteel.common.process.child import log_tail
from tests.kubernetes.access import ADMIN, Certificates, kubeconfig
from tests.waiting import eventually
from tests.watch import Watch

_MODULE = Path(__file__).with_name("real_server")
_PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
}
_HOST = "127.0.0.1"
_TOKEN = "token-of-the-administrator"


class NotBuilt(Exception):
    """The programs could not be built."""


def installed() -> Path:
    """Returns the folder of etcd and kube-apiserver, building them if need be. Raises NotBuilt."""
    pinned = (_MODULE / "go.mod").read_bytes() + (_MODULE / "go.sum").read_bytes()
    version = hashlib.sha256(pinned).hexdigest()[:16]
    place = Path.home() / ".cache" / "firesteel" / f"kubernetes-{version}"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f"{place.name}-") as temporary:
            complete = Path(temporary) / "complete"
            for name, package in _PROGRAMS.items():
                _build(package, complete / name)
            complete.rename(place)
    return place


def _build(package: str, output: Path) -> None:
    if shutil.which("go") is None:
        raise NotBuilt("install Go (on Debian: apt-get install golang), then repeat the command")
    one_core = {"GOMAXPROCS": "1", "GOFLAGS": "-mod=readonly -p=1 -trimpath", "CGO_ENABLED": "0"}
    done = subprocess.run(
        ["nice", "-n", "19", "go", "build", "-ldflags", "-s -w", "-o", str(output), package],
        cwd=_MODULE,
        env={**os.environ, **one_core},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotBuilt(f"go build {package} failed:\n{done.stderr}")


class RealApiServer:
    """Use it in a `with`. `kubeconfig` is that of an administrator."""

    def __init__(self, directory: Path) -> None:
        self._programs = installed()
        self._directory = directory
        self._certificates = Certificates(directory)
        reserved = [reserved_port(_HOST) for _ in range(3)]
        self._reserved = [held for held, _ in reserved]
        self._clients, self._peers, self._port = (port for _, port in reserved)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.kubeconfig = directory / "kubeconfig"

    def __enter__(self) -> Self:
        self._watch = Watch(self._directory, pids="*.pid", signal="KILL")
        try:
            self._start_etcd()
            self._start_api_server()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        url = f"https://{_HOST}:{self._port}"
        self.kubeconfig.write_text(kubeconfig(url, self._certificates.authority, _TOKEN))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._watch.end()
        for held in self._reserved:
            held.close()

    def _start_etcd(self) -> None:
        clients, peers = f"http://{_HOST}:{self._clients}", f"http://{_HOST}:{self._peers}"
        self._start(
            "etcd",
            data_dir=str(self._directory / "etcd"),
            listen_client_urls=clients,
            advertise_client_urls=clients,
            listen_peer_urls=peers,
            initial_advertise_peer_urls=peers,
            initial_cluster=f"default={peers}",
            unsafe_no_fsync="true",
            log_level="warn",
        )
        self._wait("etcd", lambda: _answers(f"{clients}/health"))

    def _start_api_server(self) -> None:
        folder = self._directory
        tokens = folder / "tokens.csv"
        tokens.write_text(f'{_TOKEN},{ADMIN},1,"system:masters"\n')
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        accounts = folder / "accounts.key"
        accounts.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        self._start(
            "kube-apiserver",
            etcd_servers=f"http://{_HOST}:{self._clients}",
            bind_address=_HOST,
            secure_port=str(self._port),
            tls_cert_file=str(folder / "server.crt"),
            tls_private_key_file=str(folder / "server.key"),
            client_ca_file=str(self._certificates.authority),
            token_auth_file=str(tokens),
            authorization_mode="RBAC",
            service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=str(accounts),
            service_account_signing_key_file=str(accounts),
            service_cluster_ip_range="10.96.0.0/16",
            disable_admission_plugins="ServiceAccount",  # no controller creates the accounts
            watch_cache="true",
        )
        url = f"https://{_HOST}:{self._port}/readyz"
        self._wait("kube-apiserver", lambda: _answers(url, self._certificates.authority))

    def _start(self, name: str, **options: str) -> None:
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [self._programs / name, *flags], stdout=log, stderr=log, cwd=self._directory
            )
        (self._directory / f"{name}.pid").write_text(f"{process.pid}\n")
        self._processes.append(process)

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        def what() -> str:
            return f"{name} is ready:\n{log_tail(self._directory / f'{name}.log')}"

        process = self._processes[-1]
        eventually(lambda: process.poll() is not None or ready(), what)
        assert process.poll() is None, what()


def _answers(url: str, authority: Path | None = None) -> bool:

    context = ssl.create_default_context(cafile=authority) if authority else None
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {_TOKEN}"})
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    print(installed())

"""Runs Apache Kafka for tests and benchmarks: brokers that can crash, stop, pause and restart."""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from firesteel.client.cluster.supervisor import reserved_port
from firesteel.common.process.child import log_tail
from firesteel.common.security.authority import CertificateAuthority
from firesteel.common.security.roles import Role
from tests.kafka import distribution
from tests.waiting import eventually
from tests.watch import Watch

START_TIMEOUT_S = 120.0
ADMINISTRATOR = "admin"  # may do everything at the secure listener
_HOST = "127.0.0.1"
_DATES = "-Dorg.slf4j.simpleLogger.showDateTime=true"
_JAVA = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")


class Kafka:
    """`size` brokers on this machine, each of which is also a controller, until `close`, or until
    this process ends.

    With `users`, names and passwords, each broker has a second listener, with TLS, SASL/PLAIN and
    access control lists, which allow nothing at first. Clients of the first one may do everything.
    `config` overrides settings of the brokers, `java` the options of their JVMs. With `data`, a
    folder, their topics are kept there, and are those of earlier brokers with the same folder.
    """

    def __init__(
        self,
        size: int = 1,
        *,
        users: Mapping[str, str] | None = None,
        config: Mapping[str, object] | None = None,
        java: Sequence[str] = _JAVA,
        data: Path | None = None,
    ) -> None:
        self._distribution = distribution.installed()
        self._java = java
        self._kept = data
        self._users = {} if users is None else {ADMINISTRATOR: uuid.uuid4().hex, **users}
        self._folder = Path(tempfile.mkdtemp(prefix="fs-kafka-"))
        reserved = [reserved_port(_HOST) for _ in range(3 * size)]
        self._reserved = [held for held, _ in reserved]
        ports = [port for _, port in reserved]
        self.ports, self._controllers = ports[:size], ports[size : 2 * size]
        self._secure = ports[2 * size :]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * size
        self._watch = Watch(self._folder, pids="*/pid", signal="KILL")
        try:
            self._prepare(config or {})
            self.restart(*range(size))
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        """The addresses of the brokers, for clients that may do everything."""
        return ",".join(f"{_HOST}:{port}" for port in self.ports)

    def settings(self, user: str | None = None) -> dict[str, str]:
        """Returns librdkafka's settings for a connection: as `user`, at the secure listener."""
        if user is None:
            return {"bootstrap.servers": self.bootstrap}
        return {
            "bootstrap.servers": ",".join(f"{_HOST}:{port}" for port in self._secure),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self._users[user],
            "ssl.ca.location": str(self.authority),
            **self._client_certificate(),
        }

    @property
    def authority(self) -> Path:
        """The certificate of the authority that signed the brokers', in PEM."""
        return self._folder / "authority.pem"

    def _client_certificate(self) -> dict[str, str]:
        """Returns the settings of a certificate, which brokers with ssl.client.auth require."""
        return {
            "ssl.certificate.location": str(self._folder / "client.pem"),
            "ssl.key.location": str(self._folder / "client.key"),
        }

    def kill(self, *indexes: int) -> None:
        """Kills these brokers, or all. Returns when they have ended."""
        for index in indexes or range(len(self.processes)):
            if (process := self.processes[index]) is not None:
                process.kill()
                process.wait()
                self.processes[index] = None

    def stop(self, *indexes: int) -> None:
        """Stops these brokers, or all, gracefully: others lead their partitions first."""
        running = [self.processes[index] for index in indexes or range(len(self.processes))]
        for process in running:
            if process is not None:
                process.terminate()
        for process in running:
            if process is not None:
                process.wait(START_TIMEOUT_S)
        self.kill(*indexes)

    def restart(self, *indexes: int) -> None:
        """Starts these brokers, or all, on their old ports and data; first kills those that run.
        Returns when they serve.
        """
        started = indexes or tuple(range(len(self.processes)))
        self.kill(*started)
        for index in started:
            self._start(index)
        deadline = time.monotonic() + START_TIMEOUT_S
        for index in started:
            eventually(
                lambda index=index: self._has_started(index),
                f"broker {index} serves; its log:\n{self.log(index)}",
                patience_s=deadline - time.monotonic(),
            )

    def pause(self, *indexes: int) -> None:
        self._signal(indexes, signal.SIGSTOP)

    def resume(self, *indexes: int) -> None:
        self._signal(indexes, signal.SIGCONT)

    def log(self, index: int = 0) -> str:
        """Returns the end of a broker's log."""
        return log_tail(self._home(index) / "log")

    def close(self) -> None:
        self.kill()
        self._watch.end()
        for held in self._reserved:
            held.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Kafka:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare(self, config: Mapping[str, object]) -> None:
        cluster_id = _random_id()
        common = {**self._common(), **(self._access() if self._users else {}), **config}
        for index in range(len(self.ports)):
            self._home(index).mkdir()
            data = self._data(index)
            if not data.exists():
                shutil.copytree(self._distribution / "formatted", data)
                meta = {
                    "version": 1,
                    "cluster.id": cluster_id,
                    "node.id": index + 1,
                    "directory.id": _random_id(),
                }
                _write_properties(data / "meta.properties", meta)
            properties = {**self._own(index), **common}
            _write_properties(self._home(index) / "server.properties", properties)

    def _own(self, index: int) -> dict[str, object]:
        """Returns the settings that differ from broker to broker."""
        clients = f"CLIENTS://{_HOST}:{self.ports[index]}"
        if self._users:
            clients += f",SECURE://{_HOST}:{self._secure[index]}"
        return {
            "node.id": index + 1,
            "listeners": f"{clients},CONTROLLER://{_HOST}:{self._controllers[index]}",
            "advertised.listeners": clients,
            "log.dirs": self._data(index),
        }

    def _common(self) -> dict[str, object]:
        replicas = min(3, len(self.ports))
        voters = (f"{i + 1}@{_HOST}:{port}" for i, port in enumerate(self._controllers))
        return {
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENTS",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            "auto.create.topics.enable": "false",
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.min.isr": min(2, replicas),
            # Groups do not wait for more members, and timed-out transactions are aborted soon.
            "group.initial.rebalance.delay.ms": 0,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 4_000,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "log.cleaner.dedupe.buffer.size": 8_388_608,
            # Tests write records of any time; none of them is too old to keep.
            "log.retention.ms": -1,
        }

    def _access(self) -> dict[str, object]:
        """Writes the certificates. Returns the settings of the secure listener."""
        authority, _ = CertificateAuthority.create(now_s=time.time)
        server = authority.certify("kafka", Role.ADMIN, hosts=[_HOST], valid_s=86_400.0)
        self.authority.write_bytes(server.authority)
        key_store = self._folder / "broker.pem"
        key_store.write_bytes(server.key + server.certificate + server.authority)
        client = authority.certify("client", Role.ADMIN, hosts=[], valid_s=86_400.0)
        (self._folder / "client.pem").write_bytes(client.certificate)
        (self._folder / "client.key").write_bytes(client.key)
        users = " ".join(f'user_{name}="{word}"' for name, word in self._users.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f"{module} required {users};",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": key_store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{ADMINISTRATOR}",
        }

    def _start(self, index: int) -> None:
        home = self._home(index)
        (home / "log").unlink(missing_ok=True)
        with open(home / "log", "wb") as output:
            process = subprocess.Popen(
                [
                    *distribution.java(self._distribution, *self._java, _DATES),
                    *("kafka.Kafka", str(home / "server.properties")),
                ],
                cwd=self._distribution,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.processes[index] = process
        (home / "pid").write_text(f"{process.pid}\n")

    def _has_started(self, index: int) -> bool:
        process = self.processes[index]
        assert process is not None
        assert process.poll() is None, f"broker {index} has ended; its log:\n{self.log(index)}"
        return distribution.STARTED in (self._home(index) / "log").read_text(errors="replace")

    def _signal(self, indexes: Sequence[int], number: int) -> None:
        for index in indexes or range(len(self.processes)):
            process = self.processes[index]
            assert process is not None, f"broker {index} does not run"
            process.send_signal(number)

    def _home(self, index: int) -> Path:
        return self._folder / str(index + 1)

    def _data(self, index: int) -> Path:
        return self._home(index) / "data" if self._kept is None else self._kept / str(index + 1)


def _random_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _write_properties(path: Path, properties: Mapping[str, Any]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

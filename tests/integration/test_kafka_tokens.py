"""Exactly-once delivery at a broker that wants tokens: with client credentials of OpenID Connect,
and with tokens without a signature. The broker does not check signatures.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AclOperation, ResourceType

from firesteel.client.cli import main
from firesteel.connectors import KafkaSink, KafkaSource
from firesteel.errors import FiresteelError
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.kafka.clients import KafkaUnavailable
from taskexecutor.executor.connectors.kafka.tokens import Tokens
from taskexecutor.executor.connectors.runtime import sink_runtime
from taskexecutor.executor.state import RestoredOperatorState
from tests.integration.test_kafka_security import allow
from tests.integration.test_kafka_source import Reader
from tests.kafka.broker import Kafka
from tests.kafka.records import create_topic, read
from tests.waiting import eventually

SECRET = "-".join(["open", "sesame", "please"])
VALUES = pa.schema([("value", pa.string())])

# After a refused connection, kafka-python leaves a socket to the collector of garbage.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def unsigned(claims: Mapping[str, object]) -> str:
    """Returns a token without a signature."""
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, claims)
    )
    return f"{head}.{body}."


class TokenServer:
    """A token endpoint, whose tokens are of `alice`. `requests` has the forms of all requests."""

    def __init__(self, life_s: float = 3_600) -> None:
        self.requests: list[dict[str, list[str]]] = []
        self.status = 200
        expected = f"Basic {base64.b64encode(f'alice:{SECRET}'.encode()).decode()}"

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                text = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
                self.requests.append(parse_qs(text))
                known = handler.headers["Authorization"] == expected
                status = self.status if known else 401
                now_s = time.time()
                token = unsigned({"sub": "alice", "iat": now_s, "exp": now_s + life_s})
                answer: dict[str, object] = {"error": "invalid_client"}
                if status == 200:
                    answer = {"access_token": token, "expires_in": life_s}
                handler.send_response(status)
                handler.send_header("Content-Type", "application/json")
                handler.end_headers()
                handler.wfile.write(json.dumps(answer).encode())

            def log_message(handler, *_: Any) -> None:
                """Logs nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def properties(self) -> dict[str, str]:
        host, port = self._server.server_address[:2]
        return {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"http://{host!s}:{port}/token",
            "sasl.oauthbearer.client.id": "alice",
            "sasl.oauthbearer.client.secret": "env:CLIENT_SECRET_OF_TEST",
            "sasl.oauthbearer.scope": "kafka",
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


UNSIGNED = {
    "enable.sasl.oauthbearer.unsecure.jwt": "true",
    "sasl.oauthbearer.config": "principal=alice scope=kafka lifeSeconds=600",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    config = {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "listener.name.secure.oauthbearer.sasl.jaas.config": f"{module};",
    }
    with Kafka(users={"alice": SECRET}, config=config) as kafka:
        yield kafka


@pytest.fixture(params=["oidc", "unsigned"])
def properties(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    if request.param == "unsigned":
        yield UNSIGNED
        return
    with TokenServer() as server:
        yield server.properties
        assert server.requests and all(form["scope"] == ["kafka"] for form in server.requests)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET_OF_TEST", SECRET)


def arguments(kafka: Kafka, properties: Mapping[str, str]) -> dict[str, Any]:
    settings = kafka.settings("alice") | {"sasl.mechanism": "OAUTHBEARER"} | properties
    servers = settings.pop("bootstrap.servers")
    for name in ("sasl.username", "sasl.password"):
        settings.pop(name)
    return {"bootstrap_servers": servers, "properties": settings}


def attempt(
    sink: KafkaSink, number: int, restored: RestoredOperatorState | None = None
) -> OperatorHarness:
    operator = sink_runtime(sink).operator()
    return OperatorHarness(
        operator, [VALUES], restored=restored, checkpoints=True, attempt=number
    ).open()


def test_a_transaction_is_committed_by_another_process(
    broker: Kafka, properties: dict[str, str]
) -> None:
    topic = create_topic(broker)
    for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID, ResourceType.GROUP):
        allow(broker, kind, topic, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
    sink = KafkaSink(
        topic,
        delivery="exactly-once",
        transactional_id_prefix=topic,
        **arguments(broker, properties),
    )
    sink_runtime(sink).analyze(VALUES)
    first = attempt(sink, 0)
    first.process(pa.record_batch([["kept"]], schema=VALUES))
    restored = first.checkpoint(1)
    first.process(pa.record_batch([["not yet"]], schema=VALUES))
    second = attempt(sink, 1, restored)
    try:
        eventually(lambda: [r.value for r in read(broker, topic)] == [b"kept"], "one commit")
        second.process(pa.record_batch([["more"]], schema=VALUES))
        second.checkpoint(2)
        second.complete(2)
        eventually(lambda: len(read(broker, topic)) == 2, "another one")
    finally:
        second.close()
        first.close()
    source = KafkaSource(topic, group_id=topic, end="latest", **arguments(broker, properties))
    with Reader(source) as reader:
        reader.reads(b"kept", b"more")


def test_transactions_are_listed_with_a_token(
    broker: Kafka, properties: dict[str, str], tmp_path: Path
) -> None:
    given = arguments(broker, properties)
    allow(broker, ResourceType.TRANSACTIONAL_ID, "any", AclOperation.DESCRIBE)
    file = tmp_path / "properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in given["properties"].items()))
    command = ["kafka", "transactions", "list", "-b", given["bootstrap_servers"]]
    result = CliRunner().invoke(main, [*command, "--properties-file", str(file)])
    assert result.exit_code == 0, result.output
    assert SECRET not in result.output


def _tokens(server: TokenServer, clock: Any = time.time, **changed: str) -> Tokens:
    properties = server.properties | {"sasl.oauthbearer.client.secret": SECRET}
    return Tokens(
        properties | {f"sasl.oauthbearer.{name}": text for name, text in changed.items()}, clock
    )


def test_a_token_is_replaced_before_it_expires() -> None:
    with TokenServer(life_s=100) as server:
        times_s = iter((1_000.0, 1_079.0, 1_081.0, 1_160.0))
        tokens = _tokens(server, lambda: next(times_s), extensions="a=1,b=2")
        for requests in (1, 1, 2, 2):
            tokens.refresh()
            assert len(server.requests) == requests
        assert tokens.extensions == {"a": "1", "b": "2"}


def test_refusals_are_errors_and_outages_are_waited_for() -> None:
    with TokenServer() as server:
        wrong = f"wrong-{uuid.uuid4().hex}"
        with pytest.raises(FiresteelError, match=r"refuses a token \(401\): .*invalid_client") as e:
            _tokens(server, **{"client.secret": wrong}).refresh()
        assert wrong not in str(e.value) and not isinstance(e.value, KafkaUnavailable)
        server.status = 503
        tokens = _tokens(server)
        with pytest.raises(KafkaUnavailable, match=r"refuses a token \(503\)"):
            tokens.refresh()
        server.status = 200
        tokens.refresh()
        assert tokens.latest
    with pytest.raises(KafkaUnavailable, match="does not answer"):
        _tokens(server).refresh()


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "needs a token; set sasl.oauthbearer.method to oidc"),
        ({"sasl.oauthbearer.method": "oidc"}, "with client credentials only; set"),
    ],
)
def test_missing_properties_are_named(properties: dict[str, str], message: str) -> None:
    with pytest.raises(FiresteelError, match=message):
        Tokens(properties).refresh()


def test_an_unsigned_token_has_the_claims_of_the_properties() -> None:
    tokens = Tokens(
        {
            **UNSIGNED,
            "sasl.oauthbearer.config": "principal=bob principalClaimName=user scope=a,b"
            " scopeClaimName=roles lifeSeconds=60 extension_x=y",
        },
        lambda: 100.0,
    )
    tokens.refresh()
    body = tokens.latest.split(".")[1]
    assert json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))) == {
        "user": "bob",
        "iat": 100.0,
        "exp": 160.0,
        "roles": ["a", "b"],
    }
    assert tokens.extensions == {"x": "y"}

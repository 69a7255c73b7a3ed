"""How to reach a Kafka cluster: its brokers, and the properties of its clients.

Nothing here connects. A property's value may be `env:NAME` or `file:PATH`; the slot that opens a
client replaces it by the variable of its environment, or the content of the file, so that a secret
is not part of the job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firesteel.common.config.redaction import redacted
from firesteel.connectors.checks import option_texts
from firesteel.errors import InvalidProgram

_SERVER = re.compile(r"(?:[A-Z0-9_]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/,\[\]]+):(\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """The addresses of brokers, `host:port,host:port`, and librdkafka's properties by name."""

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def shown(self) -> dict[str, str]:
        """The properties without secrets."""
        return redacted(self.properties)


def connection(
    what: str, bootstrap_servers: str | Sequence[str], properties: Mapping[str, object]
) -> KafkaConnection:
    """Checks the arguments of a source or sink, which `what` names. Raises InvalidProgram."""
    return KafkaConnection(
        bootstrap_servers=_servers(what, bootstrap_servers),
        properties=_properties(what, properties),
    )


def _servers(what: str, servers: str | Sequence[str]) -> str:
    texts = servers.split(",") if isinstance(servers, str) else servers
    stripped = [text.strip() for text in texts]
    for server in stripped:
        match = _SERVER.fullmatch(server)
        if match is None or not 0 < int(match[1]) < 65_536:
            raise InvalidProgram(
                f"{what}: bootstrap_servers contains {server!r}; list the brokers as 'host:port',"
                " for example 'localhost:9092' or ['kafka-1:9092', 'kafka-2:9092']"
            )
    if not stripped:
        raise InvalidProgram(f"{what}: bootstrap_servers is empty; list brokers as 'host:port'")
    return ",".join(stripped)


def _properties(what: str, properties: Mapping[str, object]) -> dict[str, str]:
    for name in properties:
        if not isinstance(name, str):
            raise InvalidProgram(f"{what}: properties has the key {name!r}; keys are names")
        if name in ("bootstrap.servers", "metadata.broker.list"):
            raise InvalidProgram(
                f"{what}: properties contains {name!r}; pass bootstrap_servers instead"
            )
    return option_texts(properties)

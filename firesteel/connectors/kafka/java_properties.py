"""Properties of Kafka's Java clients under the names of librdkafka's.

Most are the same. Programs for Spark have Java's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from firesteel.errors import InvalidProgram

_RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "request.timeout.ms": "socket.timeout.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
# They tune Java's client and do not change which records are read or written.
_WITHOUT_EFFECT = frozenset(
    {
        *("max.poll.records", "default.api.timeout.ms", "metric.reporters", "metrics.num.samples"),
        *("metrics.recording.level", "metrics.sample.window.ms", "check.crcs", "buffer.memory"),
        *("max.block.ms", "ssl.truststore.type", "ssl.keystore.type", "ssl.truststore.password"),
    }
)
_LOGIN = re.compile(
    r"\s*[\w.$]*\.(?:Plain|Scram)LoginModule\s+(?:required|requisite)\s+(.*?);?\s*", re.S
)
_BEARER = re.compile(
    r"\s*[\w.$]*\.OAuthBearerLoginModule\s+(?:required|requisite)\s*(.*?);?\s*", re.S
)
# Maps the options of Java's login module for tokens to librdkafka's properties.
_CLIENT = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_TOKEN_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
# Classes of Java that get tokens as librdkafka does.
_HANDLERS = ("OAuthBearerLoginCallbackHandler", "OAuthBearerUnsecuredLoginCallbackHandler")
_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|(\S+))""")


def librdkafka_properties(what: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties under librdkafka's names. Raises InvalidProgram, naming `what`, for
    those that librdkafka cannot have.
    """
    found: dict[str, str] = {}
    for name, value in properties.items():
        if name == "sasl.jaas.config":
            found |= _credentials(what, value)
        elif name == "sasl.login.callback.handler.class" and value.endswith(_HANDLERS):
            continue
        elif name == "ssl.truststore.location":
            found["ssl.ca.location"] = _authority(what, value)
        elif name not in _WITHOUT_EFFECT:
            found[_RENAMED.get(name, name)] = value
    if _TOKEN_ENDPOINT in found:
        found.setdefault("sasl.oauthbearer.method", "oidc")
    return found


def _credentials(what: str, jaas: str) -> dict[str, str]:
    if jaas.startswith(("env:", "file:")):
        raise InvalidProgram(
            f"{what}: sasl.jaas.config cannot refer to a variable or file; set sasl.username and"
            " sasl.password instead"
        )
    if match := _BEARER.fullmatch(jaas):
        return _tokens(_options(match[1]))
    match = _LOGIN.fullmatch(jaas)
    options = _options(match[1] if match else "")
    if "username" not in options or "password" not in options:
        raise InvalidProgram(
            f"{what}: sasl.jaas.config has neither username and password of a PlainLoginModule or"
            " ScramLoginModule, nor an OAuthBearerLoginModule; for other mechanisms, set"
            " librdkafka's properties that start with sasl."
        )
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _options(text: str) -> dict[str, str]:
    return {
        name: quoted or single or plain for name, quoted, single, plain in _OPTION.findall(text)
    }


def _tokens(options: Mapping[str, str]) -> dict[str, str]:
    principal = options.get("unsecuredLoginStringClaim_sub")
    if principal is not None:  # for tests
        return {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={principal}",
        }
    return {_CLIENT[name]: value for name, value in options.items() if name in _CLIENT}


def _authority(what: str, location: str) -> str:
    if location.lower().endswith((".jks", ".p12", ".pfx", ".keystore", ".truststore")):
        raise InvalidProgram(
            f"{what}: ssl.truststore.location is {location!r}, a store of Java; export the"
            " certificates as PEM (keytool -exportcert -rfc), and set ssl.ca.location"
        )
    return location

"""Tokens of OAUTHBEARER for kafka-python. Librdkafka gets its own, from the same properties.

Two of librdkafka's ways are known: client credentials of OpenID Connect, and tokens without a
signature, which only brokers for tests accept.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.clients import KafkaUnavailable, library

MECHANISM = "OAUTHBEARER"
_PREFIX = "sasl.oauthbearer."
_URL = f"{_PREFIX}token.endpoint.url"
_UNSECURED = "enable.sasl.oauthbearer.unsecure.jwt"
_LEFT = 0.2  # a token is replaced when less than this part of its life is left
_LIFE_S = 300.0  # of a token whose response does not say it
_TIMEOUT_S = 10.0  # of one request


class _Token(NamedTuple):
    text: str
    replaced_at_s: float  # of the clock


class Tokens:
    """`properties` are librdkafka's, resolved. Used by one thread, but `latest` by any."""

    def __init__(
        self, properties: Mapping[str, str], clock: Callable[[], float] = time.time
    ) -> None:
        self._properties = properties
        self._clock = clock
        self._token: _Token | None = None

    def refresh(self) -> None:
        """Gets a token unless the latest one is valid for some time. Raises KafkaUnavailable if the
        token's server does not answer, and FiresteelError if it refuses.
        """
        now_s = self._clock()
        if self._token is not None and now_s < self._token.replaced_at_s:
            return
        if self._properties.get(f"{_PREFIX}method", "default").lower() == "oidc":
            text, life_s = self._requested()
        elif self._properties.get(_UNSECURED, "false").lower() == "true":
            text, life_s = self._unsecured(now_s)
        else:
            raise FiresteelError(
                f"Kafka: {MECHANISM} needs a token; set sasl.oauthbearer.method to oidc, with"
                f" {_URL}, sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"
            )
        self._token = _Token(text, now_s + (1 - _LEFT) * life_s)

    @property
    def latest(self) -> str:
        assert self._token is not None, "refreshed before"
        return self._token.text

    @property
    def extensions(self) -> dict[str, str]:
        given = self._properties.get(f"{_PREFIX}extensions", "")
        found = dict(pair.split("=", 1) for pair in given.split(",") if "=" in pair)
        own = "extension_"
        for name, value in self._config().items():
            if name.startswith(own):
                found[name.removeprefix(own)] = value
        return found

    def _config(self) -> dict[str, str]:
        text = self._properties.get(f"{_PREFIX}config", "")
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def _requested(self) -> tuple[str, float]:
        """Returns a token and its life in seconds."""
        url = self._given(_URL)
        client = f"{self._given(f'{_PREFIX}client.id')}:{self._given(f'{_PREFIX}client.secret')}"
        body = {"grant_type": "client_credentials"}
        if scope := self._properties.get(f"{_PREFIX}scope"):
            body["scope"] = scope
        request = urllib.request.Request(
            url,
            data=urlencode(body).encode(),
            headers={
                "Authorization": f"Basic {base64.b64encode(client.encode()).decode()}",
                "Accept": "application/json",
            },
        )
        found = _answer(request, url, self._properties.get("https.ca.location"))
        text = found.get("access_token")
        if not isinstance(text, str) or not text:
            raise FiresteelError(f"the token endpoint {url} returned no access_token")
        return text, float(found.get("expires_in", _LIFE_S))

    def _given(self, name: str) -> str:
        grant = self._properties.get(f"{_PREFIX}grant.type", "client_credentials")
        found = self._properties.get(name)
        if found is None or grant != "client_credentials":
            raise FiresteelError(
                f"Kafka: exactly-once delivery and firesteel kafka transactions get tokens of"
                f" {MECHANISM} with client credentials only; set {_URL},"
                " sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"
            )
        return found

    def _unsecured(self, now_s: float) -> tuple[str, float]:
        given = self._config()
        life_s = float(given.get("lifeSeconds", 3_600))
        claims: dict[str, Any] = {
            given.get("principalClaimName", "sub"): given.get("principal", ""),
            "iat": now_s,
            "exp": now_s + life_s,
        }
        if scope := given.get("scope"):
            claims[given.get("scopeClaimName", "scope")] = scope.split(",")
        head = {"alg": "none"}
        return f"{_part(head)}.{_part(claims)}.", life_s


def provider(tokens: Tokens) -> Any:
    """Returns the tokens as kafka-python requests them, in its thread."""
    base: Any = library("kafka.net.sasl.oauth").AbstractTokenProvider

    class Provider(base):  # type: ignore[misc]
        def token(self) -> str:
            return tokens.latest

        def extensions(self) -> dict[str, str]:
            return tokens.extensions

    return Provider()


def _part(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _answer(request: urllib.request.Request, url: str, authority: str | None) -> Any:
    context = ssl.create_default_context(cafile=authority) if url.startswith("https") else None
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(300).decode(errors="replace") or error.reason
        kind = KafkaUnavailable if error.code >= 500 or error.code == 429 else FiresteelError
        raise kind(
            f"the token endpoint {url} refuses a token ({error.code}): {reason}; check"
            " sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret and sasl.oauthbearer.scope"
        ) from None
    except (OSError, ValueError) as error:
        problem = str(getattr(error, "reason", error)) or type(error).__name__
        raise KafkaUnavailable(f"the token endpoint {url} does not answer: {problem}") from error

"""Tokens of an OpenID Connect issuer, which the test runs."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from dispatcher.rest.oidc import OpenIdConnect
from dispatcher.rest.people import People
from dispatcher.rest.requests import Refusal
from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.security.roles import Role
from firesteel.common.security.security import Security

ISSUER = "https://login.example.com"


class Issuer:
    """Serves its keys at `url`."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        keys = {
            "keys": [
                json.loads(RSAAlgorithm.to_jwk(self.rsa.public_key())) | {"kid": "RS256"},
                json.loads(ECAlgorithm.to_jwk(self.ec.public_key())) | {"kid": "ES256"},
            ]
        }

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(keys).encode())

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(
        self, *, algorithm: str = "RS256", key: Any = None, kid: str = "", **claims: Any
    ) -> str:
        now_s = int(time.time())
        content = {
            "iss": ISSUER,
            "aud": "firesteel",
            "sub": "ada",
            "iat": now_s,
            "exp": now_s + 300,
            "groups": ["data"],
        }
        signs = key or {"RS256": self.rsa, "ES256": self.ec}[algorithm]
        kept = {name: value for name, value in (content | claims).items() if value is not None}
        return jwt.encode(kept, signs, algorithm=algorithm, headers={"kid": kid or algorithm})


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.close()


def _conf(tmp_path: Path, url: str, **overrides: str) -> Configuration:
    return Configuration(
        {
            "security.directory": str(tmp_path / "security"),
            "rest.oidc.issuer": ISSUER,
            "rest.oidc.jwks-url": url,
            "rest.oidc.audience": "firesteel",
            "rest.roles": "@data=operator",
            **overrides,
        }
    )


@pytest.fixture
def security(tmp_path: Path, issuer: Issuer) -> Security:
    made = Security.of_process(_conf(tmp_path, issuer.url), Role.REST, "127.0.0.1")
    assert made is not None
    return made


@pytest.fixture
def oidc(tmp_path: Path, issuer: Issuer, security: Security) -> OpenIdConnect:
    conf = _conf(tmp_path, issuer.url)
    return OpenIdConnect(conf, People(conf, security))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
async def test_a_person_of_the_issuer_has_the_configured_role(
    algorithm, oidc, issuer, security
) -> None:
    token = await oidc.token(issuer.token(algorithm=algorithm))
    identity = security.verifier.verify(token)
    assert (identity.subject, identity.role) == ("ada", Role.OPERATOR)
    assert identity.expires_s < time.time() + 601


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"aud": "another"}, 401),
        ({"aud": None}, 401),
        ({"exp": 1}, 401),
        ({"exp": None}, 401),
        ({"sub": None}, 401),
        ({"groups": ["other"]}, 403),
        ({"groups": "data"}, 403),
        ({"groups": None}, 403),
        ({"sub": "@data"}, 400),
        ({"kid": "unknown"}, 401),
        ({"algorithm": "HS256", "key": "k" * 32, "kid": "RS256"}, 401),
        ({"algorithm": "RS256", "key": rsa.generate_private_key(65537, 2048)}, 401),
    ],
)
async def test_other_tokens_of_the_issuer_are_refused(claims, status, oidc, issuer) -> None:
    with pytest.raises(Refusal) as refusal:
        await oidc.token(issuer.token(**claims))
    assert refusal.value.status == status


async def test_unsigned_tokens_are_refused(oidc, issuer) -> None:
    head, content, _ = issuer.token().split(".")
    none = jwt.utils.base64url_encode(b'{"alg":"none","kid":"RS256"}').decode()
    for forged in (f"{none}.{content}.", f"{head}.{content}."):
        with pytest.raises(Refusal) as refusal:
            await oidc.token(forged)
        assert refusal.value.status == 401


async def test_tokens_of_others_are_left_to_the_cluster(oidc, issuer, security) -> None:
    for presented in (security.token(), issuer.token(iss="https://evil.example"), "x", ""):
        assert await oidc.token(presented) is None


async def test_an_issuer_that_is_away_is_not_an_invalid_token(tmp_path, issuer, security) -> None:
    conf = _conf(tmp_path, "http://127.0.0.1:1/keys")
    with pytest.raises(Refusal) as refusal:
        await OpenIdConnect(conf, People(conf, security)).token(issuer.token())
    assert refusal.value.status == 503


@pytest.mark.parametrize(
    "overrides",
    [{"rest.oidc.audience": ""}, {"rest.oidc.jwks-url": "http://login.example.com/keys"}],
)
def test_an_issuer_that_could_be_imitated_is_not_accepted(overrides, tmp_path, security) -> None:
    conf = _conf(tmp_path, "https://login.example.com/keys", **overrides)
    with pytest.raises(ConfigurationError, match=r"rest\.oidc\.issuer needs"):
        OpenIdConnect(conf, People(conf, security))

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from firesteel.common.security.roles import PEOPLE, Role
from firesteel.common.security.tokens import (
    ExpiredToken,
    InvalidToken,
    RevokedToken,
    TokenIssuer,
    TokenVerifier,
)
from firesteel.errors import FiresteelError
from tests.credentials import fixed_key


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture
def issuer(key: Ed25519PrivateKey, clock: Clock) -> TokenIssuer:
    return TokenIssuer(key, now_s=clock)


@pytest.fixture
def verifier(key: Ed25519PrivateKey, clock: Clock) -> TokenVerifier:
    return TokenVerifier(fixed_key(key.public_key()), now_s=clock)


def test_a_verified_token_says_who_its_bearer_is(issuer: TokenIssuer, verifier: TokenVerifier):
    token = issuer.issue("ada", Role.OPERATOR, valid_s=60, own_jobs=True)
    identity = verifier.verify(token)
    assert (identity.subject, identity.role) == ("ada", Role.OPERATOR)
    assert identity.own_jobs
    assert not verifier.verify(issuer.issue("ada", Role.OPERATOR, valid_s=60)).own_jobs
    assert identity.expires_s == 1_000_060


def test_a_token_ends_with_its_expiry(issuer, verifier, clock):
    token = issuer.issue("ada", Role.VIEWER, valid_s=60)
    clock.now_s += 59
    verifier.verify(token)
    clock.now_s += 1
    with pytest.raises(ExpiredToken, match=r"of ada \(viewer\) has expired; create a new one"):
        verifier.verify(token)


def test_a_token_ends_when_it_is_revoked(issuer, key, clock):
    revoked: set[str] = set()
    verifier = TokenVerifier(
        lambda: (key.public_key(),), now_s=clock, is_revoked=revoked.__contains__
    )
    token = issuer.issue("ada", Role.ADMIN, valid_s=60)
    revoked.add(verifier.verify(token).token_id)
    with pytest.raises(RevokedToken):
        verifier.verify(token)


def _with(token: str, part: int, **changes: object) -> str:
    parts = token.split(".")
    padded = parts[part] + "=" * (-len(parts[part]) % 4)
    content = json.loads(base64.urlsafe_b64decode(padded)) | changes
    encoded = base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()
    return ".".join([*parts[:part], encoded, *parts[part + 1 :]])


@pytest.mark.parametrize(
    "forge",
    [
        lambda token: "",
        lambda token: "x",
        lambda token: token[:-4],
        lambda token: _with(token, 1, role="admin"),
        lambda token: _with(token, 1, exp=2_000_000),
        lambda token: _with(token, 0, alg="none"),
        lambda token: _with(token, 0, alg="none").rpartition(".")[0] + ".",
        lambda token: _with(token, 0, alg="HS256"),
        lambda token: token + "\x00",
        lambda token: "ü" + token,
    ],
)
def test_forged_tokens_are_invalid(forge, issuer, verifier):
    with pytest.raises(InvalidToken):
        verifier.verify(forge(issuer.issue("ada", Role.VIEWER, valid_s=60)))


def test_a_token_of_another_cluster_is_invalid(verifier, clock):
    other = TokenIssuer(Ed25519PrivateKey.generate(), now_s=clock)
    with pytest.raises(InvalidToken, match="signed with another key"):
        verifier.verify(other.issue("ada", Role.ADMIN, valid_s=60))


def test_a_token_must_be_valid_for_some_time(issuer):
    with pytest.raises(FiresteelError, match="not for -1 s"):
        issuer.issue("ada", Role.ADMIN, valid_s=-1)


def test_roles_of_people_include_those_before_them():
    for at, role in enumerate(PEOPLE):
        assert [role.includes(other) for other in PEOPLE] == [i <= at for i in range(len(PEOPLE))]


def test_processes_and_people_share_nothing():
    for process in set(Role) - set(PEOPLE):
        assert [other for other in Role if process.includes(other)] == [process]
        assert not Role.ADMIN.includes(process)

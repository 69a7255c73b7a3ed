"""Tokens: signed statements of who their bearer is, with an expiry.

A token is a JSON Web Token (RFC 7519) that the cluster's Ed25519 key signs. Whoever holds the
private key issues tokens; the public key verifies them, without a call to another process.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Callable

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from firesteel.common.security.roles import Identity, Role
from firesteel.errors import FiresteelError

_ALGORITHM = "EdDSA"
_ISSUER = "firesteel"
_REQUIRED = ["exp", "iss", "jti", "role", "sub"]
_CACHED = 10_000


class InvalidToken(FiresteelError):
    """The token is not one of this cluster, or was changed."""


class ExpiredToken(FiresteelError):
    """The token was valid until its expiry."""


class RevokedToken(FiresteelError):
    """The token was revoked before its expiry."""


class TokenIssuer:
    def __init__(self, key: Ed25519PrivateKey, *, now_s: Callable[[], float]) -> None:
        self._key = key
        self._now_s = now_s

    def issue(
        self,
        subject: str,
        role: Role,
        *,
        valid_s: float,
        own_jobs: bool = False,
    ) -> str:
        """Returns a token for `subject`, valid for `valid_s` seconds from now."""
        if valid_s <= 0:
            raise FiresteelError(f"a token must be valid for more than 0 s, not for {valid_s:g} s")
        now_s = int(self._now_s())
        claims: dict[str, object] = {
            "iss": _ISSUER,
            "sub": subject,
            "role": role.value,
            "jti": secrets.token_hex(8),
            "iat": now_s,
            "exp": now_s + max(1, int(valid_s)),
        }
        if own_jobs:
            claims["own_jobs"] = True
        return jwt.encode(claims, self._key, algorithm=_ALGORITHM)


class TokenVerifier:
    """Verifies tokens; remembers those whose signature it has verified.

    `keys` returns the public keys of now, with the current one first: the same tuple until one
    changes. `is_revoked` says whether the token of an id was revoked. Thread-safe.
    """

    def __init__(
        self,
        keys: Callable[[], tuple[Ed25519PublicKey, ...]],
        *,
        now_s: Callable[[], float],
        is_revoked: Callable[[str], bool] = lambda token_id: False,
    ) -> None:
        self._keys = keys
        self._now_s = now_s
        self._is_revoked = is_revoked
        self._known = keys()
        self._decoded = self._decoder(self._known)

    @property
    def key_id(self) -> str:
        """Differs between clusters with different keys."""
        return hashlib.sha256(self._keys()[0].public_bytes_raw()).hexdigest()[:12]

    def verify(self, token: str) -> Identity:
        """Raises InvalidToken, ExpiredToken or RevokedToken."""
        if (keys := self._keys()) is not self._known:
            self._known, self._decoded = keys, self._decoder(keys)
        identity = self._decoded(token)
        if identity.expires_s <= self._now_s():
            raise ExpiredToken(
                f"the token {identity.token_id} of {identity} has expired; create a new one:"
                " `firesteel token create`"
            )
        if self._is_revoked(identity.token_id):
            raise RevokedToken(f"the token {identity.token_id} of {identity} was revoked")
        return identity

    def _decoder(self, keys: tuple[Ed25519PublicKey, ...]) -> Callable[[str], Identity]:
        return functools.lru_cache(_CACHED)(functools.partial(_decode, keys=keys))


def _decode(token: str, keys: tuple[Ed25519PublicKey, ...]) -> Identity:
    for key in keys:
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[_ALGORITHM],
                issuer=_ISSUER,
                # The clock is `now_s`, and a token that has expired is not invalid.
                options={"require": _REQUIRED, "verify_exp": False, "verify_iat": False},
            )
            return Identity(
                subject=str(claims["sub"]),
                role=Role(claims["role"]),
                token_id=str(claims["jti"]),
                expires_s=float(claims["exp"]),
                own_jobs=bool(claims.get("own_jobs", False)),
            )
        except (jwt.InvalidTokenError, ValueError, TypeError):
            continue
    raise InvalidToken(
        "the token is not one of this cluster: it was signed with another key, or changed"
    )

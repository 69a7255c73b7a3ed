"""People who present tokens of another issuer, as OpenID Connect defines them.

A token is accepted if the configured issuer has signed it for the configured audience. The keys of
the issuer are fetched from the configured address, and again when a token names an unknown one, at
most every 30 seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import jwt

from dispatcher.rest.people import People
from dispatcher.rest.requests import Refusal
from firesteel.common.config import Configuration, ConfigurationError, options

_ALGORITHMS = ["RS256", "ES256"]
_CLOCKS_DIFFER_S = 60.0
_FETCH_S = 5.0


class OpenIdConnect:
    """Raises ConfigurationError if the options do not fit together."""

    def __init__(self, conf: Configuration, people: People) -> None:
        self._issuer = conf.get(options.OIDC_ISSUER)
        self._audience = conf.get(options.OIDC_AUDIENCE)
        self._name_claim = conf.get(options.OIDC_NAME_CLAIM)
        self._groups_claim = conf.get(options.OIDC_GROUPS_CLAIM)
        self._people = people
        url = conf.get(options.OIDC_JWKS)
        if self._issuer and not (
            self._audience and url.startswith(("https://", "http://127.0.0.1:"))
        ):
            raise ConfigurationError(
                f"{options.OIDC_ISSUER.key} needs {options.OIDC_AUDIENCE.key}, and the address of"
                f" its keys, https://..., in {options.OIDC_JWKS.key}"
            )
        self._keys = jwt.PyJWKClient(url, timeout=_FETCH_S) if self._issuer else None

    async def token(self, presented: str) -> str | None:
        """Returns a token of this cluster for the person of a token of the issuer; None if the
        token is not one of the issuer.

        Raises Refusal for an invalid one, and for a person without a role.
        """
        if self._keys is None or _issuer_of(presented) != self._issuer:
            return None
        try:
            key = await asyncio.to_thread(self._keys.get_signing_key_from_jwt, presented)
            claims = jwt.decode(
                presented,
                key,
                algorithms=_ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer,
                leeway=_CLOCKS_DIFFER_S,
                options={"require": ["exp", "iat", "aud", "iss", self._name_claim]},
            )
        except jwt.PyJWKClientConnectionError:
            raise Refusal(503, f"the keys of {self._issuer} cannot be fetched; try again") from None
        except (jwt.PyJWTError, ValueError) as error:
            raise Refusal(401, f"the token of {self._issuer} is not accepted: {error}") from None
        return self._people.token(
            str(claims[self._name_claim]), _groups(claims, self._groups_claim)
        )


def _issuer_of(presented: str) -> str | None:
    """Returns the issuer that an unverified token names."""
    try:
        claims = jwt.decode(presented, options={"verify_signature": False})
    except jwt.PyJWTError:
        return None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None


def _groups(claims: Mapping[str, Any], claim: str) -> list[str]:
    groups = claims.get(claim, [])
    return [group for group in groups if isinstance(group, str)] if isinstance(groups, list) else []

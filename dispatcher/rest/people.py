"""Maps people that a proxy or an issuer authenticates to roles, and issues tokens for them.

The process of the REST server issues these tokens: the Dispatcher checks and audits a request of
such a person as any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from dispatcher.rest.requests import Refusal
from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.security.roles import PEOPLE, Role
from firesteel.common.security.security import Security

VALID_S = 600.0  # of a person's token
_MAX_NAME_CHARS = 200
_MAX_PEOPLE = 10_000


class People:
    """Raises ConfigurationError for roles that do not exist."""

    def __init__(
        self, conf: Configuration, security: Security, *, now_s: Callable[[], float] = time.time
    ) -> None:
        roles: list[str] = conf.get(options.REST_ROLES)
        self._roles = _roles(roles)
        self._security = security
        self._now_s = now_s
        self._tokens: dict[tuple[str, Role], tuple[float, str]] = {}  # with when to replace them

    def token(self, name: str, groups: Iterable[str]) -> str:
        """Returns a token of a person. Raises Refusal for a person without a role."""
        named_as_group = name.startswith("@") or name == "*"
        if not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable() or named_as_group:
            raise Refusal(400, f"{name[:80]!r} is not the name of a person")
        role = self._role(name, groups)
        if role is None:
            raise Refusal(403, f"{name} has no role here ({options.REST_ROLES.key})")
        now_s = self._now_s()
        until_s, token = self._tokens.get((name, role), (0.0, ""))
        if until_s <= now_s:
            if len(self._tokens) >= _MAX_PEOPLE:
                self._tokens.clear()
            token = self._security.token_for(name, role, valid_s=VALID_S)
            self._tokens[name, role] = now_s + VALID_S / 2, token
        return token

    def _role(self, name: str, groups: Iterable[str]) -> Role | None:
        """Returns the highest of the person's roles."""
        keys = (name, *(f"@{group.strip()}" for group in groups if group.strip()), "*")
        roles = [role for key in keys if (role := self._roles.get(key))]
        return max(roles, key=PEOPLE.index, default=None)


def _roles(entries: Iterable[str]) -> Mapping[str, Role]:
    roles = {}
    for entry in entries:
        who, _, name = entry.rpartition("=")
        role = next((each for each in PEOPLE if each.value == name.strip()), None)
        if not who.strip() or role is None:
            allowed = ", ".join(each.value for each in PEOPLE)
            raise ConfigurationError(
                f"{options.REST_ROLES.key}: {entry!r} is not NAME=ROLE, @GROUP=ROLE or *=ROLE;"
                f" roles: {allowed}"
            )
        roles[who.strip()] = role
    return roles

"""People whom a proxy has authenticated, with OpenID Connect for example, and names in headers.

The proxy proves with its client certificate, of the cluster's authority, that it is the proxy: an
address proves nothing, because all users of a machine share it. The roles of people are configured.
A request becomes one with a token of this person, which this process issues: the Dispatcher checks
and audits it as any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from aiohttp import web

from dispatcher.rest.requests import Refusal
from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.security.authority import identity_of
from firesteel.common.security.roles import PEOPLE, Role
from firesteel.common.security.security import Security
from firesteel.errors import FiresteelError

VALID_S = 600.0  # of a person's token
_MAX_NAME_CHARS = 200
_MAX_PEOPLE = 10_000
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class TrustedProxy:
    """Raises ConfigurationError if the options do not fit together."""

    def __init__(
        self,
        conf: Configuration,
        security: Security | None,
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._proxy = conf.get(options.REST_PROXY)
        self._addresses: list[str] = conf.get(options.REST_PROXY_ADDRESSES)
        self._user_header = conf.get(options.REST_PROXY_USER_HEADER)
        self._groups_header = conf.get(options.REST_PROXY_GROUPS_HEADER)
        self._roles = _roles(conf.get(options.REST_PROXY_ROLES))
        self._security = security
        self._now_s = now_s
        self._tokens: dict[tuple[str, Role], tuple[float, str]] = {}  # with when to replace them
        if self._proxy and (security is None or not security.tls or not self._addresses):
            raise ConfigurationError(
                f"{options.REST_PROXY.key} needs {options.REST_PROXY_ADDRESSES.key}, and TLS"
                f" ({options.SECURITY_TLS.key}: always): others could name any person"
            )

    def token(self, request: web.Request) -> str | None:
        """Returns a token of the person whom the proxy names; None if the request has a credential.

        Raises Refusal for headers that are not the proxy's, and for a person without a role.
        """
        if not self._proxy or self._security is None:
            return None
        names = request.headers.getall(self._user_header, [])
        groups = request.headers.getall(self._groups_header, [])
        if not names and not groups:
            return None
        if not self._is_proxy(request):
            raise Refusal(
                403,
                f"only the proxy {self._proxy} may name a person ({self._user_header},"
                f" {self._groups_header})",
            )
        if len(names) != 1 or len(groups) > 1 or "Authorization" in request.headers:
            raise Refusal(400, f"the proxy must name one person, in {self._user_header}")
        (name,) = names
        named_as_group = name.startswith("@") or name == "*"
        if not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable() or named_as_group:
            raise Refusal(400, f"{self._user_header} is not the name of a person")
        own = request.headers.get("Sec-Fetch-Site") == "same-origin" or "Origin" in request.headers
        if request.method not in _SAFE_METHODS and not own:
            raise Refusal(403, "only the dashboard's own pages may change something by a proxy")
        role = self._role(name, "".join(groups).split(","))
        if role is None:
            raise Refusal(403, f"{name} has no role here ({options.REST_PROXY_ROLES.key})")
        return self._token(name, role)

    def _is_proxy(self, request: web.Request) -> bool:
        transport = request.transport
        ssl = transport.get_extra_info("ssl_object") if transport else None
        der = ssl.getpeercert(binary_form=True) if ssl else None
        if der is None or request.remote not in self._addresses:
            return False
        try:
            identity = identity_of(der)
        except (ValueError, FiresteelError):
            return False
        return identity.role.is_person and identity.subject == self._proxy

    def _role(self, name: str, groups: list[str]) -> Role | None:
        """Returns the highest of the person's roles."""
        keys = (name, *(f"@{group.strip()}" for group in groups if group.strip()), "*")
        return max(
            (role for key in keys if (role := self._roles.get(key))),
            key=PEOPLE.index,
            default=None,
        )

    def _token(self, name: str, role: Role) -> str:
        assert self._security is not None
        now_s = self._now_s()
        until_s, token = self._tokens.get((name, role), (0.0, ""))
        if until_s <= now_s:
            if len(self._tokens) >= _MAX_PEOPLE:
                self._tokens.clear()
            token = self._security.token_for(name, role, valid_s=VALID_S)
            self._tokens[name, role] = now_s + VALID_S / 2, token
        return token


def _roles(entries: list[str]) -> Mapping[str, Role]:
    roles = {}
    for entry in entries:
        who, _, name = entry.rpartition("=")
        role = next((each for each in PEOPLE if each.value == name.strip()), None)
        if not who.strip() or role is None:
            allowed = ", ".join(each.value for each in PEOPLE)
            raise ConfigurationError(
                f"{options.REST_PROXY_ROLES.key}: {entry!r} is not NAME=ROLE, @GROUP=ROLE or"
                f" *=ROLE; roles: {allowed}"
            )
        roles[who.strip()] = role
    return roles

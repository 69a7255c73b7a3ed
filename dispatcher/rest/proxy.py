"""Reads who calls from the headers of a proxy that authenticates people.

The proxy proves with its client certificate, of the cluster's authority, that it is the proxy: an
address proves nothing, because all users of a machine share it.
"""

from __future__ import annotations

from aiohttp import web

from dispatcher.rest.people import People
from dispatcher.rest.requests import Refusal
from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.security.authority import identity_of
from firesteel.common.security.security import Security
from firesteel.errors import FiresteelError

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class TrustedProxy:
    """Raises ConfigurationError if the options do not fit together."""

    def __init__(self, conf: Configuration, security: Security, people: People) -> None:
        self._proxy = conf.get(options.REST_PROXY)
        self._addresses: list[str] = conf.get(options.REST_PROXY_ADDRESSES)
        self._user_header = conf.get(options.REST_PROXY_USER_HEADER)
        self._groups_header = conf.get(options.REST_PROXY_GROUPS_HEADER)
        self._people = people
        if self._proxy and not (security.tls and self._addresses):
            raise ConfigurationError(
                f"{options.REST_PROXY.key} needs {options.REST_PROXY_ADDRESSES.key}, and TLS"
                f" ({options.SECURITY_TLS.key}: always): others could name any person"
            )

    def token(self, request: web.Request) -> str | None:
        """Returns a token for the person that the proxy names; None if there is a credential.

        Raises Refusal for headers that are not the proxy's, and for a person without a role.
        """
        if not self._proxy:
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
        own = request.headers.get("Sec-Fetch-Site") == "same-origin" or "Origin" in request.headers
        if request.method not in _SAFE_METHODS and not own:
            raise Refusal(403, "only the dashboard's own pages may change something by a proxy")
        return self._people.token(name, "".join(groups).split(","))

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

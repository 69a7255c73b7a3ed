"""Fetches the code with which a browser logs in to the dashboard."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from firesteel.common.security.client import ClientSecurity
from firesteel.common.security.credentials import BEARER
from firesteel.errors import ClusterUnreachable, FiresteelError

TIMEOUT_S = 30.0
_ROUTE = "firesteel/v1/session/codes"


def code(dashboard_url: str, security: ClientSecurity, *, forwarded: bool = False) -> str:
    """Returns the code. `forwarded`: the URL has the address of a port-forward, and the certificate
    that of the server.
    """
    request = urllib.request.Request(
        f"{dashboard_url}{_ROUTE}",
        method="POST",
        headers={"Authorization": f"{BEARER}{security.token()}"},
    )
    context = security.http_context() if dashboard_url.startswith("https") else None
    if context is not None and forwarded:
        context.check_hostname = False  # the authority is the cluster's own
    direct = urllib.request.build_opener(  # a proxy of the environment does not see the token
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with direct.open(request, timeout=TIMEOUT_S) as answer:
            return str(json.load(answer)["code"])
    except urllib.error.HTTPError as error:
        with error:
            raise FiresteelError(_message(error)) from None
    except (OSError, ValueError, KeyError) as error:
        raise ClusterUnreachable(f"{dashboard_url} does not answer: {error}") from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return "; ".join(json.load(error)["errors"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url} answers {error.code} {error.reason}"

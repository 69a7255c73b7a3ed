"""Logs browsers in: a token becomes a cookie that scripts cannot read.

`firesteel dashboard` opens a browser with a code in place of the token: it is valid once, for a
minute, so the token is in no URL and in no history.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from http.cookies import CookieError

from aiohttp import web

from dispatcher.rest.requests import Handler, Refusal, json_body, text_of
from firesteel.common.security.credentials import BEARER
from firesteel.common.security.roles import Identity
from firesteel.common.security.security import Security
from firesteel.errors import FiresteelError

CODE_VALID_S = 60.0
MAX_CODES = 1_000
_COOKIE = "firesteel_session_"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class LoginCodes:
    """Codes that stand for tokens, each once."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._tokens: dict[str, tuple[float, str]] = {}  # with the time of its expiry

    def new(self, token: str) -> str:
        """Raises Refusal if too many codes are unused."""
        now_s = self._now_s()
        self._tokens = {code: kept for code, kept in self._tokens.items() if kept[0] > now_s}
        if len(self._tokens) >= MAX_CODES:
            raise Refusal(429, "too many log-in codes are unused; try again in a minute")
        code = secrets.token_urlsafe(24)
        self._tokens[code] = (now_s + CODE_VALID_S, token)
        return code

    def take(self, code: str) -> str:
        """Returns the token, and forgets the code. Raises Refusal for an unknown code."""
        expires_s, token = self._tokens.pop(code, (0.0, ""))
        if expires_s <= self._now_s():
            raise Refusal(
                401, "the log-in link was used, or is too old; run `firesteel dashboard` again"
            )
        return token


class Sessions:
    """Finds the token of a request: in its header, or in the cookie of the browser's session.

    The cookie is named after the key that signs the cluster's tokens, because browsers send the
    cookies of one port to all ports of a host. It has no path, so browsers return it only below
    the path of the log-in route, also if a proxy adds a prefix.
    """

    def __init__(self, security: Security | None) -> None:
        self._security = security
        self._cookie = _COOKIE + (security.verifier.key_id if security else "")
        self._codes = LoginCodes()

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "POST /firesteel/v1/session": self._log_in,
            "DELETE /firesteel/v1/session": self._log_out,
            "POST /firesteel/v1/session/codes": self._new_code,
        }

    def token(self, request: web.Request) -> str:
        """Raises Refusal if the request carries none."""
        header = request.headers.get("Authorization", "")
        if header.startswith(BEARER):
            return header.removeprefix(BEARER)
        cookies = _cookies(request)
        if token := cookies.get(self._cookie):
            if request.method not in _SAFE_METHODS and not _is_same_origin(request):
                raise Refusal(403, "only the dashboard's own pages may use a browser's session")
            return token
        if any(name.startswith(_COOKIE) for name in cookies):
            raise Refusal(
                401,
                "this browser is logged in to another cluster on this host, not to this one;"
                " log in here",
            )
        raise Refusal(
            401,
            "the request carries no token: log in, or send the header"
            " `Authorization: Bearer TOKEN`",
        )

    def identity(self, token: str) -> Identity:
        """Raises Refusal unless the token is valid."""
        assert self._security is not None
        try:
            return self._security.verifier.verify(token)
        except FiresteelError as error:
            raise Refusal(401, str(error)) from None

    async def _log_in(self, request: web.Request) -> web.Response:
        body = await json_body(request)
        answer = web.Response(status=204)
        if self._security is None:
            return answer
        code = text_of(body, "code")
        token = (self._codes.take(code) if code else text_of(body, "token")).strip()
        identity = self.identity(token)
        if not identity.role.is_person:
            raise Refusal(403, f"{identity} is not a person, and cannot log in")
        answer.set_cookie(
            self._cookie,
            token,
            max_age=max(1, int(identity.expires_s - time.time())),
            path="",
            httponly=True,
            samesite="Strict",
            secure=self._security.tls,
        )
        return answer

    async def _log_out(self, request: web.Request) -> web.Response:
        answer = web.Response(status=204)
        answer.set_cookie(self._cookie, "", max_age=0, path="", httponly=True, samesite="Strict")
        return answer

    async def _new_code(self, request: web.Request) -> web.Response:
        """The code is empty if the cluster requires no token."""
        code = self._codes.new(self.token(request)) if self._security else ""
        return web.json_response({"code": code, "valid_s": CODE_VALID_S})


def _cookies(request: web.Request) -> Mapping[str, str]:
    try:
        return request.cookies
    except CookieError:
        return {}


def _is_same_origin(request: web.Request) -> bool:
    """Whether a browser says so; the guard refuses origins that are not the server's."""
    return "Origin" in request.headers or request.headers.get("Sec-Fetch-Site") == "same-origin"

"""Decides whose calls a front answers."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from firesteel.common.logs import get_logger
from firesteel.common.security.credentials import BEARER
from firesteel.common.security.limits import CallLimits
from firesteel.common.security.roles import Identity
from firesteel.spark_connect.operations import SessionKey

HOW_TO = (
    "connect with sc://HOST:PORT/;token=TOKEN; `firesteel token create NAME --role submitter` makes"
    " a token"
)

log = get_logger(__name__)


class NotAdmitted(Exception):
    """The caller has no valid token: UNAUTHENTICATED."""


class NotAllowed(Exception):
    """The caller is known, and may not make the call: PERMISSION_DENIED."""


class TooManyCalls(Exception):
    """Too many calls of the caller's address were refused: RESOURCE_EXHAUSTED."""


class Admission(Protocol):
    def admit(
        self, authorization: str, session: Callable[[], SessionKey], peer: str = ""
    ) -> AbstractContextManager[None]:
        """Surrounds a call with this header from `peer`, as gRPC names it. Raises NotAdmitted,
        NotAllowed or TooManyCalls. Only the request of an admitted caller is parsed for its
        session.
        """


class OneToken:
    """Admits the program for which the front was started."""

    def __init__(self, token: str) -> None:
        self._expected = f"{BEARER}{token}"

    def admit(
        self, authorization: str, session: Callable[[], SessionKey], peer: str = ""
    ) -> AbstractContextManager[None]:
        if not hmac.compare_digest(authorization, self._expected):
            raise NotAdmitted(
                "Invalid authentication token: connect with the address that SPARK_REMOTE has in"
                " programs of `firesteel run`"
            )
        return nullcontext()


@dataclass(slots=True)
class _Use:
    """The use of a session."""

    owner: str  # the name of the caller who has created it
    authorization: str  # the latest header
    calls: int = 0  # in progress
    last_s: float = 0.0  # when the last call ended


class Sessions:
    """Admits each caller to their own sessions. Thread-safe.

    `identify` returns the caller that a header proves, or raises NotAdmitted; None: all callers are
    admitted. `check` raises NotAllowed for callers without the necessary role. `record` gets the
    header and the address of each caller that creates a session or is refused, for the audit log.
    """

    def __init__(
        self,
        identify: Callable[[str], Identity] | None,
        check: Callable[[Identity], None] = lambda identity: None,
        record: Callable[[str, str], None] = lambda authorization, peer: None,
        limits: CallLimits | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identify = identify
        self._check = check
        self._record = record
        self._limits = limits or CallLimits()
        self._now_s = now_s
        self._lock = threading.Lock()
        self._uses: dict[SessionKey, _Use] = {}

    def admit(
        self, authorization: str, session: Callable[[], SessionKey], peer: str = ""
    ) -> AbstractContextManager[None]:
        if self._identify is None:
            return self._using(session(), "", authorization, peer)
        try:
            if not authorization:
                raise NotAdmitted(f"the call carries no token: {HOW_TO}")
            identity = self._identify(authorization)
            self._check(identity)
        except (NotAdmitted, NotAllowed) as refused:
            with self._lock:
                too_many = self._limits.failed(peer)
            if too_many:
                raise TooManyCalls(too_many) from None
            log.warning("a call is refused", peer=peer, reason=str(refused))
            self._record(authorization, peer)
            raise
        return self._using(session(), identity.subject, authorization, peer)

    @contextmanager
    def _using(
        self, session: SessionKey, caller: str, authorization: str, peer: str
    ) -> Iterator[None]:
        with self._lock:
            new = session not in self._uses
            use = self._uses.setdefault(session, _Use(caller, authorization))
            if use.owner != caller:
                raise NotAllowed(f"the session {session.session_id} is not {caller}'s")
            use.authorization = authorization
            use.calls += 1
        try:
            if new:
                self._record(authorization, peer)
            yield
        finally:
            with self._lock:
                use.calls -= 1
                use.last_s = self._now_s()

    def token(self, session: SessionKey) -> str:
        """Returns the latest token of the session's owner; empty if it has none."""
        with self._lock:
            use = self._uses.get(session)
            return use.authorization.removeprefix(BEARER) if use else ""

    def forget(self, session: SessionKey) -> None:
        """Called when a session has ended."""
        with self._lock:
            self._uses.pop(session, None)

    def unused(self, for_s: float) -> list[SessionKey]:
        """Returns the sessions without a call for this time."""
        with self._lock:
            before_s = self._now_s() - for_s
            return [
                session
                for session, use in self._uses.items()
                if not use.calls and use.last_s <= before_s
            ]

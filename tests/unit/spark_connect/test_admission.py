"""Whose calls a front answers, and which sessions are unused."""

from __future__ import annotations

import pytest

from firesteel.common.config import Configuration
from firesteel.common.security.limits import CallLimits
from firesteel.common.security.roles import Identity, Role
from firesteel.spark_connect.admission import (
    NotAdmitted,
    NotAllowed,
    OneToken,
    Sessions,
    TooManyCalls,
)
from firesteel.spark_connect.operations import SessionKey
from firesteel.spark_connect.serving import check_role

FIRST, SECOND = SessionKey("ada", "1"), SessionKey("ada", "2")


def identify(authorization: str) -> Identity:
    subject, role = authorization.removeprefix("Bearer ").split(":")
    return Identity(subject=subject, role=Role(role))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_program_presents_its_token() -> None:
    admission = OneToken("secret")
    with admission.admit("Bearer secret", lambda: FIRST):
        pass
    with pytest.raises(NotAdmitted, match="SPARK_REMOTE"):
        admission.admit("Bearer other", lambda: FIRST)


def test_a_session_belongs_to_who_has_created_it() -> None:
    sessions = Sessions(identify, check_role)
    with sessions.admit("Bearer ada:submitter", lambda: FIRST):
        pass
    with (
        pytest.raises(NotAllowed, match="the session 1 is not eve's"),
        sessions.admit("Bearer eve:admin", lambda: FIRST),
    ):
        pass
    with sessions.admit("Bearer eve:admin", lambda: SECOND):
        pass
    sessions.forget(FIRST)
    with sessions.admit("Bearer eve:admin", lambda: FIRST):
        pass


def test_a_session_has_the_latest_token_of_its_owner() -> None:
    sessions = Sessions(identify)
    for role in ("submitter", "admin"):
        with sessions.admit(f"Bearer ada:{role}", lambda: FIRST):
            pass
    assert sessions.token(FIRST) == "ada:admin"
    assert sessions.token(SECOND) == ""


def test_requests_of_those_who_may_not_run_functions_are_not_parsed() -> None:
    def session() -> SessionKey:
        raise AssertionError

    sessions = Sessions(identify, check_role)
    with pytest.raises(NotAdmitted, match="no token"):
        sessions.admit("", session)
    with pytest.raises(NotAllowed, match=r"ada \(operator\) may not use Spark Connect"):
        sessions.admit("Bearer ada:operator", session)


def test_refused_callers_and_new_sessions_are_recorded() -> None:
    recorded: list[tuple[str, str]] = []
    sessions = Sessions(identify, check_role, lambda *call: recorded.append(call))
    for _ in range(2):
        with sessions.admit("Bearer ada:submitter", lambda: FIRST, "ipv4:127.0.0.1:1"):
            pass
    for header in ("", "Bearer ada:viewer"):
        with pytest.raises((NotAdmitted, NotAllowed)):
            sessions.admit(header, lambda: FIRST, "ipv4:127.0.0.1:2")
    assert recorded == [
        ("Bearer ada:submitter", "ipv4:127.0.0.1:1"),
        ("", "ipv4:127.0.0.1:2"),
        ("Bearer ada:viewer", "ipv4:127.0.0.1:2"),
    ]


def test_an_address_is_refused_so_many_times() -> None:
    recorded: list[str] = []
    conf = Configuration({"rpc.limit.failures-per-second": "1"})
    sessions = Sessions(
        identify, check_role, lambda header, peer: recorded.append(peer), CallLimits(conf)
    )
    for _ in range(20):
        with pytest.raises(NotAdmitted):
            sessions.admit("", lambda: FIRST, "ipv4:127.0.0.1:1")
    with pytest.raises(TooManyCalls, match=r"too many calls from ipv4:127\.0\.0\.1"):
        sessions.admit("", lambda: FIRST, "ipv4:127.0.0.1:2")
    assert len(recorded) == 20
    with sessions.admit("Bearer ada:submitter", lambda: FIRST, "ipv4:127.0.0.1:3"):
        pass


def test_a_session_is_unused_some_time_after_its_last_call() -> None:
    clock = Clock()
    sessions = Sessions(None, now_s=clock)
    waiting = sessions.admit("", lambda: FIRST)
    with waiting:
        with sessions.admit("", lambda: SECOND):
            clock.now_s = 10.0
        clock.now_s = 19.0
        assert sessions.unused(for_s=10.0) == []
        clock.now_s = 20.0
        assert sessions.unused(for_s=10.0) == [SECOND], "the other one has a call in progress"
    assert sessions.unused(for_s=10.0) == [SECOND]
    clock.now_s = 30.0
    assert sessions.unused(for_s=10.0) == [FIRST, SECOND]

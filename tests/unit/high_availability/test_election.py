"""The decisions of a contender, event by event."""

from __future__ import annotations

from typing import Any

import pytest

from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader
from firesteel.common.service.core import Tick
from firesteel.high_availability.election import (
    Confirm,
    Confirmed,
    Connected,
    Contend,
    Displaced,
    ElectionCore,
    ElectionState,
    End,
    Granted,
    Lead,
    Occupied,
    Pause,
    Renewed,
    RequestFailed,
    Resigned,
    Resume,
    SessionLost,
    Suspended,
    Vacant,
)

SESSION, LEASE, CONFIRM = 6.0, 5.0, 1.0
OTHER = Leader("other:1", Epoch(3))


def connected(session_id: int = 1) -> Connected:
    return Connected(session_id=session_id, session_timeout_s=SESSION)


def granted(epoch: int = 4, *, asked_at: float = 0.0, session_id: int = 1) -> Granted:
    return Granted(session_id=session_id, epoch=Epoch(epoch), asked_at=asked_at)


def commands(core: ElectionCore, event: Any, now: float) -> list[Any]:
    return [c for c in core.handle(event, now).commands if not isinstance(c, Renewed)]


@pytest.fixture
def leader() -> ElectionCore:
    core = ElectionCore()
    assert commands(core, connected(), 0.0) == [Contend()]
    assert commands(core, granted(), 0.1) == [Lead(epoch=Epoch(4))]
    return core


def test_a_standby_requests_the_office_again_when_it_is_vacant() -> None:
    core = ElectionCore()
    core.handle(connected(), 0.0)
    assert commands(core, Occupied(leader=OTHER), 0.1) == []
    assert core.other == OTHER
    assert core.next_deadline() is None
    assert commands(core, Vacant(), 9.0) == [Contend()]


def test_a_vacancy_that_overtakes_the_answer_is_not_forgotten() -> None:
    core = ElectionCore()
    core.handle(connected(), 0.0)
    assert commands(core, Vacant(), 0.1) == []
    assert commands(core, Occupied(leader=OTHER), 0.1) == [Contend()]


def test_a_leader_renews_its_lease(leader: ElectionCore) -> None:
    assert leader.acts(LEASE - 0.01)
    assert not leader.acts(LEASE)
    assert leader.next_deadline() == CONFIRM
    assert commands(leader, Tick(), CONFIRM) == [Confirm()]
    assert leader.next_deadline() == LEASE
    assert commands(leader, Confirmed(asked_at=CONFIRM), 1.2) == []
    assert leader.next_deadline() == 2 * CONFIRM
    assert leader.acts(CONFIRM + LEASE - 0.01)


def test_the_lease_counts_from_the_request_and_not_from_its_answer() -> None:
    core = ElectionCore()
    core.handle(connected(), 0.0)
    late = granted(asked_at=0.0)
    assert commands(core, late, LEASE + 1) == [Lead(epoch=Epoch(4)), Pause(), Confirm()]
    assert not core.acts(LEASE + 1)


def test_a_connection_that_flaps_changes_nothing(leader: ElectionCore) -> None:
    assert commands(leader, Suspended(), 1.0) == []
    assert commands(leader, Tick(), 3.0) == []
    assert commands(leader, connected(), 3.5) == [Confirm()]
    assert commands(leader, Confirmed(asked_at=3.5), 3.6) == []
    assert leader.acts(8.0) and leader.epoch == 4


def test_a_leader_that_is_cut_off_stops_to_act_by_its_own_clock(leader: ElectionCore) -> None:
    leader.handle(Suspended(), 1.0)
    assert leader.next_deadline() == LEASE
    assert commands(leader, Tick(), LEASE) == [Pause()]
    assert not leader.acts(LEASE)
    assert leader.next_deadline() is None


def test_an_ensemble_that_was_away_for_everybody_has_the_same_leader(leader: ElectionCore) -> None:
    leader.handle(Suspended(), 1.0)
    leader.handle(Tick(), LEASE)
    assert commands(leader, connected(), 60.0) == [Confirm()]
    assert commands(leader, Confirmed(asked_at=60.0), 60.1) == [Resume()]
    assert leader.acts(60.1) and leader.epoch == 4


def test_a_leader_that_was_stopped_does_not_act_before_it_has_asked(leader: ElectionCore) -> None:
    assert not leader.acts(100.0)
    assert commands(leader, Tick(), 100.0) == [Pause(), Confirm()]
    assert [type(c) for c in commands(leader, Displaced(by="other"), 100.1)] == [End]


@pytest.mark.parametrize("event", [SessionLost(), connected(2), Displaced(by="other:1")])
def test_a_leader_whose_session_is_over_never_leads_again(leader: ElectionCore, event: Any) -> None:
    assert [type(c) for c in commands(leader, event, 2.0)] == [End]
    assert leader.state is ElectionState.ENDED and not leader.acts(2.0)
    assert commands(leader, connected(3), 3.0) == []
    assert commands(leader, granted(session_id=3, asked_at=3.0), 3.0) == []
    assert leader.next_deadline() is None


def test_a_leader_that_resigns_acts_no_more(leader: ElectionCore) -> None:
    """The lease lasts for seconds, during which the next contender leads."""
    leader.handle(Resigned(), 1.0)
    assert not leader.acts(1.0)
    assert leader.state is ElectionState.ENDED


def test_a_standby_continues_with_another_session() -> None:
    core = ElectionCore()
    core.handle(connected(), 0.0)
    core.handle(SessionLost(), 1.0)
    assert commands(core, granted(), 1.1) == []  # of the session that is over
    assert commands(core, connected(2), 2.0) == [Contend()]
    assert commands(core, granted(5, session_id=2, asked_at=2.0), 2.1) == [Lead(epoch=Epoch(5))]


def test_a_request_that_fails_is_sent_again(leader: ElectionCore) -> None:
    leader.handle(Tick(), CONFIRM)
    assert commands(leader, RequestFailed(reason="ConnectionLoss"), 1.1) == []
    assert leader.next_deadline() == 1.6
    assert commands(leader, Tick(), 1.6) == [Confirm()]


def test_nothing_is_asked_while_there_is_no_connection(leader: ElectionCore) -> None:
    leader.handle(Tick(), CONFIRM)
    leader.handle(Suspended(), 1.2)
    assert commands(leader, RequestFailed(reason="ConnectionLoss"), 1.2) == []
    assert commands(leader, Tick(), 2.0) == []
    assert commands(leader, connected(), 2.5) == [Confirm()]

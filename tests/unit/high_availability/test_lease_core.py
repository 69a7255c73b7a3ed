"""The decisions of a contender for a Lease, event by event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader
from firesteel.common.service.core import Tick
from firesteel.high_availability.election import (
    ElectionState,
    End,
    Lead,
    Pause,
    Renewed,
    Resigned,
    Resume,
)
from firesteel.high_availability.kubernetes.core import (
    Bar,
    Durations,
    Failed,
    Found,
    LeaseCore,
    Observed,
    Read,
    Refused,
    Release,
    Stored,
    Write,
)
from firesteel.high_availability.kubernetes.lease import Lease

LEASE, DEADLINE, RETRY = 15.0, 10.0, 2.0
OTHER = Leader("other:1", Epoch(3))
HELD = Lease(version="7", holder="other", transitions=3, duration_s=LEASE, leader=OTHER)
RELEASED = Lease(version="8", transitions=3, duration_s=LEASE)


class Contender:
    """A core, and the Lease as the API server has it."""

    def __init__(self, **more: Any) -> None:
        self.core = LeaseCore(holder="me", address="me:1", durations=Durations(), now=0.0, **more)
        self.versions = 100

    def handle(self, event: Any, now: float) -> list[Any]:
        commands = list(self.core.handle(event, now).commands)
        self.core.validate()
        return [command for command in commands if not isinstance(command, Renewed)]

    def found(self, lease: Lease | None, now: float) -> list[Any]:
        return self.handle(Found(number=self.core._number, lease=lease), now)

    def stored(self, write: Write, now: float) -> list[Any]:
        self.versions += 1
        lease = replace(write.lease, version=str(self.versions))
        return self.handle(Stored(number=write.number, lease=lease), now)

    def failed(self, now: float) -> list[Any]:
        return self.handle(Failed(number=self.core._number), now)


@pytest.fixture
def leader() -> Contender:
    """Leads since 0.2 with a Lease that it took at 0.1."""
    contender = Contender()
    contender.handle(Tick(), 0.0)
    (take,) = contender.found(RELEASED, 0.1)
    assert contender.stored(take, 0.2) == [Lead(epoch=Epoch(4))]
    return contender


def test_a_released_lease_is_taken_immediately() -> None:
    contender = Contender(above=Epoch(1))
    assert [type(c) for c in contender.handle(Tick(), 0.0)] == [Read]
    (take,) = contender.found(RELEASED, 0.1)
    assert isinstance(take, Write) and take.taken and take.lease.version == "8"
    assert take.lease.leader == Leader("me:1", Epoch(4))
    assert take.lease.transitions == 4 and take.lease.holder == "me"
    assert contender.stored(take, 0.2) == [Lead(epoch=Epoch(4))]
    assert contender.core.acts(0.1 + DEADLINE - 0.01)
    assert not contender.core.acts(0.1 + DEADLINE)


def test_a_lease_is_taken_once_it_was_unchanged_for_its_duration() -> None:
    contender = Contender()
    contender.handle(Tick(), 0.0)
    assert contender.found(HELD, 1.0) == []
    assert contender.core.other == OTHER
    assert contender.core.next_deadline() == 1.0 + LEASE
    assert contender.handle(Observed(lease=replace(HELD, version="9", renewal=1)), 12.0) == []
    assert contender.handle(Tick(), 1.0 + LEASE) == []
    (take,) = contender.handle(Tick(), 12.0 + LEASE)
    assert isinstance(take, Write) and take.lease.leader == Leader("me:1", Epoch(4))


def test_a_lease_with_a_longer_duration_is_waited_for() -> None:
    contender = Contender()
    contender.handle(Tick(), 0.0)
    contender.found(replace(HELD, duration_s=40.0), 0.0)
    assert contender.core.next_deadline() == 40.0


def test_a_lease_that_changed_unseen_is_not_taken() -> None:
    contender = Contender()
    contender.handle(Tick(), 0.0)
    contender.found(HELD, 0.0)
    (take,) = contender.handle(Tick(), LEASE)
    (read,) = contender.handle(Refused(number=take.number), LEASE + 0.1)
    assert isinstance(read, Read)
    assert contender.found(replace(HELD, version="9"), LEASE + 0.2) == []
    assert contender.core.next_deadline() == 2 * LEASE + 0.2


def test_a_release_that_overtakes_the_answer_is_not_forgotten() -> None:
    contender = Contender()
    contender.handle(Tick(), 0.0)
    assert contender.handle(Observed(lease=RELEASED), 0.1) == []
    assert [type(c) for c in contender.found(HELD, 0.2)] == [Read]


def test_a_holder_that_is_cleared_by_hand_may_still_act() -> None:
    contender = Contender()
    contender.handle(Tick(), 0.0)
    assert contender.found(replace(HELD, holder=""), 0.0) == []
    assert contender.core.next_deadline() == LEASE


def test_the_epoch_is_higher_than_that_of_the_store_and_of_the_lease() -> None:
    for above, transitions, epoch in ((41, 3, 42), (2, 7, 8)):
        contender = Contender(store_id="store", above=Epoch(above))
        contender.handle(Tick(), 0.0)
        (take,) = contender.found(replace(RELEASED, transitions=transitions), 0.1)
        assert take.lease.leader.epoch == epoch


def test_without_a_store_the_epoch_is_higher_than_before_the_lease_was_created() -> None:
    contender = Contender()
    contender.handle(Tick(), 0.0)
    (take,) = contender.found(replace(RELEASED, created_s=5000), 0.1)
    assert take.lease.leader.epoch == 5001


def test_a_lowered_count_does_not_lower_the_epoch() -> None:
    unseen = Contender()
    unseen.handle(Tick(), 0.0)
    (take,) = unseen.found(replace(RELEASED, transitions=0, epoch=8), 0.1)
    assert take.lease.leader.epoch == 9
    contender = Contender()
    contender.handle(Tick(), 0.0)
    contender.found(HELD, 0.1)
    (take,) = contender.handle(Observed(lease=replace(RELEASED, transitions=0)), 0.2)
    assert take.lease.leader.epoch == 4


def test_a_missing_lease_may_be_that_of_a_leader() -> None:
    contender = Contender()
    contender.handle(Tick(), 0.0)
    assert contender.found(None, 0.1) == []
    for looked_at in (2.1, 7.0, 12.0, 15.0):
        assert [type(c) for c in contender.handle(Tick(), looked_at)] == [Read]
        assert contender.found(None, looked_at) == []
    contender.handle(Tick(), 0.1 + LEASE)
    (create,) = contender.found(None, 0.2 + LEASE)
    assert isinstance(create, Write)
    assert create.lease.version == "" and create.lease.leader is None
    (take,) = contender.stored(create, 16.0)
    assert contender.stored(take, 16.1) == [Lead(epoch=Epoch(1))]


def test_a_lease_may_have_existed_between_two_looks() -> None:
    contender = Contender()
    contender.handle(Tick(), 0.0)
    contender.found(None, 0.1)
    contender.handle(Tick(), 2.1)
    contender.failed(5.0)
    contender.handle(Tick(), LEASE + 1)
    assert contender.found(None, LEASE + 1) == []


def test_a_recreated_lease_raises_the_epoch_beyond_those_that_were_not_seen() -> None:
    contender = Contender(store_id="store", above=Epoch(5))
    contender.handle(Tick(), 0.0)
    unfinished = Lease(version="9", holder="other", transitions=5, epoch=5, created_s=9000)
    contender.found(unfinished, 0.1)
    (take,) = contender.handle(Tick(), 0.1 + LEASE)
    assert take.lease.leader.epoch == 9001


def test_a_store_that_never_had_a_leader_proves_that_there_is_none() -> None:
    contender = Contender(store_id="store")
    contender.handle(Tick(), 0.0)
    (create,) = contender.found(None, 0.1)
    assert create.lease.holder == "me" and create.lease.job_store == "store"
    later = Contender(store_id="store", above=Epoch(1))
    later.handle(Tick(), 0.0)
    assert later.found(None, 0.1) == []


def test_a_lease_of_another_store_is_left_alone() -> None:
    contender = Contender(store_id="store")
    contender.handle(Tick(), 0.0)
    foreign = replace(RELEASED, job_store="another")
    assert contender.found(foreign, 0.1) == [Bar(lease=foreign)]
    assert contender.core.next_deadline() is None


def test_a_leader_renews_its_lease(leader: Contender) -> None:
    assert leader.core.next_deadline() == 0.1 + RETRY
    (renew,) = leader.handle(Tick(), 2.1)
    assert isinstance(renew, Write) and not renew.taken
    assert renew.lease.version == "101"
    assert leader.stored(renew, 2.3) == []
    assert leader.core.acts(2.1 + DEADLINE - 0.01) and not leader.core.acts(2.1 + DEADLINE)
    assert leader.core.next_deadline() == 2.1 + RETRY


def test_a_leader_pauses_in_time_and_resumes_with_its_epoch(leader: Contender) -> None:
    leader.handle(Tick(), 2.1)
    assert leader.failed(5.0) == []
    assert [type(c) for c in leader.handle(Tick(), 6.0)] == [Read]
    assert leader.failed(9.0) == []
    assert [type(c) for c in leader.handle(Tick(), 0.1 + DEADLINE)] == [Pause, Read]
    assert not leader.core.acts(0.1 + DEADLINE)
    assert leader.failed(100.0) == []
    leader.handle(Tick(), 102.0)
    kept = Lease(version="101", holder="me", leader=Leader("me:1", Epoch(4)), renewal=1)
    (renew,) = leader.found(kept, 103.0)
    assert leader.stored(renew, 103.1) == [Resume()]
    assert leader.core.acts(103.1) and leader.core.epoch == 4


def test_a_write_whose_answer_was_lost_is_its_own(leader: Contender) -> None:
    (renew,) = leader.handle(Tick(), 2.1)
    leader.failed(5.0)
    leader.handle(Tick(), 6.0)
    (again,) = leader.found(replace(renew.lease, version="102"), 6.1)
    assert isinstance(again, Write) and again.lease.version == "102"


def test_a_leader_that_was_stopped_finds_its_successor(leader: Contender) -> None:
    assert not leader.core.acts(100.0)
    commands = leader.handle(Tick(), 100.0)
    assert [type(c) for c in commands] == [Pause, Write]
    assert [type(c) for c in leader.handle(Refused(number=commands[1].number), 100.1)] == [Read]
    (end,) = leader.found(HELD, 100.2)
    assert end == End(reason="its Lease belongs to other:1 (epoch 3), or has been edited")
    assert leader.core.state is ElectionState.ENDED
    assert leader.handle(Resigned(), 101.0) == []


def test_a_late_watch_ends_no_leadership(leader: Contender) -> None:
    (read,) = leader.handle(Observed(lease=HELD), 0.3)
    assert isinstance(read, Read)
    own = Lease(version="101", holder="me", leader=Leader("me:1", Epoch(4)), renewal=1)
    (renew,) = leader.found(own, 0.4)
    assert leader.stored(renew, 0.5) == []
    assert leader.core.acts(0.5)


def test_a_leader_recreates_a_deleted_lease_before_its_deadline(leader: Contender) -> None:
    leader.handle(Observed(lease=None), 3.0)
    (recreate,) = leader.found(None, 3.1)
    assert isinstance(recreate, Write) and recreate.lease.version == ""
    assert recreate.lease.leader == Leader("me:1", Epoch(4))
    assert leader.stored(recreate, 3.2) == []
    assert leader.core.acts(3.1 + DEADLINE - 0.01)


def test_a_lease_that_is_recreated_too_late_proves_nothing(leader: Contender) -> None:
    leader.handle(Observed(lease=None), 3.0)
    (recreate,) = leader.found(None, 3.1)
    assert [type(c) for c in leader.stored(recreate, 20.0)] == [End]
    assert leader.handle(Resigned(), 20.1) == []


def test_a_lease_that_may_have_been_recreated_too_late_is_not_trusted(leader: Contender) -> None:
    leader.handle(Observed(lease=None), 3.0)
    (recreate,) = leader.found(None, 3.1)
    leader.failed(6.0)
    leader.handle(Tick(), 20.0)
    (end,) = leader.found(replace(recreate.lease, version="300"), 20.1)
    assert end == End(reason="its Lease was deleted, and recreated too late")


def test_a_paused_leader_does_not_recreate_its_lease(leader: Contender) -> None:
    leader.handle(Tick(), 50.0)
    leader.failed(50.1)
    leader.handle(Tick(), 52.0)
    assert leader.found(None, 52.1) == [End(reason="its Lease was deleted")]


def test_a_lease_that_was_restored_from_a_copy_is_not_trusted(leader: Contender) -> None:
    (renew,) = leader.handle(Tick(), 2.1)
    leader.stored(renew, 2.2)
    leader.handle(Observed(lease=HELD), 3.0)
    old = Lease(version="200", holder="me", leader=Leader("me:1", Epoch(4)), renewal=1)
    assert [type(c) for c in leader.found(old, 3.1)] == [End]


def test_a_leader_that_resigns_releases_its_lease(leader: Contender) -> None:
    (release, end) = leader.handle(Resigned(), 1.0)
    assert isinstance(release, Release) and release.lease.released
    assert release.lease.transitions == 4 and isinstance(end, End)
    assert not leader.core.acts(1.0)


def test_a_standby_that_resigns_asks_for_nothing() -> None:
    contender = Contender()
    contender.handle(Tick(), 0.0)
    contender.found(HELD, 0.0)
    assert contender.handle(Resigned(), LEASE + 1) == []


def test_requests_that_are_always_refused_are_paced() -> None:
    contender = Contender()
    contender.handle(Tick(), 0.0)
    (take,) = contender.found(RELEASED, 0.0)
    contender.handle(Refused(number=take.number), 0.1)
    (take,) = contender.found(RELEASED, 0.2)
    assert contender.handle(Refused(number=take.number), 0.3) == []
    assert contender.core.next_deadline() == pytest.approx(0.3 + RETRY / 2)

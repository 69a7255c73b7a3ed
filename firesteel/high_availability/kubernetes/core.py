"""Decides for a contender for a Lease: when to take it, when to renew it, and until when to act.

Pure: see firesteel.common.service.core. The shell sends the requests, and follows the Lease.

    STANDBY ──taken──▶ LEADING ◀──renewed── PAUSED
                        │   │                 │
                        │   └──deadline──────▶│
                        ▼                     ▼
                      ENDED ◀─────────────────┘
             the Lease is another contender's, or unknown

A contender takes the Lease after it has seen it unchanged for the lease duration, by its own
monotonic clock. Nothing depends on the clocks of other machines. Every write names the
resourceVersion that it replaces, so it fails if the Lease has changed unseen.

A leader acts until `renew_deadline_s` after it *sent* its last successful write, which is less than
the lease duration: no other contender has seen the Lease change earlier than that. After the
deadline it pauses, and keeps trying. If its write succeeds, no other contender has held the Lease
in between, and it resumes under the same epoch.

A Lease that is missing may have been deleted while its holder still acts. The holder recreates it
before its deadline; a contender waits for the lease duration, unless its job store shows that there
was never a leader. A new Lease names its holder first. Then the holder takes the office: its epoch
depends on when the API server created the Lease.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from firesteel.common.ids import Epoch
from firesteel.common.leader import NO_EPOCH, Leader
from firesteel.common.service.core import Effects, Tick
from firesteel.high_availability.election import (
    TRANSITIONS,
    ElectionState,
    End,
    Lead,
    Pause,
    Renewed,
    Resigned,
    Resume,
)
from firesteel.high_availability.kubernetes.lease import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    lease_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0


# ---- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The watch has delivered the Lease, or its deletion. It may be late."""

    lease: Lease | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    number: int
    lease: Lease | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The API server has executed a write."""

    number: int
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The API server has not executed a write: the Lease has changed, or exists, or is missing."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A request failed, and a write may have been executed."""

    number: int
    retry_after_s: float = 0.0


Event = Observed | Found | Stored | Refused | Failed | Resigned

# ---- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Answered by Found or Failed."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Creates the Lease, or replaces the version that `lease` names. Answered by Stored, Refused or
    Failed.
    """

    number: int
    lease: Lease
    taken: bool  # the holder has changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Writes this Lease, which has no holder. Sent while nothing acts; not answered."""

    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The Lease belongs to a cluster with another job store; this contender gives up."""

    lease: Lease


Command = Read | Write | Release | Bar | Lead | Renewed | Pause | Resume | End


class Purpose(Enum):
    READ = "read"
    CREATE = "name this contender as the holder of a new Lease"
    TAKE = "take the office"
    RENEW = "renew"
    RECREATE = "replace the deleted Lease of the leader"


class LeaseCore:
    """Starts with the first Tick. `holder` identifies this contender and no other, ever. `store_id`
    is the id of its job store, if it has one, and `above` the last epoch there.
    """

    def __init__(
        self,
        *,
        holder: str,
        address: str,
        durations: Durations,
        now: float,
        store_id: str = "",
        above: Epoch = NO_EPOCH,
    ) -> None:
        self.state = ElectionState.STANDBY
        self.epoch = NO_EPOCH  # once it leads
        self.other: Leader | None = None  # who leads instead, as far as this contender knows
        self._holder = holder
        self._address = address
        self._durations = durations
        self._store_id = store_id
        self._highest = above  # of all epochs that this contender knows
        self._duration_s = durations.lease_s  # to wait, from the last change of the Lease
        self._lease: Lease | None = None
        self._changed_at = now  # when `_lease` was first seen
        self._seen_at = float("-inf")  # when it was last seen
        self._started_at = now
        self._first = False  # it created the Lease of a new cluster
        self._unknown = True  # read before the next write
        self._overtaken = False  # the watch has delivered a change since the request
        self._refused = False  # since the last change
        self._purpose: Purpose | None = None  # of the request that is not answered
        self._number = 0
        self._asked_at = now
        self._ask_at = now  # not earlier
        self._renewal = 0  # of the last write
        self._confirmed = 0  # of the last successful write
        self._recreated = False  # without proof that it was in time
        self._barred = False  # never contends again
        self._lease_until = float("-inf")
        self._commands: list[Command] = []

    # ---- the driver's interface

    def handle(self, event: Event | Tick, now: float) -> Effects[None, Command]:
        if self.state is not ElectionState.ENDED:
            self._handle(event, now)
            self._look_at_deadline(now)
            self._ask(now)
        effects: Effects[None, Command] = Effects(commands=tuple(self._commands))
        self._commands.clear()
        return effects

    def next_deadline(self) -> float | None:
        if self.state is ElectionState.ENDED or self._barred:
            return None
        deadlines = []
        if self._purpose is None:
            deadlines.append(max(self._ask_at, self._possible_at()))
        if self.state is ElectionState.LEADING:
            deadlines.append(self._lease_until)
        return min(deadlines, default=None)

    def validate(self) -> None:
        assert self.state is ElectionState.STANDBY or self.epoch > 0
        assert self._confirmed <= self._renewal
        assert self.epoch <= self._highest

    # ---- what the shell may read

    def acts(self, now: float) -> bool:
        return self.state is ElectionState.LEADING and now < self._lease_until

    def owns(self, lease: Lease) -> bool:
        """Whether this contender wrote the Lease, and not before its last successful write."""
        return lease.holder == self._holder and lease.renewal >= self._confirmed

    # ---- inside: events

    def _handle(self, event: Event | Tick, now: float) -> None:
        match event:
            case Observed():
                self._observed(event.lease, now)
            case Resigned():
                self._resigned()
            case Tick():
                pass
            case Found() | Stored() | Refused() | Failed():
                if event.number == self._number and self._purpose is not None:
                    purpose, self._purpose = self._purpose, None
                    self._answered(event, purpose, now)
            case _:
                assert_never(event)

    def _answered(
        self, event: Found | Stored | Refused | Failed, purpose: Purpose, now: float
    ) -> None:
        period_s = self._durations.retry_period_s
        match event:
            case Found():
                self._unknown = False
                self._see(event.lease, now)
                if self.state is not ElectionState.STANDBY:
                    self._check_ownership(event.lease, now)
            case Stored():
                self._unknown = False
                self._see(event.lease, now)
                self._stored(purpose, event.lease, now)
            case Refused():
                self._unknown = True
                self._ask_at = now + (period_s / 2 if self._refused else 0.0)
                self._refused = True
            case Failed():
                self._unknown = True
                self._ask_at = now + max(period_s / 2, min(event.retry_after_s, period_s))
            case _:
                assert_never(event)
        if self._overtaken and isinstance(event, Found | Stored):
            self._unknown, self._ask_at = True, now
        self._overtaken = False

    def _observed(self, lease: Lease | None, now: float) -> None:
        """The watch is late, so for the holder it is only a reason to read."""
        if self.state is not ElectionState.STANDBY and lease and lease.holder == self._holder:
            return
        if self._purpose is not None:
            self._overtaken = True  # either may be the newer one
        elif self.state is ElectionState.STANDBY and lease is not None:
            self._see(lease, now)
        else:
            self._unknown, self._ask_at = True, now

    def _resigned(self) -> None:
        lease = self._lease
        if lease is not None and self.owns(lease) and not self._recreated:
            left = replace(lease, holder="", leader=None)
            left = replace(left, transitions=self._highest, epoch=self._highest)
            self._commands.append(Release(lease=left))
        self._barred = True
        self._end("it has been stopped")

    # ---- inside: the Lease

    def _see(self, lease: Lease | None, now: float) -> None:
        """Notes the Lease, and when it was first seen like this."""
        before = self._lease
        # No resourceVersion proves that a Lease was missing all the time.
        unseen = lease is None and now - self._seen_at > self._durations.lease_s / 2
        if unseen or (before.version if before else "") != (lease.version if lease else ""):
            self._changed_at, self._refused = now, False
        self._lease, self._seen_at, self.other = lease, now, None
        if lease is None:
            return
        self._duration_s = max(self._durations.lease_s, lease.duration_s)
        self._highest = Epoch(max(self._highest, lease.transitions, lease.epoch))
        if lease.leader is not None:
            self._highest = Epoch(max(self._highest, lease.leader.epoch))
            if lease.holder != self._holder and lease.leader.address:
                self.other = lease.leader
        if self._store_id and lease.job_store not in ("", self._store_id) and not self._barred:
            self._barred = True
            self._commands.append(Bar(lease=lease))

    def _check_ownership(self, lease: Lease | None, now: float) -> None:
        in_time = now < self._lease_until
        if lease is None:
            if not in_time:
                self._end("its Lease was deleted")
        elif not self.owns(lease):
            by = lease.leader
            whose = f"{by.address} (epoch {by.epoch})" if by and by.address else "another contender"
            self._end(f"its Lease belongs to {whose}, or has been edited")
        elif self._recreated and not in_time:
            self._end("its Lease was deleted, and recreated too late")
        self._ask_at = now

    def _stored(self, purpose: Purpose, lease: Lease, now: float) -> None:
        match purpose:
            case Purpose.CREATE:
                self._ask_at = now
                return
            case Purpose.TAKE:
                assert lease.leader is not None
                self.epoch = lease.leader.epoch
                self._go(ElectionState.LEADING)
                self._commands.append(Lead(epoch=self.epoch))
            case Purpose.RECREATE if now >= self._lease_until:
                self._end("its Lease was deleted, and recreated too late")
                return
            case _:
                pass
        self._recreated = False
        self._confirmed = lease.renewal
        self._lease_until = self._asked_at + self._durations.renew_deadline_s
        self._ask_at = self._asked_at + self._durations.retry_period_s
        self._commands.append(Renewed())

    # ---- inside: requests

    def _possible_at(self) -> float:
        """Returns when the next request makes sense."""
        now_or_never = float("-inf")
        if self.state is not ElectionState.STANDBY or self._unknown:
            return now_or_never
        lease = self._lease
        if lease is None:
            if self._is_new():
                return now_or_never
            look_at = self._seen_at + self._durations.retry_period_s
            return min(look_at, self._changed_at + self._duration_s)
        if lease.released or lease.holder == self._holder:
            return now_or_never
        return self._changed_at + self._duration_s

    def _is_new(self) -> bool:
        """Whether the job store, as it was at the start, shows that there was no leader yet."""
        fresh = self._changed_at <= self._started_at + self._durations.lease_s
        return bool(self._store_id) and self._highest == NO_EPOCH and fresh

    def _ask(self, now: float) -> None:
        """Sends the request that is due, one at a time."""
        if self.state is ElectionState.ENDED or self._barred or self._purpose is not None:
            return
        if now < max(self._ask_at, self._possible_at()):
            return
        lease = self._lease
        if self._unknown:
            self._request(Purpose.READ, now)
        elif self.state is not ElectionState.STANDBY:
            self._renew(lease, now)
        elif lease is None:
            self._create(now)
        else:
            first = self._first and lease.holder == self._holder
            recreated = lease.unfinished and not first
            floor = lease.created_s if recreated or not self._store_id else 0
            leader = Leader(self._address, Epoch(max(self._highest, floor) + 1))
            self._write(Purpose.TAKE, self._own(lease, leader), now)

    def _create(self, now: float) -> None:
        """Creates the Lease after it was missing for long enough, and still is."""
        waited = now >= self._changed_at + self._duration_s and now <= self._seen_at
        self._first = self._is_new()
        if waited or self._first:
            self._write(Purpose.CREATE, self._own(Lease(), None), now)
        else:
            self._request(Purpose.READ, now)

    def _renew(self, lease: Lease | None, now: float) -> None:
        leader = Leader(self._address, self.epoch)
        if lease is not None:
            self._write(Purpose.RENEW, self._own(lease, leader), now)
        elif now < self._lease_until:
            self._recreated = True
            self._write(Purpose.RECREATE, self._own(Lease(), leader), now)
        else:
            self._end("its Lease was deleted")

    def _own(self, lease: Lease, leader: Leader | None) -> Lease:
        self._renewal += 1
        return replace(
            lease,
            holder=self._holder,
            leader=leader,
            transitions=self._highest if leader is None else leader.epoch,
            epoch=self._highest if leader is None else leader.epoch,
            duration_s=self._durations.lease_s,
            renewal=self._renewal,
            job_store=self._store_id or lease.job_store,
        )

    def _write(self, purpose: Purpose, lease: Lease, now: float) -> None:
        taken = purpose in (Purpose.CREATE, Purpose.TAKE)
        self._request(purpose, now)
        self._commands.append(Write(number=self._number, lease=lease, taken=taken))

    def _request(self, purpose: Purpose, now: float) -> None:
        self._purpose, self._asked_at = purpose, now
        self._number += 1
        if purpose is Purpose.READ:
            self._commands.append(Read(number=self._number))

    # ---- inside: states

    def _look_at_deadline(self, now: float) -> None:
        if self.state is ElectionState.LEADING and now >= self._lease_until:
            self._go(ElectionState.PAUSED)
            self._commands.append(Pause())
        elif self.state is ElectionState.PAUSED and now < self._lease_until:
            self._go(ElectionState.LEADING)
            self._commands.append(Resume())

    def _end(self, reason: str) -> None:
        if self.state is ElectionState.STANDBY:
            return
        self._go(ElectionState.ENDED)
        self._commands.append(End(reason=reason))

    def _go(self, to: ElectionState) -> None:
        assert to in TRANSITIONS[self.state], f"{self.state.name} -> {to.name}"
        self.state = to

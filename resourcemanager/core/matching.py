"""Decides which free slot each job gets: one pure function, run from current facts after every
change.

Rules (spec 003, "SlotManager"; spec 004, "Task Slots and Resources"):

* Jobs are served in the order of registration, so that two large jobs do not block each other with
  half of their slots each.
* Within a job, requirements of known size come first, largest first; UNKNOWN ones take the rest.
* A requirement of UNKNOWN size gets the default slot of the TaskExecutor that serves it: its size
  is decided here.
* A slot needs a free index and room for its size in what remains of the TaskExecutor's total.
* A warm slot comes before one whose process is still starting: a job whose process has died
  should not wait seconds for the next one. A slot is warm for jobs that need the environment of its
  process.
* Spread: the least used TaskExecutor that fits comes first. Packed: the most used one. Ties go to
  the one that registered first.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from firesteel.common.ids import JobId, TaskExecutorId
from firesteel.common.resources import ResourceProfile
from resourcemanager.core.events import Requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The free slots of one TaskExecutor."""

    task_executor_id: TaskExecutorId
    free_slots: tuple[int, ...]  # in the order of use
    # The free slots whose process is ready, with the `environment_key` of the process.
    warm: Mapping[int, str] = field(default_factory=dict)
    slots_total: int
    remaining: ResourceProfile  # its total minus the profiles of its taken slots
    default_slot: ResourceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The slots that one job lacks, beyond those that it holds or has requested."""

    job_id: JobId
    requirements: tuple[Requirement, ...]
    environment: str = ""  # the `environment_key` of its processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    job_id: JobId
    task_executor_id: TaskExecutorId
    slot_index: int
    profile: ResourceProfile  # decided; never UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    assignments: tuple[Assignment, ...] = ()
    unmet: tuple[Need, ...] = ()  # requirements that no offer fits, in the order of the needs

    @property
    def missing(self) -> int:
        return sum(r.count for need in self.unmet for r in need.requirements)


def match_slots(offers: Sequence[Offer], needs: Sequence[Need], *, spread: bool) -> Plan:
    """Assigns slots of `offers` to `needs`. No remaining slot fits the requirements left unmet.

    Work is O((needs + executors) log executors) per distinct profile of a job, and linear in the
    slots of an executor.
    """
    rooms = [_Room(offer=offer, order=order) for order, offer in enumerate(offers)]
    assignments: list[Assignment] = []
    unmet: list[Need] = []
    for need in needs:
        lacking: list[Requirement] = []
        for requirement in sorted(need.requirements, key=_largest_first):
            given = _place(requirement, need, rooms, assignments, spread)
            if given < requirement.count:
                lacking.append(
                    Requirement(profile=requirement.profile, count=requirement.count - given)
                )
        if lacking:
            unmet.append(replace(need, requirements=tuple(lacking)))
    return Plan(assignments=tuple(assignments), unmet=tuple(unmet))


@dataclass(slots=True, kw_only=True)
class _Room:
    """An offer and its remaining resources."""

    offer: Offer
    order: int
    remaining: ResourceProfile = field(init=False)
    free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.remaining = self.offer.remaining
        self.free = list(self.offer.free_slots)

    def fits(self, profile: ResourceProfile) -> bool:
        return bool(self.free) and profile.fits_in(self.remaining)

    def rank(self, spread: bool, environment: str) -> tuple[bool, float]:
        utilisation = 1.0 - len(self.free) / self.offer.slots_total
        warm = any(self.offer.warm.get(slot) == environment for slot in self.free)
        return not warm, utilisation if spread else -utilisation

    def take(self, profile: ResourceProfile, environment: str) -> int:
        """Takes a slot that is warm for the environment, or else the first one."""
        self.remaining = self.remaining - profile
        slot = min(self.free, key=lambda slot: self.offer.warm.get(slot) != environment)
        self.free.remove(slot)
        return slot


def _place(
    requirement: Requirement,
    need: Need,
    rooms: list[_Room],
    assignments: list[Assignment],
    spread: bool,
) -> int:
    """Returns the number of slots that this requirement got."""

    def decided(room: _Room) -> ResourceProfile:
        return room.offer.default_slot if requirement.profile.unknown else requirement.profile

    def ranking(room: _Room) -> tuple[tuple[bool, float], int, _Room]:
        return room.rank(spread, need.environment), room.order, room

    ranked = [ranking(room) for room in rooms if room.fits(decided(room))]
    heapq.heapify(ranked)
    given = 0
    while ranked and given < requirement.count:
        _, _, room = heapq.heappop(ranked)
        profile = decided(room)
        assignments.append(
            Assignment(
                job_id=need.job_id,
                task_executor_id=room.offer.task_executor_id,
                slot_index=room.take(profile, need.environment),
                profile=profile,
            )
        )
        given += 1
        if room.fits(profile):
            heapq.heappush(ranked, ranking(room))
    return given


def _largest_first(requirement: Requirement) -> tuple[bool, int, float]:
    profile = requirement.profile
    return profile.unknown, -profile.total_bytes, -profile.cpu_cores

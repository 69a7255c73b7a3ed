"""SlotPool: the slots that the job holds, and those that it requires (spec 003).

It declares requirements (how many slots of which profile), accepts offered slots, assigns each to a
slot sharing group, and keeps a released slot until it has been idle for a while (delayed release),
so that a restart can reuse it. Surplus offers are rejected.

It always declares the slots that groups want (held or awaited) plus the idle and the reserved
slots. So the ResourceManager neither replaces a slot that is being released nor forgets one that is
awaited.

Slots of a TaskExecutor that is to stop leave the pool when their groups release them. Replacements
are reserved before any slot is released: offered slots that no group waits for are then kept as
idle ones.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firesteel.common.ids import AllocationId, TaskExecutorId
from firesteel.common.resources import ResourceProfile
from jobmaster.core.slots.slot import (
    ExecutionSlotSharingGroup,
    GroupKey,
    Requirement,
    Slot,
    SlotOffer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAnswer:
    accepted: tuple[AllocationId, ...]
    rejected: tuple[AllocationId, ...]
    # Known slots that now have a different process: their tasks are gone.
    replaced: tuple[Slot, ...] = ()


class _Step(NamedTuple):
    """An event in a slot's history."""

    at: float
    allocation_id: AllocationId
    what: str
    detail: GroupKey | TaskExecutorId | str  # the group, the TaskExecutor or the cause


_STORY_STEPS = 2000


class SlotPool:
    def __init__(self, *, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self.slots: dict[AllocationId, Slot] = {}
        self._idle: dict[AllocationId, Slot] = {}  # in insertion order: the longest idle first
        self._by_task_executor: dict[TaskExecutorId, dict[AllocationId, Slot]] = {}
        self._pending: dict[ResourceProfile, dict[GroupKey, ExecutionSlotSharingGroup]] = {}
        self._pending_by_previous: dict[
            TaskExecutorId, dict[GroupKey, ExecutionSlotSharingGroup]
        ] = {}
        self._required: Counter[ResourceProfile] = Counter()
        self._vacated: set[TaskExecutorId] = set()
        self._reserved: Counter[ResourceProfile] = Counter()  # numbers of offers to keep for later
        self._left: list[Slot] = []  # slots of vacated TaskExecutors, to be freed
        self.pending_count = 0  # groups that wait for a slot
        self.keeps_idle = False  # idle slots are kept for a restart that needs more of them
        self._changed = False  # requirements changed since `take_requirements`
        self._taken: dict[ResourceProfile, int] = {}  # the last declaration
        self._steps: deque[_Step] = deque(maxlen=_STORY_STEPS)  # events of all slots

    # ---- what the job wants

    def request(self, groups: Iterable[ExecutionSlotSharingGroup], now: float) -> None:
        """Requests a slot for each of these groups. They get idle slots immediately, preferably
        those in which they ran before.
        """
        waiting = [group for group in groups if not group.wanted]
        for group in waiting:
            group.wanted = True
            self._require(group.profile, 1)
        for prefers in (_same_slot, _same_task_executor, _any_slot):
            if self._idle:
                waiting = [group for group in waiting if not self._give_idle(group, prefers, now)]
        for group in waiting:
            self._wait(group)

    def release(self, group: ExecutionSlotSharingGroup, now: float) -> None:
        """Releases the group's slot: a waiting group gets it, or it becomes idle. Withdraws a
        pending request.
        """
        if not group.wanted:
            return
        group.wanted = False
        self._require(group.profile, -1)
        if group.allocation_id is None:
            self._stop_waiting(group)
            return
        slot = self.slots[group.allocation_id]
        self._part(slot, group)
        if slot.task_executor_id in self._vacated:
            self._drop(slot.allocation_id)
            self._left.append(slot)
            self._steps.append(_Step(now, slot.allocation_id, "vacated by", group.key))
            return
        waiting = self._choose_pending(slot.task_executor_id, slot.profile)
        if waiting is not None:
            self._stop_waiting(waiting)
            slot.requirement = waiting.profile
            self._join(slot, waiting)
            self._steps.append(_Step(now, slot.allocation_id, "passed on to", waiting.key))
            return
        slot.idle_since = now
        self._idle[slot.allocation_id] = slot
        self._require(slot.requirement, 1)
        self._steps.append(_Step(now, slot.allocation_id, "released by", group.key))

    # ---- TaskExecutors that are to stop

    def vacate(self, task_executor_id: TaskExecutorId, now: float) -> None:
        """Stops assigning slots of this TaskExecutor; groups that have one keep it."""
        self._vacated.add(task_executor_id)
        for slot in tuple(self._idle_of(task_executor_id)):
            self._drop(slot.allocation_id)
            self._left.append(slot)
            self._steps.append(_Step(now, slot.allocation_id, "vacated", ""))

    def keep(self, task_executor_id: TaskExecutorId) -> None:
        """Assigns its slots again: it does not stop, or has stopped."""
        self._vacated.discard(task_executor_id)

    def reserve(self, slots: Iterable[Slot]) -> None:
        """Reserves as many slots as these, with the same profiles, in addition to them."""
        for slot in slots:
            self._reserved[slot.requirement] += 1
            self._require(slot.requirement, 1)

    @property
    def requirements_held(self) -> Counter[ResourceProfile]:
        """The profiles for which there are slots, in use or idle."""
        return Counter(slot.requirement for slot in self.slots.values())

    def reserve_up_to(self, profiles: Iterable[ResourceProfile]) -> None:
        """Reserves what is missing until there is a slot for each of these, including slots that
        are held, idle or reserved.
        """
        missing = Counter(profiles)
        missing.subtract(self.requirements_held)
        missing.subtract(self._reserved)
        for profile, count in (+missing).items():
            self._reserved[profile] += count
            self._require(profile, count)

    @property
    def vacates(self) -> bool:
        """Whether a TaskExecutor with slots of the job is to stop."""
        return any(each in self._by_task_executor for each in self._vacated)

    def reserve_nothing(self) -> None:
        for profile, count in self._reserved.items():
            self._require(profile, -count)
        self._reserved.clear()

    @property
    def reserved(self) -> int:
        """The number of reserved slots that have not been offered yet."""
        return self._reserved.total()

    def take_left(self) -> list[Slot]:
        """Returns slots that have left the pool with their TaskExecutors since the last call. The
        caller declares the lower requirements, then frees them.
        """
        left, self._left = self._left, []
        return left

    # ---- what the ResourceManager hears

    def requirements(self) -> tuple[Requirement, ...]:
        return tuple(
            Requirement(profile=profile, count=count)
            for profile, count in self._required.items()
            if count
        )

    def take_requirements(self) -> tuple[Requirement, ...] | None:
        """Returns the requirements if they changed since the last call, otherwise None."""
        if not self._changed:
            return None
        self._changed = False
        required = {profile: count for profile, count in self._required.items() if count}
        if required == self._taken:
            return None
        self._taken = required
        return self.requirements()

    # ---- what TaskExecutors report

    def offer(
        self, task_executor_id: TaskExecutorId, host: str, offers: Sequence[SlotOffer], now: float
    ) -> OfferAnswer:
        """Accepts slots that a waiting group can use, and slots that are already held."""
        accepted, rejected, replaced = [], [], []
        for offer in offers:
            known = self.slots.get(offer.allocation_id)
            if (
                known is not None
                and known.executor_id == offer.executor_id
                and known.task_executor_id == task_executor_id
            ):
                accepted.append(offer.allocation_id)
                continue
            if known is not None:
                self.lose(offer.allocation_id, now, "it has a different process")
                replaced.append(known)
            vacated = task_executor_id in self._vacated
            group = None if vacated else self._choose_pending(task_executor_id, offer.profile)
            kept = None if group or vacated else self._reserved_for(offer.profile)
            if kept is not None:
                self._reserved[kept] -= 1  # now required as an idle slot
                slot = self._new(task_executor_id, host, offer, kept)
                slot.idle_since = now
                self._idle[slot.allocation_id] = slot
                self._steps.append(_Step(now, slot.allocation_id, "reserved", ""))
                accepted.append(offer.allocation_id)
                continue
            if group is None:
                self._steps.append(
                    _Step(now, offer.allocation_id, "rejected, offered by", task_executor_id)
                )
                rejected.append(offer.allocation_id)
                continue
            self._stop_waiting(group)
            self._add(task_executor_id, host, offer, group)
            self._steps.append(_Step(now, offer.allocation_id, "accepted for", group.key))
            accepted.append(offer.allocation_id)
        return OfferAnswer(
            accepted=tuple(accepted), rejected=tuple(rejected), replaced=tuple(replaced)
        )

    def adopt(
        self,
        task_executor_id: TaskExecutorId,
        host: str,
        offer: SlotOffer,
        group: ExecutionSlotSharingGroup,
        now: float,
    ) -> Slot | None:
        """Assigns the slot that the group had under an earlier master; None if it has another
        one.
        """
        if group.wanted:
            held = self.slots.get(offer.allocation_id)
            return held if held is not None and held.group is group else None
        if offer.allocation_id in self.slots:
            return None  # two groups in one slot
        group.wanted = True
        self._require(group.profile, 1)
        self._steps.append(_Step(now, offer.allocation_id, "adopted for", group.key))
        return self._add(task_executor_id, host, offer, group)

    def lose(self, allocation_id: AllocationId, now: float, cause: str) -> Slot | None:
        """Removes a lost slot; its group waits for another. Returns the slot, or None if
        unknown.
        """
        slot = self._drop(allocation_id)
        if slot is None:
            return None
        self._steps.append(_Step(now, allocation_id, "lost:", cause))
        group = slot.group
        if group is not None:
            self._part(slot, group)
            self._wait(group)
        return slot

    def lose_task_executor(
        self, task_executor_id: TaskExecutorId, now: float, cause: str
    ) -> list[Slot]:
        """Removes and returns all slots of a lost TaskExecutor."""
        lost = [
            self.lose(allocation_id, now, cause)
            for allocation_id in self.slots_of(task_executor_id)
        ]
        return [slot for slot in lost if slot is not None]

    def slots_of(self, task_executor_id: TaskExecutorId) -> tuple[AllocationId, ...]:
        return tuple(self._by_task_executor.get(task_executor_id, ()))

    # ---- delayed release

    def next_deadline(self) -> float | None:
        if not self._idle or self.keeps_idle:
            return None
        first = next(iter(self._idle.values()))
        assert first.idle_since is not None
        return first.idle_since + self._idle_timeout_s

    def release_idle(self, now: float) -> list[Slot]:
        """Removes and returns slots that have been idle for too long. The caller declares the lower
        requirements, then frees them.
        """
        expired = []
        for slot in self._idle.values() if not self.keeps_idle else ():
            assert slot.idle_since is not None
            if slot.idle_since + self._idle_timeout_s > now:
                break
            expired.append(slot)
        return self._release(expired, now, "idle for too long")

    def release_all_idle(self, now: float) -> list[Slot]:
        """Removes and returns all idle slots, as `release_idle` does."""
        return self._release(list(self._idle.values()), now, "surplus")

    def _release(self, expired: list[Slot], now: float, why: str) -> list[Slot]:
        for slot in expired:
            self._drop(slot.allocation_id)
            self._steps.append(_Step(now, slot.allocation_id, why, ""))
        return expired

    def clear(self, now: float) -> list[Slot]:
        """Ends all requirements and removes all slots at the end of the job."""
        slots = list(self.slots.values())
        for slot in slots:
            self._steps.append(_Step(now, slot.allocation_id, "freed at the job's end", ""))
            if slot.group is not None:
                slot.group.wanted = False
                self._part(slot, slot.group)
        for groups in list(self._pending.values()):
            for group in list(groups.values()):
                group.wanted = False
        self.slots.clear()
        self._idle.clear()
        self._by_task_executor.clear()
        self._pending.clear()
        self._pending_by_previous.clear()
        self.pending_count = 0
        self._changed = True
        self._required.clear()
        self._reserved.clear()
        return [*slots, *self.take_left()]

    # ---- for checks and errors

    def story(self, of: AllocationId) -> list[str]:
        """Returns the known history of this slot."""
        return [
            f"{step.what} {_named(step.detail)}".rstrip() + f" at {step.at:.3f}"
            for step in self._steps
            if step.allocation_id == of
        ]

    def validate(self, groups: Iterable[ExecutionSlotSharingGroup]) -> None:
        """Raises AssertionError unless the invariants hold for all `groups` of the job."""
        groups = list(groups)
        for slot in self.slots.values():
            assert (slot.group is None) != (slot.idle_since is None), (
                f"both or neither: {self._described(slot)}"
            )
            assert (slot.allocation_id in self._idle) == (slot.group is None), (
                f"idle? {self._described(slot)}"
            )
            siblings = self._by_task_executor.get(slot.task_executor_id, {})
            assert siblings.get(slot.allocation_id) is slot, (
                f"not with its TaskExecutor: {self._described(slot)}"
            )
            if slot.group is not None:
                assert slot.group.allocation_id == slot.allocation_id, (
                    f"not its group's: {self._described(slot)}"
                )
        held = [group for group in groups if group.allocation_id is not None]
        for group in held:
            assert group.allocation_id in self.slots, f"{group.key} has a slot that is gone"
            assert self.slots[group.allocation_id].group is group, f"{group.key}: not its slot"
        assert sum(map(len, self._by_task_executor.values())) == len(self.slots)
        wanted = [group for group in groups if group.wanted]
        pending = sum(map(len, self._pending.values()))
        assert pending == self.pending_count == len(wanted) - len(held), (
            f"{pending} groups wait, counted as {self.pending_count}; "
            f"{len(wanted)} want a slot, {len(held)} have one"
        )
        required = Counter(group.profile for group in wanted)
        required.update(slot.requirement for slot in self._idle.values())
        required.update(+self._reserved)
        assert required == +self._required, (
            f"required {self._required}, wanted, idle and reserved {required}"
        )

    def _described(self, slot: Slot) -> str:
        return f"{slot} {self.story(slot.allocation_id)}"

    # ---- inner steps

    def _require(self, profile: ResourceProfile, change: int) -> None:
        self._required[profile] += change
        self._changed = True

    def _give_idle(
        self,
        group: ExecutionSlotSharingGroup,
        prefers: Callable[[SlotPool, ExecutionSlotSharingGroup], Slot | None],
        now: float,
    ) -> bool:
        slot = prefers(self, group)
        if slot is None:
            return False
        del self._idle[slot.allocation_id]
        slot.idle_since = None
        self._require(slot.requirement, -1)
        slot.requirement = group.profile
        self._join(slot, group)
        self._steps.append(_Step(now, slot.allocation_id, "reused by", group.key))
        return True

    def _add(
        self,
        task_executor_id: TaskExecutorId,
        host: str,
        offer: SlotOffer,
        group: ExecutionSlotSharingGroup,
    ) -> Slot:
        slot = self._new(task_executor_id, host, offer, group.profile)
        self._join(slot, group)
        return slot

    def _reserved_for(self, offered: ResourceProfile) -> ResourceProfile | None:
        """Returns a reserved profile that fits, chosen as by `_choose_pending`."""
        fitting = [p for p, count in self._reserved.items() if count and p.fits_in(offered)]
        return max(fitting, key=lambda p: _suits(p, offered), default=None)

    def _new(
        self,
        task_executor_id: TaskExecutorId,
        host: str,
        offer: SlotOffer,
        requirement: ResourceProfile,
    ) -> Slot:
        slot = Slot(
            allocation_id=offer.allocation_id,
            slot_index=offer.slot_index,
            profile=offer.profile,
            executor_id=offer.executor_id,
            data_address=offer.data_address,
            task_executor_id=task_executor_id,
            host=host,
            requirement=requirement,
        )
        self.slots[slot.allocation_id] = slot
        self._by_task_executor.setdefault(task_executor_id, {})[slot.allocation_id] = slot
        return slot

    def _join(self, slot: Slot, group: ExecutionSlotSharingGroup) -> None:
        slot.group = slot.last_group = group
        group.allocation_id = slot.allocation_id

    def _part(self, slot: Slot, group: ExecutionSlotSharingGroup) -> None:
        slot.group = None
        group.allocation_id = None
        group.previous_allocation_id = slot.allocation_id
        group.previous_task_executor_id = slot.task_executor_id

    def _wait(self, group: ExecutionSlotSharingGroup) -> None:
        self._pending.setdefault(group.profile, {})[group.key] = group
        if group.previous_task_executor_id is not None:
            self._pending_by_previous.setdefault(group.previous_task_executor_id, {})[group.key] = (
                group
            )
        self.pending_count += 1

    def _stop_waiting(self, group: ExecutionSlotSharingGroup) -> None:
        waiting = self._pending[group.profile]
        del waiting[group.key]
        if not waiting:
            del self._pending[group.profile]
        if group.previous_task_executor_id is not None:
            self._pending_by_previous[group.previous_task_executor_id].pop(group.key, None)
        self.pending_count -= 1

    def _choose_pending(
        self, task_executor_id: TaskExecutorId, offered: ResourceProfile
    ) -> ExecutionSlotSharingGroup | None:
        """Returns the group that ran there before, else one that requires this exact size, else one
        that requires an UNKNOWN size.

        Slots for requirements in bytes are allocated in exactly those bytes, so a slot of another
        size was meant for UNKNOWN; only if no such group waits does the most demanding one that
        fits take it.
        """
        for group in self._pending_by_previous.get(task_executor_id, {}).values():
            if group.profile.fits_in(offered):
                return group
        fitting = [profile for profile in self._pending if profile.fits_in(offered)]
        if not fitting:
            return None
        best = max(fitting, key=lambda p: _suits(p, offered))
        return next(iter(self._pending[best].values()))

    def _drop(self, allocation_id: AllocationId) -> Slot | None:
        slot = self.slots.pop(allocation_id, None)
        if slot is None:
            return None
        siblings = self._by_task_executor[slot.task_executor_id]
        del siblings[allocation_id]
        if not siblings:
            del self._by_task_executor[slot.task_executor_id]
        if self._idle.pop(allocation_id, None) is not None:
            self._require(slot.requirement, -1)
        return slot

    def _idle_of(self, task_executor_id: TaskExecutorId) -> Iterable[Slot]:
        for slot in self._by_task_executor.get(task_executor_id, {}).values():
            if slot.group is None:
                yield slot

    def _all_idle(self) -> Iterable[Slot]:
        return self._idle.values()

    def _idle_slot(self, allocation_id: AllocationId) -> Slot | None:
        return self._idle.get(allocation_id)


def _suits(profile: ResourceProfile, offered: ResourceProfile) -> tuple[bool, bool, int, float]:
    return profile == offered, profile.unknown, profile.total_bytes, profile.cpu_cores


def _same_slot(pool: SlotPool, group: ExecutionSlotSharingGroup) -> Slot | None:
    if group.previous_allocation_id is None:
        return None
    slot = pool._idle_slot(group.previous_allocation_id)
    return slot if slot is not None and group.profile.fits_in(slot.profile) else None


def _same_task_executor(pool: SlotPool, group: ExecutionSlotSharingGroup) -> Slot | None:
    if group.previous_task_executor_id is None:
        return None
    slots = pool._idle_of(group.previous_task_executor_id)
    return next((slot for slot in slots if group.profile.fits_in(slot.profile)), None)


def _any_slot(pool: SlotPool, group: ExecutionSlotSharingGroup) -> Slot | None:
    return next((slot for slot in pool._all_idle() if group.profile.fits_in(slot.profile)), None)


def _named(detail: GroupKey | TaskExecutorId | str) -> str:
    if isinstance(detail, GroupKey):
        return f"subtasks {detail.subtask} of group {detail.slot_sharing_group!r}"
    return detail

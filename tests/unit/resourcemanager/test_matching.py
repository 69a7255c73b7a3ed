"""`match_slots` and `unmet`: facts in, plan out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.ids import TaskExecutorId
from firesteel.common.resources import UNKNOWN, ResourceProfile
from resourcemanager.core.events import Requirement
from resourcemanager.core.matching import Need, Offer, Plan, match_slots
from resourcemanager.core.registered_jobs import unmet
from tests.slot_manager import GIB, SLOT, job_id

BIG = ResourceProfile(cpu_cores=2.0, heap_bytes=3 * GIB, off_heap_bytes=GIB)


def offer(
    name: str,
    *free: int,
    warm: int = 0,
    total: int = 4,
    remaining: ResourceProfile | None = None,
) -> Offer:
    return Offer(
        task_executor_id=TaskExecutorId(name),
        free_slots=free,
        warm=dict.fromkeys(free[:warm], ""),
        slots_total=total,
        remaining=SLOT * len(free) if remaining is None else remaining,
        default_slot=SLOT,
    )


def need(name: str, *counts: int | tuple[ResourceProfile, int]) -> Need:
    pairs = [(UNKNOWN, count) if isinstance(count, int) else count for count in counts]
    return Need(
        job_id=job_id(name), requirements=tuple(Requirement(profile=p, count=n) for p, n in pairs)
    )


def places(plan: Plan) -> list[tuple[str, int]]:
    return [(a.task_executor_id, a.slot_index) for a in plan.assignments]


def test_spread_takes_turns() -> None:
    plan = match_slots(
        [offer("a", 0, 1, 2, 3), offer("b", 0, 1, 2, 3)], [need("j", 4)], spread=True
    )
    assert places(plan) == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert plan.unmet == ()


def test_spread_prefers_the_least_used() -> None:
    plan = match_slots([offer("a", 3), offer("b", 1, 2, 3)], [need("j", 2)], spread=True)
    assert places(plan) == [("b", 1), ("b", 2)]


def test_packed_fills_the_most_used_first() -> None:
    plan = match_slots([offer("a", 0, 1, 2, 3), offer("b", 2, 3)], [need("j", 3)], spread=False)
    assert places(plan) == [("b", 2), ("b", 3), ("a", 0)]


def test_warm_slots_come_first_on_whichever_task_executor() -> None:
    offers = [offer("a", 0, 1, 2, 3, warm=1), offer("b", 3, 2, warm=2)]
    for spread in (True, False):
        plan = match_slots(offers, [need("j", 3)], spread=spread)
        assert set(places(plan)) == {("a", 0), ("b", 3), ("b", 2)}


def test_a_slot_is_warm_for_the_environment_of_its_process() -> None:
    offers = [
        replace(offer("a", 0, 1), warm={1: "x"}),
        replace(offer("b", 0, 1, 2), warm={0: "x", 1: "", 2: "y"}),
    ]
    for environment, first in (("x", {("a", 1), ("b", 0)}), ("", {("b", 1)}), ("y", {("b", 2)})):
        plan = match_slots(
            offers, [replace(need("j", len(first)), environment=environment)], spread=True
        )
        assert set(places(plan)) == first


def test_unknown_gets_the_default_slot() -> None:
    plan = match_slots([offer("a", 0)], [need("j", 1)], spread=True)
    assert [a.profile for a in plan.assignments] == [SLOT]


def test_unknown_needs_room_for_the_default_slot() -> None:
    plan = match_slots([offer("a", 0, 1, remaining=SLOT)], [need("j", 2)], spread=True)
    assert places(plan) == [("a", 0)]
    assert plan.missing == 1


def test_a_known_size_takes_what_remains_of_the_executor() -> None:
    plan = match_slots(
        [offer("a", 0, 1, 2, 3, remaining=SLOT * 4)], [need("j", (BIG, 2))], spread=True
    )
    assert places(plan) == [("a", 0)]
    assert plan.unmet == (need("j", (BIG, 1)),)


def test_the_large_go_before_the_small_and_these_before_the_unknown() -> None:
    plan = match_slots([offer("a", 0, 1, 2, 3)], [need("j", 9, (SLOT, 1), (BIG, 1))], spread=True)
    assert [a.profile for a in plan.assignments][:2] == [BIG, SLOT]
    assert plan.unmet == (
        need("j", 9),
    )  # 3 GiB of heap and one went away: no default slot fits any more


def test_jobs_are_served_in_the_order_they_came() -> None:
    plan = match_slots([offer("a", 0, 1, 2)], [need("first", 2), need("second", 2)], spread=True)
    assert [a.job_id for a in plan.assignments] == [job_id("first")] * 2 + [job_id("second")]
    assert plan.unmet == (need("second", 1),)


def test_ten_thousand_slots() -> None:
    offers = [offer(str(n), *range(10), total=10) for n in range(1000)]
    plan = match_slots(offers, [need("j", 10_000)], spread=True)
    assert len(plan.assignments) == 10_000


profiles = st.builds(
    ResourceProfile,
    cpu_cores=st.sampled_from([0.1, 0.3, 0.5, 1.0]),
    heap_bytes=st.integers(0, 4),
    off_heap_bytes=st.integers(0, 4),
)
needs = st.lists(
    st.builds(
        Need,
        job_id=st.sampled_from([job_id(x) for x in "abc"]),
        requirements=st.lists(
            st.builds(Requirement, profile=profiles | st.just(UNKNOWN), count=st.integers(1, 5)),
            min_size=1,
            max_size=3,
        ).map(tuple),
    ),
    max_size=3,
)
offers = st.lists(
    st.builds(
        lambda n, slots, size, default: Offer(
            task_executor_id=TaskExecutorId(str(n)),
            free_slots=tuple(range(slots)),
            slots_total=max(1, slots),
            remaining=size * 2,
            default_slot=default,
        ),
        n=st.integers(0, 10**6),
        slots=st.integers(0, 4),
        size=profiles,
        default=profiles,
    ),
    max_size=4,
    unique_by=lambda o: o.task_executor_id,
)


@given(offers=offers, needs=needs, spread=st.booleans())
def test_no_slot_twice_nothing_oversized_and_nothing_more_would_fit(
    offers: list[Offer], needs: list[Need], spread: bool
) -> None:
    plan = match_slots(offers, needs, spread=spread)
    assert len(set(places(plan))) == len(plan.assignments)
    asked = sum(r.count for n in needs for r in n.requirements)
    assert asked == len(plan.assignments) + plan.missing
    for each in offers:
        given_here = [a for a in plan.assignments if a.task_executor_id == each.task_executor_id]
        left = each.remaining
        for assignment in given_here:
            assert assignment.slot_index in each.free_slots
            assert not assignment.profile.unknown
            assert assignment.profile.fits_in(left)
            left = left - assignment.profile
        if len(given_here) < len(each.free_slots):
            for lacking in plan.unmet:
                for requirement in lacking.requirements:
                    size = each.default_slot if requirement.profile.unknown else requirement.profile
                    assert not size.fits_in(left)


def requirements(*counts: tuple[ResourceProfile, int]) -> tuple[Requirement, ...]:
    return tuple(Requirement(profile=p, count=n) for p, n in counts)


def test_unmet_counts_only_when_sizes_do_not_matter() -> None:
    assert unmet(requirements((UNKNOWN, 3)), [SLOT, BIG]) == requirements((UNKNOWN, 1))
    assert unmet(requirements((UNKNOWN, 2)), [SLOT, SLOT, SLOT]) == ()


def test_unmet_prefers_the_exact_size_then_unknown_then_a_larger_one() -> None:
    wanted = requirements((SLOT, 1), (BIG, 1), (UNKNOWN, 1))
    assert unmet(wanted, [BIG]) == requirements((SLOT, 1), (UNKNOWN, 1))
    assert unmet(wanted, [BIG, BIG]) == requirements((SLOT, 1))
    assert unmet(wanted, [SLOT, SLOT]) == requirements((BIG, 1))


@given(offers=offers, needs=needs.map(lambda ns: ns[:1]), spread=st.booleans())
def test_what_was_matched_is_met(offers: list[Offer], needs: list[Need], spread: bool) -> None:
    """Slots given for requirements meet exactly these: the next run gives nothing in addition."""
    plan = match_slots(offers, needs, spread=spread)
    for n in needs:
        merged: dict[ResourceProfile, int] = {}
        for r in n.requirements:
            merged[r.profile] = merged.get(r.profile, 0) + r.count
        lacking = unmet(requirements(*merged.items()), [a.profile for a in plan.assignments])
        assert sum(r.count for r in lacking) <= plan.missing

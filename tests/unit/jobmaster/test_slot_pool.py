"""Slot sharing and the SlotPool."""

from __future__ import annotations

import dataclasses

import pytest

from firesteel.common.ids import IdSource, TaskExecutorId
from firesteel.common.job_graph import JobVertex
from firesteel.common.resources import UNKNOWN, ResourceProfile
from jobmaster.core.execution_graph import ExecutionGraph, InvalidJobGraph, build, share_slots
from jobmaster.core.slots.pool import SlotPool
from jobmaster.core.slots.slot import ExecutionSlotSharingGroup, Requirement
from tests.job_master import SLOT_PROFILE, job, offer, vertex

ONE, OTHER = TaskExecutorId("te-1"), TaskExecutorId("te-2")
SMALL = ResourceProfile(cpu_cores=1.0, heap_bytes=100)
LARGE = ResourceProfile(cpu_cores=2.0, heap_bytes=500)


def graph_of(*vertices: JobVertex) -> ExecutionGraph:
    return build(job(*vertices), IdSource(b"test"), 0)


def groups_of(*vertices: JobVertex) -> list[ExecutionSlotSharingGroup]:
    return share_slots(graph_of(*vertices))


def pool_with(groups: list[ExecutionSlotSharingGroup]) -> SlotPool:
    pool = SlotPool(idle_timeout_s=50.0)
    pool.request(groups, 0.0)
    return pool


def test_a_job_needs_as_many_slots_as_its_highest_parallelism() -> None:
    graph = graph_of(vertex("a", 4), vertex("b", 3), vertex("c", 1))
    assert [len(graph.vertices_in(group)) for group in share_slots(graph)] == [3, 2, 2, 1]


def test_other_sharing_and_resource_groups_have_their_own_slots() -> None:
    assert (
        len(
            groups_of(
                vertex("a", 2),
                vertex("b", 3, slot_sharing_group="x"),
                vertex("c", 1, resource_group="gpu"),
            )
        )
        == 6
    )


def test_a_shared_slot_has_the_sum_of_the_profiles_it_holds() -> None:
    groups = groups_of(
        vertex("a", 2, resources=SMALL), vertex("b", 1, resources=LARGE), vertex("c", 2)
    )
    assert [group.profile for group in groups] == [SMALL + LARGE, SMALL]
    assert groups_of(vertex("c", 1))[0].profile is UNKNOWN


def test_co_located_vertices_share_every_slot() -> None:
    graph = graph_of(
        vertex("a", 2, co_location_group="loop"), vertex("b", 2, co_location_group="loop")
    )
    assert all(len(graph.vertices_in(group)) == 2 for group in share_slots(graph))


def test_co_location_across_slot_sharing_groups_is_refused() -> None:
    with pytest.raises(InvalidJobGraph, match="co-location group 'loop'"):
        groups_of(
            vertex("a", 1, co_location_group="loop"),
            vertex("b", 1, co_location_group="loop", slot_sharing_group="x"),
        )


def test_offers_are_taken_until_all_is_met_and_the_surplus_is_rejected() -> None:
    pool = pool_with(groups_of(vertex("a", 2)))
    assert pool.take_requirements() == (Requirement(profile=UNKNOWN, count=2),)
    answer = pool.offer(ONE, "host", [offer(1), offer(2), offer(3)], 0.0)
    assert len(answer.accepted) == 2
    assert answer.rejected == (offer(3).allocation_id,)
    assert pool.pending_count == 0
    assert pool.take_requirements() is None


def test_an_offer_said_twice_is_accepted_twice_and_counted_once() -> None:
    pool = pool_with(groups_of(vertex("a", 2)))
    pool.offer(ONE, "host", [offer(1)], 0.0)
    assert pool.offer(ONE, "host", [offer(1)], 0.0).accepted == (offer(1).allocation_id,)
    assert pool.pending_count == 1


def test_a_slot_whose_process_is_another_one_is_a_lost_slot() -> None:
    pool = pool_with(groups_of(vertex("a", 1)))
    pool.offer(ONE, "host", [offer(1)], 0.0)
    answer = pool.offer(ONE, "host", [dataclasses.replace(offer(1), executor_id="new")], 0.0)
    assert [slot.executor_id for slot in answer.replaced] == [offer(1).executor_id]
    assert answer.accepted == (offer(1).allocation_id,)


def test_a_slot_goes_to_the_most_demanding_group_that_fits() -> None:
    groups = groups_of(
        vertex("a", 1, resources=SMALL), vertex("b", 1, resources=LARGE, slot_sharing_group="x")
    )
    pool = pool_with(groups)
    pool.offer(ONE, "host", [offer(1, profile=LARGE), offer(2, profile=SMALL)], 0.0)
    assert groups[1].allocation_id == offer(1).allocation_id
    assert groups[0].allocation_id == offer(2).allocation_id


def test_a_slot_too_small_for_anybody_is_rejected() -> None:
    pool = pool_with(groups_of(vertex("a", 1, resources=LARGE)))
    assert pool.offer(ONE, "host", [offer(1, profile=SMALL)], 0.0).rejected


def test_a_freed_slot_stays_required_until_it_has_been_idle_for_long() -> None:
    groups = groups_of(vertex("a", 2))
    pool = pool_with(groups)
    pool.offer(ONE, "host", [offer(1), offer(2)], 0.0)
    pool.release(groups[0], 10.0)
    assert pool.requirements() == (Requirement(profile=UNKNOWN, count=2),)
    assert pool.next_deadline() == 60.0
    assert pool.release_idle(59.0) == []
    assert [slot.allocation_id for slot in pool.release_idle(60.0)] == [offer(1).allocation_id]
    assert pool.requirements() == (Requirement(profile=UNKNOWN, count=1),)


def test_a_group_gets_the_very_slot_it_had_before() -> None:
    groups = groups_of(vertex("a", 3))
    pool = pool_with(groups)
    pool.offer(ONE, "host", [offer(1), offer(2), offer(3)], 0.0)
    before = [group.allocation_id for group in groups]
    for group in reversed(groups):
        pool.release(group, 1.0)
    pool.request(groups, 2.0)
    assert [group.allocation_id for group in groups] == before
    assert pool.next_deadline() is None


def test_after_losing_its_slot_a_group_goes_back_to_the_same_task_executor() -> None:
    groups = groups_of(vertex("a", 2))
    pool = pool_with(groups)
    pool.offer(ONE, "host", [offer(1)], 0.0)
    pool.offer(OTHER, "host", [offer(2)], 0.0)
    pool.lose(offer(1).allocation_id, 1.0, "killed")
    pool.lose(offer(2).allocation_id, 1.0, "killed")
    pool.offer(OTHER, "host", [offer(3)], 0.0)
    assert groups[1].allocation_id == offer(3).allocation_id
    assert groups[0].allocation_id is None


def test_a_lost_slot_is_awaited_again_if_wanted_and_forgotten_if_idle() -> None:
    groups = groups_of(vertex("a", 2))
    pool = pool_with(groups)
    pool.offer(ONE, "host", [offer(1), offer(2)], 0.0)
    pool.release(groups[1], 0.0)
    assert len(pool.lose_task_executor(ONE, 1.0, "killed")) == 2
    assert pool.requirements() == (Requirement(profile=UNKNOWN, count=1),)
    assert pool.pending_count == 1


def test_a_withdrawn_request_is_required_no_more() -> None:
    groups = groups_of(vertex("a", 2))
    pool = pool_with(groups)
    pool.release(groups[0], 0.0)
    assert pool.requirements() == (Requirement(profile=UNKNOWN, count=1),)


def test_at_the_end_nothing_is_required_and_every_slot_is_given_back() -> None:
    pool = pool_with(groups_of(vertex("a", 3)))
    pool.offer(ONE, "host", [offer(1, profile=SLOT_PROFILE), offer(2)], 0.0)
    pool.take_requirements()
    assert len(pool.clear(1.0)) == 2
    assert pool.requirements() == ()
    assert pool.take_requirements() == ()
    assert pool.offer(ONE, "host", [offer(3)], 0.0).rejected

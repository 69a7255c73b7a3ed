"""Contenders for Leases, and an API server."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from firesteel.common.config import Configuration
from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader, LeadershipLost, NotActing, Office, wait_for_leader
from firesteel.errors import FiresteelError
from firesteel.high_availability.election import ElectionState
from firesteel.high_availability.incumbent import LeadersUnreachable
from firesteel.high_availability.kubernetes.contender import LeaseElection
from firesteel.high_availability.kubernetes.finder import LeaseFinder, incumbents
from firesteel.high_availability.kubernetes.leaders import KubernetesLeaders
from firesteel.high_availability.kubernetes.offices import LeaseOffices
from firesteel.high_availability.kubernetes.permissions import role
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.resources import LEASES, ROLE_BINDINGS, ROLES, Object
from tests.kubernetes.access import kubeconfig
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.faults import Fault
from tests.waiting import PATIENCE_S, until

LEASE_S, DEADLINE_S, RETRY_S = 3.0, 2.0, 0.4
NAME = "orders-dispatcher"


def offices_at(path: Path) -> LeaseOffices:
    election = "high-availability.kubernetes.leader-election."
    return LeaseOffices.of(
        Configuration(
            {
                "kubernetes.config.file": str(path),
                "kubernetes.cluster-id": "orders",
                election + "lease-duration": f"{LEASE_S} s",
                election + "renew-deadline": f"{DEADLINE_S} s",
                election + "retry-period": f"{RETRY_S} s",
            }
        )
    )


@pytest.fixture
def offices(api_server: ApiServer) -> LeaseOffices:
    return offices_at(api_server.kubeconfig)


@asynccontextmanager
async def contender(
    offices: LeaseOffices,
    address: str = "one:1",
    *,
    above: int = 0,
    store_id: str = "store",
    clock: Callable[[], float] = time.monotonic,
    wall_clock_is_off_by: datetime.timedelta = datetime.timedelta(),
) -> AsyncIterator[LeaseElection]:
    election = LeaseElection(
        offices,
        Office.DISPATCHER,
        store_id=store_id,
        above=Epoch(above),
        clock=clock,
        wall_clock=lambda: datetime.datetime.now(datetime.UTC) + wall_clock_is_off_by,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            await election.start(address)
            yield election
    finally:
        await election.close()


async def lease_in(offices: LeaseOffices) -> Object:
    async with KubernetesClient(offices.access) as client:
        return await client.get(LEASES, NAME)


async def edit(offices: LeaseOffices, **spec: object) -> None:
    async with KubernetesClient(offices.access) as client:
        await client.patch(LEASES, NAME, {"spec": spec})


async def delete(offices: LeaseOffices) -> None:
    async with KubernetesClient(offices.access) as client:
        await client.delete(LEASES, NAME)


async def test_one_leads_and_the_next_one_follows_immediately(offices: LeaseOffices) -> None:
    async with contender(offices, "one:1") as one:
        assert await one.granted() == 1
        async with contender(offices, "two:2") as two:
            await until(lambda: two.core.other is not None)
            assert not two.acts() and one.acts()
            assert one.not_acting() is None
            assert two.not_acting() == NotActing(
                message="this Dispatcher is a standby, not the leader; the leader is one:1 (epoch 1)",
                leader=Leader("one:1", Epoch(1)),
            )
            began_at = time.monotonic()
            closing = asyncio.create_task(one.close())
            assert await two.granted() == 2
            print(f"handover: {time.monotonic() - began_at:.3f} s from the leader's stop")
            await closing
            assert two.acts()
    left = await lease_in(offices)
    assert "holderIdentity" not in left["spec"] and left["spec"]["leaseTransitions"] == 2


async def test_an_epoch_is_higher_than_those_of_the_store_and_of_the_lease(
    offices: LeaseOffices,
) -> None:
    async with KubernetesClient(offices.access) as client:
        await client.create(LEASES, {"metadata": {"name": NAME}})
    async with contender(offices, above=41) as one:
        assert await one.granted() == 42
    async with contender(offices) as one:
        assert await one.granted() == 43
    await delete(offices)
    async with contender(offices, above=42) as one:
        epoch = await one.granted()
        assert epoch is not None and epoch > 43


async def test_a_contender_without_a_store_never_repeats_an_epoch(offices: LeaseOffices) -> None:
    async with contender(offices, store_id="") as one:
        first = await one.granted()
    await delete(offices)
    async with contender(offices, store_id="") as one:
        second = await one.granted()
    assert first and second and first < second


async def test_a_lease_that_is_deployed_with_the_cluster_is_taken_immediately(
    offices: LeaseOffices,
) -> None:
    async with KubernetesClient(offices.access) as client:
        await client.create(LEASES, {"metadata": {"name": NAME}})
    async with contender(offices, store_id="") as one:
        started_at = time.monotonic()
        await one.granted()
        print(f"deployed Lease taken after {time.monotonic() - started_at:.3f} s")


async def test_the_api_server_is_away_and_the_leader_stays(
    api_server: ApiServer, offices: LeaseOffices
) -> None:
    async with contender(offices, "one:1") as one:
        await one.granted()
        async with contender(offices, "two:2") as two:
            await until(lambda: two.core.other is not None)
            api_server.go_away()
            await until(lambda: one.core.state is ElectionState.PAUSED)
            refusal = one.not_acting()
            assert refusal is not None and not refusal.coordinated
            assert "cannot reach the API server of Kubernetes" in refusal.message
            await asyncio.sleep(LEASE_S)  # the other contender would take it now
            api_server.come_back()
            await until(lambda: one.acts() or two.acts())
            leader = one if one.acts() else two
            assert not (one.acts() and two.acts())
            assert leader.core.epoch == (1 if leader is one else 2)


async def test_requests_that_fail_do_not_end_a_leadership(
    api_server: ApiServer, offices: LeaseOffices
) -> None:
    async with contender(offices) as one:
        await one.granted()
        confirmed = one.core._confirmed
        api_server.fail(Fault(verb="update", resource="leases", code=500))
        api_server.fail(Fault(verb="update", resource="leases", code=429, retry_after_s=0, after=1))
        api_server.fail(Fault(verb="update", resource="leases", lose_answer=True, after=2))
        api_server.fail(Fault(verb="update", resource="leases", hang=True, after=3))
        await until(lambda: one.core._confirmed > confirmed + 6)
        assert one.acts() and one.core.epoch == 1


async def test_the_watches_are_silent_and_a_standby_still_takes_the_lease(
    api_server: ApiServer, offices: LeaseOffices
) -> None:
    async with contender(offices, "one:1") as one, contender(offices, "two:2") as two:
        await until(lambda: one.acts() or two.acts())
        leader, standby = (one, two) if one.acts() else (two, one)
        api_server.faults.silent = True
        await leader.close()
        await asyncio.wait_for(standby.granted(), PATIENCE_S)
        assert standby.core.epoch == 2


async def test_clocks_that_are_hours_apart_do_no_harm(offices: LeaseOffices) -> None:
    hours = datetime.timedelta(hours=5)
    async with (
        contender(offices, "one:1", wall_clock_is_off_by=-hours) as one,
        contender(
            offices, "two:2", clock=lambda: time.monotonic() + 1e6, wall_clock_is_off_by=hours
        ) as two,
    ):
        await until(lambda: one.acts() or two.acts())
        leader, standby = (one, two) if one.acts() else (two, one)
        await until(lambda: standby.core.other is not None)
        confirmed = leader.core._confirmed
        await until(lambda: leader.core._confirmed > confirmed + 2 * LEASE_S / RETRY_S)
        assert leader.acts() and not standby.acts() and leader.core.epoch == 1


async def test_a_lease_that_is_deleted_is_recreated_by_its_leader(offices: LeaseOffices) -> None:
    async with contender(offices, "one:1") as one, contender(offices, "two:2") as two:
        await until(lambda: one.acts() or two.acts())
        leader, standby = (one, two) if one.acts() else (two, one)
        before = await lease_in(offices)
        await delete(offices)
        confirmed = leader.core._confirmed
        await until(lambda: leader.core._confirmed > confirmed + 2)
        after = await lease_in(offices)
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["spec"]["holderIdentity"] == before["spec"]["holderIdentity"]
        assert leader.acts() and leader.core.epoch == 1 and not standby.acts()


async def test_a_lease_that_is_given_to_somebody_else_is_lost(offices: LeaseOffices) -> None:
    async with contender(offices, "one:1") as one:
        await one.granted()
        await edit(offices, holderIdentity="somebody")
        with pytest.raises(LeadershipLost, match="with epoch 1 no longer leads: its Lease belongs"):
            await one.lost()
        assert not one.acts()
    async with contender(offices, "two:2") as two:
        assert await two.granted() == 2


async def test_other_edits_of_a_lease_change_nothing(offices: LeaseOffices) -> None:
    async with contender(offices) as one:
        await one.granted()
        async with KubernetesClient(offices.access) as client:
            await client.patch(LEASES, NAME, {"metadata": {"labels": {"team": "data"}}})
        await edit(offices, leaseTransitions=0)
        confirmed = one.core._confirmed
        await until(lambda: one.core._confirmed > confirmed + 2)
        kept = await lease_in(offices)
        assert kept["metadata"]["labels"] == {"team": "data"}
        assert kept["spec"]["leaseTransitions"] == 1
        assert one.acts() and one.core.epoch == 1


async def test_a_store_of_another_cluster_is_refused(offices: LeaseOffices) -> None:
    async with contender(offices, store_id="a" * 32) as one:
        await one.granted()
    with pytest.raises(FiresteelError, match=r"another cluster uses the Lease orders-dispatcher"):
        async with contender(offices, store_id="b" * 32):
            pass
    async with KubernetesClient(offices.access) as client:
        await client.delete(LEASES, NAME)  # as the error says, if the first store is gone for good
    async with contender(offices, "two:2", store_id="b" * 32) as two:
        assert await two.granted()


async def test_a_missing_permission_is_named_with_its_role(
    api_server: ApiServer, offices: LeaseOffices
) -> None:
    api_server.deny("update", "leases")
    with pytest.raises(FiresteelError) as error:
        async with contender(offices):
            pass
    assert "may not update leases (coordination.k8s.io) in namespace default" in str(error.value)
    assert 'verbs: ["get", "list", "watch", "create", "update"]' in str(error.value)


async def test_an_api_server_that_is_away_at_the_start_ends_it(
    api_server: ApiServer, offices: LeaseOffices
) -> None:
    api_server.go_away()
    with pytest.raises(FiresteelError, match="no connection to https://127"):
        async with contender(offices):
            pass
    with pytest.raises(LeadersUnreachable, match="cannot be reached"):
        await asyncio.to_thread(LeaseFinder, offices, Office.DISPATCHER)


async def test_leaders_are_found_and_followed(api_server: ApiServer, offices: LeaseOffices) -> None:
    leaders = KubernetesLeaders(offices)
    found = leaders.of(Office.DISPATCHER, "")
    await leaders.start()
    try:
        assert found.leader is None
        async with asyncio.timeout(PATIENCE_S), contender(offices, "one:1") as one:
            await one.granted()
            assert await wait_for_leader(found) == Leader("one:1", Epoch(1))
            await delete(offices)
            api_server.drop_watches()
            async with contender(offices, "two:2", above=1) as two:
                await until(lambda: two.core.other is not None)
                assert found.leader == Leader("one:1", Epoch(1))
                await one.close()
                await two.granted()
                leader: Leader | None = found.leader
                while leader != Leader("two:2", Epoch(2)):
                    leader = await found.changed(leader)
        assert await found.changed(leader) is None
    finally:
        await leaders.close()


async def test_a_client_finds_the_leader_and_waits_for_it(offices: LeaseOffices) -> None:
    finder = await asyncio.to_thread(LeaseFinder, offices, Office.DISPATCHER)
    try:
        assert finder.find(timeout_s=0.0) is None  # also in a thread with an event loop
        finding = asyncio.create_task(asyncio.to_thread(lambda: finder.find(timeout_s=PATIENCE_S)))
        async with contender(offices, "one:1") as one:
            await one.granted()
            assert await finding == Leader("one:1", Epoch(1))
            held = (await asyncio.to_thread(incumbents, offices))[Office.DISPATCHER]
            assert held.leader == Leader("one:1", Epoch(1))
            assert abs(held.since_ms / 1000 - time.time()) < PATIENCE_S
    finally:
        finder.close()


# ---- contenders in processes

_PROGRAM = """
import asyncio, sys
from pathlib import Path
import structlog
from firesteel.common.leader import LeadershipLost, Office
from firesteel.high_availability.kubernetes.contender import LeaseElection
from tests.kubernetes.test_lease_election import offices_at

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main(path, address):
    election = LeaseElection(offices_at(Path(path)), Office.DISPATCHER, store_id="store")
    await election.start(address)
    print("started", flush=True)
    print("epoch", await election.granted(), flush=True)
    try:
        await election.lost()
    except LeadershipLost as lost:
        print("lost", election.acts(), lost, flush=True)
    await election.close()

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def process(offices: LeaseOffices, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, str(path), "process:1"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    try:
        assert await line_of(started) == "started"
        yield started
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGCONT)
            started.kill()
        await started.wait()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
    return line.decode().strip()


async def test_a_killed_leader_is_replaced_after_the_lease_duration(
    api_server: ApiServer, offices: LeaseOffices
) -> None:
    async with process(offices, api_server.kubeconfig) as killed:
        assert await line_of(killed) == "epoch 1"
        async with contender(offices, "two:2") as two:
            await until(lambda: two.core.other is not None)
            killed.kill()
            killed_at = time.monotonic()
            assert await two.granted() == 2
            waited_s = time.monotonic() - killed_at
            print(f"another leader: {waited_s:.2f} s after kill -9, lease duration {LEASE_S} s")
            assert waited_s > LEASE_S - RETRY_S - 1.0


async def test_a_leader_that_was_stopped_learns_of_its_successor(
    api_server: ApiServer, offices: LeaseOffices
) -> None:
    async with process(offices, api_server.kubeconfig) as stopped:
        assert await line_of(stopped) == "epoch 1"
        async with contender(offices, "two:2") as two:
            await until(lambda: two.core.other is not None)
            stopped.send_signal(signal.SIGSTOP)
            assert await two.granted() == 2
            stopped.send_signal(signal.SIGCONT)
            lost = await line_of(stopped)
            assert lost.startswith("lost False") and "two:2 (epoch 2)" in lost
            confirmed = two.core._confirmed
            await until(lambda: two.core._confirmed > confirmed + 1)
            assert two.acts()


async def test_the_permissions_of_the_role_suffice(
    api_server: ApiServer, offices: LeaseOffices, tmp_path: Path
) -> None:
    async with KubernetesClient(offices.access) as client:
        await client.create(ROLES, yaml.safe_load(role("default")))
        binding = {
            "metadata": {"name": "masters"},
            "subjects": [{"kind": "ServiceAccount", "name": "masters", "namespace": "default"}],
            "roleRef": {
                "apiGroup": ROLES.group,
                "kind": ROLES.kind,
                "name": "firesteel-leader-election",
            },
        }
        await client.create(ROLE_BINDINGS, binding)
    token = api_server.token_of("default", "masters")
    path = tmp_path / "masters"
    path.write_text(kubeconfig(api_server.url, api_server.certificates.authority, token))
    async with contender(offices_at(path)) as one:
        assert await one.granted() == 1
        confirmed = one.core._confirmed
        await until(lambda: one.core._confirmed > confirmed + 1)

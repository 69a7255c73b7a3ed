"""Contenders, and an ensemble of real ZooKeeper servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from firesteel.common.config import Configuration
from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader, LeadershipLost, NotActing, Office
from firesteel.errors import FiresteelError
from firesteel.high_availability.zookeeper.contender import ZooKeeperElection
from firesteel.high_availability.zookeeper.ensemble import (
    Client,
    Ensemble,
)
from firesteel.high_availability.zookeeper.finder import LeaderFinder
from firesteel.high_availability.zookeeper.leaders import ZooKeeperLeaders
from tests.waiting import PATIENCE_S, until
from tests.zookeeper import ZooKeeper

SESSION_S = 2.0
QUORUM = "high-availability.zookeeper.quorum"


@pytest.fixture
def ensemble(zookeeper: ZooKeeper, request: pytest.FixtureRequest) -> Ensemble:
    """A cluster of the test's own."""
    return ensemble_of(zookeeper, cluster=request.node.name)


def ensemble_of(zookeeper: ZooKeeper, *, cluster: str, **more: str) -> Ensemble:
    values = {
        QUORUM: zookeeper.quorum,
        "high-availability.cluster-id": cluster,
        "high-availability.zookeeper.client.session-timeout": f"{SESSION_S} s",
    }
    more = {f"high-availability.zookeeper.client.{key}": value for key, value in more.items()}
    return Ensemble.of(Configuration(values | more))


@asynccontextmanager
async def contender(
    ensemble: Ensemble, address: str = "one:1", *, above: int = 0, store_id: str = ""
) -> AsyncIterator[ZooKeeperElection]:
    election = ZooKeeperElection(ensemble, Office.DISPATCHER, store_id=store_id, above=Epoch(above))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await election.start(address)
            yield election
    finally:
        await election.close()


def server_of(election: ZooKeeperElection, zookeeper: ZooKeeper) -> int | None:
    """The index of the server that it is connected to."""
    try:
        host, port = election._client._connection._socket.getpeername()
    except (AttributeError, OSError):
        return None
    return zookeeper.servers.index(f"{host}:{port}")


async def test_one_leads_and_the_next_one_follows_immediately(ensemble: Ensemble) -> None:
    async with contender(ensemble, "one:1") as one:
        assert await one.granted() == 1
        async with contender(ensemble, "two:2") as two:
            await until(lambda: two.core.other is not None)
            assert not two.acts() and one.acts()
            assert one.not_acting() is None
            assert two.not_acting() == NotActing(
                message="this Dispatcher is a standby, not the leader; the leader is one:1 (epoch 1)",
                leader=Leader("one:1", Epoch(1)),
            )
            await one.close()
            assert await two.granted() == 2
            assert two.acts()


async def test_an_epoch_is_higher_than_what_the_contender_knows(ensemble: Ensemble) -> None:
    async with contender(ensemble, above=41) as one:
        assert await one.granted() == 42
    async with contender(ensemble) as one:
        assert await one.granted() == 43


async def test_a_leader_whose_session_expires_has_lost_it(ensemble: Ensemble) -> None:
    async with contender(ensemble, "one:1") as one, contender(ensemble, "two:2") as two:
        assert {await one.granted() if one.acts() else 1} == {1}
        await until(lambda: one.acts() or two.acts())
        leader, standby = (one, two) if one.acts() else (two, one)
        thief = Client(ensemble)  # with the leader's session, which it ends
        thief._session_id, thief._session_passwd = leader._client.client_id
        thief.connect()
        thief.disconnect()
        with pytest.raises(LeadershipLost, match="the Dispatcher with epoch 1 no longer leads"):
            await leader.lost()
        assert await standby.granted() == 2
        assert not leader.acts()
        assert leader.not_acting() == NotActing(message="this Dispatcher no longer leads, and ends")


async def test_an_office_that_somebody_deletes_is_lost(ensemble: Ensemble) -> None:
    async with contender(ensemble) as one:
        await one.granted()
        one._client.delete(ensemble.leader(Office.DISPATCHER))
        with pytest.raises(LeadershipLost, match="nobody has its office"):
            await one.lost()


async def test_a_quorum_that_is_away_ends_no_leadership(
    zookeeper: ZooKeeper, ensemble: Ensemble
) -> None:
    async with contender(ensemble, "one:1") as one, contender(ensemble, "two:2") as two:
        await until(lambda: one.acts() or two.acts())
        leader, standby = (one, two) if one.acts() else (two, one)
        zookeeper.crash(1, 2)
        try:
            await until(lambda: not leader.acts())
            why = leader.not_acting()
            assert why is not None and "cannot reach ZooKeeper" in why.message
            assert not why.coordinated and why.leader is None
            assert not standby.acts()
        finally:
            zookeeper.start(1)
            zookeeper.start(2)
        await leader.acting()
        assert leader.core.epoch == 1 and not standby.acts()


async def test_another_server_takes_the_session_over(
    zookeeper: ZooKeeper, ensemble: Ensemble
) -> None:
    zookeeper.wait_until_serving()
    async with contender(ensemble) as one:
        await one.granted()
        index = server_of(one, zookeeper)
        assert index is not None
        zookeeper.crash(index)
        try:
            await until(lambda: server_of(one, zookeeper) not in (index, None))
            await one.acting()
            assert one.core.epoch == 1
        finally:
            zookeeper.start(index)
            zookeeper.wait_until_serving()


async def test_two_clusters_with_one_id_are_distinguished(ensemble: Ensemble) -> None:
    async with contender(ensemble, store_id="a" * 32) as one:
        await one.granted()
    with pytest.raises(FiresteelError) as error:
        async with contender(ensemble, store_id="b" * 32):
            pass
    assert f"another cluster uses {ensemble.root} in ZooKeeper" in str(error.value)
    assert f"its job store is {'a' * 32}, that of this Dispatcher {'b' * 32}" in str(error.value)


async def test_a_root_without_permission_is_named(zookeeper: ZooKeeper, ensemble: Ensemble) -> None:
    mine = ensemble_of(zookeeper, cluster="private", acl="creator", authorization="digest:me:mine")
    async with contender(mine) as one:
        await one.granted()
    for others in ("digest:you:yours", ""):
        theirs = ensemble_of(zookeeper, cluster="private", authorization=others)
        with pytest.raises(FiresteelError, match="does not permit .* to change /firesteel/private"):
            async with contender(theirs):
                pass


async def test_the_lease_is_of_the_session_that_zookeeper_allows(ensemble: Ensemble) -> None:
    async with contender(replace(ensemble, session_timeout_s=60.0)) as one:
        await one.granted()
        assert one._client.agreed_timeout_s == 4.0  # twenty ticks


async def test_who_looks_for_the_leader_waits_for_it_and_follows(ensemble: Ensemble) -> None:
    leaders = ZooKeeperLeaders(ensemble)
    found = leaders.of(Office.DISPATCHER, "")
    await leaders.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            async with contender(ensemble, "one:1") as one:
                assert await found.changed(None) == Leader("one:1", Epoch(1))
                await one.close()
                assert await found.changed(Leader("one:1", Epoch(1))) is None
            async with contender(ensemble, "two:2"):
                assert await found.changed(None) == Leader("two:2", Epoch(2))
    finally:
        await leaders.close()


async def test_standbys_are_listed_until_they_lead_or_end(ensemble: Ensemble) -> None:
    leaders = ZooKeeperLeaders(ensemble)
    await leaders.start()

    async def lists(*addresses: str) -> None:
        while await leaders.standbys(Office.DISPATCHER) != addresses:
            await asyncio.sleep(0.02)

    try:
        async with asyncio.timeout(PATIENCE_S), contender(ensemble, "one:1") as one:
            await one.granted()
            await lists()
            async with contender(ensemble, "two:2") as two, contender(ensemble, "three:3") as three:
                await lists("three:3", "two:2")
                assert await leaders.standbys(Office.RESOURCE_MANAGER) == ()
                await one.close()
                await until(lambda: two.acts() or three.acts())
                await lists("three:3" if two.acts() else "two:2")
            await lists()
    finally:
        await leaders.close()


async def test_a_client_finds_the_leader_or_waits_for_one(ensemble: Ensemble) -> None:
    finder = await asyncio.to_thread(LeaderFinder, ensemble, Office.DISPATCHER)
    try:
        assert await asyncio.to_thread(finder.find, timeout_s=0.1) is None
        waiting = asyncio.create_task(asyncio.to_thread(finder.find, timeout_s=PATIENCE_S))
        async with contender(ensemble, "one:1"):
            assert await waiting == Leader("one:1", Epoch(1))
    finally:
        finder.close()


async def test_a_finder_without_a_leader_can_be_closed(ensemble: Ensemble) -> None:
    leaders = ZooKeeperLeaders(replace(ensemble, servers=("127.0.0.1:1",)))
    found = leaders.of(Office.DISPATCHER, "")
    await leaders.start()
    assert found.leader is None
    async with asyncio.timeout(PATIENCE_S):
        await leaders.close()

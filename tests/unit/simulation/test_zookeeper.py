"""The simulated ZooKeeper does what the election counts on, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NodeExistsError

from firesteel.common.config import Configuration, options
from firesteel.high_availability.zookeeper.ensemble import Ensemble
from tests.simulation.world import SimulatedProcess, World
from tests.simulation.zookeeper import Client, ZooKeeper

SESSION_S = 6.0
ENSEMBLE = Ensemble.of(
    Configuration(
        {
            options.ZOOKEEPER_QUORUM.key: "zookeeper:2181",
            options.ZOOKEEPER_SESSION_TIMEOUT.key: f"{SESSION_S} s",
        }
    )
)


class Site:
    """A world with an ensemble, and processes that are clients of it."""

    def __init__(self) -> None:
        self.world = World(1)
        self.zookeeper = ZooKeeper(self.world)
        self.told: dict[str, list[str]] = {}
        self.errors: list[Exception] = []
        self.world.programs["client"] = (self._client, (0.0, 0.0))
        self._clients: dict[SimulatedProcess, Client] = {}

    async def _client(self, process: SimulatedProcess, arguments: Any) -> None:
        client = self._clients[process] = Client(self.zookeeper, ENSEMBLE)
        told = self.told[process.name] = []
        client.add_listener(told.append)
        client.start_async()
        await self.world.loop.create_future()

    def start(self) -> tuple[SimulatedProcess, Client]:
        process = self.world.start("client", ())
        self.run(0.5)
        return process, self._clients[process]

    def run(self, for_s: float) -> None:
        self.world.run_until(self.world.now + for_s)

    def call(self, process: SimulatedProcess, work: Callable[[Client], object]) -> None:
        """In the thread of the process's requests."""
        client = self._clients[process]

        def carry() -> None:
            try:
                work(client)
            except Exception as error:
                self.errors.append(error)

        process.context.run(client.requests.submit, carry)


@pytest.fixture
def site() -> Any:
    site = Site()
    yield site
    site.world.close()


def leads(client: Client) -> None:
    client.create("/leader", b"me", ephemeral=True)


def test_an_office_is_of_one_until_its_session_ends(site: Site) -> None:
    leader, _ = site.start()
    other, _ = site.start()
    site.call(leader, leads)
    site.run(1.0)
    site.call(other, leads)
    site.run(60.0)
    assert [type(error) for error in site.errors] == [NodeExistsError]
    leader.die(-9)
    site.run(SESSION_S * 0.4)  # its last ping was up to a third of the session before
    assert "/leader" in site.zookeeper.nodes
    site.run(SESSION_S * 0.8)
    assert "/leader" not in site.zookeeper.nodes


def test_a_watch_is_called_once_when_a_node_goes(site: Site) -> None:
    leader, _ = site.start()
    other, _ = site.start()
    events: list[str] = []
    site.call(leader, leads)
    site.run(1.0)
    site.call(other, lambda client: client.get("/leader", lambda event: events.append(event.type)))
    site.run(1.0)
    site.call(leader, lambda client: client.disconnect())
    site.run(1.0)
    assert events == ["DELETED"]


@pytest.mark.parametrize(
    ("cut_s", "told"),
    [
        (SESSION_S * 0.3, ["CONNECTED"]),
        (SESSION_S * 0.8, ["CONNECTED", "SUSPENDED", "CONNECTED"]),
        (SESSION_S * 2.0, ["CONNECTED", "SUSPENDED", "LOST", "CONNECTED"]),
    ],
)
def test_a_cut_ends_a_session_only_if_it_is_longer(
    site: Site, cut_s: float, told: list[str]
) -> None:
    process, _ = site.start()
    site.zookeeper.cut(process, cut_s)
    site.run(60.0)
    assert site.told[process.name] == told


def test_without_a_quorum_no_session_ends_and_no_request_is_answered(site: Site) -> None:
    process, _ = site.start()
    site.zookeeper.lose_quorum(60.0)
    site.call(process, leads)
    site.run(1.0)
    site.call(process, leads)
    site.run(50.0)
    assert [type(error) for error in site.errors] == [ConnectionLoss]  # of the first
    assert site.told[process.name] == ["CONNECTED", "SUSPENDED"]
    site.run(20.0)
    assert site.told[process.name] == ["CONNECTED", "SUSPENDED", "CONNECTED"]
    assert "/leader" in site.zookeeper.nodes  # the second was sent then


def test_a_process_paused_beyond_its_session_learns_so_on_resuming(
    site: Site,
) -> None:
    process, _ = site.start()
    site.call(process, leads)
    site.run(1.0)
    process.pause()
    site.run(SESSION_S * 2)
    assert "/leader" not in site.zookeeper.nodes
    assert site.told[process.name] == ["CONNECTED"]
    process.resume()
    site.run(5.0)
    assert site.told[process.name] == ["CONNECTED", "SUSPENDED", "LOST", "CONNECTED"]


def test_a_transaction_is_carried_out_as_a_whole_or_not(site: Site) -> None:
    process, _ = site.start()
    results: list[Any] = []

    def work(client: Client) -> None:
        client.create("/epoch", b"1")
        for version in (0, 0):  # the second time it is of before
            transaction = client.transaction()
            transaction.set_data("/epoch", b"2", version=version)
            transaction.create(f"/of-{len(results)}", ephemeral=True)
            results.append(transaction.commit())

    site.call(process, work)
    site.run(5.0)
    assert site.errors == []
    assert results[0] == [True, True]
    assert [type(result).__name__ for result in results[1]] == [
        "BadVersionError",
        "RuntimeInconsistency",
    ]
    assert set(site.zookeeper.nodes) == {"/epoch", "/of-0"}

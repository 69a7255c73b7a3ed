"""Selects high availability by `high-availability.type`: fixed leaders, or elected ones."""

from __future__ import annotations

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.ids import Epoch
from firesteel.common.leader import (
    NO_EPOCH,
    FixedElection,
    FixedLeaders,
    LeaderElection,
    Leaders,
    Office,
)

ZOOKEEPER = "zookeeper://"  # prefix of the address of a cluster whose Dispatcher is elected


def elected(conf: Configuration) -> bool:
    return conf.get(options.HA_TYPE) == "zookeeper"


def election_of(
    conf: Configuration, office: Office, *, store_id: str = "", above: Epoch = NO_EPOCH
) -> LeaderElection:
    """Creates the election for an office. `store_id` is the id of the contender's job store, if it
    has one; its epoch will be higher than `above`. Raises ConfigurationError.
    """
    if not elected(conf):
        return FixedElection()
    # kazoo's import takes a while, and most processes need none.
    from firesteel.common.high_availability.zookeeper.contender import ZooKeeperElection
    from firesteel.common.high_availability.zookeeper.ensemble import Ensemble

    return ZooKeeperElection(Ensemble.of(conf), office, store_id=store_id, above=above)


def leaders_of(conf: Configuration) -> Leaders:
    """Returns the finder of leaders. Raises ConfigurationError."""
    if not elected(conf):
        return FixedLeaders()
    from firesteel.common.high_availability.zookeeper.ensemble import Ensemble
    from firesteel.common.high_availability.zookeeper.leaders import ZooKeeperLeaders

    return ZooKeeperLeaders(Ensemble.of(conf))


def check_address(conf: Configuration, option: str, address: str) -> None:
    """Raises ConfigurationError unless a fixed leader has an address HOST:PORT, and an elected
    leader has none.
    """
    if elected(conf) and address:
        raise ConfigurationError(
            f"{option} {address} has no effect with {options.HA_TYPE.key}: zookeeper, which"
            " provides the leader's address; omit it"
        )
    if not elected(conf) and not address:
        raise ConfigurationError(
            f"{option} HOST:PORT is missing; or set {options.HA_TYPE.key}: zookeeper, which"
            " provides the leader's address"
        )
    host, _, port = address.rpartition(":")
    if address and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigurationError(f"{option} {address!r} is not an address; expected HOST:PORT")


def elected_address(conf: Configuration, quorum: str = "") -> str:
    """Returns the address of a cluster in ZooKeeper: HOST:PORT,HOST:PORT[/CLUSTER-ID], or as
    configured.
    """
    servers, slash, cluster_id = quorum.partition("/")
    configured: list[str] = conf.get(options.ZOOKEEPER_QUORUM)
    servers = servers or ",".join(configured)
    root = conf.get(options.ZOOKEEPER_ROOT).strip("/")
    cluster_id = cluster_id if slash else conf.get(options.HA_CLUSTER_ID).strip("/")
    return f"{ZOOKEEPER}{servers}/{root}/{cluster_id}"

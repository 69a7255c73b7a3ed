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

# Prefixes of the addresses of clusters whose masters are elected.
ZOOKEEPER = "zookeeper://"
KUBERNETES = "kubernetes://"


def elected(conf: Configuration) -> bool:
    return conf.get(options.HA_TYPE) != "none"


def is_elected(address: str) -> bool:
    """Whether this is the address of a cluster whose masters are elected."""
    return address.startswith((ZOOKEEPER, KUBERNETES))


def election_of(
    conf: Configuration, office: Office, *, store_id: str = "", above: Epoch = NO_EPOCH
) -> LeaderElection:
    """Creates the election for an office. `store_id` is the id of the contender's job store, if it
    has one; its epoch will be higher than `above`. Raises FiresteelError if it is not configured.
    """
    # The imports of kazoo and aiohttp take a while, and most processes need neither.
    match conf.get(options.HA_TYPE):
        case "zookeeper":
            from firesteel.high_availability.zookeeper.contender import ZooKeeperElection
            from firesteel.high_availability.zookeeper.ensemble import Ensemble

            return ZooKeeperElection(Ensemble.of(conf), office, store_id=store_id, above=above)
        case "kubernetes":
            from firesteel.high_availability.kubernetes.contender import LeaseElection
            from firesteel.high_availability.kubernetes.offices import LeaseOffices

            return LeaseElection(LeaseOffices.of(conf), office, store_id=store_id, above=above)
        case _:
            return FixedElection()


def leaders_of(conf: Configuration) -> Leaders:
    """Returns the finder of leaders. Raises FiresteelError if it is not configured."""
    match conf.get(options.HA_TYPE):
        case "zookeeper":
            from firesteel.high_availability.zookeeper.ensemble import Ensemble
            from firesteel.high_availability.zookeeper.leaders import ZooKeeperLeaders

            return ZooKeeperLeaders(Ensemble.of(conf))
        case "kubernetes":
            from firesteel.high_availability.kubernetes.leaders import KubernetesLeaders
            from firesteel.high_availability.kubernetes.offices import LeaseOffices

            return KubernetesLeaders(LeaseOffices.of(conf))
        case _:
            return FixedLeaders()


def check_address(conf: Configuration, option: str, address: str) -> None:
    """Raises ConfigurationError unless a fixed leader has an address HOST:PORT, and an elected
    leader has none.
    """
    if elected(conf) and address:
        raise ConfigurationError(
            f"{option} {address} has no effect with {options.HA_TYPE.key}:"
            f" {conf.get(options.HA_TYPE)}, which provides the leader's address; omit it"
        )
    if not elected(conf) and not address:
        raise ConfigurationError(
            f"{option} HOST:PORT is missing; or set {options.HA_TYPE.key} to zookeeper or"
            " kubernetes, which provides the leader's address"
        )
    host, _, port = address.rpartition(":")
    if address and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigurationError(f"{option} {address!r} is not an address; expected HOST:PORT")


def elected_address(conf: Configuration, quorum: str = "") -> str:
    """Returns the address of a cluster whose masters are elected: that of `quorum`, which is
    HOST:PORT,HOST:PORT[/CLUSTER-ID] of ZooKeeper, or as configured. Raises FiresteelError if
    access to Kubernetes is not configured.
    """
    if conf.get(options.HA_TYPE) == "kubernetes" and not quorum:
        from firesteel.high_availability.kubernetes.offices import LeaseOffices

        return f"{KUBERNETES}{LeaseOffices.of(conf)}"
    servers, slash, cluster_id = quorum.partition("/")
    configured: list[str] = conf.get(options.ZOOKEEPER_QUORUM)
    servers = servers or ",".join(configured)
    root = conf.get(options.ZOOKEEPER_ROOT).strip("/")
    cluster_id = cluster_id if slash else conf.get(options.HA_CLUSTER_ID).strip("/")
    return f"{ZOOKEEPER}{servers}/{root}/{cluster_id}"

"""Finds leaders by the address of a cluster, for clients."""

from __future__ import annotations

from firesteel.common.config import Configuration
from firesteel.common.leader import Office
from firesteel.high_availability import ZOOKEEPER
from firesteel.high_availability.incumbent import Finder, Incumbent

# kazoo and aiohttp are imported only where they are used.


def finder_at(address: str, conf: Configuration, office: Office) -> Finder:
    """Connects to what elects the leaders of the cluster. Raises FiresteelError; ConfigurationError
    if that is not an address.
    """
    if address.startswith(ZOOKEEPER):
        from firesteel.high_availability.zookeeper.ensemble import Ensemble
        from firesteel.high_availability.zookeeper.finder import LeaderFinder

        return LeaderFinder(Ensemble.at(address, conf), office)
    from firesteel.high_availability.kubernetes.finder import LeaseFinder
    from firesteel.high_availability.kubernetes.offices import LeaseOffices

    return LeaseFinder(LeaseOffices.at(address, conf), office)


def incumbents_at(address: str, conf: Configuration) -> dict[Office, Incumbent]:
    """Returns the holders of the offices that are occupied now. Raises FiresteelError."""
    if address.startswith(ZOOKEEPER):
        from firesteel.high_availability.zookeeper import finder
        from firesteel.high_availability.zookeeper.ensemble import Ensemble

        return finder.incumbents(Ensemble.at(address, conf))
    from firesteel.high_availability.kubernetes import finder as leases
    from firesteel.high_availability.kubernetes.offices import LeaseOffices

    return leases.incumbents(LeaseOffices.at(address, conf))

"""The Leases of a cluster: names, namespace and durations, as they are configured."""

from __future__ import annotations

from dataclasses import dataclass, field

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.leader import Office
from firesteel.high_availability import KUBERNETES
from firesteel.high_availability.kubernetes.core import Durations
from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.configuration import access_of, cluster_id_of
from firesteel.kubernetes.reflector.core import ReflectorSettings

LONGEST_PART = 5 / 6  # of the lease duration, for the renew deadline: clocks differ in speed
_SUFFIX = {Office.DISPATCHER: "dispatcher", Office.RESOURCE_MANAGER: "resourcemanager"}

# Neither a contender nor a service gives up because the API server is away.
FOLLOWING = ReflectorSettings(stale_after_s=float("inf"), longest_pause_s=2.0, list_timeout_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOffices:
    cluster_id: str
    access: ClusterAccess
    durations: Durations = field(default_factory=Durations)

    @staticmethod
    def of(conf: Configuration) -> LeaseOffices:
        """Raises ConfigurationError or KubernetesConfigurationError."""
        return LeaseOffices(
            cluster_id=cluster_id_of(conf), access=access_of(conf), durations=_durations(conf)
        )

    @staticmethod
    def at(address: str, conf: Configuration) -> LeaseOffices:
        """Returns those of a kubernetes:// address. Raises ConfigurationError or
        KubernetesConfigurationError.
        """
        namespace, _, cluster_id = address.removeprefix(KUBERNETES).partition("/")
        keys = {
            options.KUBERNETES_NAMESPACE.key: namespace,
            options.KUBERNETES_CLUSTER_ID.key: cluster_id,
        }
        return LeaseOffices.of(conf.with_overrides(keys))

    def __str__(self) -> str:
        return f"{self.access.namespace}/{self.cluster_id}"

    def name(self, office: Office) -> str:
        return f"{self.cluster_id}-{_SUFFIX[office]}"

    def client(self) -> KubernetesClient:
        """Returns a client whose requests fail early enough to be repeated before the deadline."""
        return KubernetesClient(self.access, attempt_timeout_s=self.durations.renew_deadline_s / 3)


def _durations(conf: Configuration) -> Durations:
    found = Durations(
        lease_s=conf.get(options.LEASE_DURATION),
        renew_deadline_s=conf.get(options.RENEW_DEADLINE),
        retry_period_s=conf.get(options.RETRY_PERIOD),
    )
    for option, value, longer, longest in (
        (
            options.RENEW_DEADLINE,
            found.renew_deadline_s,
            options.LEASE_DURATION,
            found.lease_s * LONGEST_PART,
        ),
        (
            options.RETRY_PERIOD,
            found.retry_period_s,
            options.RENEW_DEADLINE,
            found.renew_deadline_s / 2,
        ),
    ):
        if value > longest:
            raise ConfigurationError(
                f"{option.key}: {value:g} s is too long for {longer.key}:"
                f" {conf.get(longer):g} s; expected at most {longest:g} s"
            )
    return found

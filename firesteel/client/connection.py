"""The client's connection to the Dispatcher, at a fixed address or of the leader."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from firesteel._proto.access_pb2_grpc import AccessStub
from firesteel._proto.dispatcher_pb2_grpc import DispatcherStub
from firesteel.client.interruptible import interruptible
from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.leader import Leader, Office
from firesteel.common.rpc.bearer import carry_token
from firesteel.common.rpc.server import channel
from firesteel.common.security.client import ClientSecurity
from firesteel.errors import ClusterUnreachable, FiresteelError
from firesteel.high_availability import KUBERNETES, is_elected
from firesteel.high_availability.incumbent import LeadersUnreachable

if TYPE_CHECKING:
    from firesteel.client.port_forwards import PortForwards
    from firesteel.high_availability.incumbent import Finder

# Both together: no command takes more than ten seconds to report a Dispatcher that hangs.
CONNECT_TIMEOUT_S = 2.0
# A Dispatcher on a busy machine answers late. Less than gRPC's own limit for a connection
# (rpc.server.CONNECT_TIMEOUT_MS), which ends the call as if the peer had refused it.
CHECK_TIMEOUT_S = 8.0
LEADER_TIMEOUT_S = 30.0  # while there is no leader
START_HINT = "start a cluster with `firesteel cluster start`, or check -m"
_DISPATCHER = "firesteel.v1.Dispatcher"


class Connection:
    """Connects when it is created. Raises ClusterUnreachable.

    `address` is HOST:PORT, or zookeeper://HOST:PORT,HOST:PORT/ROOT/CLUSTER-ID with the ensemble
    that elects the leader, and the location in it, or kubernetes://NAMESPACE/CLUSTER-ID.
    `own_cluster`: this process has started the cluster. `token`: see ClientSecurity.
    """

    def __init__(
        self,
        address: str,
        conf: Configuration,
        *,
        own_cluster: bool = False,
        token: Callable[[], str] | None = None,
    ) -> None:
        self.address = address if is_elected(address) else checked_address(address)
        self.security: ClientSecurity | None = None
        self._leader: Leader | None = None
        self._channel: grpc.Channel | None = None
        self._finder: Finder | None = None
        self._forwards: PortForwards | None = None  # to masters in pods
        self._unreachable = False  # what elects the leader
        self.closed = False
        self.stub: Any = None
        self.access: Any = None
        try:
            if is_elected(address):
                self._finder = _finder(address, conf)
                if address.startswith(KUBERNETES):
                    from firesteel.client.port_forwards import PortForwards  # imports aiohttp

                    self._forwards = PortForwards(address, conf)
                    conf = self._forwards.secured(conf)
            if conf.get(options.SECURITY_ENABLED):
                self.security = ClientSecurity(conf, own_cluster=own_cluster, token=token)
            if self._finder is not None:
                self.follow()
            else:
                self._connect(self.address)
        except BaseException:
            self.close()
            raise

    @property
    def elected(self) -> bool:
        return self._finder is not None

    def follow(self) -> None:
        """Connects to the leading Dispatcher if it has changed; waits while there is no leader, and
        says so on stderr. While ZooKeeper or Kubernetes elects no leader, it keeps the current
        one. Raises ClusterUnreachable.
        """
        assert self._finder is not None, "its address is fixed"
        try:
            leader = self._finder.find(timeout_s=0.0)
            self._unreachable = False
            if leader is None:
                if self._forwards is not None:
                    self._forwards.check_exists()
                print(f"No Dispatcher leads {self.address}; waiting for one.", file=sys.stderr)
                leader = self._finder.find(timeout_s=LEADER_TIMEOUT_S)
        except FiresteelError as error:
            if self._leader is not None and isinstance(error, LeadersUnreachable):
                if not self._unreachable:
                    print(f"{error}; waiting for it.", file=sys.stderr)
                self._unreachable = True
                return
            raise ClusterUnreachable(str(error)) from None
        if leader is None:
            raise ClusterUnreachable(
                f"no Dispatcher leads the cluster {self.address}, and none was elected within"
                f" {LEADER_TIMEOUT_S:g} s; start one, or check -z"
            )
        if leader != self._leader:
            self._close_channel()
            self._leader, self._channel = leader, self._open(leader.address)
            self._serve(self._channel)

    def close(self) -> None:
        self.closed = True
        self._close_channel()
        if self._finder is not None:
            self._finder.close()
        if self._forwards is not None:
            self._forwards.close()

    @property
    def forwards(self) -> bool:
        return self._forwards is not None and self._forwards.any

    def reach(self, address: str) -> str:
        """Returns the address at which this client reaches a process of the cluster. Raises
        ClusterUnreachable.
        """
        return address if self._forwards is None else self._forwards.reach(address)

    def _connect(self, address: str) -> None:
        _check_somebody_listens(address)
        self._channel = self._open(address)
        _check_is_dispatcher(self._channel, address)
        self._serve(self._channel)

    def _serve(self, channel: grpc.Channel) -> None:
        self.stub = DispatcherStub(channel)  # type: ignore[no-untyped-call]
        self.access = AccessStub(channel)  # type: ignore[no-untyped-call]

    def _open(self, address: str) -> grpc.Channel:
        local = self.reach(address)
        if self.security is None:
            return interruptible(channel(local))
        credentials = self.security.channel_credentials(address)
        server_name = "" if local == address else address.rpartition(":")[0].strip("[]")
        opened = interruptible(channel(local, credentials, server_name=server_name))
        carry_token(opened, self.security.token)
        return opened

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()


def _finder(address: str, conf: Configuration) -> Finder:
    # Imported only where needed: kazoo, aiohttp.
    from firesteel.high_availability.find import finder_at

    try:
        return finder_at(address, conf, Office.DISPATCHER)
    except ConfigurationError as error:
        raise ClusterUnreachable(f"{address} is not an address: {error}") from None
    except FiresteelError as error:
        raise ClusterUnreachable(str(error)) from None


def checked_address(address: str) -> str:
    """Returns HOST:PORT. Raises ClusterUnreachable for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ClusterUnreachable(
            f"{address!r} is not an address; expected HOST:PORT, for example -m localhost:6123"
        )
    return address


def _check_somebody_listens(address: str) -> None:
    """Detects a refused connection within milliseconds; gRPC would retry until its deadline."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except socket.gaierror:
        raise ClusterUnreachable(
            f"there is no host {host!r} (in the address {address}); check -m"
        ) from None
    except OSError as error:
        problem = (
            f"nothing has answered at {address} within {CONNECT_TIMEOUT_S:g} s"
            if isinstance(error, TimeoutError)
            else f"nothing answers at {address} ({(error.strerror or str(error)).lower()})"
        )
        raise ClusterUnreachable(f"{problem}; {START_HINT}") from None


def _check_is_dispatcher(connection: grpc.Channel, address: str) -> None:
    health: Any = health_pb2_grpc.HealthStub(connection)
    began_at = time.monotonic()
    try:
        health.Check(health_pb2.HealthCheckRequest(service=_DISPATCHER), timeout=CHECK_TIMEOUT_S)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            problem = f"the process at {address} is not a cluster's Dispatcher"
        elif (
            error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            or time.monotonic() - began_at >= CHECK_TIMEOUT_S
        ):
            problem = (
                f"the process at {address} has not answered for {CHECK_TIMEOUT_S:g} s:"
                " it hangs, or is not a Firesteel cluster"
            )
        else:
            problem = f"the process at {address} is not a Firesteel cluster"
        raise ClusterUnreachable(f"{problem}; {START_HINT}") from None

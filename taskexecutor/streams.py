"""The TaskExecutor's streams: one to the ResourceManager, one to each JobMaster with slots here.

Received messages are posted to the core. Messages to a stream that is down are dropped: on every
new connection, the core sends everything it holds.
"""

from __future__ import annotations

from collections.abc import Callable

from firesteel._proto import (
    common_pb2,
    job_master_pb2,
    job_master_pb2_grpc,
    resource_manager_pb2,
    resource_manager_pb2_grpc,
)
from firesteel.common.config import Configuration
from firesteel.common.ids import Epoch, JobId
from firesteel.common.leader import LeaderRetriever
from firesteel.common.logs import get_logger
from firesteel.common.machines import MachineUsage
from firesteel.common.rpc.convert import MACHINE_USAGE
from firesteel.common.rpc.link import Link
from firesteel.common.service.platform import Platform
from taskexecutor import convert
from taskexecutor.core import commands, events

log = get_logger(__name__)

_ToResourceManager = resource_manager_pb2.TaskExecutorToResourceManager
_ToJobMaster = job_master_pb2.TaskExecutorToJobMaster


class ResourceManagerStream:
    """Registers on every connection, so that a new ResourceManager learns of all slots while tasks
    keep running.
    """

    def __init__(
        self,
        to: str | LeaderRetriever,
        *,
        registration: Callable[[], resource_manager_pb2.TaskExecutorRegistration],
        post: Callable[[events.Event], None],
        on_shutdown: Callable[[str], None],
        heartbeat_interval_s: float,
        heartbeat_timeout_s: float,
        platform: Platform,
    ) -> None:
        self._registration = registration
        self._post = post
        self._on_shutdown = on_shutdown
        self._epoch = Epoch(0)
        self._registered = False
        self.link: Link[_ToResourceManager, resource_manager_pb2.ResourceManagerToTaskExecutor] = (
            Link(
                name="ResourceManager",
                to=to,
                open_stream=lambda channel, sent: resource_manager_pb2_grpc.ResourceManagerStub(
                    channel
                ).ConnectTaskExecutor(sent),  # type: ignore[no-untyped-call]
                heartbeat=self._heartbeat,
                on_up=self._connected,
                on_message=self._received,
                on_down=lambda cause, for_s: self._broken(),
                heartbeat_interval_s=heartbeat_interval_s,
                heartbeat_timeout_s=heartbeat_timeout_s,
                channel=platform.transport.channel,
            )
        )

    @property
    def registered(self) -> bool:
        """Whether a ResourceManager knows this TaskExecutor, and can reach it."""
        return self._registered

    def send_command(self, command: commands.ToResourceManager) -> None:
        if self._registered:
            self.link.send(convert.TO_RESOURCE_MANAGER.encode(command, epoch=self._epoch))

    def send_usage(self, usage: MachineUsage) -> None:
        if self._registered:
            message = MACHINE_USAGE.encode(usage)
            self.link.send(_ToResourceManager(epoch=self._epoch, usage=message))

    def _connected(self) -> None:
        self.link.send(_ToResourceManager(register=self._registration()))

    def _received(self, message: resource_manager_pb2.ResourceManagerToTaskExecutor) -> None:
        leader = self.link.peer
        if leader is not None and message.resource_manager_epoch < leader.epoch:
            log.warning(
                "a ResourceManager that no longer leads is not heard",
                address=leader.address,
                epoch=message.resource_manager_epoch,
            )
            return
        match message.WhichOneof("message"):
            case "registered":
                if not self._registered or self._epoch != message.resource_manager_epoch:
                    log.info(
                        "registered",
                        address=self.link.address,
                        epoch=message.resource_manager_epoch,
                    )
                self._registered, self._epoch = True, Epoch(message.resource_manager_epoch)
            case "shutdown":
                self._on_shutdown(message.shutdown.cause or "requested by the ResourceManager")
        if (event := convert.from_resource_manager(message)) is not None:
            self._post(event)

    def _broken(self) -> None:
        self._registered = False

    def _heartbeat(self) -> None:
        if self._registered:
            self._post(events.ReportDue())  # the slot report is the heartbeat


class JobMasterStream:
    def __init__(
        self,
        job_id: JobId,
        address: str,
        epoch: Epoch,
        *,
        conf: Configuration,
        post: Callable[[events.Event], None],
        heartbeat_interval_s: float,
        heartbeat_timeout_s: float,
        platform: Platform,
    ) -> None:
        self.job_id = job_id
        self.epoch = epoch
        self._conf = conf
        self._post = post
        self._is_connected = False
        self.link: Link[_ToJobMaster, job_master_pb2.JobMasterToTaskExecutor] = Link(
            name=f"JobMaster {job_id}",
            to=address,
            open_stream=lambda channel, sent: job_master_pb2_grpc.JobMasterStub(
                channel
            ).ConnectTaskExecutor(sent),  # type: ignore[no-untyped-call]
            heartbeat=lambda: _ToJobMaster(
                job_id=job_id, job_master_epoch=epoch, heartbeat=common_pb2.Heartbeat()
            ),
            on_up=self._connected,
            on_message=self._received,
            on_down=lambda cause, for_s: self._broken(cause),
            heartbeat_interval_s=heartbeat_interval_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
            channel=platform.transport.channel,
            refuses=platform.transport.refuses,
            on_ended=self._ended,
        )

    def _connected(self) -> None:
        self._is_connected = True
        self._post(events.JobMasterConnected(job_id=self.job_id))

    def _received(self, message: job_master_pb2.JobMasterToTaskExecutor) -> None:
        if message.WhichOneof("message") == "goodbye":
            self.link.end()
        if (event := convert.from_job_master(message, self._conf)) is not None:
            self._post(event)

    def _broken(self, cause: str) -> None:
        if self._is_connected:
            self._is_connected = False
            self._post(events.JobMasterDisconnected(job_id=self.job_id, cause=cause))

    def _ended(self) -> None:
        """A JobMaster keeps its port for life, so a refused connection means that the JobMaster
        ended.
        """
        self._post(
            events.JobMasterDied(
                job_id=self.job_id,
                job_master_epoch=self.epoch,
                cause=f"no process listens at {self.link.address}",
            )
        )

"""The link to the ResourceManager: declares requirements and posts its messages as events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firesteel._proto import common_pb2, resource_manager_pb2, resource_manager_pb2_grpc
from firesteel.common.fencing import Refusals
from firesteel.common.leader import LeaderRetriever
from firesteel.common.rpc.link import Link
from firesteel.common.service.platform import Transport
from jobmaster import convert
from jobmaster.core import events
from jobmaster.core.settings import JobSettings


class ResourceManagerLink:
    """Tasks keep running while the ResourceManager is away."""

    def __init__(
        self,
        transport: Transport,
        to: str | LeaderRetriever,
        settings: JobSettings,
        *,
        job_id: str,
        epoch: int,
        registration: resource_manager_pb2.JobMasterRegistration,
        post: Callable[[events.Event], None],
    ) -> None:
        self._job_id, self._job_master_epoch = job_id, epoch
        self._registration = registration
        self._post = post
        self._epoch = 0  # the highest received on this connection
        self.dropped = 0  # messages of a ResourceManager that was replaced
        self.refusals = Refusals()
        self._link: Link[
            resource_manager_pb2.JobMasterToResourceManager,
            resource_manager_pb2.ResourceManagerToJobMaster,
        ] = Link(
            name="ResourceManager",
            to=to,
            open_stream=lambda channel, sent: resource_manager_pb2_grpc.ResourceManagerStub(
                channel
            ).ConnectJobMaster(sent),  # type: ignore[no-untyped-call]
            heartbeat=lambda: self._message(heartbeat=common_pb2.Heartbeat()),
            on_up=self._register,
            on_message=self._received,
            on_down=lambda cause, for_s: None,
            heartbeat_interval_s=settings.heartbeat_interval_s,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            channel=transport.channel,
        )

    async def run(self) -> None:
        """Runs until it is cancelled."""
        await self._link.run()

    def declare(self, declaration: resource_manager_pb2.DeclareRequirements) -> None:
        """Sends the declaration. If the link is down, the core declares again when it is up."""
        self._link.send(self._message(declare=declaration))

    def report_lost(self, lost: resource_manager_pb2.TaskExecutorLost) -> None:
        """Sends the report. If the link is down, the next ResourceManager detects the death
        itself.
        """
        self._link.send(self._message(task_executor_lost=lost))

    def _register(self) -> None:
        """Registers. The declaration follows immediately, without waiting for the answer."""
        self._epoch = 0 if self._link.peer is None else self._link.peer.epoch
        self._link.send(self._message(register=self._registration))
        self._post(events.ResourceManagerConnected())

    def _received(self, message: resource_manager_pb2.ResourceManagerToJobMaster) -> None:
        if message.resource_manager_epoch < self._epoch:
            self.dropped += 1
            self.refusals.refuse(
                message.WhichOneof("message") or "",
                sender="ResourceManager",
                epoch=message.resource_manager_epoch,
                in_force=self._epoch,
            )
            return
        self._epoch = message.resource_manager_epoch
        event = convert.FROM_RESOURCE_MANAGER.decode(message)
        if event is not None:
            self._post(event)

    def _message(self, **message: Any) -> resource_manager_pb2.JobMasterToResourceManager:
        return resource_manager_pb2.JobMasterToResourceManager(
            job_id=self._job_id, epoch=self._job_master_epoch, **message
        )

"""The Dispatcher's process, the store it leaves to its successor, and the clients that speak to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dispatcher import convert
from dispatcher.core.commands import (
    Acknowledge,
    Answer,
    AskToCancel,
    Command,
    DropResults,
    KillProcess,
    NotifyWatchers,
    Refusal,
    StartJob,
    StartProcess,
)
from dispatcher.core.core import DispatcherCore
from dispatcher.core.events import (
    CancelJob,
    CancelNotDelivered,
    JobMasterDisconnected,
    ProcessExited,
    ProcessStarted,
    ProcessStartFailed,
    SubmitJob,
)
from dispatcher.core.jobs import Job
from dispatcher.core.records import (
    JobAdded,
    JobAssigned,
    JobCancelRequested,
    JobEnded,
    JobForgotten,
    JobStatusChanged,
    Record,
)
from firesteel._proto import common_pb2, dispatcher_pb2, job_graph_pb2
from firesteel.common.core import Tick
from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.process import exit_reason
from firesteel.common.states import JobStatus
from tests.simulation.network import End
from tests.simulation.processes import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    Process,
    SimulatedDriver,
)
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

JOB_MASTER_TIMEOUT_S = 3.0


@dataclass(slots=True, kw_only=True)
class StoredJob:
    name: str
    graph_id: str
    start_ms: int
    status: JobStatus = JobStatus.INITIALIZING
    end_ms: int = 0
    epoch: int = 0
    job_master_id: JobMasterId | None = None
    ended_at: float = 0.0  # virtual seconds
    failure: str = ""
    cancel_requested: bool = False


class JobStore:
    """As dispatcher.job_store, in memory; and the judge of invariant 1: what is terminal stays as
    it is.
    """

    def __init__(self, world: World) -> None:
        self.by_id: dict[JobId, StoredJob] = {}
        self.graphs: dict[str, job_graph_pb2.JobGraph] = {}
        self._world = world

    def persist(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, JobAdded):
                if record.job_id in self.by_id:
                    raise self._world.failed(f"job {record.job_id} was added twice")
                self.by_id[record.job_id] = StoredJob(
                    name=record.name, graph_id=record.graph_id, start_ms=record.start_ms
                )
                continue
            job = self.by_id[record.job_id]
            if job.status.globally_terminal and not isinstance(record, JobForgotten):
                raise self._world.failed(
                    f"job {record.job_id} is {job.status.name}, but then: {record}"
                )
            match record:
                case JobAssigned():
                    if record.epoch <= job.epoch:
                        raise self._world.failed(
                            f"job {record.job_id}: epoch {record.epoch} follows {job.epoch}"
                        )
                    job.epoch, job.job_master_id = record.epoch, record.job_master_id
                case JobStatusChanged():
                    job.status = record.status
                case JobEnded():
                    job.status, job.end_ms, job.failure = (
                        record.status,
                        record.end_ms,
                        record.failure,
                    )
                    job.ended_at = self._world.now
                case JobCancelRequested():
                    job.cancel_requested = True
                case JobForgotten():
                    pass

    def jobs(self) -> list[Job]:
        return [
            Job(
                job_id=job_id,
                name=job.name,
                graph_id=job.graph_id,
                status=job.status,
                start_ms=job.start_ms,
                end_ms=job.end_ms,
                epoch=job.epoch,
                job_master_id=job.job_master_id,
                cancel_requested=job.cancel_requested,
            )
            for job_id, job in self.by_id.items()
        ]

    def ended(self, job_id: JobId) -> bool:
        return job_id in self.by_id and self.by_id[job_id].status.globally_terminal


class DispatcherProcess(Process):
    def __init__(self, cluster: Cluster, incarnation: int) -> None:
        super().__init__(
            cluster.world, cluster.network, f"dispatcher-{incarnation}", "dispatcher:1"
        )
        self._cluster = cluster
        self._store = cluster.store
        self.core = DispatcherCore(
            spares=cluster.shape.spares, history=1000, jobs=self._store.jobs(), now=self.world.now
        )
        self._driver = SimulatedDriver(
            self,
            self.core,
            execute=self._execute,
            validate=lambda: None,
            persist=self._store.persist,
        )
        self._connections = itertools.count(1)
        self._peers: dict[int, End] = {}
        self._requests = itertools.count(1)
        self._waiting: dict[int, Callable[[Refusal | None], None]] = {}
        self.post = self._driver.post
        self.probe = self._driver.probe
        self.post(Tick())
        self.after(HEARTBEAT_INTERVAL_S, self._beat)

    # ---- clients

    def submit(
        self, graph: job_graph_pb2.JobGraph, answered: Callable[[Refusal | None], None]
    ) -> None:
        graph_id = f"graph of {graph.job_id}"
        self._store.graphs[graph_id] = graph
        self._ask(
            lambda n: SubmitJob(
                request=n, job_id=JobId(graph.job_id), name=graph.name, graph_id=graph_id
            ),
            answered,
        )

    def cancel(self, job_id: JobId, answered: Callable[[Refusal | None], None]) -> None:
        self._ask(lambda n: CancelJob(request=n, job_id=job_id), answered)

    def _ask(self, event: Callable[[int], Any], answered: Callable[[Refusal | None], None]) -> None:
        number = next(self._requests)
        self._waiting[number] = answered
        self.after(self.network.delay_s(), lambda: self.post(event(number)))

    # ---- streams of JobMasters

    def accept(self, method: str, end: End) -> None:
        connection = next(self._connections)
        self._peers[connection] = end
        heard_at = [self.world.now]

        def ended() -> None:
            self._peers.pop(connection, None)
            self.post(JobMasterDisconnected(connection=connection))

        def received(message: dispatcher_pb2.JobMasterToDispatcher) -> None:
            heard_at[0] = self.world.now
            if message.HasField("register"):
                self.post(convert.registered_from_proto(message.register, connection))
            elif message.HasField("status"):
                self.post(convert.status_from_proto(message.status, connection))

        def watch() -> None:
            if not end.open:
                return
            if self.world.now - heard_at[0] >= HEARTBEAT_TIMEOUT_S:
                end.close()
                ended()
            else:
                self.after(HEARTBEAT_INTERVAL_S, watch)

        end.on_message = received
        end.on_end = lambda in_order, cause: ended()
        watch()

    def _send(self, connection: int, message: dispatcher_pb2.DispatcherToJobMaster) -> None:
        if (end := self._peers.get(connection)) is not None:
            end.send(message)

    def _beat(self) -> None:
        for connection in self._peers:
            self._send(
                connection, dispatcher_pb2.DispatcherToJobMaster(heartbeat=common_pb2.Heartbeat())
            )
        self.after(HEARTBEAT_INTERVAL_S, self._beat)

    # ---- commands

    def _execute(self, command: Command) -> None:
        match command:
            case Answer():
                if (answered := self._waiting.pop(command.request, None)) is not None:
                    self.world.after(self.network.delay_s(), lambda: answered(command.refusal))
            case StartProcess():
                self.after(self.world.between(0.3, 1.0), self._start_process)
            case KillProcess():
                self._cluster.kill_job_master(command.pid)
            case StartJob():
                self.after(self.world.between(0.001, 0.01), lambda: self._start_job(command))
            case AskToCancel():
                self._ask_to_cancel(command)
            case Acknowledge():
                ack = dispatcher_pb2.StatusAck(status=command.status.value)
                self._send(command.connection, dispatcher_pb2.DispatcherToJobMaster(ack=ack))
            case NotifyWatchers() | DropResults():
                pass

    def _start_process(self) -> None:
        if self._cluster.faults_on and self.world.chance(0.03):
            self.post(ProcessStartFailed(reason="no room on the machine"))
            return
        child = self._cluster.start_job_master()
        child.on_exit.append(
            lambda code: (
                self.post(ProcessExited(pid=child.pid, reason=exit_reason(code)))
                if self.alive
                else None
            )
        )
        self.post(ProcessStarted(pid=child.pid, log_path="log"))

    def _start_job(self, command: StartJob) -> None:
        if self._store.ended(command.job_id):
            job = self._store.by_id[command.job_id]
            if self.world.now - job.ended_at > 1.0:
                raise self.world.failed(
                    f"job {command.job_id} is started though it is {job.status.name}"
                )
        start = dispatcher_pb2.StartJob(
            job_graph=self._store.graphs[command.graph_id],
            epoch=command.epoch,
            resource_manager_address="resourcemanager:1",
        )
        self._send(command.connection, dispatcher_pb2.DispatcherToJobMaster(start=start))

    def _ask_to_cancel(self, command: AskToCancel) -> None:
        """A call of its own; it fails if nobody answers in time."""
        settled = [False]

        def settle(delivered: bool) -> None:
            if self.alive and not settled[0]:
                settled[0] = True
                if not delivered:
                    self.post(CancelNotDelivered(job_id=command.job_id))

        def reach() -> None:
            peer: Any = self.network.listening.get(command.address)
            if peer is not None and peer.alive and not self.network.cut_off(self, peer):
                known = peer.cancel_job(command.job_id)
                self.world.after(self.network.delay_s(), lambda: settle(known))
            else:
                self.world.after(self.network.delay_s(), lambda: settle(False))

        self.after(self.network.delay_s(), reach)
        self.after(JOB_MASTER_TIMEOUT_S, lambda: settle(False))

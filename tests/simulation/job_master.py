"""A JobMaster's process: the real JobMasterCore once the Dispatcher has given it a job; the real
Sessions and conversions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    job_master_pb2,
    resource_manager_pb2,
    tasks_pb2,
)
from firesteel.common.config import Configuration
from firesteel.common.ids import JobId, JobMasterId, TaskExecutorId
from firesteel.common.rpc.convert import job_graph_from_proto
from firesteel.common.states import ExecutionState, JobStatus
from jobmaster import convert
from jobmaster.core import commands, events
from jobmaster.core.core import JobMasterCore
from jobmaster.core.settings import settings_from
from jobmaster.details import job_details
from jobmaster.servicer import Session, Sessions
from tests.simulation.network import End
from tests.simulation.processes import HEARTBEAT_INTERVAL_S, Link, Process, SimulatedDriver

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

DISPATCHER_GRACE_S = 60.0
GOODBYE_S = 1.0


class JobMasterProcess(Process):
    def __init__(self, cluster: Cluster, pid: int) -> None:
        super().__init__(cluster.world, cluster.network, f"jobmaster-{pid}", f"jobmaster-{pid}:1")
        self.pid = pid
        self.job_master_id = JobMasterId(self.world.ids().next())
        self.job: RunningJob | None = None
        self.sessions = Sessions()
        self._cluster = cluster
        self._exiting = False
        self._dispatcher = Link(
            self,
            "dispatcher:1",
            "job-master to dispatcher",
            eager=True,
            on_up=self._register,
            on_message=self._from_dispatcher,
            on_down=self._dispatcher_down,
            beat=lambda: self._dispatcher.send(
                dispatcher_pb2.JobMasterToDispatcher(heartbeat=common_pb2.Heartbeat())
            ),
        )
        self.after(self.world.between(0.01, 0.2), self._dispatcher.start)

    # ---- the Dispatcher

    def _register(self) -> None:
        register = dispatcher_pb2.JobMasterRegister(
            job_master_id=self.job_master_id, address=self.address, pid=self.pid
        )
        self._dispatcher.send(dispatcher_pb2.JobMasterToDispatcher(register=register))
        if self.job is not None:
            self.report(self.job.status_message())

    def report(self, status: dispatcher_pb2.JobStatusChanged) -> None:
        self._dispatcher.send(dispatcher_pb2.JobMasterToDispatcher(status=status))

    def _from_dispatcher(self, message: dispatcher_pb2.DispatcherToJobMaster) -> None:
        match message.WhichOneof("message"):
            case "start" if self.job is None:
                self.job = RunningJob(self, self._cluster, message.start)
                self.job.start()
            case "ack" if self.job is None:
                self.exit()
            case "ack":
                self.job.post(events.TerminalStatusStored())
            case _:
                pass

    def _dispatcher_down(self, for_s: float) -> None:
        if for_s < DISPATCHER_GRACE_S:
            return
        if self.job is None:
            self.exit()
        else:
            self.job.post(events.DispatcherLost())

    def cancel_job(self, job_id: JobId) -> bool:
        """The Dispatcher's call; False: this JobMaster does not run that job."""
        if self.job is None or self.job.job_id != job_id:
            return False
        self.job.post(events.CancelRequested())
        return True

    def exit(self) -> None:
        """Ends in order; what it has said goes out before."""
        if not self._exiting:
            self._exiting = True
            self.after(self.world.between(0.0, GOODBYE_S), lambda: self.die(0))

    # ---- TaskExecutors

    def accept(self, method: str, end: End) -> None:
        end.on_message = lambda message: self._first(end, message)

    def _first(self, end: End, message: job_master_pb2.TaskExecutorToJobMaster) -> None:
        job = self.job
        if job is None or not job.accepts(message):
            end.cancel("this JobMaster does not run that job")
            return
        assert message.HasField("hello"), message
        who = TaskExecutorId(message.hello.task_executor_id)
        session = self.sessions.open(who)
        job.ends[session] = end

        def ended() -> None:
            job.ends.pop(session, None)
            self.sessions.close(who, session)
            job.post(
                events.TaskExecutorDisconnected(task_executor_id=who, connection=session.connection)
            )

        def received(message: job_master_pb2.TaskExecutorToJobMaster) -> None:
            if job.accepts(message):
                job.post(convert.from_task_executor(who, message))

        end.on_message = received
        end.on_end = lambda in_order, cause: ended()
        job.on_closed[session] = ended
        job.post(convert.connected(message.hello, session.connection))
        job.flush()


class RunningJob:
    """The shell around one JobMasterCore; see jobmaster.shell."""

    def __init__(
        self, process: JobMasterProcess, cluster: Cluster, start: dispatcher_pb2.StartJob
    ) -> None:
        self.process = process
        self.job_id = JobId(start.job_graph.job_id)
        self.epoch = start.epoch
        self.ends: dict[Session, End] = {}
        self.on_closed: dict[Session, Any] = {}
        self.rounds_with_slots: set[int] = set()  # restarts so far, whenever it had all its slots
        self._world = process.world
        self._cluster = cluster
        self._job_graph = start.job_graph
        graph = job_graph_from_proto(start.job_graph)
        self.core = JobMasterCore(
            graph,
            settings_from(Configuration(dict(start.job_graph.config))),
            ids=self._world.ids(),
            now=self._world.now,
            now_ms=int(self._world.now * 1000),
        )
        self._deployments = convert.Deployments(
            start.job_graph, graph.edges, self.epoch, dispatcher_address=start.dispatcher_address
        )
        self._resource_manager_epoch = 0
        self._driver = SimulatedDriver(
            process, self.core, execute=self._execute, validate=self._validate
        )
        self._resource_manager = Link(
            process,
            start.resource_manager_address,
            "job-master to resource-manager",
            eager=True,
            on_up=self._register,
            on_message=self._from_resource_manager,
            beat=lambda: self._resource_manager.send(
                self._to_resource_manager(heartbeat=common_pb2.Heartbeat())
            ),
        )

    def start(self) -> None:
        self.post(events.JobStarted())
        self._resource_manager.start()
        self._heartbeats()

    def post(self, event: events.Event) -> None:
        self._driver.post(event)

    def accepts(self, message: job_master_pb2.TaskExecutorToJobMaster) -> bool:
        return message.job_id == self.job_id and message.job_master_epoch == self.epoch

    def _validate(self) -> None:
        self._cluster.checkers.job_master(self)

    # ---- commands

    def _execute(self, command: commands.Command) -> None:
        match command:
            case commands.SendOperatorMessage():
                self._send(
                    command.task_executor_id,
                    operator_event=convert.operator_event(self.job_id, command),
                )
            case commands.SpoolChunk():
                self._spool(command)
            case commands.DeployTasks():
                self.rounds_with_slots.add(self.core.restarts)
                self._send(command.task_executor_id, submit=self._deployments.submit(command))
            case commands.CancelTasks():
                cancel = tasks_pb2.CancelTasks(
                    job_id=self.job_id, job_master_epoch=self.epoch, attempt_ids=command.attempt_ids
                )
                self._send(command.task_executor_id, cancel=cancel)
            case commands.AnswerSlots():
                answer = job_master_pb2.SlotsAnswer(
                    accepted=command.accepted, rejected=command.rejected
                )
                self._send(command.task_executor_id, slots_answer=answer)
            case commands.FreeSlots():
                free = job_master_pb2.FreeSlots(
                    allocation_ids=command.allocation_ids, cause=command.cause
                )
                self._send(command.task_executor_id, free_slots=free)
            case commands.AnalyzeJob():
                self.rounds_with_slots.add(self.core.restarts)
                analyze = tasks_pb2.Analyze(
                    job_id=self.job_id,
                    job_master_epoch=self.epoch,
                    allocation_id=command.allocation_id,
                    job_graph=self._job_graph,
                )
                self._send(command.task_executor_id, analyze=analyze)
            case commands.DismissTaskExecutor():
                goodbye = self._to_task_executor(
                    goodbye=job_master_pb2.Goodbye(cause=command.cause)
                )
                self.process.sessions.dismiss(command.task_executor_id, goodbye)
            case commands.DeclareRequirements():
                declare = convert.declaration(command, convert.environment(self._job_graph.config))
                self._resource_manager.send(self._to_resource_manager(declare=declare))
            case commands.ListPaths():
                self._list_paths(command)
            case commands.ReportStatus():
                self.process.report(self.status_message())
            case commands.ReportProgress():
                self.process.after(0.05, lambda: self.process.report(self.status_message()))
            case commands.BeginResults():
                pass
            case commands.Log():
                pass
            case commands.Exit():
                self.process.exit()
        self.flush()

    def flush(self) -> None:
        """What the sessions hold goes out on their streams; a session that was ended closes its
        stream.
        """
        for session, end in list(self.ends.items()):
            while not session.outbox.empty():
                message = session.outbox.get_nowait()
                if message is None:
                    end.close()
                    self.on_closed[session]()
                    break
                end.send(message)

    def _list_paths(self, command: commands.ListPaths) -> None:
        files = tuple(f"{path}/{n}" for path in command.paths for n in range(5))
        found: events.Event = events.PathsListed(operator_id=command.operator_id, files=files)
        if "missing" in command.paths[0]:
            found = events.PathsMissing(
                operator_id=command.operator_id, problem=f"{command.paths[0]} does not exist"
            )
        self.process.after(self._world.between(0.001, 0.2), lambda: self.post(found))

    def _spool(self, command: commands.SpoolChunk) -> None:
        spooled = events.ChunkSpooled(
            operator_id=command.operator_id,
            attempt_id=command.attempt_id,
            sequence=command.sequence,
        )
        self.process.after(self._world.between(0.001, 0.05), lambda: self.post(spooled))

    def _send(self, task_executor_id: TaskExecutorId, **message: Any) -> None:
        self.process.sessions.send(task_executor_id, self._to_task_executor(**message))

    def _to_task_executor(self, **message: Any) -> job_master_pb2.JobMasterToTaskExecutor:
        return job_master_pb2.JobMasterToTaskExecutor(
            job_id=self.job_id, job_master_epoch=self.epoch, **message
        )

    def status_message(self) -> dispatcher_pb2.JobStatusChanged:
        graph = self.core.graph
        status, timestamp_ms = graph.timestamps[-1]
        details = job_details(self.core, {}, self._world.now) if status.terminal else None
        return dispatcher_pb2.JobStatusChanged(
            job_id=self.job_id,
            epoch=self.epoch,
            status=status.value,  # type: ignore[arg-type]
            timestamp_ms=timestamp_ms,
            tasks_by_state=graph.tasks_by_state(),
            final_details=details,
        )

    # ---- the ResourceManager

    def _to_resource_manager(
        self, **message: Any
    ) -> resource_manager_pb2.JobMasterToResourceManager:
        return resource_manager_pb2.JobMasterToResourceManager(
            job_id=self.job_id, job_master_epoch=self.epoch, **message
        )

    def _register(self) -> None:
        registration = resource_manager_pb2.JobMasterRegistration(
            job_id=self.job_id,
            job_master_epoch=self.epoch,
            address=self.process.address,
            job_name=self._job_graph.name,
        )
        self._resource_manager.send(self._to_resource_manager(register=registration))
        self.post(events.ResourceManagerConnected())

    def _from_resource_manager(
        self, message: resource_manager_pb2.ResourceManagerToJobMaster
    ) -> None:
        if message.resource_manager_epoch < self._resource_manager_epoch:
            return
        self._resource_manager_epoch = message.resource_manager_epoch
        match message.WhichOneof("message"):
            case "not_enough":
                short = message.not_enough
                self.post(
                    events.ResourcesShort(
                        sequence=short.sequence,
                        missing=short.missing,
                        growing=short.growing,
                        explanation=short.explanation,
                    )
                )
            case "task_executor_lost":
                lost = message.task_executor_lost
                self.post(
                    events.TaskExecutorLost(
                        task_executor_id=TaskExecutorId(lost.task_executor_id), cause=lost.cause
                    )
                )
            case _:
                pass

    def _heartbeats(self) -> None:
        for task_executor_id in list(self.process.sessions.by_id):
            self._send(task_executor_id, heartbeat=common_pb2.Heartbeat())
        self.flush()
        self.process.after(HEARTBEAT_INTERVAL_S, self._heartbeats)

    # ---- what checkers ask

    @property
    def status(self) -> JobStatus:
        return self.core.graph.status

    def running_attempts(self) -> set[str]:
        return {
            x.attempt_id for x in self.core.graph.executions() if x.state is ExecutionState.RUNNING
        }

"""Converts between the messages on the wire and the JobMaster's events and commands."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    job_graph_pb2,
    job_master_pb2,
    resource_manager_pb2,
    tasks_pb2,
)
from firesteel.common.checkpoints.metadata import SNAPSHOTS
from firesteel.common.config import options
from firesteel.common.ids import (
    AttemptId,
    OperatorId,
    ResultId,
    TaskExecutorId,
    VertexId,
)
from firesteel.common.job_graph import JobEdge
from firesteel.common.operator_messages import FromOperator, OperatorMessage
from firesteel.common.rescales import Rescale
from firesteel.common.rpc.convert import EDGE, ERROR
from firesteel.common.rpc.errors import MAX_PAYLOAD_BYTES, RemoteProtocolError, check_size
from firesteel.common.rpc.mapping import Envelope, Kind, Wire
from firesteel.errors import ErrorInfo
from firesteel.text import clipped
from jobmaster.core import commands, events
from jobmaster.core.coordinators.base import Json
from jobmaster.core.execution_graph.vertex import StatusChange
from jobmaster.core.failover.exceptions import Failure
from jobmaster.core.failover.restart_strategy import RestartHistory, Verdict
from jobmaster.core.parallelism import Parallelism
from jobmaster.core.slots.slot import SlotOffer

_STATUSES = 64  # of the job, that are kept for its next JobMaster
_TEXT_CHARS = 4_000  # of each traceback of a failure


class JobHistory(NamedTuple):
    """For the job's next JobMaster, and for users while the job has none. Oldest first."""

    statuses: tuple[StatusChange, ...] = ()
    failures: tuple[Failure, ...] = ()
    warnings: tuple[str, ...] = ()
    rescales: tuple[Rescale, ...] = ()


STATUS_CHANGE = Wire(StatusChange, job_master_pb2.StatusChange)
HISTORY = Wire(JobHistory, job_master_pb2.JobHistory)


def brief_history(
    statuses: Sequence[StatusChange],
    failures: Iterable[Failure],
    warnings: Iterable[str] = (),
    rescales: Iterable[Rescale] = (),
) -> JobHistory:
    """Bounded: the first status and the last ones, and the beginnings of tracebacks."""
    kept = statuses
    if len(statuses) > _STATUSES:
        kept = [statuses[0], *statuses[1 - _STATUSES :]]
    return JobHistory(
        tuple(kept),
        tuple(
            Failure(_brief(failure.primary), list(map(_brief, failure.follow_ups)))
            for failure in failures
        ),
        tuple(warnings),
        tuple(rescales),
    )


def _brief(error: ErrorInfo) -> ErrorInfo:
    return replace(
        error,
        user_traceback=clipped(error.user_traceback, _TEXT_CHARS),
        traceback=clipped(error.traceback, _TEXT_CHARS),
    )


def restart_history_to_json(history: RestartHistory, verdict: Verdict | None = None) -> str:
    """Empty if there has been no restart, and the job is not failing."""
    if verdict is not None:
        return json.dumps({**asdict(history), "verdict": asdict(verdict)})
    return "" if history == RestartHistory() else json.dumps(asdict(history))


def restart_history_from_json(text: str) -> RestartHistory:
    if not text:
        return RestartHistory()
    found = json.loads(text)
    found.pop("verdict", None)
    return RestartHistory(**{**found, "failed_at": tuple(found["failed_at"])})


def verdict_from_json(text: str) -> Verdict | None:
    """The same text; None: the job was not failing."""
    found = json.loads(text).get("verdict") if text else None
    if found is None:
        return None
    error = found["error"]
    return Verdict(error=error and ErrorInfo(**error), delay_s=found["delay_s"])


def collected_by_attempt(
    collected: Iterable[dispatcher_pb2.CollectedChunks],
) -> dict[OperatorId, dict[AttemptId, int]]:
    """How many chunks of each attempt are kept, by sink."""
    return {
        OperatorId(of.operator_id): {AttemptId(a): n for a, n in of.by_attempt.items()}
        for of in collected
    }


_FROM_TASK_EXECUTOR: Envelope[events.Event, job_master_pb2.TaskExecutorToJobMaster] = Envelope(
    job_master_pb2.TaskExecutorToJobMaster,
    {
        "heartbeat": events.TaskExecutorSeen,
        "report": Kind(events.TaskExecutorSeen, unmapped=("metrics",)),
        "task_states": events.TaskStatesReported,
        "operator_event": Kind(events.OperatorMessageReceived, unmapped=("subtask",)),
        "checkpoint_acknowledged": events.CheckpointAcknowledged,
        "checkpoint_declined": events.CheckpointDeclined,
        "data_ended": events.TaskDataEnded,
        "task_held": events.TaskHeld,
        "task_inspected": events.InspectionEnded,
        "offer_slots": events.SlotsOffered,
        "slot_lost": events.SlotLost,
    },
    others=("hello", "analyze_result"),  # see `connected` and `_analyzed`
    context=("task_executor_id",),
    given=("job_id", "job_master_epoch"),
)
_HELLO = Wire(
    events.TaskExecutorConnected, job_master_pb2.TaskExecutorHello, context=("connection",)
)
Wire(
    events.TaskUpdate,
    tasks_pb2.TaskStateChange,
    unmapped=("timestamp_ms", "metrics", "partitions", "splits"),
)
OPERATOR_ANALYSIS = Wire(events.OperatorAnalysis, tasks_pb2.OperatorSchema)
RESULT_LOCATIONS = Wire(commands.ResultLocations, tasks_pb2.ResultLocations)
TASK_DEPLOYMENT = Wire(
    commands.TaskToDeploy, tasks_pb2.TaskDeployment, codecs={"restored": SNAPSHOTS}
)
LISTED_TASK = Wire(events.ListedTask, tasks_pb2.ListedTask)


def connected(
    hello: job_master_pb2.TaskExecutorHello, connection: int
) -> events.TaskExecutorConnected:
    event = _HELLO.decode(hello, connection=connection)
    if not event.task_executor_id:
        raise RemoteProtocolError("TaskExecutorHello without task_executor_id")
    if event.address and not event.address.rpartition(":")[2].isdigit():
        raise RemoteProtocolError(
            f"TaskExecutorHello.address: {event.address[:80]!r}, not host:port"
        )
    if lost := {task.attempt_id for task in event.tasks} ^ event.places.keys():
        raise RemoteProtocolError(
            f"TaskExecutorHello: attempt {min(lost)[:80]!r} is in only one of tasks and places"
        )
    _check_offers(event.slots)
    return event


def from_task_executor(
    task_executor_id: TaskExecutorId, message: job_master_pb2.TaskExecutorToJobMaster
) -> events.Event:
    """Any message but the hello. Raises RemoteProtocolError."""
    if message.HasField("hello"):
        raise RemoteProtocolError("a second TaskExecutorHello on one stream")
    if message.HasField("analyze_result"):
        return _analyzed(task_executor_id, message.analyze_result)
    event = _FROM_TASK_EXECUTOR.decode(message, task_executor_id=task_executor_id)
    if isinstance(event, events.SlotsOffered):
        _check_offers(event.slots)
    elif isinstance(event, events.OperatorMessageReceived):
        _check_sender(event.message)
    return event


def _check_offers(offers: Iterable[SlotOffer]) -> None:
    if not all(offer.allocation_id for offer in offers):
        raise RemoteProtocolError("a slot was offered without its allocation_id")


def _check_sender(message: OperatorMessage) -> None:
    if not isinstance(message, FromOperator):
        kind = type(message).__name__
        raise RemoteProtocolError(f"an operator sent {kind} to its coordinator")


def _analyzed(task_executor_id: TaskExecutorId, result: tasks_pb2.AnalyzeResult) -> events.Event:
    if result.HasField("error"):
        return events.AnalysisFailed(
            task_executor_id=task_executor_id, error=ERROR.decode(result.error)
        )
    return events.JobAnalyzed(task_executor_id=task_executor_id, operators=analysis(result.schemas))


def analysis(operators: Iterable[tasks_pb2.OperatorSchema]) -> tuple[events.OperatorAnalysis, ...]:
    return tuple(map(OPERATOR_ANALYSIS.decode, operators))


def found_to_proto(found: Mapping[OperatorId, Json]) -> dict[str, bytes]:
    """Returns `discovered` of a Handover."""
    return {
        operator_id: zlib.compress(json.dumps(of, separators=(",", ":")).encode())
        for operator_id, of in found.items()
    }


def found_from_proto(found: Mapping[str, bytes]) -> dict[OperatorId, Json]:
    return {OperatorId(o): json.loads(zlib.decompress(of)) for o, of in found.items()}


PARALLELISM = Wire(Parallelism, job_master_pb2.JobParallelism)


def parallelism(
    by_vertex: Mapping[VertexId, int], version: int = 0
) -> job_master_pb2.JobParallelism:
    return job_master_pb2.JobParallelism(
        version=version, by_vertex={str(vertex_id): n for vertex_id, n in by_vertex.items()}
    )


FROM_RESOURCE_MANAGER: Envelope[
    events.Event | None, resource_manager_pb2.ResourceManagerToJobMaster
] = Envelope(
    resource_manager_pb2.ResourceManagerToJobMaster,
    {
        "not_enough": events.ResourcesShort,
        "slot_holders": events.SlotHoldersKnown,
        "vacate": events.VacateRequested,
        "vacate_withdrawn": events.VacateWithdrawn,
        "task_executor_lost": events.TaskExecutorLost,
        "loss_explained": events.LossExplained,
    },
    others=("registered", "heartbeat"),
    given=("resource_manager_epoch",),
)


TO_TASK_EXECUTOR: Envelope[commands.ToTaskExecutor, job_master_pb2.JobMasterToTaskExecutor] = (
    Envelope(
        job_master_pb2.JobMasterToTaskExecutor,
        {
            "slots_answer": commands.AnswerSlots,
            "cancel": commands.CancelTasks,
            "free_slots": commands.FreeSlots,
            "release_partitions": commands.ReleasePartitions,
            "operator_event": commands.SendOperatorMessage,
            "trigger_checkpoint": commands.TriggerCheckpoint,
            "notify_checkpoint": commands.NotifyCheckpoint,
            "drain": commands.DrainTasks,
            "adopt": commands.AdoptTasks,
            "inspect": commands.InspectTask,
            "goodbye": commands.DismissTaskExecutor,
        },
        others=("submit", "analyze", "heartbeat"),  # see TaskExecutorMessages
        context=("task_executor_id",),
        given=("job_id", "job_master_epoch"),
    )
)


# Read once, when a session starts; other spark.sql.* values are set in the running session.
_STATIC_SQL = ("spark.sql.extensions", "spark.sql.catalogImplementation", "spark.sql.warehouse.dir")


def environment(config: Mapping[str, str]) -> dict[str, str]:
    """The part of a job's configuration that its slots' processes must be started with."""

    def at_start(key: str) -> bool:
        if key.startswith("spark."):
            return not key.startswith("spark.sql.") or key in _STATIC_SQL
        return key == options.PYTHON_EXECUTABLE.key

    return {key: value for key, value in config.items() if at_start(key)}


_DECLARATION = Wire(
    commands.DeclareRequirements,
    resource_manager_pb2.DeclareRequirements,
    unmapped=("environment",),
)


def declaration(
    command: commands.DeclareRequirements, environment: Mapping[str, str]
) -> resource_manager_pb2.DeclareRequirements:
    message = _DECLARATION.encode(command)
    message.environment.update(environment)
    return message


TASK_EXECUTOR_LOST = Wire(commands.ReportTaskExecutorLost, resource_manager_pb2.TaskExecutorLost)


class TaskExecutorMessages:
    """Converts commands to what is sent to TaskExecutors. Parts that many deployments share are
    converted once.
    """

    def __init__(
        self,
        job_graph: job_graph_pb2.JobGraph,
        edges: tuple[JobEdge, ...],
        epoch: int,
        *,
        dispatcher_address: str,
        checkpoint_directory: str = "",
        unaligned_checkpoints: bool = False,
        state_backend: str = "",
        inline_bytes: int = 0,
        recovers: bool = False,
    ) -> None:
        """`recovers`: another JobMaster follows when this one is lost."""
        self._job_graph = job_graph
        self._epoch = epoch
        self._dispatcher_address = dispatcher_address
        self._checkpoint_directory = checkpoint_directory
        self._common = tasks_pb2.SubmitTasks(
            job_id=job_graph.job_id,
            job_master_epoch=epoch,
            job_name=job_graph.name,
            config=job_graph.config,
            blobs=job_graph.blobs,
            dispatcher_address=dispatcher_address,
            checkpoint_directory=checkpoint_directory,
            unaligned_checkpoints=unaligned_checkpoints,
            state_backend=state_backend,
            inline_bytes=inline_bytes,
            recovers=recovers,
        )
        self._vertices = {VertexId(vertex.vertex_id): vertex for vertex in job_graph.vertices}
        self._edges = edges
        self._deployments: dict[VertexId, tasks_pb2.VertexDeployment] = {}
        self._locations: dict[ResultId, tuple[commands.ResultLocations, bytes]] = {}

    def use_parallelism(self, by_vertex: Mapping[VertexId, int]) -> None:
        """Deploys these vertices with a different parallelism from now on."""
        for vertex_id, parallelism in by_vertex.items():
            self._vertices[vertex_id].parallelism = parallelism
        self._deployments.clear()
        self._locations.clear()

    def dispatcher_at(self, address: str) -> None:
        """Where TaskExecutors find a job's files from now on."""
        self._dispatcher_address = self._common.dispatcher_address = address

    def convert(self, command: commands.ToTaskExecutor) -> job_master_pb2.JobMasterToTaskExecutor:
        if isinstance(command, commands.DeployTasks):
            return self._message(submit=self._submit(command))
        if isinstance(command, commands.AnalyzeJob):
            return self._message(
                analyze=tasks_pb2.Analyze(
                    job_id=self._job_graph.job_id,
                    job_master_epoch=self._epoch,
                    allocation_id=command.allocation_id,
                    job_graph=self._job_graph,
                    dispatcher_address=self._dispatcher_address,
                    checkpoint_directory=self._checkpoint_directory,
                )
            )
        return TO_TASK_EXECUTOR.encode(
            command, job_id=self._job_graph.job_id, job_master_epoch=self._epoch
        )

    def deployments(
        self, command: commands.DeployTasks, limit_bytes: int = MAX_PAYLOAD_BYTES
    ) -> Iterator[job_master_pb2.JobMasterToTaskExecutor]:
        """Converts a deployment to one message, or to several if its tasks restore much. Raises
        MessageTooLarge for a task that does not fit into a message.
        """
        message = self.convert(command)
        if message.ByteSize() <= limit_bytes:
            yield message
            return
        if len(command.tasks) == 1:
            task = command.tasks[0]
            name = self._vertices[task.vertex_id].name
            check_size(
                message,
                f"the deployment of subtask {task.subtask} of {name!r}, with the operator state"
                " that it restores,",
                limit_bytes,
            )
        middle = len(command.tasks) // 2
        for tasks in (command.tasks[:middle], command.tasks[middle:]):
            wanted = {task.vertex_id for task in tasks}
            part = replace(
                command,
                tasks=tasks,
                vertices=tuple(vertex for vertex in command.vertices if vertex in wanted),
            )
            yield from self.deployments(part, limit_bytes)

    def heartbeat(self) -> job_master_pb2.JobMasterToTaskExecutor:
        return self._message(heartbeat=common_pb2.Heartbeat())

    def _message(self, **message: Any) -> job_master_pb2.JobMasterToTaskExecutor:
        return job_master_pb2.JobMasterToTaskExecutor(
            job_id=self._job_graph.job_id, job_master_epoch=self._epoch, **message
        )

    def _submit(self, command: commands.DeployTasks) -> tasks_pb2.SubmitTasks:
        message = tasks_pb2.SubmitTasks()
        message.CopyFrom(self._common)
        message.restored_directory = command.restored_from
        message.vertices.extend(
            self._vertex(vertex_id, command.schemas) for vertex_id in command.vertices
        )
        message.locations.extend(self._located(locations) for locations in command.locations)
        message.tasks.extend(map(TASK_DEPLOYMENT.encode, command.tasks))
        return message

    def _vertex(
        self, vertex_id: VertexId, schemas: dict[commands.OutputOf, bytes]
    ) -> tasks_pb2.VertexDeployment:
        known = self._deployments.get(vertex_id)
        if known is None:
            vertex = self._vertices[vertex_id]
            in_edges = [edge for edge in self._edges if edge.target_vertex_id == vertex_id]
            out_edges = [edge for edge in self._edges if edge.source_vertex_id == vertex_id]
            producers = [self._vertices[edge.source_vertex_id] for edge in in_edges]
            consumers = [self._vertices[edge.target_vertex_id] for edge in out_edges]
            known = self._deployments[vertex_id] = tasks_pb2.VertexDeployment(
                vertex=vertex,
                in_edges=[EDGE.encode(edge) for edge in in_edges],
                in_parallelism=[producer.parallelism for producer in producers],
                out_edges=[EDGE.encode(edge) for edge in out_edges],
                out_parallelism=[consumer.parallelism for consumer in consumers],
                out_max_parallelism=[consumer.max_parallelism for consumer in consumers],
                output_schemas=[
                    schemas.get(commands.OutputOf(OperatorId(operator.operator_id)), b"")
                    for operator in vertex.operators
                ],
                input_schemas=[self._schema_of(edge, schemas) for edge in in_edges],
            )
        return known

    def _schema_of(self, edge: JobEdge, schemas: dict[commands.OutputOf, bytes]) -> bytes:
        """The schema of the rows on an edge; empty where it is unknown before data flows."""
        producer = self._vertices[edge.source_vertex_id].operators[edge.source_operator]
        return schemas.get(
            commands.OutputOf(OperatorId(producer.operator_id), edge.side_output_tag), b""
        )

    def _located(self, locations: commands.ResultLocations) -> bytes:
        known = self._locations.get(locations.result_id)
        if known is None or known[0] is not locations:
            message = RESULT_LOCATIONS.encode(locations)
            known = self._locations[locations.result_id] = (locations, message.SerializeToString())
        return known[1]

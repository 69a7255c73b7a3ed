"""Converts between the messages on the wire and the JobMaster's events and commands."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, assert_never

from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    job_graph_pb2,
    job_master_pb2,
    resource_manager_pb2,
    tasks_pb2,
)
from firesteel.common.checkpoints.metadata import (
    decode_snapshots,
    encode_snapshots,
)
from firesteel.common.config import options
from firesteel.common.ids import (
    AllocationId,
    AttemptId,
    ExecutorId,
    OperatorId,
    ResultId,
    TaskExecutorId,
    VertexId,
)
from firesteel.common.job_graph import JobEdge
from firesteel.common.operator_messages import FromOperator, HeldSplit, OperatorEvent
from firesteel.common.rpc.convert import EDGE, ERROR, OPERATOR_EVENT, PARTITION_ID, PROFILE
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.limits import MAX_PAYLOAD_BYTES, check_size
from firesteel.common.rpc.mapping import Envelope, Wire
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from firesteel.text import clipped
from jobmaster.core import commands, events
from jobmaster.core.checkpoints.checkpoint import Snapshot
from jobmaster.core.coordinators.base import Json
from jobmaster.core.execution_graph.history import StatusChange
from jobmaster.core.failover.exceptions import Failure
from jobmaster.core.failover.restart_strategy import RestartHistory, Verdict
from jobmaster.core.slots.slot import SlotOffer

# By number: quicker than calling the Enum, for messages with thousands of states.
_STATES = tuple(ExecutionState)


_STATUSES = 64  # of the job, that are kept for its next JobMaster
_TEXT_CHARS = 4_000  # of each traceback of a failure


def history_to_proto(
    statuses: Sequence[StatusChange], failures: Iterable[Failure], warnings: Iterable[str]
) -> job_master_pb2.JobHistory:
    """Bounded: the first status and the last ones, and the beginnings of tracebacks."""
    kept = statuses
    if len(statuses) > _STATUSES:
        kept = [statuses[0], *statuses[1 - _STATUSES :]]
    return job_master_pb2.JobHistory(
        timestamps=[
            job_master_pb2.StateTimestamp(state=status.value, timestamp_ms=at_ms)
            for status, at_ms in kept
        ],
        failures=[
            job_master_pb2.Failure(
                primary=_brief(failure.primary), follow_ups=map(_brief, failure.follow_ups)
            )
            for failure in failures
        ],
        warnings=warnings,
    )


def _brief(error: ErrorInfo) -> common_pb2.ErrorInfo:
    return ERROR.encode(
        replace(
            error,
            user_traceback=clipped(error.user_traceback, _TEXT_CHARS),
            traceback=clipped(error.traceback, _TEXT_CHARS),
        )
    )


def statuses_from_proto(history: job_master_pb2.JobHistory) -> tuple[StatusChange, ...]:
    return tuple(StatusChange(JobStatus(t.state), t.timestamp_ms) for t in history.timestamps)


def failures_from_proto(history: job_master_pb2.JobHistory) -> tuple[Failure, ...]:
    return tuple(
        Failure(ERROR.decode(of.primary), list(map(ERROR.decode, of.follow_ups)))
        for of in history.failures
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


def task_updates(changes: tasks_pb2.TaskStateChanges) -> tuple[events.TaskUpdate, ...]:
    return tuple(
        events.TaskUpdate(
            AttemptId(change.attempt_id),
            _state(change.state),
            ERROR.decode(change.error) if change.HasField("error") else None,
            PARTITION_ID.decode(change.unreadable) if change.HasField("unreadable") else None,
        )
        for change in changes.changes
    )


def connected(
    hello: job_master_pb2.TaskExecutorHello, connection: int
) -> events.TaskExecutorConnected:
    if not hello.task_executor_id:
        raise RemoteProtocolError("TaskExecutorHello without task_executor_id")
    if hello.address and not hello.address.rpartition(":")[2].isdigit():
        raise RemoteProtocolError(
            f"TaskExecutorHello.address: {hello.address[:80]!r}, not host:port"
        )
    return events.TaskExecutorConnected(
        task_executor_id=TaskExecutorId(hello.task_executor_id),
        connection=connection,
        host=hello.host,
        slots=tuple(slot_offer(slot) for slot in hello.slots),
        tasks=tuple(
            events.TaskUpdate(AttemptId(task.attempt_id), _state(task.state))
            for task in hello.tasks
        ),
        address=hello.address,
        places={
            AttemptId(task.attempt_id): events.TaskPlace(
                VertexId(task.vertex_id),
                task.subtask,
                task.attempt,
                AllocationId(task.allocation_id),
                _splits(task.splits),
            )
            for task in hello.tasks
        },
        data_address=hello.data_address,
        partitions=tuple(PARTITION_ID.decode(kept.id) for kept in hello.partitions),
    )


def slot_offer(offer: job_master_pb2.SlotOffer) -> SlotOffer:
    if not offer.allocation_id:
        raise RemoteProtocolError("a slot was offered without its allocation_id")
    return SlotOffer(
        allocation_id=AllocationId(offer.allocation_id),
        slot_index=offer.slot_index,
        profile=PROFILE.decode(offer.profile),
        executor_id=ExecutorId(offer.executor_id),
        data_address=offer.data_address,
    )


def from_task_executor(
    task_executor_id: TaskExecutorId, message: job_master_pb2.TaskExecutorToJobMaster
) -> events.Event:
    """Any message but the hello. Raises RemoteProtocolError."""
    match message.WhichOneof("message"):
        case "heartbeat" | "report":
            return events.TaskExecutorSeen(task_executor_id=task_executor_id)
        case "task_states":
            return events.TaskStatesReported(
                task_executor_id=task_executor_id, updates=task_updates(message.task_states)
            )
        case "operator_event":
            event = message.operator_event
            return events.OperatorMessageReceived(
                task_executor_id=task_executor_id,
                operator_id=OperatorId(event.operator_id),
                attempt_id=AttemptId(event.attempt_id),
                message=operator_message(event),
            )
        case "checkpoint_answer":
            return _checkpoint_answer(task_executor_id, message.checkpoint_answer)
        case "data_ended":
            return events.TaskDataEnded(
                task_executor_id=task_executor_id,
                attempt_id=AttemptId(message.data_ended.attempt_id),
            )
        case "task_held":
            return _held(task_executor_id, message.task_held)
        case "offer_slots":
            slots = tuple(slot_offer(slot) for slot in message.offer_slots.slots)
            return events.SlotsOffered(task_executor_id=task_executor_id, slots=slots)
        case "slot_lost":
            return events.SlotLost(
                task_executor_id=task_executor_id,
                allocation_id=AllocationId(message.slot_lost.allocation_id),
                error=ERROR.decode(message.slot_lost.error),
            )
        case "analyze_result":
            return _analyzed(task_executor_id, message.analyze_result)
        case "hello":
            raise RemoteProtocolError("a second TaskExecutorHello on one stream")
        case kind:
            raise RemoteProtocolError(f"a message of unknown kind {kind!r}")


def _checkpoint_answer(
    task_executor_id: TaskExecutorId, answer: tasks_pb2.CheckpointAnswer
) -> events.Event:
    attempt_id, checkpoint_id = AttemptId(answer.attempt_id), answer.checkpoint_id
    if answer.declined:
        return events.CheckpointDeclined(
            task_executor_id=task_executor_id,
            attempt_id=attempt_id,
            checkpoint_id=checkpoint_id,
            cause=answer.declined,
        )
    return events.CheckpointAcknowledged(
        task_executor_id=task_executor_id,
        attempt_id=attempt_id,
        checkpoint_id=checkpoint_id,
        snapshot=Snapshot(
            operators=decode_snapshots(answer.snapshot),
            operators_finished=answer.operators_finished,
            start_delay_ms=answer.start_delay_ms,
            alignment_ms=answer.alignment_ms,
            sync_ms=answer.sync_ms,
            async_ms=answer.async_ms,
        ),
    )


def _held(task_executor_id: TaskExecutorId, held: tasks_pb2.TaskHeld) -> events.TaskHeld:
    return events.TaskHeld(
        task_executor_id=task_executor_id,
        attempt_id=AttemptId(held.attempt_id),
        splits=_splits(held.splits),
        open_checkpoints=tuple(held.open_checkpoints),
        stops_with=held.stops_with or None,
        data_ended=held.data_ended,
        stops=events.Stopping(held.stops_into, held.drains) if held.stops_into else None,
    )


def _splits(
    splits: Iterable[tasks_pb2.HeldSplits],
) -> dict[OperatorId, tuple[HeldSplit, ...]]:
    return {
        OperatorId(of.operator_id): tuple(map(HeldSplit, of.places, of.digests)) for of in splits
    }


def _analyzed(task_executor_id: TaskExecutorId, result: tasks_pb2.AnalyzeResult) -> events.Event:
    if result.HasField("error"):
        return events.AnalysisFailed(
            task_executor_id=task_executor_id, error=ERROR.decode(result.error)
        )
    return events.JobAnalyzed(task_executor_id=task_executor_id, operators=analysis(result.schemas))


OPERATOR_ANALYSIS = Wire(events.OperatorAnalysis, tasks_pb2.OperatorSchema)


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


def listed_to_proto(tasks: Iterable[events.ListedTask]) -> Iterator[tasks_pb2.ListedTask]:
    """Yields `tasks` of a Handover."""
    for task in tasks:
        listed = tasks_pb2.ListedTask(
            vertex_id=task.vertex_id,
            subtask=task.subtask,
            attempt=task.attempt,
            attempt_id=task.attempt_id,
        )
        if (finished := task.finished) is not None:
            listed.finished = True
            listed.task_executor_id = finished.task_executor_id
            listed.host, listed.slot_index = finished.host, finished.slot_index
            for operator_id, places in finished.splits.items():
                listed.splits.add(operator_id=operator_id, places=places)
        yield listed


def listed_from_proto(tasks: Iterable[tasks_pb2.ListedTask]) -> tuple[events.ListedTask, ...]:
    return tuple(
        events.ListedTask(
            VertexId(task.vertex_id),
            task.subtask,
            task.attempt,
            AttemptId(task.attempt_id),
            events.FinishedTask(
                TaskExecutorId(task.task_executor_id),
                task.host,
                task.slot_index,
                {OperatorId(of.operator_id): tuple(of.places) for of in task.splits},
            )
            if task.finished
            else None,
        )
        for task in tasks
    )


FROM_RESOURCE_MANAGER: Envelope[
    events.Event | None, resource_manager_pb2.ResourceManagerToJobMaster
] = Envelope(
    resource_manager_pb2.ResourceManagerToJobMaster,
    {
        "registered": None,
        "heartbeat": None,
        "not_enough": events.ResourcesShort,
        "slot_holders": events.SlotHoldersKnown,
        "vacate": events.VacateRequested,
        "vacate_withdrawn": events.VacateWithdrawn,
        "task_executor_lost": events.TaskExecutorLost,
    },
    given=("resource_manager_epoch",),
)


def _state(number: int) -> ExecutionState:
    if not 0 <= number < len(_STATES):
        raise RemoteProtocolError(f"task state {number} does not exist")
    return _STATES[number]


def operator_message(event: tasks_pb2.OperatorEvent) -> FromOperator:
    message = OPERATOR_EVENT.decode(event).message
    if not isinstance(message, FromOperator):
        kind = event.WhichOneof("message")
        raise RemoteProtocolError(f"an operator sent an event of kind {kind!r} to its coordinator")
    return message


def operator_event(job_id: str, command: commands.SendOperatorMessage) -> tasks_pb2.OperatorEvent:
    return OPERATOR_EVENT.encode(
        OperatorEvent(
            job_id=job_id,
            operator_id=command.operator_id,
            subtask=command.subtask,
            attempt_id=command.attempt_id,
            message=command.message,
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

    def dispatcher_at(self, address: str) -> None:
        """Where TaskExecutors find a job's files from now on."""
        self._dispatcher_address = self._common.dispatcher_address = address

    def convert(self, command: commands.ToTaskExecutor) -> job_master_pb2.JobMasterToTaskExecutor:
        match command:
            case commands.SendOperatorMessage():
                return self._message(operator_event=operator_event(self._job_graph.job_id, command))
            case commands.DeployTasks():
                return self._message(submit=self._submit(command))
            case commands.CancelTasks():
                return self._message(
                    cancel=tasks_pb2.CancelTasks(
                        job_id=self._job_graph.job_id,
                        job_master_epoch=self._epoch,
                        attempt_ids=command.attempt_ids,
                    )
                )
            case commands.AnswerSlots(accepted=accepted, rejected=rejected):
                answer = job_master_pb2.SlotsAnswer(accepted=accepted, rejected=rejected)
                return self._message(slots_answer=answer)
            case commands.FreeSlots(allocation_ids=allocation_ids, cause=cause):
                free = job_master_pb2.FreeSlots(allocation_ids=allocation_ids, cause=cause)
                return self._message(free_slots=free)
            case commands.ReleasePartitions(partitions=partitions):
                release = job_master_pb2.ReleasePartitions(
                    partitions=[PARTITION_ID.encode(partition) for partition in partitions]
                )
                return self._message(release_partitions=release)
            case commands.AnalyzeJob():
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
            case commands.TriggerCheckpoint():
                trigger = tasks_pb2.TriggerCheckpoint(
                    job_id=self._job_graph.job_id,
                    job_master_epoch=self._epoch,
                    checkpoint_id=command.checkpoint_id,
                    timestamp_ms=command.timestamp_ms,
                    savepoint=command.savepoint,
                    unaligned=command.unaligned,
                    aligned_timeout_ms=command.aligned_timeout_ms,
                    at_least_once=command.at_least_once,
                    attempt_ids=command.attempt_ids,
                    splits={str(attempt): n for attempt, n in command.splits.items()},
                    stops=command.stops,
                    stops_into=command.stops_into,
                    base=command.base,
                )
                return self._message(trigger_checkpoint=trigger)
            case commands.DrainTasks():
                drain = tasks_pb2.TriggerCheckpoint(
                    job_id=self._job_graph.job_id,
                    job_master_epoch=self._epoch,
                    attempt_ids=command.attempt_ids,
                    drains=True,
                    stops_into=command.stops_into,
                )
                return self._message(trigger_checkpoint=drain)
            case commands.AdoptTasks(attempt_ids=attempt_ids):
                adopt = tasks_pb2.AdoptTasks(
                    job_id=self._job_graph.job_id,
                    job_master_epoch=self._epoch,
                    attempt_ids=attempt_ids,
                )
                return self._message(adopt=adopt)
            case commands.NotifyCheckpoint():
                notice = tasks_pb2.NotifyCheckpoint(
                    job_id=self._job_graph.job_id,
                    job_master_epoch=self._epoch,
                    checkpoint_id=command.checkpoint_id,
                    completed=command.completed,
                    attempt_ids=command.attempt_ids,
                    stops=command.stops,
                )
                return self._message(notify_checkpoint=notice)
            case commands.DismissTaskExecutor(cause=cause):
                return self._message(goodbye=job_master_pb2.Goodbye(cause=cause))
            case _:
                assert_never(command)

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
        make = tasks_pb2.TaskDeployment
        message.tasks.extend(
            [
                make(
                    attempt_id=task.attempt_id,
                    vertex_id=task.vertex_id,
                    subtask=task.subtask,
                    attempt=task.attempt,
                    allocation_id=task.allocation_id,
                    restored=None if task.restored is None else encode_snapshots(task.restored),
                )
                for task in command.tasks
            ]
        )
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
            message = tasks_pb2.ResultLocations(
                result_id=locations.result_id,
                addresses=locations.addresses,
                address_index=locations.address_index,
                attempt=locations.attempts,
                ended=locations.ended,
            )
            known = self._locations[locations.result_id] = (locations, message.SerializeToString())
        return known[1]

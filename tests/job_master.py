"""Small jobs, and a World that drives a JobMasterCore without processes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from firesteel.common.ids import (
    AllocationId,
    ExecutorId,
    IdSource,
    JobId,
    OperatorId,
    ResultId,
    TaskExecutorId,
    VertexId,
    stable_id,
)
from firesteel.common.job_graph import (
    JobEdge,
    JobGraph,
    JobVertex,
    Operator,
    Partitioner,
    ResultType,
)
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.service.core import Tick
from firesteel.common.states import ExecutionState
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.core import JobMasterCore
from jobmaster.core.execution_graph import Execution
from jobmaster.core.settings import JobSettings
from jobmaster.core.slots.slot import SlotOffer

SLOT_PROFILE = ResourceProfile(cpu_cores=1.0, heap_bytes=512 * 2**20, off_heap_bytes=768 * 2**20)
START_MS = 1_700_000_000_000
C = TypeVar("C")


def vertex(
    name: str,
    parallelism: int,
    *,
    coordinator: tuple[str, dict[str, Any]] | None = None,
    **fields: Any,
) -> JobVertex:
    """Returns a vertex with one operator; `coordinator` is its kind and options."""
    kind, options = coordinator or ("", {})
    operator = Operator(
        operator_id=operator_id(name),
        name=name,
        kind="Custom",
        spec=b"",
        coordinator_kind=kind,
        coordinator_options_json=json.dumps(options) if kind else "",
    )
    defaults: dict[str, Any] = {"max_parallelism": max(128, parallelism), "resources": UNKNOWN}
    return JobVertex(
        vertex_id=VertexId(stable_id("vertex", name)),
        name=name,
        parallelism=parallelism,
        operators=(operator,),
        **{**defaults, **fields},
    )


def operator_id(vertex_name: str) -> OperatorId:
    return OperatorId(stable_id("operator", vertex_name))


def job(
    *vertices: JobVertex, partitioner: Partitioner = Partitioner.REBALANCE, edges: bool = True
) -> JobGraph:
    """Returns a job of these vertices in a row, each feeding the next."""
    pairs = itertools.pairwise(vertices) if edges else ()
    return JobGraph(
        job_id=JobId(stable_id("job")),
        name="a job",
        vertices=vertices,
        edges=tuple(edge(source, target, partitioner) for source, target in pairs),
    )


def edge(
    source: JobVertex,
    target: JobVertex,
    partitioner: Partitioner,
    result_type: ResultType = ResultType.PIPELINED,
    *,
    number: int = 0,
) -> JobEdge:
    """Returns an edge between the only operators of two vertices. `number` distinguishes edges."""
    return JobEdge(
        result_id=ResultId(stable_id("result", source.name, target.name, str(number))),
        source_vertex_id=source.vertex_id,
        source_operator=0,
        target_vertex_id=target.vertex_id,
        target_operator=0,
        target_input=0,
        partitioner=partitioner,
        result_type=result_type,
    )


def offer(
    number: int, *, slot_index: int = 0, profile: ResourceProfile = SLOT_PROFILE
) -> SlotOffer:
    return SlotOffer(
        allocation_id=AllocationId(stable_id("allocation", str(number))),
        slot_index=slot_index,
        profile=profile,
        executor_id=ExecutorId(stable_id("executor", str(number))),
        data_address=f"127.0.0.1:{20_000 + number}",
    )


class World:
    """One core, driven by hand: `post` events and inspect `sent` commands; `now` is the time. The
    core is validated after every event.
    """

    def __init__(
        self,
        graph: JobGraph,
        settings: JobSettings | None = None,
        recovery: Recovery | None = None,
        seed: bytes = b"test",
    ) -> None:
        self.now = 100.0
        self.core = JobMasterCore(
            graph,
            settings or JobSettings(),
            ids=IdSource(seed),
            now=self.now,
            now_ms=START_MS,
            recovery=recovery,
        )
        self.sent: list[commands.Command] = []
        self._numbers = itertools.count()
        self._connections = itertools.count(1)
        self._connection_of: dict[str, int] = {}

    def post(self, event: events.Event | Tick) -> list[commands.Command]:
        """Returns the commands of this event, which are also added to `sent`."""
        new = list(self.core.handle(event, self.now).commands)
        self.core.validate()
        self.sent += new
        return new

    def pass_time(self, seconds: float) -> list[commands.Command]:
        """Advances the time, with a Tick at every deadline."""
        end, out = self.now + seconds, []
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            out += self.post(Tick())
        self.now = end
        return out

    def of(self, kind: type[C], among: Sequence[commands.Command] | None = None) -> list[C]:
        return [
            command
            for command in (self.sent if among is None else among)
            if isinstance(command, kind)
        ]

    def one(self, kind: type[C], among: Sequence[commands.Command] | None = None) -> C:
        found = self.of(kind, among)
        assert len(found) == 1, f"{len(found)} commands of {kind.__name__}: {found}"
        return found[0]

    # ---- the usual steps

    def start(self) -> list[commands.Command]:
        return self.post(events.JobStarted())

    def connect(
        self, name: str, slots: Sequence[SlotOffer] = (), tasks: Sequence[events.TaskUpdate] = ()
    ) -> list[commands.Command]:
        self._connection_of[name] = next(self._connections)
        return self.post(
            events.TaskExecutorConnected(
                task_executor_id=TaskExecutorId(name),
                connection=self._connection_of[name],
                host="127.0.0.1",
                address=f"{name}:1",
                slots=tuple(slots),
                tasks=tuple(tasks),
            )
        )

    def disconnect(self, name: str) -> list[commands.Command]:
        return self.post(
            events.TaskExecutorDisconnected(
                task_executor_id=TaskExecutorId(name), connection=self._connection_of[name]
            )
        )

    def give_slots(
        self, name: str, count: int, profile: ResourceProfile = SLOT_PROFILE
    ) -> list[SlotOffer]:
        """Offers `count` new slots of the TaskExecutor, which is connected first if necessary."""
        offers = [
            offer(next(self._numbers), slot_index=index, profile=profile) for index in range(count)
        ]
        if TaskExecutorId(name) not in self.core.task_executors:
            self.connect(name)
        self.post(events.SlotsOffered(task_executor_id=TaskExecutorId(name), slots=tuple(offers)))
        return offers

    def analyze(self, not_repeatable: Collection[OperatorId] = ()) -> list[commands.Command]:
        """Answers the last AnalyzeJob with success. A new attempt of an operator in
        `not_repeatable` may produce different rows.
        """
        request = self.of(commands.AnalyzeJob)[-1]
        operators = [o for v in self.core.graph.job_graph.vertices for o in v.operators]
        analyses = tuple(
            events.OperatorAnalysis(
                o.operator_id,
                b"schema of " + o.name.encode(),
                "plan",
                repeatable=o.operator_id not in not_repeatable,
            )
            for o in operators
        )
        return self.post(
            events.JobAnalyzed(task_executor_id=request.task_executor_id, operators=analyses)
        )

    def report(
        self,
        executions: Sequence[Execution],
        *states: ExecutionState,
        error: ErrorInfo | None = None,
    ) -> list[commands.Command]:
        """The TaskExecutors of these executions report the states, one after another."""
        out = []
        for state in states:
            for execution in executions:
                assert execution.slot is not None
                update = events.TaskUpdate(execution.attempt_id, state, error)
                out += self.post(
                    events.TaskStatesReported(
                        task_executor_id=execution.slot.task_executor_id, updates=(update,)
                    )
                )
        return out

    def executions(self, vertex_name: str = "") -> list[Execution]:
        return [
            e
            for e in self.core.graph.executions()
            if vertex_name in ("", e.vertex.job_vertex.vertex.name)
        ]

    def run(self, *task_executors: tuple[str, int]) -> None:
        """Runs the job from its start until all tasks are RUNNING."""
        self.start()
        for name, slots in task_executors:
            self.give_slots(name, slots)
        self.analyze()
        self.report(self.executions(), ExecutionState.INITIALIZING, ExecutionState.RUNNING)

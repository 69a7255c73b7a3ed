"""Jobs of random shapes, and the shape of the cluster that runs them: all drawn from the seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from firesteel._proto import job_graph_pb2
from firesteel.common.config import options
from firesteel.common.ids import IdSource, JobId
from firesteel.common.job_graph import JobEdge, JobGraph, JobVertex, Partitioner, ResultType
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.rpc.convert import JOB_GRAPH
from tests.job_master import job, vertex
from tests.simulation.services import FILES
from tests.simulation.world import World

MIB = 2**20
SLOT = ResourceProfile(cpu_cores=1.0, heap_bytes=512 * MIB, off_heap_bytes=768 * MIB)
SMALL_SLOT = replace(SLOT, heap_bytes=480 * MIB, off_heap_bytes=512 * MIB)
MOST_ELASTIC = 4  # subtasks of a vertex of a reactive job
_PARTITIONERS = (
    Partitioner.REBALANCE,
    Partitioner.RESCALE,
    Partitioner.HASH,
    Partitioner.BROADCAST,
)
_Coordinator = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parameters that do not change while a cluster runs."""

    task_executors: int
    slots: int  # of each
    max_slots: int
    spread: bool
    spares: int
    # Probabilities, while faults are on:
    task_failures: float = 0.0  # per task and phase
    hanging_cancels: float = 0.0
    crashes_at_start: float = 0.0  # per process
    failing_writes: float = 0.0  # per transaction of the job store
    lost_answers: float = 0.0  # of transactions that succeed
    damaged_results: float = 0.0  # per partition that is read
    declined_snapshots: float = 0.03  # per task and checkpoint
    deaths_after_progress: float = 0.0  # per complete checkpoint, or result that is kept
    heartbeat_interval_s: float = 2.0
    heartbeat_timeout_s: float = 8.0
    masters: int = 0  # Dispatchers and ResourceManagers that are elected; 0: one each, fixed
    session_timeout_s: float = 6.0  # theirs, with ZooKeeper
    only_masters_fail: bool = False  # elected ones; nothing else goes wrong


def draw_shape(world: World) -> Shape:
    random = world.random
    task_executors, slots = random.randint(1, 3), random.randint(1, 3)
    interval_s, timeout_s = random.choice([(2.0, 8.0), (2.0, 20.0), (5.0, 20.0)])
    shape = Shape(
        task_executors=task_executors,
        slots=slots,
        max_slots=random.choice([0, 0, task_executors * slots + slots, 12]),
        spread=random.random() < 0.5,
        spares=random.randint(0, 2),
        task_failures=random.choice([0.0, 0.0, 0.02, 0.1]),
        hanging_cancels=random.choice([0.0, 0.0, 0.2]),
        crashes_at_start=random.choice([0.0, 0.03, 0.2]),
        failing_writes=random.choice([0.0, 0.0, 0.1]),
        lost_answers=random.choice([0.0, 0.0, 0.1]),
        damaged_results=random.choice([0.0, 0.1, 0.3]),
        deaths_after_progress=random.choice([0.0, 0.1, 0.3, 0.6]),
        heartbeat_interval_s=interval_s,
        heartbeat_timeout_s=timeout_s,
    )
    masters = random.choice([0, 0, 2, 3])
    if not masters:
        return shape
    shape = replace(shape, masters=masters, session_timeout_s=random.choice([2.0, 6.0]))
    if random.random() < 0.3:
        shape = replace(
            shape,
            only_masters_fail=True,
            task_failures=0.0,
            hanging_cancels=0.0,
            crashes_at_start=0.0,
            damaged_results=0.0,
            declined_snapshots=0.0,
            deaths_after_progress=0.0,
        )
    return shape


@dataclass(slots=True, kw_only=True)
class SubmittedJob:
    graph: JobGraph
    message: job_graph_pb2.JobGraph
    endless: bool
    splits: dict[str, int]  # how many each source has
    submitted: bool = False
    cancel_wanted: bool = False
    refusals: list[str] = field(default_factory=list)
    rescaled: list[int] = field(default_factory=list)  # parallelisms that it was given
    not_rescaled: list[str] = field(default_factory=list)  # why not


class Jobs:
    def __init__(self, world: World, shape: Shape, ids: IdSource, directory: Path) -> None:
        self.world = world
        self.shape = shape
        self.directory = directory
        self._ids = ids
        self._drawn = 0
        # Apart from the world's: a seed without joins has the same history as if there were none.
        self._joins = Random(f"joins of seed {world.seed}")
        self._elastic = Random(f"elastic jobs of seed {world.seed}")  # apart for the same reason

    def draw(self) -> SubmittedJob:
        if self.world.random.random() < 0.25:
            return self._draw_batch()
        if self._joins.random() < 0.15:
            return self._draw_join()
        random = self.world.random
        checkpoints = self._draw_checkpoints()
        endless = random.random() < (0.2 if checkpoints else 0.4)
        groups = random.choice(
            [("default", "default", "default")] * 3 + [("default", "default", "other")]
        )
        sizes = random.choice([(UNKNOWN, UNKNOWN, UNKNOWN)] * 4 + [(SMALL_SLOT, UNKNOWN, UNKNOWN)])
        most = self._most_subtasks()
        source, splits = None, 0
        if not endless:
            source, splits = self._draw_splits([20, 40, 80] if checkpoints else [0, 3, 8, 30])
        vertices = [
            vertex(
                "source",
                random.randint(1, most),
                coordinator=source,
                slot_sharing_group=groups[0],
                resources=sizes[0],
            )
        ]
        vertices += self._further_vertices(
            groups, sizes, most, collects=not endless and not checkpoints
        )
        edges = random.choice([Partitioner.REBALANCE, Partitioner.RESCALE])
        graph = job(*vertices, partitioner=edges)
        found = {} if endless else {vertices[0].operators[0].operator_id: splits}
        if random.random() < 0.3:  # another pipeline, which shares no edge with this one
            other = (
                vertex("other", random.randint(1, most))
                if endless
                else self._sequence("other", 9, most)
            )
            sink = vertex("other sink", random.randint(1, most))
            beside = job(other, sink, partitioner=edges)
            graph = replace(
                graph,
                vertices=(*graph.vertices, *beside.vertices),
                edges=(*graph.edges, *beside.edges),
            )
            found |= {} if endless else {other.operators[0].operator_id: 9}
        return self._submitted(graph, found, endless=endless, checkpoints=checkpoints)

    def _draw_splits(self, counts: list[int]) -> tuple[_Coordinator, int]:
        random = self.world.random
        count = random.choice(counts)
        source: _Coordinator = random.choice(
            [
                ("sequence-source", {"start": 0, "end": count * 10, "split_rows": 10}),
                (
                    "file-source",
                    {"paths": ["/missing/*.csv" if random.random() < 0.05 else "/data/*.csv"]},
                ),
            ]
        )
        return source, FILES if source[0] == "file-source" else count

    def _draw_join(self) -> SubmittedJob:
        """A stream with checkpoints in which two sources meet, one of which may end long before the
        other.
        """
        random, most = self.world.random, self._most_subtasks()
        checkpoints = self._draw_checkpoint_options()
        endless = random.random() < 0.2
        groups = random.choice([("default", "default")] * 3 + [("default", "other")])
        sources, splits = [], {}
        for name, group in zip(("left", "right"), groups, strict=True):
            coordinator, count = (None, 0) if endless else self._draw_splits([0, 3, 20, 80])
            parallelism = random.randint(1, most)
            source = vertex(name, parallelism, coordinator=coordinator, slot_sharing_group=group)
            sources.append(source)
            splits |= {} if endless else {source.operators[0].operator_id: count}
        left, right = sources
        join, sink = (vertex(name, random.randint(1, most)) for name in ("join", "sink"))
        ways = random.choice(
            [(Partitioner.HASH, Partitioner.HASH)] * 2
            + [(Partitioner.RESCALE, Partitioner.BROADCAST)]
        )
        edges = (
            _edge(left, join, ways[0]),
            replace(_edge(right, join, ways[1]), target_input=1),
            _edge(join, sink, random.choice(_PARTITIONERS)),
        )
        graph = replace(job(left, right, join, sink), edges=edges)
        return self._submitted(graph, splits, endless=endless, checkpoints=checkpoints)

    def _draw_batch(self) -> SubmittedJob:
        """Draws a job in which two sources meet, one through a further vertex; results are kept or
        not.
        """
        random, most = self.world.random, self._most_subtasks()
        counts = {name: random.choice([0, 3, 8, 30]) for name in ("source", "other")}
        source, other = (self._sequence(name, count, most) for name, count in counts.items())
        middle, end = (vertex(name, random.randint(1, most)) for name in ("middle", "end"))
        edges = []
        for producer, consumer in ((source, middle), (middle, end), (other, end)):
            edge = _edge(producer, consumer, random.choice(_PARTITIONERS))
            kept = ResultType.BLOCKING if random.random() < 0.7 else ResultType.PIPELINED
            edges.append(replace(edge, result_type=kept))
        graph = replace(job(source, middle, other, end), edges=tuple(edges), batch=True)
        found = {v.operators[0].operator_id: counts[v.name] for v in (source, other)}
        return self._submitted(graph, found, endless=False, checkpoints={})

    def _sequence(self, name: str, splits: int, most: int) -> JobVertex:
        return vertex(
            name,
            self.world.random.randint(1, most),
            coordinator=("sequence-source", {"start": 0, "end": splits * 10, "split_rows": 10}),
        )

    def _submitted(
        self,
        graph: JobGraph,
        splits: dict[str, int],
        *,
        endless: bool,
        checkpoints: dict[str, str],
    ) -> SubmittedJob:
        if checkpoints and self._elastic.random() < 0.25:
            graph = replace(graph, vertices=tuple(map(self._bounded, graph.vertices)))
            checkpoints = {**checkpoints, **self._draw_mode()}
        fails = " with a bad plan" if self.world.chance(0.05) else ""
        self._drawn += 1
        graph = replace(
            graph,
            job_id=JobId(self._ids.next()),
            name=f"job {self._drawn}{fails}",
            config={**self._draw_config(checkpoints=bool(checkpoints)), **checkpoints},
        )
        return SubmittedJob(
            graph=graph, message=JOB_GRAPH.encode(graph), endless=endless, splits=splits
        )

    def _bounded(self, vertex: JobVertex) -> JobVertex:
        return replace(vertex, max_parallelism=max(vertex.parallelism, MOST_ELASTIC))

    def _draw_mode(self) -> dict[str, str]:
        random = self._elastic
        return {
            options.SCHEDULER_MODE.key: random.choice(["adaptive", "reactive"]),
            options.SLOTS_STABILIZATION.key: f"{random.choice([1, 3])} s",
            options.SCALE_STABILIZATION.key: f"{random.choice([1, 5])} s",
            options.SCALE_COOLDOWN.key: f"{random.choice([0, 3])} s",
        }

    def _most_subtasks(self) -> int:
        """Few jobs need more slots than the cluster starts with."""
        slots = self.shape.task_executors * self.shape.slots
        return 4 if self.world.chance(0.2) else min(4, slots)

    def _further_vertices(
        self,
        groups: tuple[str, ...],
        sizes: tuple[ResourceProfile, ...],
        most: int,
        *,
        collects: bool,
    ) -> list[JobVertex]:
        random = self.world.random
        more = []
        for number in range(1, random.randint(1, 3)):
            collect = (
                ("collect", {}) if number == 1 and collects and random.random() < 0.3 else None
            )
            more.append(
                vertex(
                    f"operator {number}",
                    random.randint(1, most),
                    coordinator=collect,
                    slot_sharing_group=groups[number],
                    resources=sizes[number],
                )
            )
        return more

    def _draw_checkpoints(self) -> dict[str, str]:
        """Empty: the job takes none."""
        return {} if self.world.random.random() < 0.4 else self._draw_checkpoint_options()

    def _draw_checkpoint_options(self) -> dict[str, str]:
        random = self.world.random
        return {
            options.CHECKPOINT_INTERVAL.key: f"{random.choice([0.2, 1, 1, 3, 10])} s",
            options.CHECKPOINT_DIR.key: str(self.directory / "checkpoints"),
            options.CHECKPOINT_TIMEOUT.key: f"{random.choice([3, 600])} s",
            options.CHECKPOINT_INCREMENTAL.key: random.choice(["false", "true", "true"]),
            options.CHECKPOINT_MAX_CONCURRENT.key: str(random.choice([1, 1, 2])),
            options.CHECKPOINT_TOLERABLE_FAILURES.key: str(random.choice([0, 100])),
        }

    def _draw_config(self, *, checkpoints: bool) -> dict[str, str]:
        """A job with checkpoints mostly survives many failures: it can restore one."""
        random = self.world.random
        return {
            options.HEARTBEAT_INTERVAL.key: f"{self.shape.heartbeat_interval_s} s",
            options.HEARTBEAT_TIMEOUT.key: f"{self.shape.heartbeat_timeout_s} s",
            options.SLOT_REQUEST_TIMEOUT.key: f"{random.choice([15, 40])} s",
            options.SLOT_IDLE_TIMEOUT.key: f"{random.choice([1, 20])} s",
            options.CANCELLATION_TIMEOUT.key: "5 s",
            options.FAILOVER_STRATEGY.key: random.choice(["region", "region", "full"]),
            options.SCHEDULING_POLICY.key: random.choice(["auto", "auto", "lazy-from-sources"]),
            options.RESTART_STRATEGY.key: random.choice(
                ["none", "fixed-delay", "fixed-delay"] + ["fixed-delay"] * 6 * checkpoints
            ),
            options.RESTART_ATTEMPTS.key: str(random.choice([1, 3, 100] + [100] * 3 * checkpoints)),
            options.RESTART_DELAY.key: f"{random.choice([0, 1])} s",
        }


def _edge(producer: JobVertex, consumer: JobVertex, partitioner: Partitioner) -> JobEdge:
    (edge,) = job(producer, consumer, partitioner=partitioner).edges
    return edge

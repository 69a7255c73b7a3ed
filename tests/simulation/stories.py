"""Jobs and clusters of stories about single faults: nothing in them is drawn but delays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from firesteel.common.config import options
from firesteel.common.job_graph import Partitioner, ResultType
from firesteel.common.rpc.convert import JOB_GRAPH
from firesteel.common.states import JobStatus
from tests.job_master import job, vertex
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Fault, schedule
from tests.simulation.jobs import Shape, SubmittedJob

SHAPE = Shape(
    task_executors=2,
    slots=2,
    max_slots=0,
    spread=True,
    spares=1,
)
SPLITS = 20
ELECTED = replace(SHAPE, masters=3)
REST_S = 100.0


def bounded_job(
    attempts: int,
    checkpoints: Path | None = None,
    *,
    interval: str = "1 s",
    splits: int = SPLITS,
    **options_of_job: str,
) -> SubmittedJob:
    """`checkpoints`: where there is one every `interval`. `options_of_job`: with __ for dots and _
    for hyphens.
    """
    numbers = ("sequence-source", {"start": 0, "end": splits, "split_rows": 1})
    reads = vertex("source", 2, coordinator=numbers)
    sink = vertex("sink", 3, coordinator=None if checkpoints else ("collect", {}))
    config = {
        options.RESTART_STRATEGY.key: "fixed-delay",
        options.RESTART_ATTEMPTS.key: str(attempts),
        options.HEARTBEAT_TIMEOUT.key: "8 s",
    }
    if checkpoints is not None:
        config[options.CHECKPOINT_DIR.key] = str(checkpoints)
        config[options.CHECKPOINT_INTERVAL.key] = interval
    config |= {k.replace("__", ".").replace("_", "-"): v for k, v in options_of_job.items()}
    graph = replace(job(reads, sink), config=config)
    return SubmittedJob(
        graph=graph,
        message=JOB_GRAPH.encode(graph),
        endless=False,
        splits={reads.operators[0].operator_id: splits},
    )


def batch_job(attempts: int = 0) -> SubmittedJob:
    """Three stages, the last of which a client collects."""
    numbers = ("sequence-source", {"start": 0, "end": SPLITS, "split_rows": 1})
    reads = vertex("source", 2, coordinator=numbers)
    counts, sink = vertex("counts", 3), vertex("sink", 2, coordinator=("collect", {}))
    graph = job(reads, counts, sink, partitioner=Partitioner.HASH)
    edges = tuple(replace(edge, result_type=ResultType.BLOCKING) for edge in graph.edges)
    config = {
        options.RESTART_STRATEGY.key: "fixed-delay" if attempts else "none",
        options.RESTART_ATTEMPTS.key: str(attempts),
        options.HEARTBEAT_TIMEOUT.key: "8 s",
    }
    graph = replace(graph, edges=edges, config=config, batch=True)
    return SubmittedJob(
        graph=graph,
        message=JOB_GRAPH.encode(graph),
        endless=False,
        splits={reads.operators[0].operator_id: SPLITS},
    )


def endless_job() -> SubmittedJob:
    graph = job(vertex("source", 2), vertex("operator", 3))
    return SubmittedJob(graph=graph, message=JOB_GRAPH.encode(graph), endless=True, splits={})


def endless_job_with_checkpoints(checkpoints: Path) -> SubmittedJob:
    submitted = endless_job()
    config = {
        options.CHECKPOINT_DIR.key: str(checkpoints),
        options.CHECKPOINT_INTERVAL.key: "1 s",
        options.RESTART_STRATEGY.key: "none",
    }
    graph = replace(submitted.graph, config=config)
    return replace(submitted, graph=graph, message=JOB_GRAPH.encode(graph))


def run(seed: int, submitted: SubmittedJob, *faults: tuple[float, Fault]) -> JobStatus:
    """Submits at 3 s, when everything is warm; returns how the job has ended. Chance has no other
    part than delays.
    """
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(cluster, *faults)
        cluster.run(6.0)
        cluster.rest(REST_S)
        return cluster.store.by_id[submitted.graph.job_id].status


def quiet_cluster(seed: int, shape: Shape = SHAPE) -> Cluster:
    cluster = Cluster(seed, shape)
    cluster.set_faults(False)
    return cluster

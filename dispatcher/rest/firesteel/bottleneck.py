"""Finds the vertex that limits a job, and says why.

Rules, in order. The first one that applies decides:

1. The bottleneck is the first busy vertex downstream of back-pressured ones that is not
   back-pressured itself. Without back pressure, it is the busiest vertex.
2. It is the bottleneck because
   a. one subtask receives most of the records (a hot key);
   b. Python functions take most of its time;
   c. the JVMs of its slots collect garbage for much of the time;
   d. Spark plans its bundles for much of its time;
   e. its time is spent neither in Spark nor in Python, and its state is on disk;
   f. it writes to a system outside of the job (a sink);
   g. it has too few subtasks.
3. If no vertex limits the job, a watermark may hold back its results: a subtask of a source without
   rows holds back the watermark of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from firesteel.client.job_details import Activity, JobDetails, Vertex, metrics_of
from firesteel.common.states import JobStatus
from firesteel.common.units import size

BACK_PRESSURED = 0.1  # share of time from which a vertex is back-pressured
BUSY = 0.7  # share of time from which the busiest subtask limits its vertex
MUCH = 0.5  # of the busy time
COLLECTING = 0.15  # of all time
PLANNING = 0.25  # of the busy time
UNEVEN = 1.5  # times the mean: the busiest subtask, and its records


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    vertex_id: str
    sentence: str
    evidence: tuple[str, ...]
    advice: str
    page: str  # of the documentation


def diagnose(details: JobDetails) -> Bottleneck | None:
    """Returns the bottleneck of a running job; None if nothing limits it, or nothing is known."""
    if details.status is not JobStatus.RUNNING:
        return None
    active = {v.vertex_id: v.activity for v in details.vertices if v.activity is not None}
    limiting = _limiting(details, active)
    if limiting is None:
        return _held_back(details)
    return _why(details, limiting, active[limiting.vertex_id])


def _limiting(details: JobDetails, active: dict[str, Activity]) -> Vertex | None:
    busy = {
        v.vertex_id: v
        for v in details.vertices
        if v.vertex_id in active
        and active[v.vertex_id].busiest >= BUSY
        and active[v.vertex_id].back_pressured < BACK_PRESSURED
    }
    held = {i for i, activity in active.items() if activity.back_pressured >= BACK_PRESSURED}
    downstream = [v for v in busy.values() if held & set(_upstream(details, v))]
    candidates = downstream or list(busy.values())
    return max(candidates, key=lambda v: active[v.vertex_id].busiest, default=None)


def _upstream(details: JobDetails, vertex: Vertex) -> Iterator[str]:
    """Yields the ids of the vertices from which rows reach `vertex`."""
    by_id = {each.vertex_id: each for each in details.vertices}
    seen: set[str] = set()
    waiting = list(vertex.input_vertex_ids)
    while waiting:
        vertex_id = waiting.pop()
        if vertex_id not in seen:
            seen.add(vertex_id)
            yield vertex_id
            waiting.extend(by_id[vertex_id].input_vertex_ids if vertex_id in by_id else ())


def _why(details: JobDetails, vertex: Vertex, now: Activity) -> Bottleneck:
    held = [
        f"{each.name} waits for its consumers {_percent(each.activity.back_pressured)} of the time"
        for each in details.vertices
        if each.activity is not None
        and each.activity.back_pressured >= BACK_PRESSURED
        and each.vertex_id in set(_upstream(details, vertex))
    ]
    busy = f"subtask {now.busiest_subtask} is busy {_percent(now.busiest)} of the time"
    reason, evidence, advice, page = _reason(details, vertex, now)
    return Bottleneck(
        vertex_id=vertex.vertex_id,
        sentence=f"The bottleneck is {vertex.name}, because {reason}.",
        evidence=(busy, *evidence, *held),
        advice=advice,
        page=page,
    )


def _reason(
    details: JobDetails, vertex: Vertex, now: Activity
) -> tuple[str, tuple[str, ...], str, str]:
    """Returns why, the evidence, the advice and its page."""
    mean_records = 1 / vertex.parallelism
    uneven = now.busiest >= UNEVEN * now.busy and vertex.parallelism > 1
    if uneven and now.largest is not None and now.largest >= UNEVEN * mean_records:
        return (
            f"its subtask {now.largest_subtask} receives {_percent(now.largest)} of the records",
            (
                f"an even share is {_percent(mean_records)}",
                f"all subtasks together are busy {_percent(now.busy)} of the time",
            ),
            "Few keys have most of the rows: spread them over several subtasks with a salt.",
            "how-to/hot-keys.md#add-a-salt",
        )
    busy = max(now.busy, 1e-9)
    if now.python / busy >= MUCH:
        names = [o.name for o in vertex.operators if o.choice and o.choice.computes == "Python"]
        return (
            f"Python functions take {_percent(now.python / busy)} of its busy time",
            (f"computed in Python: {', '.join(names)}",) if names else (),
            "Write the function with column expressions, which Spark or Arrow compute.",
            "concepts/columnar.md#what-decides",
        )
    if now.gc >= COLLECTING:
        return (
            f"the JVMs of its slots collect garbage {_percent(now.gc)} of the time",
            (f"Spark takes {_percent(now.spark / busy)} of its busy time",),
            "Give its slots more heap, or reduce the size of bundles.",
            "how-to/slots-and-memory.md#garbage-collection",
        )
    if now.planning / busy >= PLANNING:
        return (
            f"Spark plans its bundles for {_percent(now.planning / busy)} of its busy time",
            (f"Spark takes {_percent(now.spark / busy)} of it in all",),
            "Larger bundles, or operations that the columnar engine computes, need fewer plans.",
            "concepts/columnar.md#see-what-was-chosen",
        )
    elsewhere = max(0.0, 1 - (now.spark + now.python + now.exchange) / busy)
    on_disk = details.configuration.get("state.backend.type") == "rocksdb"
    if on_disk and vertex.state_bytes and elsewhere >= MUCH:
        return (
            "it reads and writes its state on disk",
            (
                f"its state has {size(vertex.state_bytes)}",
                f"{_percent(elsewhere)} of its busy time is neither in Spark nor in Python",
            ),
            "Give its slots more managed memory, or keep the state in memory.",
            "concepts/state.md#rocksdb",
        )
    fed = set(chain.from_iterable(each.input_vertex_ids for each in details.vertices))
    if vertex.vertex_id not in fed and vertex.input_vertex_ids:
        return (
            "its sink accepts no more rows per second",
            (f"it receives {now.records_in:,.0f} records per second",),
            "Check the system that it writes to, or write with more subtasks.",
            "how-to/troubleshooting.md#a-job-is-slow",
        )
    return (
        f"its {vertex.parallelism} subtask{'s' * (vertex.parallelism > 1)} cannot do more",
        (f"it receives {now.records_in:,.0f} records per second",) if now.records_in else (),
        "Increase its parallelism, if the cluster has free slots.",
        "how-to/troubleshooting.md#a-job-is-slow",
    )


def _held_back(details: JobDetails) -> Bottleneck | None:
    """The watermark of a source advances only with the slowest of its subtasks."""
    for vertex in details.vertices:
        if vertex.input_vertex_ids or vertex.activity is None:
            continue
        metrics = metrics_of(vertex.subtasks)
        current = [place for place, each in enumerate(metrics) if each is not None]
        silent = [i for i, each in enumerate(metrics) if each is not None and not each.records_out]
        if silent and len(silent) < len(current) and _reads_late(details, vertex):
            return Bottleneck(
                vertex_id=vertex.vertex_id,
                sentence=f"Results wait for the watermark of {vertex.name}, because"
                f" {len(silent)} of its {len(current)} subtasks have read no rows.",
                evidence=(f"subtasks without rows: {', '.join(map(str, silent[:10]))}",),
                advice="Declare how long a source may be silent before it counts as idle.",
                page="concepts/time.md#idle-sources",
            )
    return None


def _reads_late(details: JobDetails, source: Vertex) -> bool:
    """Whether a consumer of the source receives rows and has no watermark yet."""
    return any(
        source.vertex_id in each.input_vertex_ids
        and each.metrics.records_in > 0
        and each.metrics.watermark_us is None
        for each in details.vertices
    )


def _percent(share: float) -> str:
    return f"{min(1.0, share):.0%}"

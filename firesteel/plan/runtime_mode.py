"""Decides whether a job is a stream or a batch: the same program produces the same rows, unless
they depend on the arrival of rows or the time of timers.

A batch job ends, because its sources do, and exchanges complete results: their consumers start when
they are complete, so that a failure repeats only the failed part. It takes no checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

from firesteel.common.config import Configuration, options
from firesteel.common.ids import VertexId
from firesteel.common.job_graph import JobEdge, JobVertex, ResultType
from firesteel.errors import InvalidProgram
from firesteel.operators import SinkSpec, SourceSpec
from firesteel.plan.stream_graph import StreamGraph, StreamNode

BATCH, AUTOMATIC = "BATCH", "AUTOMATIC"


def is_batch(graph: StreamGraph, conf: Configuration) -> bool:
    """Returns the mode that execution.runtime-mode sets. Raises InvalidProgram if it is BATCH and a
    source never ends, or the job would start from a savepoint.
    """
    mode = conf.get(options.RUNTIME_MODE)
    sources = [(node, node.spec) for node in graph.nodes if isinstance(node.spec, SourceSpec)]
    endless = [node for node, spec in sources if not spec.bounded]
    if mode == AUTOMATIC:
        undecided = any(spec.ends_at_run_time for _, spec in sources)
        return not (endless or undecided or conf.get(options.RECOVERY_PATH))
    if mode != BATCH:
        return False
    if endless:
        raise InvalidProgram(
            f"{endless[0]} never ends, but a job in batch mode must"
            f" ({options.RUNTIME_MODE.key}: {mode}): bound the source, or run it as a stream"
        )
    if path := conf.get(options.RECOVERY_PATH):
        raise InvalidProgram(
            f"a job in batch mode cannot start from state: omit {path!r}"
            f" ({options.RECOVERY_PATH.key}), or run it as a stream"
        )
    return True


def check_ends(graph: StreamGraph) -> None:
    """Checks that operators that wait for the end of their input reach it. Raises
    InvalidProgram.
    """
    endless: dict[StreamNode, StreamNode] = {}  # by node: a source upstream of it
    for node in graph.nodes:  # producers come first
        before = [endless[e.source] for e in graph.in_edges(node) if e.source in endless]
        if isinstance(node.spec, SourceSpec):
            before = [node] if not node.spec.bounded or node.spec.ends_at_run_time else []
        if before and node.spec.waits_for_end:
            raise InvalidProgram(
                f"{node}: apply() of a whole stream waits for its end, and {before[0]} may never"
                f" end: bound the source, run the program as a batch ({options.RUNTIME_MODE.key}:"
                f" {BATCH}), or use window(...).apply(...)"
            )
        if before:
            endless[node] = before[0]


def never_committed(graph: StreamGraph) -> Iterable[str]:
    """Yields warnings about sinks of a stream without checkpoints that commit with them, or at the
    end of their input, which they never reach.
    """
    for node in graph.nodes:
        if not (isinstance(node.spec, SinkSpec) and node.spec.sink.commits_with_checkpoints):
            continue
        before = graph.leading_to([node]).nodes
        endless = [n for n in before if isinstance(n.spec, SourceSpec) and not n.spec.bounded]
        if endless:
            yield (
                f"{node} makes rows visible when a checkpoint completes, but {endless[0]} never"
                " ends, and the program sets no interval of checkpoints; set"
                f" {options.CHECKPOINT_INTERVAL.key} and {options.CHECKPOINT_DIR.key}, unless the"
                " cluster's configuration does"
            )


def due_at_the_end(graph: StreamGraph, result_type: ResultType) -> Iterable[str]:
    """Yields warnings about operators of a batch whose timers are due after all rows, because
    blocking results have no watermarks. `result_type` applies to edges for which the program sets
    none.
    """
    for node in graph.nodes:
        if not node.spec.sets_event_timers:
            continue
        types = [edge.result_type or result_type for edge in graph.in_edges(node)]
        if ResultType.BLOCKING in types:
            yield (
                f"{node} may set timers in event time: in a batch, they are due when all rows have"
                " been processed, not between them, so its rows may differ from those of a stream;"
                f" make sure that they do not, or run it as a stream ({options.RUNTIME_MODE.key}:"
                " STREAMING)"
            )


def check_exchanges(
    edges: Sequence[JobEdge], vertices: Sequence[JobVertex], *, batch: bool
) -> None:
    """Checks that every vertex can start: it does when its blocking inputs are complete, together
    with all vertices that pipelined exchanges connect it with. Raises InvalidProgram if it never
    could.
    """
    names = {vertex.vertex_id: vertex.name for vertex in vertices}
    blocking = [edge for edge in edges if edge.result_type is ResultType.BLOCKING]
    if blocking and not batch:
        raise InvalidProgram(
            f"the exchange after {names[blocking[0].source_vertex_id]!r} is blocking, which a"
            f' stream cannot have: omit exchange("blocking"), or run the program as a batch'
            f" ({options.RUNTIME_MODE.key}: {BATCH})"
        )
    region = _running_together(edges, vertices)
    before: dict[VertexId, set[VertexId]] = {of: set() for of in region.values()}
    for edge in blocking:
        before[region[edge.target_vertex_id]].add(region[edge.source_vertex_id])
    try:
        TopologicalSorter(before).prepare()
    except CycleError as cycle:
        around = cycle.args[1]
        waits = next(
            edge
            for edge in blocking
            if {region[edge.source_vertex_id], region[edge.target_vertex_id]} <= set(around)
        )
        raise InvalidProgram(
            f"{names[waits.target_vertex_id]!r} would wait for {names[waits.source_vertex_id]!r}"
            " to end, which runs only together with it, as pipelined exchanges connect the two:"
            " make these blocking, or the one between them pipelined"
        ) from None


def _running_together(
    edges: Sequence[JobEdge], vertices: Sequence[JobVertex]
) -> dict[VertexId, VertexId]:
    """Returns one vertex per vertex: the same for all that pipelined exchanges connect."""
    connected: dict[VertexId, list[VertexId]] = {vertex.vertex_id: [] for vertex in vertices}
    for edge in edges:
        if edge.result_type is ResultType.PIPELINED:
            connected[edge.source_vertex_id].append(edge.target_vertex_id)
            connected[edge.target_vertex_id].append(edge.source_vertex_id)
    region: dict[VertexId, VertexId] = {}
    for first in connected:
        waiting = [first]
        while waiting:
            vertex_id = waiting.pop()
            if vertex_id not in region:
                region[vertex_id] = first
                waiting += connected[vertex_id]
    return region


def as_batch(graph: StreamGraph) -> None:
    """Changes the operators of a batch that differ from those of a stream.

    Sources that do not run at the same time cannot wait for each other's watermarks. A join gets
    all rows of its streams, regardless of arrival. A broadcast stream is read before the first row
    of the other stream. Raises InvalidProgram if both read from one source.
    """
    for node in graph.nodes:
        node.spec = node.spec.in_batch()
        if node.spec.broadcast_first:
            _check_own_source(graph, node)


def _check_own_source(graph: StreamGraph, node: StreamNode) -> None:
    rows, rules = (
        graph.leading_to(e.source for e in graph.in_edges(node) if e.target_input == number).nodes
        for number in (0, 1)
    )
    if shared := [each for each in rows if each in rules]:
        raise InvalidProgram(
            f"{node}: the broadcast stream and the other one both come from {shared[0]}; in a"
            " batch, the broadcast stream is read to its end before the other starts, so it needs a"
            " separate source"
        )

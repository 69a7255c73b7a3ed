"""Translates the StreamGraph to the JobGraph that is submitted: one vertex per chain, one
intermediate result per edge between two chains.

It also decides which operators have a coordinator in the JobMaster. The options of coordinators are
JSON, because the JobMaster never unpickles anything of a program.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from firesteel.common.ids import JobId, OperatorId, ResultId, VertexId, stable_id
from firesteel.common.job_graph import (
    JobEdge,
    JobGraph,
    JobVertex,
    Operator,
    Partitioner,
    ResultType,
)
from firesteel.common.resources import MINIMUM_HEAP_BYTES, UNKNOWN, ResourceProfile
from firesteel.common.units import mib
from firesteel.connectors.source import CoordinatorOptions, SparkRead
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.operators import SourceSpec
from firesteel.plan.chaining import chains
from firesteel.plan.event_time import hold_watermarks_back, report_idle_sources
from firesteel.plan.runtime_mode import as_batch, check_exchanges
from firesteel.plan.shipping import Shipment
from firesteel.plan.stream_graph import StreamEdge, StreamGraph, StreamNode
from firesteel.text import valid_text


def build_job_graph(
    stream_graph: StreamGraph,
    *,
    job_id: JobId,
    name: str,
    default_parallelism: int,
    default_max_parallelism: int | None,
    chaining_enabled: bool,
    config: dict[str, str],
    batch: bool = False,
    result_type: ResultType = ResultType.PIPELINED,
    shipment: Shipment | None = None,
) -> JobGraph:
    """Resolves the program's defaults, chains its operators, and pickles their specs with
    `shipment`.

    Operator ids are stable: they are derived from the uid if there is one, otherwise from the
    operator's position in the program. `result_type` applies to all edges for which the program
    sets none. Display names get escapes for characters that UTF-8 cannot encode; for names that
    identify something, InvalidProgram is raised.
    """
    for key, value in config.items():
        _check_text(f"the configuration's {key!r}", key, value)
    graph = stream_graph.resolved(
        default_parallelism=default_parallelism, default_max_parallelism=default_max_parallelism
    )
    if batch:
        as_batch(graph)
    else:
        hold_watermarks_back(graph)
        config = report_idle_sources(graph, config)
    grouped = chains(graph, enabled=chaining_enabled)
    assign_coordinators(graph, grouped)
    operator_ids = {node: operator_id_of(node) for node in graph.nodes}
    shipment = shipment or Shipment()
    place: dict[StreamNode, tuple[VertexId, int]] = {}
    vertices = []
    for chain in grouped:
        vertex_id = VertexId(stable_id("vertex", *(operator_ids[n] for n in chain)))
        place.update({node: (vertex_id, i) for i, node in enumerate(chain)})
        vertices.append(_vertex(graph, chain, vertex_id, operator_ids, shipment))
    _check_heaps(vertices)
    edges = tuple(
        _job_edge(edge, place, number, result_type)
        for number, edge in enumerate(graph.edges)
        if place[edge.source][0] != place[edge.target][0]
    )
    check_exchanges(edges, vertices, batch=batch)
    return JobGraph(
        job_id=job_id,
        name=valid_text(name),
        vertices=tuple(vertices),
        edges=edges,
        config=config,
        batch=batch,
    )


def _check_heaps(vertices: list[JobVertex]) -> None:
    """Checks that every slot is large enough for its Spark. Subtasks that share a slot add up."""
    known = [vertex for vertex in vertices if not vertex.resources.unknown]
    for vertex in vertices:
        sharing = (vertex.slot_sharing_group, vertex.resource_group)
        slot = UNKNOWN
        for other in known:
            if (
                other.slot_sharing_group,
                other.resource_group,
            ) == sharing and other.parallelism >= vertex.parallelism:
                slot = slot + other.resources
        if not slot.unknown and slot.heap_bytes < MINIMUM_HEAP_BYTES:
            raise InvalidProgram(
                f"{vertex.name!r} requests slots with a heap of {mib(slot.heap_bytes)}, "
                f"but a slot's Spark needs {mib(MINIMUM_HEAP_BYTES)} or more: "
                "raise heap_bytes in its ResourceProfile"
            )


def _check_text(what: str, *texts: str) -> None:
    for text in texts:
        if valid_text(text) != text:
            raise InvalidProgram(
                f"{what}: {text!r} is not allowed; expected text that UTF-8 can encode, without NUL"
            )


def operator_id_of(node: StreamNode) -> OperatorId:
    _check_text(f"the uid of {node}", node.uid)
    words = ("uid", node.uid) if node.uid else ("position", str(node.index), node.kind)
    return OperatorId(stable_id(*words))


def _vertex(
    graph: StreamGraph,
    chain: list[StreamNode],
    vertex_id: VertexId,
    ids: dict[StreamNode, OperatorId],
    shipment: Shipment,
) -> JobVertex:
    head = chain[0]
    assert head.parallelism is not None
    assert head.max_parallelism is not None
    assert head.slot_sharing_group is not None
    members = {node: index for index, node in enumerate(chain)}
    resources: ResourceProfile = UNKNOWN
    for node in chain:
        resources = resources + node.resources
        _check_text(f"a group of {node}", node.slot_sharing_group or "", node.co_location_group)
    return JobVertex(
        vertex_id=vertex_id,
        name=valid_text(" -> ".join(node.name for node in chain)),
        parallelism=head.parallelism,
        max_parallelism=head.max_parallelism,
        operators=tuple(_operator(graph, members, node, ids[node], shipment) for node in chain),
        slot_sharing_group=head.slot_sharing_group,
        co_location_group=head.co_location_group,
        resource_group=head.resource_group,
        resources=resources,
        scaling=max((node.scaling for node in chain), key=lambda scaling: scaling.value),
    )


def _operator(
    graph: StreamGraph,
    members: dict[StreamNode, int],
    node: StreamNode,
    operator_id: OperatorId,
    shipment: Shipment,
) -> Operator:
    edges = [edge for edge in graph.in_edges(node) if edge.source in members]
    return Operator(
        operator_id=operator_id,
        uid=node.uid,
        name=valid_text(node.name),
        kind=node.kind,
        spec=shipment.pickled(node),
        inputs=tuple(
            tuple(members[edge.source] for edge in edges if edge.target_input == number)
            for number in range(node.inputs)
        ),
        coordinator_kind=node.coordinator_kind,
        coordinator_options_json=node.coordinator_options_json,
        runs_on_spark=node.runs_on_spark,
        place=valid_text(str(node.place)),
    )


def _job_edge(
    edge: StreamEdge,
    place: dict[StreamNode, tuple[VertexId, int]],
    number: int,
    result_type: ResultType,
) -> JobEdge:
    source_vertex, source_operator = place[edge.source]
    target_vertex, target_operator = place[edge.target]
    if edge.partitioner is None:
        raise FiresteelError("the stream graph was not resolved before chaining")
    _check_text(f"a side output of {edge.source}", edge.side_output_tag)
    _check_text(f"a key of {edge.target}", *edge.key_columns)
    key = edge.key_columns if edge.partitioner is Partitioner.HASH else ()
    return JobEdge(
        result_id=ResultId(stable_id("result", source_vertex, target_vertex, str(number))),
        source_vertex_id=source_vertex,
        source_operator=source_operator,
        target_vertex_id=target_vertex,
        target_operator=target_operator,
        target_input=edge.target_input,
        partitioner=edge.partitioner,
        key_columns=key,
        result_type=edge.result_type or result_type,
        side_output_tag=edge.side_output_tag,
    )


def assign_coordinators(graph: StreamGraph, chains: Sequence[Sequence[StreamNode]]) -> None:
    """Decides, in a resolved graph, which sources Spark reads, and assigns coordinators to the
    operators that need them.
    """
    for chain in chains:
        for node in chain:
            spec = node.spec
            if isinstance(spec, SourceSpec) and spec.source.spark_read is SparkRead.IF_FOLLOWED:
                node.runs_on_spark = _only_spark_follows(graph, chain)
            coordinator = spec.coordinator(node.parallelism or 1, read_by_spark=node.runs_on_spark)
            if coordinator is not None:
                _assign(node, coordinator)


def _only_spark_follows(graph: StreamGraph, chain: Sequence[StreamNode]) -> bool:
    consumers = [edge.target for edge in graph.out_edges(chain[0])]
    return (
        len(consumers) == 1
        and consumers[0] in chain
        and consumers[0].runs_on_spark
        and consumers[0].inputs == 1
    )


def _assign(node: StreamNode, coordinator: CoordinatorOptions) -> None:
    options = dict(coordinator.options)
    if node.spec.watermark_alignment is not None:
        options["alignment"] = asdict(node.spec.watermark_alignment)
    try:
        node.coordinator_options_json = json.dumps(options)
    except (TypeError, ValueError) as error:
        raise InvalidProgram(f"operator {node}: its splits are not JSON: {error}") from error
    node.coordinator_kind = coordinator.kind

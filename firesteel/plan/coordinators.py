"""Decides which operators have a coordinator in the JobMaster, and its options: JSON, because the
JobMaster never unpickles anything of a program.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from firesteel.connectors.source import CoordinatorOptions, SparkRead
from firesteel.errors import InvalidProgram
from firesteel.operators import (
    AssignWatermarksSpec,
    SinkSpec,
    SourceSpec,
    WatermarkAlignmentSpec,
)
from firesteel.plan.stream_graph import StreamGraph, StreamNode

ALIGNMENT = CoordinatorOptions("alignment")  # of an operator that only has an alignment group


def assign_coordinators(graph: StreamGraph, chains: Sequence[Sequence[StreamNode]]) -> None:
    """Decides, in a resolved graph, which sources Spark reads, and assigns coordinators to the
    operators that need them.
    """
    for chain in chains:
        for node in chain:
            match node.spec:
                case SourceSpec(source=source, watermark_alignment=alignment):
                    if source.spark_read is SparkRead.IF_FOLLOWED:
                        node.runs_on_spark = _only_spark_follows(graph, chain)
                    coordinator = source.coordinator(
                        node.parallelism or 1, read_by_spark=node.runs_on_spark
                    )
                    _assign(node, coordinator, alignment)
                case AssignWatermarksSpec(watermark_alignment=alignment) if alignment is not None:
                    _assign(node, ALIGNMENT, alignment)
                case SinkSpec(sink=sink):
                    _assign(node, sink.coordinator, None)
                case _:
                    pass


def _only_spark_follows(graph: StreamGraph, chain: Sequence[StreamNode]) -> bool:
    consumers = [edge.target for edge in graph.out_edges(chain[0])]
    return (
        len(consumers) == 1
        and consumers[0] in chain
        and consumers[0].runs_on_spark
        and consumers[0].inputs == 1
    )


def _assign(
    node: StreamNode,
    coordinator: CoordinatorOptions | None,
    alignment: WatermarkAlignmentSpec | None,
) -> None:
    if coordinator is None:
        return
    options = dict(coordinator.options)
    if alignment is not None:
        options["alignment"] = asdict(alignment)
    try:
        node.coordinator_options_json = json.dumps(options)
    except (TypeError, ValueError) as error:
        raise InvalidProgram(f"operator {node}: its splits are not JSON: {error}") from error
    node.coordinator_kind = coordinator.kind

"""Sequences that Spark operators follow at once are generated inside Spark, in the same plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from firesteel.connectors import SequenceSource
from firesteel.plan.coordinators import SPLIT_ROWS, coordinator_of
from firesteel.plan.specs import SourceSpec
from firesteel.plan.stream_graph import StreamGraph, StreamNode

SPARK_SPLIT_ROWS = 10_000_000  # half a second's work; the larger a split, the fewer partial results of each key there are
_SPLITS_PER_SUBTASK = 4  # at least, or one subtask may be left to work alone at the end


def generate_on_spark(graph: StreamGraph, chains: Sequence[Sequence[StreamNode]]) -> None:
    """Marks the sequences of a resolved graph that Spark generates, and gives them splits of a size
    that suits it.
    """
    for chain in chains:
        spec = chain[0].spec
        if (
            not isinstance(spec, SourceSpec)
            or not isinstance(spec.source, SequenceSource)
            or spec.watermarks is not None
        ):
            continue
        source: SequenceSource = spec.source
        if source.rate_per_s is not None:
            continue
        consumers = [edge.target for edge in graph.edges if edge.source is chain[0]]
        if (
            len(consumers) != 1
            or consumers[0] not in chain
            or not consumers[0].runs_on_spark
            or consumers[0].inputs != 1
        ):
            continue
        chain[0].runs_on_spark = True
        if source.split_rows is None:
            sized = dataclasses.replace(
                source, split_rows=_split_rows(source, chain[0].parallelism or 1)
            )
            chain[0].coordinator_kind, chain[0].coordinator_options_json = coordinator_of(sized)


def _split_rows(source: SequenceSource, parallelism: int) -> int:
    if source.end is None:
        return SPARK_SPLIT_ROWS
    even = (source.end - source.start) // (parallelism * _SPLITS_PER_SUBTASK)
    return max(SPLIT_ROWS, min(SPARK_SPLIT_ROWS, even))

"""Lets the sources of a query continue where a query on Spark has stopped reading."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from firesteel.client.spark_programs.spark_checkpoint import SourcePosition
from firesteel.connectors import FileSource, Source
from firesteel.connectors.kafka import KafkaOffsets, KafkaSource
from firesteel.operators import SourceSpec
from firesteel.plan.stream_graph import StreamNode
from firesteel.spark_connect.refusals import Refused


def continue_from(
    nodes: Sequence[StreamNode], positions: Sequence[SourcePosition], location: str
) -> None:
    """Changes the sources among the nodes of a planned query, which are in the order of the query,
    as Spark's positions are. Raises Refused if they do not fit.
    """
    sources = [(node, node.spec) for node in nodes if isinstance(node.spec, SourceSpec)]
    if len(sources) != len(positions):
        raise Refused(
            f"the checkpointLocation {location} continues a query on Spark with"
            f" {len(positions)} sources, and this one has {len(sources)}: start the same query,"
            " or name another location"
        )
    for (node, spec), position in zip(sources, positions, strict=True):
        node.spec = replace(spec, source=_continued(spec.source, position, location))


def _continued(source: Source, position: SourcePosition, location: str) -> Source:
    match source:
        case FileSource() if position.files is not None:
            return source.skipping(position.files)
        case KafkaSource() if position.offsets:
            other = copy.copy(source)
            start = KafkaOffsets.of(position.offsets, others="earliest")
            object.__setattr__(other, "start", start)
            return other
        case _ if position.files is None and not position.offsets:
            return source
        case _:
            found = type(source).__name__
            raise Refused(
                f"the checkpointLocation {location} continues a query on Spark whose source was at"
                f" {position.shown}, and here it is a {found}: start the same query, or name"
                " another location"
            )

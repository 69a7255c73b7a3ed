"""The types of the keys of keyed state, as the analysis of the plan determines them.

Keys of a different type are different keys: state restored under them would never be found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.ids import OperatorId
from firesteel.common.job_graph import JobGraph
from jobmaster.core.commands import OutputOf


def key_types(graph: JobGraph, schemas: Mapping[OutputOf, bytes]) -> dict[OperatorId, str]:
    """Returns the key types by operator, for example "string, int64". Operators without keys, or
    with an input of unknown schema, are missing.
    """
    import pyarrow as pa  # takes long: only JobMasters of jobs with checkpoints need it

    found: dict[OperatorId, str] = {}
    vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
    for edge in graph.edges:
        source = vertices[edge.source_vertex_id].operators[edge.source_operator]
        target = vertices[edge.target_vertex_id].operators[edge.target_operator]
        content = schemas.get(OutputOf(source.operator_id, edge.side_output_tag))
        if not edge.key_columns or not content:
            continue
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(content))
            types = [_named(str(schema.field(name).type)) for name in edge.key_columns]
        except (pa.ArrowInvalid, KeyError):
            continue
        found.setdefault(target.operator_id, ", ".join(types))
    return found


def _named(arrow_type: str) -> str:
    """Ignores the zone of a timestamp type, which affects only how it is displayed."""
    return re.sub(r", tz=[^]]*", ", tz", arrow_type)


def changed_key(
    graph: JobGraph,
    types: Mapping[OperatorId, str],
    restored: Sequence[CheckpointedOperator],
) -> str:
    """Returns how the program's keys differ from those that it restores; empty if they match."""
    before = {operator.operator_id: operator for operator in restored if operator.keyed}
    for vertex in graph.vertices:
        for operator in vertex.operators:
            kept, now = before.get(operator.operator_id), types.get(operator.operator_id)
            if kept is not None and now and kept.key_type and kept.key_type != now:
                return operator.says(
                    f"the key of {operator.name!r} has the type {now}, and had {kept.key_type} in"
                    " the checkpoint: its state would never be found. Cast the key to the earlier"
                    " type, or give the operator a different uid and discard its state"
                    " (--allow-non-restored-state)"
                )
    return ""

"""Operator coordinators: the parts of sources and sinks that must be one per job, so they live in
the JobMaster.

Sources have a split enumerator, which owns every split until a reader asks for one; collect sinks
have a spool that their rows are appended to. A coordinator is a pure core of its own: it answers
with messages to the subtask that spoke and with `Wanted` I/O, and never looks outside.
"""

from __future__ import annotations

import json

from firesteel.common.job_graph import Operator
from jobmaster.core.coordinators.base import BadOptions, Coordinator
from jobmaster.core.coordinators.collect import CollectCoordinator
from jobmaster.core.coordinators.file_source import FileSourceEnumerator
from jobmaster.core.coordinators.sequence_source import SequenceSourceEnumerator

__all__ = [
    "BadOptions",
    "CollectCoordinator",
    "Coordinator",
    "FileSourceEnumerator",
    "SequenceSourceEnumerator",
    "create",
]


def create(operator: Operator) -> Coordinator | None:
    """The operator's coordinator; None if it has none. Raises BadOptions, naming the operator."""
    if not operator.coordinator_kind:
        return None
    try:
        options = json.loads(operator.coordinator_options_json or "{}")
        if not isinstance(options, dict):
            raise BadOptions("they must be a JSON object")
        match operator.coordinator_kind:
            case "file-source":
                return FileSourceEnumerator.from_options(options)
            case "sequence-source":
                return SequenceSourceEnumerator.from_options(options)
            case "collect":
                return CollectCoordinator()
            case "alignment":
                return None  # only the alignment group among its options counts: jobmaster.core.coordinators.alignment
            case kind:
                known = "file-source, sequence-source, collect and alignment"
                raise BadOptions(f"coordinator kind {kind!r} is unknown; known are {known}")
    except (BadOptions, ValueError, TypeError) as error:
        raise BadOptions(
            f"operator {operator.name!r}: its coordinator's options are not usable: {error}"
        ) from error

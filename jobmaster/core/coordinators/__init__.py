"""Operator coordinators: the parts of sources and sinks that must exist once per job, so they live
in the JobMaster.

Sources have a split enumerator, which owns every split until a reader asks for one; collect sinks
have a spool that their rows are appended to. A coordinator is a pure core of its own: it answers
with messages to the subtask that it heard from and with `Spool`, the I/O that it wants.
"""

from __future__ import annotations

import json

from firesteel.common.job_graph import Operator
from jobmaster.core.coordinators.base import BadOptions, Coordinator
from jobmaster.core.coordinators.collect import CollectCoordinator
from jobmaster.core.coordinators.file_source import FileSourceEnumerator
from jobmaster.core.coordinators.listed_splits import ListedSplitsEnumerator
from jobmaster.core.coordinators.sequence_source import SequenceSourceEnumerator

__all__ = [
    "BadOptions",
    "CollectCoordinator",
    "Coordinator",
    "FileSourceEnumerator",
    "ListedSplitsEnumerator",
    "SequenceSourceEnumerator",
    "create",
]

KINDS: dict[str, type[Coordinator]] = {
    "splits": ListedSplitsEnumerator,
    "file-source": FileSourceEnumerator,
    "sequence-source": SequenceSourceEnumerator,
    "collect": CollectCoordinator,
}
# Of an operator that only has an alignment group among its options: see WatermarkAlignment.
ALIGNMENT = "alignment"


def create(operator: Operator) -> Coordinator | None:
    """The operator's coordinator; None if it has none. Raises BadOptions, naming the operator."""
    kind = operator.coordinator_kind
    if not kind:
        return None
    try:
        options = json.loads(operator.coordinator_options_json or "{}")
        if not isinstance(options, dict):
            raise BadOptions("they must be a JSON object")
        if kind == ALIGNMENT:
            return None
        if kind not in KINDS:
            known = ", ".join([*KINDS, ALIGNMENT])
            raise BadOptions(f"coordinator kind {kind!r} is unknown; known are {known}")
        return KINDS[kind].from_options(options)
    except (BadOptions, ValueError, TypeError) as error:
        raise BadOptions(
            f"operator {operator.name!r}: the options of its coordinator are not valid: {error}"
        ) from error

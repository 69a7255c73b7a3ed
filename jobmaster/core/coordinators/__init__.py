"""Operator coordinators: the parts of sources and sinks that exist once per job and therefore live
in the JobMaster.

A source has a split enumerator, which owns every split until a reader requests one; a collect sink
has a spool that its rows are appended to. A coordinator is a pure core: it answers with messages to
the subtask that it received from, and with `Spool`, a request for I/O.
"""

from __future__ import annotations

import json

from firesteel.common.job_graph import Operator
from jobmaster.core.coordinators.base import BadOptions, Coordinator
from jobmaster.core.coordinators.collect import CollectCoordinator
from jobmaster.core.coordinators.file_source import FileSourceEnumerator
from jobmaster.core.coordinators.spark_program import DRIVER, EXECUTORS
from jobmaster.core.coordinators.splits import ListedSplitsEnumerator, SequenceSourceEnumerator

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
# The kind of an operator whose only option is an alignment group: see WatermarkAlignment.
ALIGNMENT = "alignment"
# Kinds whose operators share something, which is not theirs alone.
_SHARED = (ALIGNMENT, DRIVER, EXECUTORS)  # see WatermarkAlignment and SparkProgram


def create(operator: Operator) -> Coordinator | None:
    """Creates the operator's coordinator, or returns None. Raises BadOptions, naming the
    operator.
    """
    kind = operator.coordinator_kind
    if not kind:
        return None
    try:
        options = json.loads(operator.coordinator_options_json or "{}")
        if not isinstance(options, dict):
            raise BadOptions("they must be a JSON object")
        if kind in _SHARED:
            return None
        if kind not in KINDS:
            known = ", ".join([*KINDS, *_SHARED])
            raise BadOptions(f"coordinator kind {kind!r} is unknown; known are {known}")
        return KINDS[kind].from_options(options)
    except (BadOptions, ValueError, TypeError) as error:
        raise BadOptions(
            f"operator {operator.name!r}: the options of its coordinator are not valid: {error}"
        ) from error

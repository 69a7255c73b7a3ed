"""What an operator's coordinator in the JobMaster needs to know, in JSON: nothing of it is ever
unpickled there.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from firesteel.connectors import FileSource, SequenceSource
from firesteel.errors import InvalidProgram
from firesteel.plan.specs import WatermarkAlignmentSpec

SPLIT_ROWS = 1_000_000  # of a sequence whose program does not say
RATED_SPLIT_S = (
    0.1  # a split of a rate-limited sequence is what all subtasks together emit in this time
)


def coordinator_of(source: Any, alignment: WatermarkAlignmentSpec | None = None) -> tuple[str, str]:
    """The coordinator's kind and options: its enumerator hands the source's splits to the readers."""
    kind, options = _enumerator(source)
    return kind, json.dumps({**options, **_alignment(alignment)})


def alignment_of(alignment: WatermarkAlignmentSpec | None) -> tuple[str, str]:
    """The coordinator's kind and options of an operator that needs one for its alignment group
    only.
    """
    return ("", "") if alignment is None else ("alignment", json.dumps(_alignment(alignment)))


def _alignment(alignment: WatermarkAlignmentSpec | None) -> dict[str, Any]:
    return {} if alignment is None else {"alignment": asdict(alignment)}


def _enumerator(source: Any) -> tuple[str, dict[str, Any]]:
    match source:
        case FileSource():
            options: dict[str, Any] = {"paths": list(source.paths), "format": source.format}
            if source.watch_s is not None:
                options["watch_s"] = source.watch_s
            return "file-source", options
        case SequenceSource():
            rows = source.split_rows or SPLIT_ROWS
            if (
                source.rate_per_s is not None
            ):  # small enough for all subtasks to have their part of a short sequence too
                rows = max(1, min(rows, int(source.rate_per_s * RATED_SPLIT_S)))
            return "sequence-source", {"start": source.start, "end": source.end, "split_rows": rows}
        case _:
            raise InvalidProgram(f"{type(source).__name__} is not a source that can be coordinated")

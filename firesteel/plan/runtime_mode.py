"""Whether a job is a stream or a batch: the same program gives the same rows.

A batch job ends, because its sources do, and exchanges whole results: what reads them begins when
they are complete, so a failure repeats only what has failed. It takes no checkpoints.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from firesteel.common.config import Configuration, options
from firesteel.connectors import PythonSource
from firesteel.connectors.python_source import PartitionPlan
from firesteel.errors import InvalidProgram
from firesteel.plan.specs import AssignWatermarksSpec, SourceSpec
from firesteel.plan.stream_graph import StreamGraph

BATCH, AUTOMATIC = "BATCH", "AUTOMATIC"


def is_bounded(source: Any) -> bool:
    watched = getattr(source, "watch_s", None) is not None
    endless = getattr(source, "end", 0) is None
    return not watched and not endless and bool(getattr(source, "bounded", True))


def is_batch(graph: StreamGraph, conf: Configuration) -> bool:
    """As execution.runtime-mode says. Raises InvalidProgram if it is BATCH and a source never ends,
    or the job is to begin from a savepoint.
    """
    mode = conf.get(options.RUNTIME_MODE)
    endless = [
        node
        for node in graph.nodes
        if isinstance(node.spec, SourceSpec) and not is_bounded(node.spec.source)
    ]
    if mode == AUTOMATIC:
        # Whether one ends that is read by Python is known when it runs.
        by_python = any(
            isinstance(node.spec, SourceSpec)
            and isinstance(node.spec.source, PythonSource | PartitionPlan)
            for node in graph.nodes
        )
        return not (endless or by_python or conf.get(options.RECOVERY_PATH))
    if mode != BATCH:
        return False
    if endless:
        raise InvalidProgram(
            f"{endless[0]} never ends, and a job in batch mode must"
            f" ({options.RUNTIME_MODE.key}: {mode}): bound the source, or run it as a stream"
        )
    if path := conf.get(options.RECOVERY_PATH):
        raise InvalidProgram(
            f"a job in batch mode has no state to begin with: leave out {path!r}"
            f" ({options.RECOVERY_PATH.key}), or run it as a stream"
        )
    return True


def without_alignment(graph: StreamGraph) -> None:
    """Sources that do not run at the same time cannot wait for each other's watermarks."""
    for node in graph.nodes:
        if isinstance(node.spec, SourceSpec | AssignWatermarksSpec):
            node.spec = dataclasses.replace(node.spec, watermark_alignment=None)

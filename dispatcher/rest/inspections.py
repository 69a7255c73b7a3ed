"""Inspections of running tasks and of processes, for the routes of Flink and of Firesteel."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from dispatcher.rest.gateway import Gateway, Metadata
from dispatcher.rest.requests import Refusal
from firesteel._proto import inspections_pb2
from firesteel.common.inspections import (
    FlameGraph,
    SampledRows,
    StackFrame,
    TaskInspection,
    ThreadStack,
)
from firesteel.common.rpc.convert import FLAME_GRAPH, SAMPLED_ROWS, TASK_INSPECTION, THREAD_STACK

ANSWER_S = 15.0  # beyond the time that the inspection itself takes
DUMP_TIMEOUT_S = 15.0


class FlameGraphType(Enum):
    FULL = "full"
    ON_CPU = "on_cpu"
    OFF_CPU = "off_cpu"

    @classmethod
    def named(cls, name: str) -> FlameGraphType:
        """Raises Refusal."""
        try:
            return cls(name.lower())
        except ValueError:
            raise Refusal(400, f"type={name!r}: expected full, on_cpu or off_cpu") from None

    def of(self, frame: StackFrame) -> int:
        """Returns the number of a frame's samples."""
        on_cpu = 0 if self is FlameGraphType.OFF_CPU else frame.on_cpu
        off_cpu = 0 if self is FlameGraphType.ON_CPU else frame.off_cpu
        return on_cpu + off_cpu


async def inspect(
    gateway: Gateway, metadata: Metadata, asked: TaskInspection
) -> FlameGraph | SampledRows:
    response = await gateway.dispatcher.InspectTask(
        TASK_INSPECTION.encode(asked),
        timeout=asked.inspection.seconds + ANSWER_S,
        metadata=metadata,
    )
    if response.HasField("flame_graph"):
        return FLAME_GRAPH.decode(response.flame_graph)
    return SAMPLED_ROWS.decode(response.sampled_rows)


async def dump_threads(
    gateway: Gateway, metadata: Metadata, task_executor_id: str = ""
) -> list[ThreadStack]:
    """Returns the threads of a TaskExecutor and its slots, or of the masters."""
    dump = await gateway.dispatcher.DumpThreads(
        inspections_pb2.DumpThreadsRequest(task_executor_id=task_executor_id),
        timeout=DUMP_TIMEOUT_S,
        metadata=metadata,
    )
    return list(map(THREAD_STACK.decode, dump.threads))


def tree(graphs: Iterable[FlameGraph], of: FlameGraphType) -> dict[str, Any]:
    """Returns the root of a tree of `name`, `kind`, `value` and `children`, which merges the
    stacks of all graphs.
    """
    root: dict[str, Any] = _node("root", "native")
    for graph in graphs:
        nodes: list[dict[str, Any]] = []
        for frame in graph.frames:
            above = root if frame.caller < 0 else nodes[frame.caller]
            node = above["children"].setdefault(
                (frame.name, frame.kind), _node(frame.name, frame.kind)
            )
            node["value"] += of.of(frame)
            nodes.append(node)
    _list_children(root)
    root["value"] = sum(child["value"] for child in root["children"])
    return root


def _node(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "kind": kind, "value": 0, "children": {}}


def _list_children(root: dict[str, Any]) -> None:
    """Replaces the children's index by a list of those with samples. A tree may be deep."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        node["children"] = [child for child in node["children"].values() if child["value"]]
        waiting += node["children"]

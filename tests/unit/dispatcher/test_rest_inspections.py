"""Flame graphs and rows as the REST API shows them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dispatcher.rest.firesteel.inspections import shown
from dispatcher.rest.firesteel.machines import machine
from dispatcher.rest.inspections import FlameGraphType, tree
from dispatcher.rest.requests import Refusal
from firesteel.client.job_details import TaskExecutorOverview
from firesteel.common.inspections import FlameGraph, SampledColumn, SampledRows, StackFrame
from firesteel.common.machines import DiskUsage, MachineUsage, SlotUsage

GRAPH = FlameGraph(
    samples=6,
    seconds=0.06,
    frames=[
        StackFrame("main", "python", -1, on_cpu=3, off_cpu=2),
        StackFrame("run", "jvm", 0, on_cpu=2, off_cpu=0),
        StackFrame("wait", "native", 0, on_cpu=0, off_cpu=2),
        StackFrame("other", "python", -1, on_cpu=1, off_cpu=0),
    ],
)


def test_frames_become_a_tree() -> None:
    assert tree([GRAPH], FlameGraphType.FULL) == {
        "name": "root",
        "kind": "native",
        "value": 6,
        "children": [
            {
                "name": "main",
                "kind": "python",
                "value": 5,
                "children": [
                    {"name": "run", "kind": "jvm", "value": 2, "children": []},
                    {"name": "wait", "kind": "native", "value": 2, "children": []},
                ],
            },
            {"name": "other", "kind": "python", "value": 1, "children": []},
        ],
    }


def test_graphs_of_several_subtasks_merge_and_frames_without_samples_are_left_out() -> None:
    merged = tree([GRAPH, GRAPH], FlameGraphType.ON_CPU)
    (main, other) = merged["children"]
    assert (merged["value"], main["value"], other["value"]) == (8, 6, 2)
    assert [child["name"] for child in main["children"]] == ["run"]
    assert tree([], FlameGraphType.OFF_CPU)["children"] == []


def test_deep_trees_can_be_written() -> None:
    frames = [StackFrame(f"f{i}", "python", i - 1, 1, 0) for i in range(260)]
    assert json.dumps(tree([FlameGraph(1, 1.0, frames)], FlameGraphType.FULL))


def test_types_are_those_of_flink() -> None:
    assert FlameGraphType.named("ON_CPU") is FlameGraphType.ON_CPU
    with pytest.raises(Refusal, match="type='cpu': expected full, on_cpu or off_cpu"):
        FlameGraphType.named("cpu")


def test_rows_are_lists() -> None:
    rows = SampledRows([SampledColumn("x", "int64")], ["[1]", "[null]"], "a note")
    assert shown(rows) == {
        "columns": [{"name": "x", "type": "int64"}],
        "rows": [[1], [None]],
        "note": "a note",
    }


def test_machines_show_the_fullest_disk_and_what_is_unknown() -> None:
    executor = TaskExecutorOverview(
        task_executor_id="t", address="h:1", host="h", pid=1, slots=1, slots_free=0, slots_warm=0
    )
    assert machine(executor, {})["memory"] is None
    usage = MachineUsage(
        task_executor_id="t",
        cpu_cores=4,
        cpu_load=0.5,
        memory_total_bytes=100,
        memory_used_bytes=40,
        threads=7,
        disks=[DiskUsage("/a", 100, 90), DiskUsage("/b", 100, 10)],
        slots=[SlotUsage(slot_index=0, executor_id="e", job_id="j", limit_bytes=10)],
    )
    shown_machine = machine(replace(executor, usage=usage), {"j": "a job"})
    assert shown_machine["disk"] == {"path": "/b", "total": 100, "free": 10}
    assert shown_machine["memory"] == {"total": 100, "used": 40}
    (slot,) = shown_machine["slots"]
    assert (slot["job_name"], slot["cpu_load"], slot["memory"]["limit"]) == ("a job", None, 10)

"""Flame graphs as text and as pages."""

from __future__ import annotations

from firesteel.client.flame_graph import collapsed, page
from firesteel.common.inspections import FlameGraph, StackFrame

GRAPH = FlameGraph(
    samples=1_000,
    seconds=10.0,
    frames=[
        StackFrame("main", "python", -1, on_cpu=700, off_cpu=300),
        StackFrame("a;<b>", "jvm", 0, on_cpu=400, off_cpu=0),
        StackFrame("rare", "jvm", 0, on_cpu=1, off_cpu=0),
    ],
)


def test_collapsed_stacks_have_the_samples_of_the_innermost_function() -> None:
    assert collapsed(GRAPH) == "main 599\nmain;a:<b> 400\nmain;rare 1\n"


def test_pages_escape_names_and_leave_rare_frames_out() -> None:
    text = page(GRAPH, "<script>")
    assert "<script>" not in text and "&lt;b&gt;" in text and "rare" not in text
    assert text.count('<div class="frame"') == 2
    assert text.count("<div") == text.count("</div>")
    assert 'width:40.00%"' in text

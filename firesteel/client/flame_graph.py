"""Flame graphs as text and as pages."""

from __future__ import annotations

import html

from firesteel.common.inspections import FlameGraph

_COLOURS = {"python": "#f4b860", "jvm": "#7fb2e5", "native": "#b9b9b9"}
_MIN_SHARE = 0.002  # of all samples: narrower frames are not drawn
_STYLE = """
body { font: 12px system-ui, sans-serif; margin: 1em; background: #fff; color: #222 }
.below { display: flex }
.frame > p { margin: 0; padding: 1px 3px; border: 1px solid #fff; border-radius: 2px;
  overflow: hidden; white-space: nowrap; text-overflow: ellipsis; line-height: 16px }
.frame { min-width: 0 }
"""


def collapsed(graph: FlameGraph) -> str:
    """Returns a line `caller;function samples` for each stack, which other tools read."""
    lines, below = [], _below(graph)
    names: list[str] = []
    for index, frame in enumerate(graph.frames):
        name = frame.name.replace(";", ":")
        names.append(name if frame.caller < 0 else f"{names[frame.caller]};{name}")
        called = sum(_samples(graph, child) for child in below[index])
        if own := _samples(graph, index) - called:
            lines.append(f"{names[index]} {own}\n")
    return "".join(lines)


def page(graph: FlameGraph, title: str) -> str:
    """Returns an HTML page without scripts: the outermost calls are at the top."""
    below = _below(graph)
    total = sum(_samples(graph, index) for index in below[-1]) or 1
    legend = ", ".join(
        f'<span style="background:{colour}">&nbsp;{kind}&nbsp;</span>'
        for kind, colour in _COLOURS.items()
    )
    head = (
        f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>"
        f"<p>{graph.samples} samples in {graph.seconds:.1f} s. {legend}</p>"
    )
    parts = [head, '<div class="below">']
    waiting: list[int | str] = ["</div>\n", *reversed(below[-1])]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            parts.append(item)
            continue
        frame, samples = graph.frames[item], _samples(graph, item)
        caller = total if frame.caller < 0 else _samples(graph, frame.caller)
        if samples < total * _MIN_SHARE:
            continue
        text = html.escape(frame.name)
        parts.append(
            f'<div class="frame" style="width:{samples / (caller or 1):.2%}">'
            f'<p style="background:{_COLOURS.get(frame.kind, "#ddd")}"'
            f' title="{text}: {samples / total:.1%}, {frame.on_cpu} samples on the CPU">{text}</p>'
            '<div class="below">'
        )
        waiting += ["</div></div>\n", *reversed(below[item])]
    return "".join(parts)


def _below(graph: FlameGraph) -> dict[int, list[int]]:
    """Returns the functions that each one has called; by -1, those where threads start."""
    below: dict[int, list[int]] = {index: [] for index in range(-1, len(graph.frames))}
    for index, frame in enumerate(graph.frames):
        below[frame.caller].append(index)
    return below


def _samples(graph: FlameGraph, index: int) -> int:
    return graph.frames[index].on_cpu + graph.frames[index].off_cpu

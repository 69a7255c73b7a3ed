"""Prometheus's text format, version 0.0.4.

A scrape of a TaskExecutor has thousands of samples with a few hundred different sets of labels, so
the text of each set is made once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = tuple[tuple[str, str], ...]

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Family(NamedTuple):
    """The samples of one metric: their names, labels and values."""

    name: str
    kind: str  # "gauge" or "summary"
    samples: list[tuple[str, Labels, float]]


def exposition(families: Iterable[Family]) -> bytes:
    texts: dict[Labels, str] = {}
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.name}\n# TYPE {family.name} {family.kind}\n")
        for name, labels, value in family.samples:
            if (text := texts.get(labels)) is None:
                text = texts[labels] = _text(labels)
            lines.append(f"{name}{text} {value if math.isfinite(value) else _special(value)}\n")
    return "".join(lines).encode()


def _text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{n}="{v.translate(_ESCAPES)}"' for n, v in labels) + "}"


def _special(value: float) -> str:
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"

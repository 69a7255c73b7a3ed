"""Parts of the JSON of Flink's REST API that several groups of routes share. Times are milliseconds
since 1970.

Flink's clients repeat a call for a minute if a number is missing, so every number is present.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from aiohttp import web

from dispatcher.rest.answers import encoded
from dispatcher.rest.requests import Refusal
from firesteel.common.states import ExecutionState

Json: TypeAlias = dict[str, Any]

FLINK_VERSION = "2.3.0"  # whose REST API this is
NOT_ENDED = -1
_AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "avg": statistics.fmean,
    "sum": math.fsum,
    "skew": lambda values: 100 * statistics.pstdev(values) / (statistics.fmean(values) or 1),
}


def answer(shown: Any, *, status: int = 200) -> web.Response:
    """Returns JSON; 0 replaces NaN and infinities."""
    body = encoded(shown, unknown=0)
    return web.Response(body=body, status=status, content_type="application/json")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def duration_ms(start_ms: int, end_ms: int, now_ms: int) -> int:
    """`end_ms`: 0 if it has not ended."""
    return max(0, (end_ms or now_ms) - start_ms)


def counts(states: Mapping[ExecutionState, int]) -> Json:
    return {state.name: states.get(state, 0) for state in ExecutionState}


def summary(values: Iterable[float]) -> Json:
    """Returns the statistics of checkpoints and rescales."""
    ranks = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    ordered = sorted(values) or [0]
    average = sum(ordered) // len(ordered)
    return {"min": ordered[0], "max": ordered[-1], "avg": average, **_quantiles(ordered, ranks)}


def distribution(values: Iterable[float]) -> Json:
    """Returns the statistics of subtasks."""
    ranks = {"median": 0.5, "p25": 0.25, "p75": 0.75, "p95": 0.95}
    ordered = sorted(values) or [0]
    total = sum(ordered)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "avg": total // len(ordered),
        "sum": total,
        **_quantiles(ordered, ranks),
    }


def _quantiles(ordered: Sequence[float], ranks: Mapping[str, float]) -> Json:
    last = len(ordered) - 1
    return {name: ordered[min(last, int(rank * len(ordered)))] for name, rank in ranks.items()}


def metrics_answer(request: web.Request, values: Mapping[str, float]) -> web.Response:
    """Answers with the metrics that `get` names; without it, with all names."""
    names = _listed(request, "get")
    if names is None:
        return answer([{"id": name} for name in values])
    return answer([{"id": name, "value": _text(values[name])} for name in names if name in values])


def aggregated_answer(request: web.Request, parts: Sequence[Mapping[str, float]]) -> web.Response:
    """Answers with aggregates, those that `agg` names, of the metrics that `get` names over parts,
    such as subtasks.
    """
    names = _listed(request, "get")
    if names is None:
        return answer([{"id": name} for name in dict.fromkeys(n for part in parts for n in part)])
    aggregates = _listed(request, "agg") or list(_AGGREGATES)
    if unknown := set(aggregates) - _AGGREGATES.keys():
        raise Refusal(400, f"agg={min(unknown)!r} is not one of {', '.join(_AGGREGATES)}")
    shown = []
    for name in names:
        if values := [part[name] for part in parts if name in part]:
            of_all = {each: float(_AGGREGATES[each](values)) for each in aggregates}
            shown.append({"id": name, **of_all})
    return answer(shown)


def selected(request: web.Request, name: str) -> Callable[[str], bool]:
    """Returns whether a parameter, a list, contains an id; an absent one contains all."""
    ids = _listed(request, name)
    return lambda id: ids is None or id in ids


def _listed(request: web.Request, name: str) -> list[str] | None:
    if name not in request.query:
        return None
    return [part for text in request.query.getall(name) for part in text.split(",") if part]


def _text(value: float) -> str:
    return str(value if math.isfinite(value) else 0.0)

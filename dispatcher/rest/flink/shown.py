"""Parts of the JSON of Flink's REST API that several groups of routes share. Times are milliseconds
since 1970.

Flink's clients repeat a call for a minute if a number is missing, so every number is present.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from firesteel.common.states import ExecutionState

Json: TypeAlias = dict[str, Any]

FLINK_VERSION = "2.3.0"  # whose REST API this is
NOT_ENDED = -1


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def duration_ms(start_ms: int, end_ms: int, now_ms: int) -> int:
    """`end_ms`: 0 if it has not ended."""
    return max(0, (end_ms or now_ms) - start_ms)


def counts(states: Mapping[ExecutionState, int]) -> Json:
    return {state.name: states.get(state, 0) for state in ExecutionState}


def summary(values: Sequence[float]) -> Json:
    ordered = sorted(values) or [0]
    ranks = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    quantiles = {
        name: ordered[min(len(ordered) - 1, int(rank * len(ordered)))]
        for name, rank in ranks.items()
    }
    average = sum(ordered) // len(ordered)
    return {"min": ordered[0], "max": ordered[-1], "avg": average, **quantiles}

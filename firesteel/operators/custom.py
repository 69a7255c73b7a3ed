"""Operators of the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSpec(Spec):
    """Calls `factory()` once per subtask to create a firesteel.operator.StreamOperator."""

    factory: Callable[[], Any]
    inputs: int = 1
    schema: Any = None
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema

    sets_times = True
    sees_each_update = True
    emits_watermarks = None

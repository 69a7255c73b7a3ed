"""Quantities such as 500m, 2Gi or 1e3."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from tests.kubernetes.kinds import Object

_SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)([a-zA-Z]*)")


def quantity(value: Any) -> Decimal:
    """Raises ValueError."""
    found = _QUANTITY.fullmatch(str(value))
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"{value!r} is not a quantity")
    return Decimal(found[1]) * _SUFFIXES[found[2]]


def pod_resources(pod: Object, kind: str) -> dict[str, Decimal]:
    """Returns the sum of `requests` or `limits` over the containers."""
    total: dict[str, Decimal] = {}
    for container in pod["spec"]["containers"]:
        for name, value in ((container.get("resources") or {}).get(kind) or {}).items():
            total[name] = total.get(name, Decimal(0)) + quantity(value)
    return total

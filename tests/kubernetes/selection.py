"""Label selectors, as text and as objects, and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.kubernetes.failure import bad_request
from tests.kubernetes.kinds import Kind, Object

Matches = Callable[[Object], bool]
_SETS = re.compile(r"([^\s,!=]+)\s+(in|notin)\s+\(([^)]*)\)")
_REQUIREMENT = re.compile(r"\s*(?:[^,(]|\([^)]*\))+")


def matcher(kind: Kind, labels: str, fields: str) -> Matches:
    """Raises Failure for selectors that are malformed, or that the kind does not support."""
    by_label = [_label_requirement(text) for text in _REQUIREMENT.findall(labels)]
    by_field = [_field_requirement(kind, text) for text in fields.split(",") if text]
    return lambda found: (
        all(r(_labels(found)) for r in by_label) and all(r(found) for r in by_field)
    )


def selects(selector: Any, labels: dict[str, str]) -> bool:
    """Whether a LabelSelector object selects these labels."""
    selector = selector or {}
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    for each in selector.get("matchExpressions") or ():
        value, values = labels.get(each["key"]), each.get("values") or []
        match each["operator"]:
            case "In" if value not in values:
                return False
            case "NotIn" if value in values:
                return False
            case "Exists" if value is None:
                return False
            case "DoesNotExist" if value is not None:
                return False
    return True


def _labels(found: Object) -> dict[str, str]:
    return found["metadata"].get("labels") or {}


def _label_requirement(text: str) -> Callable[[dict[str, str]], bool]:
    text = text.strip()
    if found := _SETS.fullmatch(text):
        name, operator, values = found[1], found[2], [v.strip() for v in found[3].split(",")]
        if operator == "in":
            return lambda labels: labels.get(name) in values
        return lambda labels: labels.get(name) not in values
    if "!=" in text:
        name, _, value = text.partition("!=")
        return lambda labels: labels.get(name.strip()) != value.strip()
    if "=" in text:
        name, _, value = text.partition("=")
        return lambda labels: labels.get(name.strip()) == value.removeprefix("=").strip()
    if text.startswith("!"):
        return lambda labels: text[1:].strip() not in labels
    if not text or " " in text:
        raise bad_request(f"unable to parse requirement: {text!r}")
    return lambda labels: text in labels


def _field_requirement(kind: Kind, text: str) -> Matches:
    path, operator, value = re.match(r"([^!=]+)(!=|==?)(.*)", text).groups()  # type: ignore[union-attr]
    if path not in ("metadata.name", "metadata.namespace", *kind.fields):
        raise bad_request(
            f'field label not supported: {path} ("{path}" is not a known field selector)'
        )

    def requirement(found: Object) -> bool:
        its: Any = found
        for part in path.split("."):
            its = (its or {}).get(part)
        its = str(its).lower() if isinstance(its, bool) else its or ""
        return (its == value) == (operator != "!=")

    return requirement

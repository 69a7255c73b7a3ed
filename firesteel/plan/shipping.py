"""Pickles what an operator does; names what cannot be pickled."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import cloudpickle

from firesteel.errors import InvalidProgram
from firesteel.plan.source_lines import dumps_with_lines
from firesteel.plan.specs import Spec
from firesteel.plan.stream_graph import StreamNode


def pickled(node: StreamNode) -> bytes:
    """The node's spec. Raises InvalidProgram, which names what its functions refer to."""
    try:
        return dumps_with_lines(node.spec)
    except Exception as error:
        found = ", ".join(_unpicklable(node.spec))
        raise InvalidProgram(
            f"operator {node} cannot be shipped: {error}; its function refers to "
            f"{found or 'something'} that cannot be pickled (such as a SparkSession, a lock or a"
            " connection): create that inside the function"
        ) from error


def _unpicklable(spec: Spec) -> Iterator[str]:
    """The variables outside of the spec's functions that cannot be pickled."""
    for item in dataclasses.fields(spec):
        for name, value in _variables(getattr(spec, item.name)):
            try:
                cloudpickle.dumps(value)
            except Exception:
                yield f"{name!r} ({type(value).__name__})"


def _variables(function: Any) -> list[tuple[str, Any]]:
    if not inspect.isfunction(function):
        return []
    found = inspect.getclosurevars(function)
    return [*found.nonlocals.items(), *found.globals.items()]

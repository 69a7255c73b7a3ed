"""Pickles the specs of operators; names unpicklable variables, and the modules that they need."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import cloudpickle

from firesteel.errors import InvalidProgram
from firesteel.operators import Spec
from firesteel.plan.local_modules import refuse_taken, taken_by_value
from firesteel.plan.source_lines import Pickled, dumps_with_lines
from firesteel.plan.stream_graph import StreamNode
from firesteel.text import text_of


class Shipment:
    """The specs of a job's operators, pickled, and the modules that they need."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        """Top-level names of modules that the program's functions refer to, or import when they
        run.
        """

    def pickled(self, node: StreamNode) -> bytes:
        """Returns the pickled spec. Raises InvalidProgram, naming the references of its
        functions.
        """
        with taken_by_value():
            spec = _pickled(node)
        try:
            refuse_taken(spec.imported_late)
        except InvalidProgram as error:
            raise InvalidProgram(f"operator {node}: {error}") from None
        self.modules |= spec.modules
        return spec.data


def _pickled(node: StreamNode) -> Pickled:
    try:
        return dumps_with_lines(node.spec, node.bindings)
    except Exception as error:
        variables = ", ".join(_unpicklable(node.spec))
        raise InvalidProgram(
            f"operator {node} cannot be shipped: {text_of(error)}; its function refers to "
            f"{variables or 'an object'} that cannot be pickled (such as a SparkSession, a lock or"
            " a connection): create it inside the function"
        ) from error


def _unpicklable(spec: Spec) -> Iterator[str]:
    """Yields the variables outside of the spec's functions that cannot be pickled."""
    for item in dataclasses.fields(spec):
        for name, value in _variables(getattr(spec, item.name)):
            try:
                cloudpickle.dumps(value)
            except Exception:
                yield f"{name!r} ({type(value).__name__})"


def _variables(function: Any) -> list[tuple[str, Any]]:
    if not inspect.isfunction(function):
        return []
    closure = inspect.getclosurevars(function)
    return [*closure.nonlocals.items(), *closure.globals.items()]

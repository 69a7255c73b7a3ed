"""The variables of the program's functions, as they were when an operator was added.

Functions are pickled when a job is submitted. A variable of a loop has its last value then, but the
function means the value that it had when `map` or `transform` took the function.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

_MOST_ITEMS = 1_000  # of a list: more are data
_EMPTY = object()  # the content of a cell without one


@dataclasses.dataclass(frozen=True, slots=True)
class _Variables:
    function: FunctionType
    own: dict[str, Any]  # global ones of the program, by name
    cells: tuple[Any, ...]  # the contents of its cells

    @property
    def changed(self) -> bool:
        names = self.function.__globals__
        return any(names.get(name, _EMPTY) is not value for name, value in self.own.items()) or any(
            new is not old for new, old in zip(_contents(self.function), self.cells, strict=True)
        )

    def bound(self) -> FunctionType:
        """Returns the function with these variables."""
        given = self.function
        cells = tuple(
            cell if value is _EMPTY else CellType(value)
            for cell, value in zip(given.__closure__ or (), self.cells, strict=True)
        )
        names = {**given.__globals__, **self.own}
        bound = FunctionType(given.__code__, names, given.__name__, given.__defaults__, cells)
        for name in ("__kwdefaults__", "__annotations__", "__qualname__", "__module__", "__doc__"):
            setattr(bound, name, getattr(given, name))
        bound.__dict__.update(given.__dict__)
        return bound


class Bindings:
    """The variables of all functions that a value refers to, now."""

    def __init__(self, value: Any) -> None:
        self._functions: dict[int, _Variables] = {}
        self._bound: dict[int, FunctionType] = {}
        self._seen: set[int] = set()
        self._bind(value)

    def of(self, function: FunctionType) -> FunctionType:
        """Returns the function with its variables as they were."""
        known = self._functions.get(id(function))
        if known is None or not known.changed:
            return function
        if id(function) not in self._bound:
            self._bound[id(function)] = known.bound()
        return self._bound[id(function)]

    def _bind(self, value: Any) -> None:
        for function in _functions(value, self._seen):
            if id(function) in self._functions:
                continue
            names, contents = function.__globals__, _contents(function)
            is_program = names is vars(sys.modules["__main__"])
            own = _names(function.__code__) & names.keys() if is_program else ()
            variables = _Variables(function, {name: names[name] for name in own}, contents)
            self._functions[id(function)] = variables
            for each in (*variables.own.values(), *variables.cells):
                self._bind(each)


def _functions(value: Any, seen: set[int]) -> Iterator[FunctionType]:
    """Yields the functions that a value of a spec consists of."""
    match value:
        case FunctionType():
            yield value
        case MethodType():
            yield from _functions(value.__func__, seen)
        case functools.partial():
            yield from _functions(value.func, seen)
        case tuple() | list():
            for each in value[:_MOST_ITEMS]:
                yield from _functions(each, seen)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if id(value) not in seen:
                seen.add(id(value))
                for field in dataclasses.fields(value):
                    yield from _functions(getattr(value, field.name, None), seen)


def _names(code: CodeType) -> set[str]:
    """Returns the names of global variables, and of attributes, in the code."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _contents(function: FunctionType) -> tuple[Any, ...]:
    return tuple(map(_content, function.__closure__ or ()))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY

"""The variables of the program's functions, as they were when an operator was added.

Functions are pickled when a job is submitted. A variable of a loop has its last value then, but the
function means the value that it had when `map` or `transform` took the function.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

_MOST_ITEMS = 1_000  # of lists and tuples: more are data
_OF_GLOBALS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME")
_EMPTY = object()  # the content of a cell without one


class Bindings:
    """The variables of all functions that a value refers to, now: the cells of functions in
    functions, and the global variables of functions of the program.
    """

    def __init__(self, value: Any) -> None:
        self._cells: dict[int, tuple[FunctionType, tuple[Any, ...]]] = {}
        self._globals: dict[str, Any] = {}
        self._program = vars(sys.modules["__main__"])
        self._bound: dict[int, FunctionType] = {}
        self._own: dict[str, Any] | None = None  # the globals of all bound functions
        self._items = _MOST_ITEMS
        self._seen: set[int] = set()
        self._bind(value)

    def of(self, function: FunctionType) -> FunctionType:
        """Returns the function with its variables as they were."""
        known = self._cells.get(id(function))
        if known is None or not self._changed(*known):
            return function
        if id(function) not in self._bound:
            self._bound[id(function)] = self._rebuilt(*known)
        return self._bound[id(function)]

    def _changed(self, function: FunctionType, cells: tuple[Any, ...]) -> bool:
        if any(new is not old for new, old in zip(_contents(function), cells, strict=True)):
            return True
        # Functions that share variables still do: all of them are bound, or none.
        return function.__globals__ is self._program and self._globals_changed

    @functools.cached_property
    def _globals_changed(self) -> bool:
        now = self._program
        return any(now.get(name, _EMPTY) is not old for name, old in self._globals.items())

    def _rebuilt(self, given: FunctionType, cells: tuple[Any, ...]) -> FunctionType:
        names = given.__globals__
        if names is self._program:
            if self._own is None:
                self._own = {**names, **self._globals}
            names = self._own
        closure = tuple(
            cell if content is _EMPTY else CellType(content)
            for cell, content in zip(given.__closure__ or (), cells, strict=True)
        )
        bound = FunctionType(given.__code__, names, given.__name__, given.__defaults__, closure)
        for name in ("__kwdefaults__", "__annotations__", "__qualname__", "__module__", "__doc__"):
            setattr(bound, name, getattr(given, name))
        bound.__dict__.update(given.__dict__)
        return bound

    def _bind(self, value: Any) -> None:
        for function in self._functions(value):
            if id(function) in self._cells:
                continue
            in_program = function.__globals__ is self._program
            # Others are members of a module, which are pickled by name.
            inner = in_program or "<locals>" in function.__qualname__
            contents = _contents(function)
            if not inner:
                continue
            self._cells[id(function)] = function, contents
            used = _globals_of(function.__code__) & self._program.keys() if in_program else ()
            self._globals |= {name: self._program[name] for name in used}
            for each in (*(self._program[name] for name in used), *contents):
                self._bind(each)

    def _functions(self, value: Any) -> Iterator[FunctionType]:
        """Yields the functions that a value of a spec consists of."""
        if isinstance(value, FunctionType):
            yield value
            if id(value) not in self._seen:
                self._seen.add(id(value))
                yield from self._functions(getattr(value, "func", None))  # of PySpark's udf
        elif isinstance(value, MethodType):
            yield from self._functions(value.__func__)
        elif isinstance(value, functools.partial):
            yield from self._functions((value.func, *value.args, *value.keywords.values()))
        elif id(value) in self._seen:
            return
        elif isinstance(value, tuple | list):
            self._seen.add(id(value))
            for each in value[: max(self._items, 0)]:
                self._items -= 1
                yield from self._functions(each)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            self._seen.add(id(value))
            for field in dataclasses.fields(value):
                yield from self._functions(getattr(value, field.name, None))


def _globals_of(code: CodeType) -> set[str]:
    """Returns the names of the global variables that the code uses."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname in _OF_GLOBALS}
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return own.union(*map(_globals_of, inner))


def _contents(function: FunctionType) -> tuple[Any, ...]:
    return tuple(map(_content, function.__closure__ or ()))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY

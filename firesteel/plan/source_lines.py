"""The lines of the user's program: where it calls Firesteel, and the source lines with which its
functions are pickled.

A function that is pickled by value arrives without its source file. Its lines are shipped with it
and registered with `linecache` where it is unpickled, so that tracebacks show them. `linecache`
finds them by the file name of the code, which cloudpickle 3.1.3 and later replace: so this module
restores it.
"""

from __future__ import annotations

import importlib
import io
import linecache
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle

from firesteel.plan.bindings import Bindings
from firesteel.plan.local_modules import imports_of, is_by_value

_FIRESTEEL = str(Path(__file__).parents[1]) + "/"

Lines = dict[str, dict[int, str]]
"""Source lines by file name and line number."""


class Pickled(NamedTuple):
    data: bytes
    modules: frozenset[str]
    """The top-level modules that its unpickling imports, as far as they are known, and those that
    its functions import when they run.
    """
    imported_late: frozenset[str]
    """The latter modules only."""


def dumps_with_lines(value: Any, bindings: Bindings | None = None) -> Pickled:
    """Pickles like `cloudpickle.dumps`, with source lines; functions with these variables."""
    data, pickler = _pickled(value, bindings)
    if pickler.lines:
        data = pickle.dumps(_Shipped(data, pickler.lines))
    return Pickled(data, frozenset(pickler.modules), frozenset(pickler.imported_late))


def dumps_without_lines(value: Any) -> bytes:
    """Pickles like `cloudpickle.dumps`, for processes that have the lines from the operators."""
    return _pickled(value)[0]


def _pickled(value: Any, bindings: Bindings | None = None) -> tuple[bytes, _Pickler]:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, bindings)
    pickler.dump(value)
    return buffer.getvalue(), pickler


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Records the lines of all code that it pickles by value, and keeps its file name. Records the
    modules that it pickles by name.
    """

    def __init__(self, file: io.BytesIO, bindings: Bindings | None = None) -> None:
        super().__init__(file)
        self._bindings = bindings
        self.lines: Lines = {}
        self.modules: set[str] = set()
        self.imported_late: set[str] = set()
        self._package = ""  # of the function whose code follows
        self._attributes: set[str] = set()  # of any object, in the code so far

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            if self._bindings is not None:
                value = self._bindings.of(value)
            self._package = value.__globals__.get("__package__") or ""
        if isinstance(value, ModuleType):
            self._note_module(value.__name__)
            if not is_by_value(value.__name__) and (loaded := self._submodules(value.__name__)):
                return _imported, (value.__name__, loaded)
        elif isinstance(value, FunctionType | BuiltinFunctionType | type):
            if isinstance(value, type) and (module := _home_of(value)):
                self._note_module(module)
                return _member, (module, value.__name__)
            self._note_module(value.__module__)
        elif isinstance(value, CodeType):
            self._note_lines(value)
            self._attributes.update(value.co_names)
            imported = set(imports_of(value, self._package))
            self.modules |= imported
            self.imported_late |= imported
            make, arguments = self.dispatch_table[CodeType](value)
            return _code, (make, arguments, value.co_filename)
        return super().reducer_override(value)

    def _note_module(self, name: Any) -> None:
        if isinstance(name, str) and not is_by_value(name):
            self.modules.add(name.partition(".")[0])

    def _submodules(self, package: str) -> tuple[str, ...]:
        """Returns the package's loaded submodules that code may refer to as its attributes.

        cloudpickle finds only those that the outermost code of a function names, not those that a
        function or a comprehension inside it names.
        """
        prefix = f"{package}."
        return tuple(
            name
            for name in sorted(sys.modules)
            if name.startswith(prefix)
            and self._attributes.issuperset(name.removeprefix(prefix).split("."))
        )

    def _note_lines(self, code: CodeType) -> None:
        if code.co_filename.startswith(_FIRESTEEL):
            return
        last = max((line for *_, line in code.co_lines() if line), default=0)
        source = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : last]
        if source:
            known = self.lines.setdefault(code.co_filename, {})
            known.update(enumerate(source, code.co_firstlineno))


def _home_of(kind: type) -> str:
    """Returns the loaded module with this class, if the class names one that does not exist, as
    those of confluent_kafka do: written in C, they cannot be pickled by value. Otherwise empty.
    """
    if kind.__module__ in sys.modules:
        return ""
    for name, module in sorted(sys.modules.items()):
        if name.endswith(f".{kind.__module__}") and vars(module).get(kind.__name__) is kind:
            return name
    return ""


def _member(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _imported(name: str, submodules: tuple[str, ...]) -> ModuleType:
    for submodule in submodules:
        importlib.import_module(submodule)
    return importlib.import_module(name)


def _code(make: Callable[..., CodeType], arguments: tuple[Any, ...], filename: str) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


class _Shipped:
    """Unpickles to the object that `data` is the pickle of."""

    def __init__(self, data: bytes, lines: Lines) -> None:
        self._data = data
        self._lines = lines

    def __reduce__(self) -> Any:
        return _received, (self._data, self._lines)


def _received(data: bytes, lines: Lines) -> Any:
    for name, by_number in lines.items():
        entry: Any = linecache.cache.get(name)
        # Other entries belong to a local file with this name.
        known = list(entry[2]) if entry is not None and entry[1:2] == (None,) else []
        known += ["\n"] * (max(by_number) - len(known))
        for number, line in by_number.items():
            known[number - 1] = line
        # No modification time, which would make linecache re-read the file.
        linecache.cache[name] = (len(known), None, known, name)
    return pickle.loads(data)


class Place(NamedTuple):
    """A line of the program; without a file, none."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}, line {self.line}" if self.file else ""


def place_of_call() -> Place:
    """Returns the line of the innermost call outside of Firesteel; a thread of Firesteel has
    none.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_FIRESTEEL) and frame.f_back is not None:
        frame = frame.f_back
    if frame.f_code.co_filename == threading.__file__:
        return Place("", 0)
    return Place(frame.f_code.co_filename, frame.f_lineno)

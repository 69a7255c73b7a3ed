"""Pickles functions of the program with their source lines.

A function that is pickled by value arrives without its source file. Its lines travel with it, and
are known to `linecache` where it is unpickled, so that tracebacks show them. `linecache` finds them
by the name of the code's file, which cloudpickle 3.1.3 and later replace: so this module keeps it.
"""

from __future__ import annotations

import io
import linecache
import pickle
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle

_FIRESTEEL = str(Path(__file__).parents[1]) + "/"

Lines = dict[str, dict[int, str]]
"""By file name and line number."""


def dumps_with_lines(value: Any) -> bytes:
    """As `cloudpickle.dumps`."""
    data, lines = _pickled(value)
    return pickle.dumps(_Shipped(data, lines)) if lines else data


def dumps_without_lines(value: Any) -> bytes:
    """As `cloudpickle.dumps`, for processes that know the program's lines from its operators."""
    return _pickled(value)[0]


def _pickled(value: Any) -> tuple[bytes, Lines]:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(value)
    return buffer.getvalue(), pickler.lines


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Notes the lines of all code that it pickles by value, and keeps the name of its file."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.lines: Lines = {}

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            self._note_lines(value)
            make, arguments = self.dispatch_table[CodeType](value)
            return _code, (make, arguments, value.co_filename)
        return super().reducer_override(value)

    def _note_lines(self, code: CodeType) -> None:
        if code.co_filename.startswith(_FIRESTEEL):
            return
        last = max((line for *_, line in code.co_lines() if line), default=0)
        source = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : last]
        if source:
            known = self.lines.setdefault(code.co_filename, {})
            known.update(enumerate(source, code.co_firstlineno))


def _code(make: Callable[..., CodeType], arguments: tuple[Any, ...], filename: str) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


class _Shipped:
    """Unpickled, it is what `data` is the pickle of."""

    def __init__(self, data: bytes, lines: Lines) -> None:
        self._data = data
        self._lines = lines

    def __reduce__(self) -> Any:
        return _received, (self._data, self._lines)


def _received(data: bytes, lines: Lines) -> Any:
    for name, by_number in lines.items():
        entry: Any = linecache.cache.get(name)
        # Other entries are of a file with this name, here.
        known = list(entry[2]) if entry is not None and entry[1:2] == (None,) else []
        known += ["\n"] * (max(by_number) - len(known))
        for number, line in by_number.items():
            known[number - 1] = line
        # Without a time of change, which would have the file read again.
        linecache.cache[name] = (len(known), None, known, name)
    return pickle.loads(data)

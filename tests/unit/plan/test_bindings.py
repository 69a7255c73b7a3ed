"""Functions are shipped with the variables that they had when an operator took them."""

from __future__ import annotations

import functools
import json
import pickle
import sys
from types import ModuleType
from typing import Any

import pytest

from firesteel.plan.bindings import Bindings
from firesteel.plan.source_lines import dumps_with_lines

LOOP = """
offset = 1

def shifted(x):
    return x + offset

functions = []
for factor in (1, 10):
    functions.append((lambda x: shifted(x) * factor, lambda xs: [x * factor for x in xs]))
    record(functions[-1])
offset = 100

def countdown(n):
    return n if n <= stop else countdown(n - 1)

stop = 3
record(countdown)
stop = 5
late = record(lambda: defined_later)
defined_later = "here"
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def shipped(value: Any, bindings: Bindings) -> Any:
    return pickle.loads(dumps_with_lines(value, bindings).data)


def test_globals_of_the_program_are_those_of_the_call(program: ModuleType) -> None:
    recorded: list[tuple[Any, Bindings]] = []
    vars(program)["record"] = lambda value: recorded.append((value, Bindings(value)))
    exec(compile(LOOP, "program.py", "exec"), vars(program))
    ones, tens, (countdown, of_countdown), (late, of_late) = recorded
    first, each = shipped(*ones)
    assert (first(5), each([1, 2])) == (6, [1, 2])
    first, each = shipped(*tens)
    assert (first(5), each([1, 2])) == (60, [10, 20])
    assert shipped(countdown, of_countdown)(9) == 3
    assert shipped(late, of_late)() == "here", "it had no value yet"


def test_variables_of_the_function_around_are_those_of_the_call() -> None:
    recorded: list[tuple[Any, Bindings]] = []
    for k in (1, 10):

        def times(x: int) -> int:
            return x * k  # noqa: B023

        recorded.append((times, Bindings(times)))
    assert [shipped(function, bindings)(2) for function, bindings in recorded] == [2, 20]


def test_a_function_is_the_same_wherever_it_is_called(program: ModuleType) -> None:
    """The same function may be given to several operators, with other variables each time."""
    names = vars(program)
    exec("def times(x):\n    return x * k\n", names)
    names["k"] = 2
    doubles = Bindings(names["times"])
    names["k"] = 3
    triples = Bindings((names["times"], names["times"]))
    names["k"] = 4
    assert shipped(names["times"], doubles)(5) == 10
    one, other = shipped((names["times"], names["times"]), triples)
    assert one is other
    assert one(5) == 15


SHARED = """
total = None

def setup():
    global total
    total = total or 100

for k in (1, 10):
    def add(x):
        setup()
        return x * k + total
    record(add)
add(1)
"""


def test_functions_of_the_program_share_their_globals(program: ModuleType) -> None:
    recorded: list[tuple[Any, Bindings]] = []
    vars(program)["record"] = lambda value: recorded.append((value, Bindings(value)))
    exec(compile(SHARED, "program.py", "exec"), vars(program))
    assert [shipped(*each)(2) for each in recorded] == [102, 120]


def test_what_functions_are_made_of_is_bound(program: ModuleType) -> None:
    names = vars(program)
    exec("def times(x, by=None):\n    return x * k\n", names)
    wrapper = eval("lambda x: times(x)", names)
    wrapper.func = names["times"]
    names["k"] = 2
    values = [functools.partial(max, key=names["times"]), wrapper]
    values.append(values)
    bindings = Bindings(values)
    names["k"] = 3
    partial, wrapper = shipped(values[:2], bindings)
    assert partial.keywords["key"](5) == wrapper(5) == wrapper.func(5) == 10


def test_members_of_modules_are_pickled_by_name() -> None:
    bindings = Bindings([json.dumps, functools.lru_cache(json.loads)])
    assert shipped(json.dumps, bindings) is json.dumps

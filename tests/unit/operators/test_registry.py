"""Every spec has an analysis and a runtime, in the module of the same name."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest

from firesteel import operators
from firesteel.errors import FiresteelError
from firesteel.operators import Spec
from taskexecutor.executor.operators.registry import kind_of

SPECS = sorted(
    {
        each
        for module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}.")
        for each in vars(import_module(module.name)).values()
        if isinstance(each, type) and issubclass(each, Spec) and each is not Spec
    },
    key=lambda spec: spec.__name__,
)


@pytest.mark.parametrize("spec", SPECS)
def test_every_spec_has_a_slot_half(spec: type[Spec]) -> None:
    kind = kind_of(spec)
    assert kind.spec is spec
    assert callable(kind.analyze) and callable(kind.create)
    assert getattr(operators, spec.__name__) is spec


def test_a_slot_half_without_the_kind_is_named() -> None:
    class MySpec(Spec):
        slot_half = "taskexecutor.executor.operators.top_n"

    with pytest.raises(FiresteelError, match=r"top_n\.KINDS has no operator kind for .*MySpec"):
        kind_of(MySpec)

"""Every spec has an operator and an analyser."""

from __future__ import annotations

import pytest

from firesteel import operators
from firesteel.operators import CustomSpec, SinkSpec, Spec
from taskexecutor.executor.analysis.analyzers import ANALYZERS
from taskexecutor.executor.operators.registry import OPERATORS, RUN_ON_SPARK, operator_class


def test_every_spec_has_an_operator_and_an_analyser() -> None:
    kinds = {each for each in vars(operators).values() if isinstance(each, type)}
    specs = {each for each in kinds if issubclass(each, Spec) and each is not Spec}
    assert specs == set(ANALYZERS)
    assert specs == {
        *OPERATORS,
        *RUN_ON_SPARK,
        SinkSpec,
        CustomSpec,
    }


@pytest.mark.parametrize("spec", OPERATORS)
def test_registered_operators_exist(spec: type[Spec]) -> None:
    assert callable(operator_class(spec))

"""Every spec has an operator and an analyser."""

from __future__ import annotations

from typing import get_args

import pytest

from firesteel.operators import CustomSpec, SinkSpec, Spec
from taskexecutor.executor.analysis.analyzers import ANALYZERS
from taskexecutor.executor.operators.registry import OPERATORS, RUN_ON_SPARK, operator_class


def test_every_spec_has_an_operator_and_an_analyser() -> None:
    assert set(get_args(Spec)) == set(ANALYZERS)
    assert set(get_args(Spec)) == {
        *OPERATORS,
        *RUN_ON_SPARK,
        SinkSpec,
        CustomSpec,
    }


@pytest.mark.parametrize("spec", OPERATORS)
def test_registered_operators_exist(spec: type[Spec]) -> None:
    assert callable(operator_class(spec))

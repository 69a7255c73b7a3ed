"""A thread that needs the interpreter gets it soon, whatever another one computes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from taskexecutor.executor.turns import SWITCH_INTERVAL_S, take_turns_often


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_turns_are_shorter_than_pythons() -> None:
    before = sys.getswitchinterval()
    take_turns_often()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() < before

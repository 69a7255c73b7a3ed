"""A thread that needs the interpreter gets it soon, whatever another one computes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from taskexecutor.executor.gil_switch_interval import SWITCH_INTERVAL_S, set_switch_interval


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_turns_are_shorter_than_pythons() -> None:
    before = sys.getswitchinterval()
    set_switch_interval()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() < before

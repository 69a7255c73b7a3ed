from __future__ import annotations

from dataclasses import replace

from taskexecutor.core.process_shape import Environment, fits, shape_for
from tests.unit.taskexecutor.slot_world import DEFAULT, MIB, SPARK


def test_what_fits():
    needed = shape_for(DEFAULT, Environment())
    assert fits(needed, needed)
    assert fits(replace(needed, heap_bytes=600 * MIB), needed)
    assert not fits(replace(needed, heap_bytes=500 * MIB), needed)
    assert not fits(replace(needed, heap_bytes=2048 * MIB), needed)
    assert not fits(replace(needed, environment=SPARK), needed)
    assert fits(replace(needed, cores=2), needed)
    assert not fits(needed, replace(needed, cores=2))


def test_fractions_of_cores_are_rounded_up():
    assert shape_for(replace(DEFAULT, cpu_cores=0.5), Environment()).cores == 1
    assert shape_for(replace(DEFAULT, cpu_cores=1.5), Environment()).cores == 2

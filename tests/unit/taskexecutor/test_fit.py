from __future__ import annotations

import os
from dataclasses import replace

import pytest

from firesteel.common.config import Configuration
from firesteel.errors import FiresteelError
from taskexecutor.__main__ import resources_from
from taskexecutor.core.process_shape import Environment, fits, shape_for
from taskexecutor.executor_process import exit_text
from taskexecutor.memory import resident_bytes
from tests.unit.taskexecutor.slot_world import DEFAULT, MIB, SPARK


def test_resources_add_up_from_the_default_slot():
    slots, total, default = resources_from(Configuration({"taskmanager.numberOfTaskSlots": "3"}))
    assert slots == 3
    assert default.cpu_cores == 1
    assert total == default * 3
    assert default.managed_bytes == int(default.heap_bytes * 0.2)


def test_a_given_process_size_is_divided_over_the_slots():
    values = {
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.memory.process.size": "6g",
        "taskmanager.cpu.cores": "3",
    }
    _, total, default = resources_from(Configuration(values))
    assert abs(total.total_bytes - 6 * 1024 * MIB) < 10
    assert default.cpu_cores == 1.5
    assert default.heap_bytes > 900 * MIB


def test_slots_too_small_for_spark_are_an_error_that_names_the_keys():
    values = {"taskmanager.numberOfTaskSlots": "16", "taskmanager.memory.process.size": "2g"}
    with pytest.raises(
        FiresteelError, match=r"Spark needs 192 MiB; raise taskmanager.memory.process.size"
    ):
        resources_from(Configuration(values))


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


def test_resident_memory_of_a_tree():
    used = resident_bytes([os.getpid(), 2**30])
    assert list(used) == [os.getpid()]
    assert used[os.getpid()] > 10 * MIB


def test_exit_codes_are_told_in_words():
    assert exit_text(-9) == "killed by SIGKILL"
    assert exit_text(3) == "exit code 3"
    assert exit_text(71) == "its Spark JVM has ended"

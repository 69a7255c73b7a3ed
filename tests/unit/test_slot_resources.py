from __future__ import annotations

import pytest

from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.resources import slot_resources
from firesteel.common.units import MIB


def test_resources_add_up_from_the_default_slot() -> None:
    slots, total, default = slot_resources(Configuration({"taskmanager.numberOfTaskSlots": "3"}))
    assert slots == 3
    assert default.cpu_cores == 1
    assert total == default * 3
    assert default.managed_bytes == int(default.heap_bytes * 0.2)


def test_a_given_process_size_is_divided_over_the_slots() -> None:
    values = {
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.memory.process.size": "6g",
        "taskmanager.cpu.cores": "3",
    }
    _, total, default = slot_resources(Configuration(values))
    assert abs(total.total_bytes - 6 * 1024 * MIB) < 10
    assert default.cpu_cores == 1.5
    assert default.heap_bytes > 900 * MIB


def test_slots_too_small_for_spark_are_an_error_that_names_the_keys() -> None:
    values = {"taskmanager.numberOfTaskSlots": "16", "taskmanager.memory.process.size": "2g"}
    with pytest.raises(
        ConfigurationError, match=r"Spark needs 192 MiB; raise taskmanager.memory.process.size"
    ):
        slot_resources(Configuration(values))

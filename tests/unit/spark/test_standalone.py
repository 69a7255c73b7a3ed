"""Settings of Spark Standalone, and what of a program's settings a slot allows."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from taskexecutor.executor.spark_program import standalone
from taskexecutor.executor.spark_program.standalone import SlotShare, limited, memory_mib

SHARE = SlotShare(cores=1, memory_mib=512)


@pytest.mark.parametrize(
    ("text", "mib"),
    [("512m", 512), ("2g", 2048), ("1GB", 1024), ("700", 700), ("1024k", 1), ("much", None)],
)
def test_sizes_are_those_of_spark(text: str, mib: int | None) -> None:
    assert memory_mib(text) == mib


def test_smaller_settings_are_kept_and_larger_ones_are_not() -> None:
    asked = {"spark.executor.memory": "480m", "spark.driver.memory": "4g", "spark.other": "9g"}
    instead, warnings = limited(asked, SHARE)
    assert instead == {"spark.driver.memory": "512m"}
    assert warnings == ["spark.driver.memory is 512m, what a slot has, instead of 4g"]
    assert limited({"spark.executor.cores": "2"}, SHARE)[0] == {"spark.executor.cores": "1"}
    assert limited({"spark.executor.cores": "1"}, SHARE) == ({}, [])


def test_the_cluster_of_the_job_takes_precedence() -> None:
    own = {"spark.master": "local[4]", "spark.authenticate": "false", "spark.sql.ansi": "x"}
    settings = standalone.settings_of_driver(
        own, SHARE, master="spark://h:1", secret="secret", host="h"
    )
    assert settings["spark.master"] == "spark://h:1"
    assert settings["spark.authenticate"] == "true"
    assert settings["spark.sql.ansi"] == "x"
    assert settings["spark.executor.memory"] == "512m"


def test_a_small_slot_is_refused_with_advice() -> None:
    with pytest.raises(FiresteelError, match="480 MiB or more: raise taskmanager.slot.heap.size"):
        SlotShare.of(cores=1, heap_bytes=256 * MIB)


def test_the_configuration_is_private_and_java_reads_it_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    standalone.write_configuration(folder, {"spark.a": "C:\\x = y", "spark.b": "1\n2"})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    content = (folder / "spark-defaults.conf").read_text()
    assert content == "spark.a = C\\:\\\\x\\ \\=\\ y\nspark.b = 1\\n2\n"


def test_processes_get_no_settings_of_other_sessions(tmp_path: Path) -> None:
    inherited = {"SPARK_REMOTE": "sc://x", "PYTHONPATH": "/own", "HOME": "/root"}
    found = standalone.environment(
        inherited,
        configuration=tmp_path,
        scratch=tmp_path,
        host="h",
        python="python",
        python_paths=["/job"],
    )
    assert "SPARK_REMOTE" not in found
    assert found["PYTHONPATH"] == "/job:/own"
    assert found["SPARK_SCALA_VERSION"].startswith("2.")

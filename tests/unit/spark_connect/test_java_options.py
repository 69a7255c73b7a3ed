"""Options of the front's JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.spark_connect import archive
from firesteel.spark_connect.java_options import java_options

FOLDER = Path("/folder")


def test_a_small_machine_has_a_small_collector_unless_the_user_chooses_one() -> None:
    assert "-XX:+UseSerialGC" in java_options(FOLDER, 2, (), ["-Dx=y"])
    assert "-XX:+UseSerialGC" not in java_options(FOLDER, 2, (), ["-XX:+UseZGC"])
    assert "-XX:+UseSerialGC" not in java_options(FOLDER, 4, (), [])


def test_without_an_archive_there_is_no_option_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert archive.archive_options() == ()
    recorded = archive.class_archive()
    assert recorded.record(lambda path: path.touch())
    assert f"-XX:SharedArchiveFile={recorded.path}" in archive.archive_options()
    assert recorded.record(lambda path: pytest.fail("it exists")) is True

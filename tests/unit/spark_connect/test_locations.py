"""The checkpointLocation of a query: refusals and restores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.proto.commands_pb2 import WriteStreamOperationStart

from firesteel.common.checkpoints.metadata import CheckpointMetadata, encode
from firesteel.common.ids import JobId
from firesteel.spark_connect.locations import (
    DEFAULT,
    NO_BATCH,
    LastBatch,
    Location,
    RunningQuery,
    open_location,
    resolved,
)
from firesteel.spark_connect.refusals import Refused

RECOVERY = "execution.state-recovery.path"


def opened(place: Path | str | None = None, **more: Any) -> Location:
    options = {} if place is None else {"CheckpointLocation": str(place)}
    request = WriteStreamOperationStart(options=options, query_name=more.pop("name", ""))
    given = {"required": False, "runs": lambda _: False, **more}
    return open_location(request, **given)


def taken(location: Path, path: str, at_ms: int, number: int = 1) -> Path:
    """Puts a complete checkpoint or savepoint there."""
    metadata = CheckpointMetadata(
        checkpoint_id=number,
        job_id=JobId("0" * 32),
        job_name="query",
        timestamp_ms=at_ms,
        savepoint="savepoint" in path,
        operators=(),
    )
    folder = location / "firesteel" / path
    folder.mkdir(parents=True)
    (folder / "_metadata").write_bytes(encode(metadata))
    return folder


def test_a_query_keeps_its_id(tmp_path: Path) -> None:
    first = opened(tmp_path / "state")
    begun_us = first.begun_us()
    query_id = first.query_id
    assert json.loads((tmp_path / "state" / "metadata").read_text()) == {"id": query_id}
    first.close()
    again = opened(f"file://{tmp_path}/state")
    assert again.begun_us() == begun_us
    assert (again.query_id, again.restores) == (query_id, "")
    again.close()


def test_a_location_without_a_name_is_removed_with_the_query() -> None:
    location = opened()
    configuration = location.configuration()
    folder = Path(location.uri)
    assert location.is_temporary and folder.is_dir()
    assert location.completed == "", "nothing restores its batches"
    assert configuration["execution.checkpointing.dir"].startswith(str(folder))
    assert RECOVERY not in configuration
    location.close()
    assert not folder.exists()


def test_files_and_kafka_need_a_location_as_in_spark() -> None:
    with pytest.raises(Refused, match="checkpointLocation must be specified") as refused:
        opened(required=True)
    assert refused.value.condition == "_LEGACY_ERROR_TEMP_1298"


def test_the_sessions_location_has_a_folder_for_each_name(tmp_path: Path) -> None:
    location = opened(name="words", settings={DEFAULT: f"{tmp_path}/"}, required=True)
    assert location.uri == f"{tmp_path}/words"
    location.close()


def test_the_newest_checkpoint_or_savepoint_is_restored_and_others_are_removed(
    tmp_path: Path,
) -> None:
    old = taken(tmp_path, "savepoints/savepoint-1", at_ms=1_000, number=9)
    dead = taken(tmp_path, f"checkpoints/{'a' * 32}/chk-10", at_ms=2_000, number=10)
    earlier = taken(tmp_path, f"checkpoints/{'b' * 32}/chk-11", at_ms=3_000, number=11)
    newest = taken(tmp_path, f"checkpoints/{'b' * 32}/chk-12", at_ms=4_000, number=12)
    (newest.parent / "chk-13").mkdir()  # not complete
    location = opened(tmp_path)
    assert location.restores == str(newest)
    assert location.configuration()[RECOVERY] == str(newest)
    assert not old.exists() and not dead.parent.exists()
    assert earlier.exists(), "the files of a job are its own"
    location.close()
    savepoint = taken(tmp_path, "savepoints/savepoint-2", at_ms=5_000, number=13)
    location = opened(tmp_path)
    assert location.restores == str(savepoint)
    assert not newest.parent.exists()
    location.close()


def test_a_damaged_checkpoint_is_not_passed_over(tmp_path: Path) -> None:
    taken(tmp_path, "savepoints/savepoint-1", at_ms=1_000)
    damaged = taken(tmp_path, "savepoints/savepoint-2", at_ms=2_000)
    content = (damaged / "_metadata").read_bytes()
    (damaged / "_metadata").write_bytes(content[:-1])
    with pytest.raises(Refused, match="cannot be used.*savepoint-2"):
        opened(tmp_path)
    assert (tmp_path / "firesteel/savepoints/savepoint-1").exists()


def test_a_location_is_used_by_one_query(tmp_path: Path) -> None:
    location = opened(tmp_path)
    location.started(RunningQuery("4711", "words", ""))
    with pytest.raises(Refused, match=r"in use by job 4711 \('words'\)") as refused:
        opened(tmp_path)
    assert refused.value.condition == "CONCURRENT_STREAM_LOG_UPDATE"
    location.ended()
    location.close()
    opened(tmp_path, runs=lambda query: True).close()


def test_the_job_of_a_killed_program_is_looked_up(tmp_path: Path) -> None:
    location = opened(tmp_path)
    query = RunningQuery("4711", "words", "host:6123")
    location.started(query)
    location.close()  # without `ended`, like a killed process
    asked: list[RunningQuery] = []

    def runs(query: RunningQuery) -> bool:
        asked.append(query)
        return True

    with pytest.raises(Refused, match="stop that query first"):
        opened(tmp_path, runs=runs)
    assert asked == [query]
    opened(tmp_path).close()


@pytest.mark.parametrize("folder", ["offsets", "commits"])
def test_a_checkpoint_of_spark_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / "metadata").write_text('{"id":"1"}')
    with pytest.raises(Refused, match=rf"has a checkpoint of Spark \({folder}\)"):
        opened(tmp_path)


def test_a_location_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="file/state"):
        opened(tmp_path / "file" / "state")
    with pytest.raises(Refused, match="dbfs"):
        opened("dbfs://state")


def test_uris_have_the_schemes_of_the_storage() -> None:
    assert resolved("s3a://bucket/state") == "s3://bucket/state"
    assert resolved("file:///tmp/a%20b") == "/tmp/a b"
    assert resolved("file:/tmp/a") == "/tmp/a"
    assert resolved("state").endswith("/state")


def test_the_numbers_and_offsets_of_batches_continue(tmp_path: Path) -> None:
    location = opened(tmp_path)
    assert location.last_batch == NO_BATCH
    ends = ({"orders": {"0": 7}}, None)
    for number in (0, 1):
        location.batch_ended(LastBatch(number, ends))
    location.close()
    taken(tmp_path, "savepoints/savepoint-1", at_ms=1_000)
    location = opened(tmp_path)
    assert location.last_batch == LastBatch(1, ends)
    location.close()


@pytest.mark.parametrize(
    ("content", "expected"),
    [("3", LastBatch(2)), ("", NO_BATCH), ("{}", NO_BATCH), ("[", NO_BATCH)],
    ids=["the number of an earlier version", "empty", "no fields", "no JSON"],
)
def test_other_contents_of_the_last_batch(
    tmp_path: Path, content: str, expected: LastBatch
) -> None:
    taken(tmp_path, "savepoints/savepoint-1", at_ms=1_000)
    (tmp_path / "firesteel" / "batches").write_text(content)
    location = opened(tmp_path)
    assert location.last_batch == expected
    location.close()

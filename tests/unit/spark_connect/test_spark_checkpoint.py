"""Reading checkpoints of Spark, and turning them into checkpointLocations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firesteel.client.spark_programs.imports import (
    has_sparks_log,
    incomplete_files,
    positions_of,
    release_output,
    write_location,
)
from firesteel.client.spark_programs.spark_checkpoint import (
    NotTakenOver,
    SourcePosition,
    SparkCheckpoint,
    read_spark_checkpoint,
)
from firesteel.connectors import FileSource, SequenceSource
from firesteel.connectors.kafka import KafkaOffsets, KafkaSource
from firesteel.environment import Environment
from firesteel.operators import SourceSpec
from firesteel.spark_connect.imported_positions import continue_from
from firesteel.spark_connect.refusals import Refused


def _log(path: Path, *lines: object, version: str = "v1") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([version, *map(json.dumps, lines)]))


def _checkpoint(folder: Path, *offsets: object, batch: int = 0, committed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id":"7e9d"}')
    _log(folder / "offsets" / str(batch), {"batchWatermarkMs": 0}, *offsets)
    (folder / "offsets" / f".{batch}.crc").touch()
    if committed:
        _log(folder / "commits" / str(batch), {"nextBatchWatermarkMs": 0})
    return folder


def test_the_position_is_that_of_the_last_complete_batch(tmp_path: Path) -> None:
    for batch, offset in enumerate((4, 9, 12)):
        kafka = {"orders": {"0": offset, "1": 2}}
        _checkpoint(tmp_path, {"logOffset": batch}, kafka, batch=batch, committed=batch < 2)
        entry = {"path": f"file:///in/{batch}%20a.json", "timestamp": 1, "batchId": batch}
        _log(tmp_path / "sources" / "0" / str(batch), entry)
    assert read_spark_checkpoint(tmp_path) == SparkCheckpoint(
        query_id="7e9d",
        batch=1,
        planned=2,
        sources=(
            SourcePosition(files=("/in/0 a.json", "/in/1 a.json")),
            SourcePosition(offsets={"orders": {0: 9, 1: 2}}),
        ),
    )


def test_a_compacted_log_stands_for_earlier_ones(tmp_path: Path) -> None:
    _checkpoint(tmp_path, {"logOffset": 10}, batch=10)
    entries = [{"path": f"s3a://lake/{number}.json", "batchId": number} for number in range(10)]
    _log(tmp_path / "sources" / "0" / "9.compact", *entries)
    _log(tmp_path / "sources" / "0" / "10", {"path": "s3a://lake/10.json", "batchId": 10})
    (position,) = read_spark_checkpoint(tmp_path).sources
    assert position.files == tuple(f"s3://lake/{number}.json" for number in range(11))


def test_state_is_refused_by_the_name_of_its_operator(tmp_path: Path) -> None:
    _checkpoint(tmp_path, {"logOffset": 0})
    operator = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}}
    _log(tmp_path / "state" / "0" / "_metadata" / "metadata", operator)
    with pytest.raises(NotTakenOver, match=r"state of operator 0 \(stateStoreSave\)"):
        read_spark_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (17, "source 0 of .* is at 17, which is a position neither in files nor in Kafka"),
        ({"logOffset": 3}, r"sources/0/0 is missing"),
    ],
)
def test_other_sources_and_missing_logs_are_refused(
    tmp_path: Path, offset: object, reason: str
) -> None:
    _checkpoint(tmp_path, offset)
    with pytest.raises(NotTakenOver, match=reason):
        read_spark_checkpoint(tmp_path)


def test_what_is_not_a_checkpoint_with_a_complete_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotTakenOver, match="is not a checkpoint of Spark"):
        read_spark_checkpoint(tmp_path)
    _checkpoint(tmp_path, {"logOffset": 0}, committed=False)
    with pytest.raises(NotTakenOver, match="no complete batch"):
        read_spark_checkpoint(tmp_path)
    _log(tmp_path / "commits" / "0", {})
    _log(tmp_path / "offsets" / "0", {}, {"logOffset": 0}, version="v2")
    with pytest.raises(NotTakenOver, match="has the version 'v2', and 'v1' is supported"):
        read_spark_checkpoint(tmp_path)


def test_positions_are_stored_in_a_new_location_only(tmp_path: Path) -> None:
    positions = (
        SourcePosition(files=("/in/1.json",)),
        SourcePosition(offsets={"orders": {0: 9}}),
        SourcePosition(),
    )
    checkpoint = SparkCheckpoint(query_id="7e9d", batch=3, planned=None, sources=positions)
    location = tmp_path / "new"
    write_location(checkpoint, str(location))
    assert json.loads((location / "metadata").read_text()) == {"id": "7e9d"}
    assert positions_of((location / "firesteel" / "imported").read_bytes()) == positions
    with pytest.raises(NotTakenOver, match="is not empty"):
        write_location(checkpoint, str(location))


def test_output_keeps_the_files_of_complete_batches(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for name in ("day=1/a.parquet", "b.parquet", "failed.parquet"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for batch, name in enumerate(("day=1/a.parquet", "b.parquet")):
        entry = {"path": f"file://{folder}/{name}", "action": "add"}
        _log(folder / "_spark_metadata" / str(batch), entry)
    assert has_sparks_log(f"file:{folder}")
    incomplete = incomplete_files(folder, 0)
    assert incomplete == [folder / "b.parquet", folder / "failed.parquet"]
    release_output(folder, incomplete)
    assert not has_sparks_log(str(folder))
    assert [path.name for path in folder.rglob("*.parquet")] == ["a.parquet"]


def test_sources_continue_where_spark_has_stopped() -> None:
    env = Environment()
    env.from_source(FileSource("/in", format="json", schema="a INT", watch="1 s"))
    env.from_source(KafkaSource("orders", bootstrap_servers="localhost:9092"))
    nodes = env._program.graph.nodes
    continue_from(
        nodes,
        (SourcePosition(files=("/in/1.json",)), SourcePosition(offsets={"orders": {0: 9}})),
        "/location",
    )
    files, kafka = (node.spec.source for node in nodes if isinstance(node.spec, SourceSpec))
    assert isinstance(files, FileSource)
    options = files.coordinator(1, read_by_spark=False).options
    assert options["skipped"] == ["/in/1.json"]
    assert isinstance(kafka, KafkaSource)
    assert kafka.start == KafkaOffsets.of({"orders": {0: 9}}, others="earliest")


def test_another_query_does_not_continue() -> None:
    env = Environment()
    env.from_source(SequenceSource(0, 3))
    nodes = env._program.graph.nodes
    with pytest.raises(Refused, match="with 2 sources, and this one has 1"):
        continue_from(nodes, (SourcePosition(), SourcePosition()), "/location")
    with pytest.raises(Refused, match="was at 1 file read, and here it is a SequenceSource"):
        continue_from(nodes, (SourcePosition(files=("/in/1.json",)),), "/location")

"""Turns the checkpoint of a query on Spark into a checkpointLocation of Firesteel."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firesteel.client.spark_programs.spark_checkpoint import (
    NotTakenOver,
    SourcePosition,
    SparkCheckpoint,
    read_log,
)
from firesteel.client.spark_programs.uris import resolved
from firesteel.common.checkpoints.storage import CheckpointStorage, StorageError

ID, OURS, IMPORTED = "metadata", "firesteel", "imported"
SPARKS_LOG = "_spark_metadata"  # lists the files that Spark's streams have written to a folder
_KEPT_LOG = ".spark_metadata_imported"
_DATA = ("_", ".")  # names of files that are not data start with one of these


def write_location(checkpoint: SparkCheckpoint, location: str) -> None:
    """Writes the positions of the checkpoint to a new checkpointLocation."""
    storage = CheckpointStorage(resolved(location), option="checkpointLocation")
    try:
        if storage.exists(ID) or storage.directories():
            raise NotTakenOver(
                f"{location} is not empty: name a folder that does not exist, which will be the"
                " checkpointLocation of the query"
            )
        positions = [_to_json(position) for position in checkpoint.sources]
        storage.at(OURS).write(IMPORTED, [json.dumps(positions).encode()])
        storage.write(ID, [json.dumps({"id": checkpoint.query_id}).encode()])
    except StorageError as error:
        raise NotTakenOver(f"{location} cannot be written: {error}") from error


def positions_of(content: bytes) -> tuple[SourcePosition, ...]:
    """Returns the positions that `write_location` has stored."""
    return tuple(
        SourcePosition(
            files=None if each["files"] is None else tuple(each["files"]),
            offsets={
                topic: {int(partition): at for partition, at in partitions.items()}
                for topic, partitions in each["offsets"].items()
            },
        )
        for each in json.loads(content)
    )


def _to_json(position: SourcePosition) -> dict[str, Any]:
    return {
        "files": position.files,
        "offsets": {topic: dict(partitions) for topic, partitions in position.offsets.items()},
    }


def incomplete_files(folder: Path, last: int) -> list[Path]:
    """Returns the files in the output of Spark's file sink that are not part of the batches up to
    `last`: leftovers of failed tasks, and files of a batch that the query repeats.
    """
    log = folder / SPARKS_LOG
    if not log.is_dir():
        raise NotTakenOver(
            f"{folder} has no folder {SPARKS_LOG}, so Spark's file sink has not written it: name"
            " the output folder of the query, or omit --output"
        )
    listed = {os.path.relpath(path, resolved(str(folder))) for path in _listed(log, last)}
    found = {str(path.relative_to(folder)): path for path in _data_files(folder)}
    if missing := sorted(listed - found.keys()):
        raise NotTakenOver(f"{log} lists {missing[0]}, which does not exist: nothing was changed")
    return [path for name, path in found.items() if name not in listed]


def release_output(folder: Path, incomplete: Sequence[Path]) -> None:
    """Lets Firesteel add files to the output of Spark's file sink: removes the incomplete ones, and
    then renames the log, without which readers of Spark see all files.
    """
    for path in incomplete:
        path.unlink()
    (folder / SPARKS_LOG).rename(folder / _KEPT_LOG)


def has_sparks_log(uri: str) -> bool:
    """Whether Spark's file sink has written the folder, so that Spark does not see other files in
    it. Only folders of this machine are looked at.
    """
    path = resolved(uri)
    return "://" not in path and Path(path, SPARKS_LOG).is_dir()


def _listed(log: Path, last: int) -> Sequence[str]:
    """Returns the files of the batches up to `last`."""
    listed: dict[str, None] = {}
    for line in read_log(log, last):
        entry = json.loads(line)
        path = resolved(str(entry["path"]))
        if entry.get("action", "add") == "add":
            listed[path] = None
        else:
            listed.pop(path, None)
    return list(listed)


def _data_files(folder: Path) -> list[Path]:
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(_DATA)]
        found += [Path(parent, name) for name in names if not name.startswith(_DATA)]
    return sorted(found)

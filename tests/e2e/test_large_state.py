"""State in columns that is several times as large as the slot's managed memory: of a stream with
`state.backend.type: rocksdb`, and of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from firesteel import DataStream, Environment, ResourceProfile
from firesteel.connectors import FileSink

from .conftest import Session

MIB = 2**20
MANAGED_BYTES = 32 * MIB
KEYS, ROUNDS = 1_200_000, 2
SLOT = ResourceProfile(
    cpu_cores=1,
    heap_bytes=512 * MIB,
    off_heap_bytes=700 * MIB,
    managed_bytes=MANAGED_BYTES,
    network_bytes=64 * MIB,
)


def bytes_in_files() -> int:
    """Returns the size of this process's mappings of unnamed files on a disk."""
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, _, _, _, *path = line.split(maxsplit=5)
        name = path[0] if path and mode.endswith("s") else ""
        if name.endswith("(deleted)") and not name.startswith(("/memfd:", "/dev/")):
            start, end = (int(bound, 16) for bound in span.split("-"))
            found += end - start
    return found


def watched(seen: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that passes rows on, and keeps the most `bytes_in_files` there were."""

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        path = Path(seen)
        known = int(path.read_text()) if path.exists() else 0
        path.write_text(str(max(known, bytes_in_files())))
        yield from batches

    return function


def rows_of(env: Environment) -> DataStream:
    return env.from_sequence(0, ROUNDS * KEYS, column="n").transform(
        lambda df: df.selectExpr(f"concat('key number ', n % {KEYS}) AS k", "n")
    )


def test_it_is_in_files_and_the_result_is_right(session: Session, tmp_path: Path) -> None:
    env = Environment(
        parallelism=1,
        configuration={
            "state.backend.type": "rocksdb",
            "execution.checkpointing.interval": "2 s",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        },
    )
    rows = rows_of(env)
    totals = rows.key_by("k").aggregate("count(*) AS c", "sum(n) AS s")
    totals.slot_sharing_group("small", SLOT)
    seen = tmp_path / "seen"
    totals.map_in_arrow(watched(str(seen))).sink_to(FileSink(str(tmp_path / "totals")))
    first = rows.drop_duplicates("k", name="First").slot_sharing_group("small", SLOT)
    first.sink_to(FileSink(str(tmp_path / "first")))
    session.run(env, "large state")
    assert int(seen.read_text()) > 2 * MANAGED_BYTES
    once = ds.dataset(tmp_path / "first", format="parquet").to_table()
    assert len(once) == KEYS
    assert sorted(once["n"].to_pylist()) == list(range(KEYS))
    last = (
        ds.dataset(tmp_path / "totals", format="parquet")
        .to_table()
        .group_by("k")
        .aggregate([("c", "max"), ("s", "max")])
    )
    assert last["c_max"].unique().to_pylist() == [ROUNDS]
    assert sorted(last["s_max"].to_pylist()) == [2 * n + KEYS for n in range(KEYS)]


@pytest.mark.long  # the test above, of a stream
def test_a_batch_has_it_in_files_by_default(session: Session, tmp_path: Path) -> None:
    env = Environment(parallelism=1, mode="batch")
    totals = rows_of(env).key_by("k").aggregate("count(*) AS c", "sum(n) AS s")
    totals.slot_sharing_group("small", SLOT)
    seen = tmp_path / "seen"
    totals.map_in_arrow(watched(str(seen))).sink_to(FileSink(str(tmp_path / "totals")))
    session.run(env, "large state of a batch")
    assert int(seen.read_text()) > MANAGED_BYTES
    found = ds.dataset(tmp_path / "totals", format="parquet").to_table()
    assert found["c"].unique().to_pylist() == [ROUNDS]
    assert sorted(found["s"].to_pylist()) == [2 * n + KEYS for n in range(KEYS)]

"""The RocksDB database of one operator's subtask, its files in checkpoints, and the memory shared
by a slot's databases.

The tables of a database never change, and a database never reuses a name, so a table that an
earlier checkpoint contains is not written again.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from firesteel.common.checkpoints.state import (
    DatabaseFile,
    DatabaseHandle,
    StateFile,
    is_shared,
    shared_path,
)
from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.key_groups import KeyGroupRange
from firesteel.errors import FiresteelError
from taskexecutor.executor.column_memory import SlotColumnMemory
from taskexecutor.executor.state.keyed import SnapshotTarget

_MIB = 1 << 20
_LEAST_CACHE = 4  # at least a quarter of the memory is left to the cache
_PROPERTIES = (
    "actual-delayed-write-rate",
    "background-errors",
    "block-cache-usage",
    "cur-size-all-mem-tables",
    "estimate-num-keys",
    "num-deletes-imm-mem-tables",
    "num-entries-imm-mem-tables",
    "num-snapshots",
    "total-sst-files-size",
)
_BATCH_ENTRIES = 2_000  # per write, which blocks the other threads


class RocksDbMemory:
    """The managed memory of a slot. All databases in it share a block cache, which is also charged
    for their unflushed writes. State in columns takes its memory from the cache.
    """

    def __init__(self, managed_bytes: int, directory: Path | None = None) -> None:
        """`directory` is for state in columns that exceeds the memory; None: the directory of
        temporary files.
        """
        total = max(managed_bytes, 8 * _MIB)
        self.cache = Cache(total)
        self.columns = SlotColumnMemory(
            total - total // _LEAST_CACHE,
            directory,
            changed=lambda in_memory_bytes: self.cache.set_capacity(total - in_memory_bytes),
        )
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            total // 2, False, self.cache
        )
        self.write_buffer_bytes = min(max(total // 16, _MIB), 8 * _MIB)
        # Size up to which a backend holds changes before it writes them to its database.
        self.layer_bytes = min(max(total // 32, 256 << 10), 2 * _MIB)

    @property
    def used_bytes(self) -> int:
        """The bytes of the cache, with unflushed writes, and of state in columns."""
        return self.cache.get_usage() + self.columns.in_memory_bytes


class Database:
    """A RocksDB database. Writes come from one thread at a time, reads from any thread."""

    def __init__(self, path: Path, memory: RocksDbMemory, *, read_only: bool = False) -> None:
        """`read_only` opens a snapshot. Every method raises FiresteelError."""
        self._path = path
        self._write_options = WriteOptions()
        # No write-ahead log: state that is lost with the process is restored from a checkpoint.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(path), _options(memory), access_type=access)

    def get(self, key: bytes) -> bytes | None:
        with self._errors():
            value: bytes | None = self._db.get(key)
        return value

    def write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Writes entries; None removes the key."""
        with self._errors():
            batch = WriteBatch(raw_mode=True)
            for key, value in entries:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
                if len(batch) >= _BATCH_ENTRIES:
                    self._db.write(batch, self._write_options)
                    batch = WriteBatch(raw_mode=True)
            if len(batch):
                self._db.write(batch, self._write_options)

    def remove_range(self, first: bytes, end: bytes) -> None:
        if first < end:
            with self._errors():
                self._db.delete_range(first, end, self._write_options)

    def items(self, first: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries with first <= key < end, in order."""
        with self._errors():
            items = self._db.items(from_key=first or None)
            for key, value in cast("Iterator[tuple[bytes, bytes]]", items):
                if end is not None and key >= end:
                    return
                yield key, value

    def snapshot(self, path: Path) -> None:
        """Creates a database with the current content at `path`, by linking the files, which never
        change.
        """
        with self._errors():
            # First, because other threads can run during the flush. They cannot during the rest,
            # which writes little, but to disk: 7 ms, or 0.4 ms in an in-memory file system.
            self._db.flush()
            Checkpoint(self._db).create_checkpoint(str(path))

    def statistics(self) -> dict[str, int]:
        """Returns the properties under Flink's names. All states share the column family
        `default`.
        """
        with self._errors():
            return {
                f"default_rocksdb_{name.replace('-', '_')}": self._db.property_int_value(
                    f"rocksdb.{name}"
                )
                or 0
                for name in _PROPERTIES
            }

    def close(self) -> None:
        with self._errors():
            self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FiresteelError:
            raise
        except Exception as error:  # rocksdict raises no specific class for most errors
            free_bytes = _free_bytes(self._path)
            raise FiresteelError(
                f"keyed state in {self._path} (state.backend.rocksdb.localdir, {free_bytes} bytes"
                f" free) failed: {error}"
            ) from error


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return 0


def _options(memory: RocksDbMemory) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # Rewrites files rarely: a file that stays is not written again by the next checkpoint.
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(8)
    options.set_write_buffer_size(memory.write_buffer_bytes)
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_open_files(256)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    # Partitioned: the index and filter of a large file are a megabyte each, of which a cache of
    # this size holds few.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(4096)
    table.set_pin_top_level_index_and_filter(True)
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    return options


_CHUNK_BYTES = 4 << 20
_REMEMBERED = 10  # checkpoints
_TABLES = ".sst"
_IGNORED = ("LOG", "LOCK", "IDENTITY")


class Tables:
    """Tracks the tables that earlier checkpoints contain. Used by the thread that writes
    checkpoints.
    """

    def __init__(self) -> None:
        self._by_checkpoint: dict[int, dict[str, StateFile]] = {}

    def of(self, checkpoint_id: int) -> dict[str, StateFile]:
        return self._by_checkpoint.get(checkpoint_id, {})

    def remember(self, handle: DatabaseHandle, base: int = 0) -> None:
        """Adds a checkpoint's tables. No later checkpoint builds on one before `base`."""
        self._by_checkpoint[handle.checkpoint_id] = {
            name: file for name, file in handle.tables if is_shared(file.path)
        }
        newest = sorted(self._by_checkpoint)[-_REMEMBERED:]
        for checkpoint_id in list(self._by_checkpoint):
            if checkpoint_id != base and (checkpoint_id < base or checkpoint_id not in newest):
                del self._by_checkpoint[checkpoint_id]


def write_database(
    path: Path, target: SnapshotTarget, known: Tables, key_groups: KeyGroupRange
) -> DatabaseHandle:
    """Writes a result of `Database.snapshot` at `path` to the checkpoint. Raises StorageError."""
    base = known.of(target.base) if target.base else {}
    rest: dict[str, bytes] = {}
    files = sorted(path.iterdir())
    names = [file.name for file in files if file.suffix == _TABLES]
    new = [name for name in names if name not in base]

    def write(table: str) -> StateFile:
        name = f"{target.name}-{table}"
        written = target.write(
            f"chk-{target.checkpoint_id}/{name}"
            if target.base is None
            else shared_path(target.checkpoint_id, name),
            _chunks(path / table),
        )
        reached(Failpoint.TABLE_AFTER)
        return written

    written = dict(zip(new, target.storage.each(write, new), strict=True))
    new_bytes = sum(file.size_bytes for file in written.values())
    for file in files:
        if file.suffix != _TABLES and not (file.name.startswith(_IGNORED) or file.suffix == ".log"):
            rest[file.name] = file.read_bytes()
    packed = pickle.dumps(rest, protocol=5)
    handle = DatabaseHandle(
        checkpoint_id=target.checkpoint_id,
        key_groups=key_groups,
        tables=tuple(DatabaseFile(name, {**base, **written}[name]) for name in names),
        rest=target.write(f"chk-{target.checkpoint_id}/{target.name}-database", [packed]),
        new_bytes=new_bytes + len(packed),
    )
    known.remember(handle, target.base or 0)
    return handle


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk

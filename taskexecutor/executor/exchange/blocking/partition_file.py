"""The file of one partition of a BLOCKING result.

    chunk ... chunk    Arrow IPC streams of one consumer's batches
    index              an entry per chunk, in the file's order
    footer             where the index is, the consumers, and a checksum of both

Checksums are xxh3-64. The checksum of the index and the footer also covers the partition's name: a
file under another partition's name is unreadable.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from firesteel.common.units import mib
from taskexecutor.executor.exchange.errors import PartitionUnreadable, ResultNotWritten

Codec: TypeAlias = Literal["lz4"] | None

_ENTRY = np.dtype(
    [
        ("channel", "<u4"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("rows", "<u8"),
        ("checksum", "<u8"),
    ]
)
# Offset of the index, entries, rows, first consumer, consumers, flags; checksum; magic.
_FIELDS = struct.Struct("<QQQIII")
_CHECKSUM = struct.Struct("<Q")
_MAGIC = b"FSPART01"
_FOOTER_BYTES = _FIELDS.size + _CHECKSUM.size + len(_MAGIC)
_SHARED, _DATA_FINISHED = 1, 2


class PartitionFile:
    """Writes a file from one thread."""

    def __init__(self, path: Path, name: str, codec: Codec = None) -> None:
        """`name` is the partition's. Raises ResultNotWritten."""
        self.path = path
        self.size_bytes = 0
        self.rows = 0
        self._name = name
        self._options = pa.ipc.IpcWriteOptions(compression=codec)
        self._entries: list[tuple[int, int, int, int, int]] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = io.FileIO(path, "x")
        except OSError as error:
            raise self._not_written(error) from error

    def write(self, channel: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Writes one chunk. Raises ResultNotWritten."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema, options=self._options) as stream:
            for batch in batches:
                stream.write_batch(batch)
        chunk = sink.getvalue()
        rows = sum(batch.num_rows for batch in batches)
        self._entries.append((channel, self.size_bytes, chunk.size, rows, _checksum(chunk)))
        self._append(chunk)
        self.rows += rows

    def end(
        self, *, first_consumer: int, consumers: int, shared: bool, data_finished: bool
    ) -> None:
        """Writes index and footer, and closes the file. `shared`: all consumers read the only
        channel. Raises ResultNotWritten.
        """
        index = np.array(self._entries, dtype=_ENTRY).tobytes()
        flags = shared * _SHARED | data_finished * _DATA_FINISHED
        fields = _FIELDS.pack(
            self.size_bytes, len(self._entries), self.rows, first_consumer, consumers, flags
        )
        checksum = _checksum(index + fields + self._name.encode())
        self._append(index + fields + _CHECKSUM.pack(checksum) + _MAGIC)
        self._file.close()

    def delete(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)

    def _append(self, content: pa.Buffer | bytes) -> None:
        left = memoryview(content)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._not_written(error) from error
        self.size_bytes += len(memoryview(content))

    def _not_written(self, error: OSError) -> ResultNotWritten:
        free = ""
        with contextlib.suppress(OSError):
            free = f" ({mib(shutil.disk_usage(self.path.parent).free)} free there)"
        return ResultNotWritten(
            f"the {self._name} cannot be written to {self.path}: {error.strerror or error}{free}"
        )


@dataclass(frozen=True, slots=True)
class PartitionIndex:
    """The content of a file, by consumer."""

    path: Path
    name: str
    first_consumer: int
    consumers: int
    data_finished: bool
    _shared: bool
    _entries: npt.NDArray[np.void]  # by channel, then in the order of writing

    @classmethod
    def read(cls, path: Path, name: str) -> PartitionIndex:
        """Reads the index of a file. Raises PartitionUnreadable."""
        try:
            with open(path, "rb", buffering=0) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                footer = _read_at(file.fileno(), max(0, size_bytes - _FOOTER_BYTES), _FOOTER_BYTES)
                if not footer.endswith(_MAGIC):
                    raise PartitionUnreadable(f"{path} does not end with a partition's footer")
                fields = footer[: _FIELDS.size]
                (checksum,) = _CHECKSUM.unpack_from(footer, _FIELDS.size)
                at, entries, _rows, first_consumer, consumers, flags = _FIELDS.unpack(fields)
                if at + entries * _ENTRY.itemsize + _FOOTER_BYTES != size_bytes:
                    raise PartitionUnreadable(
                        f"{path} does not have the length given in its footer"
                    )
                index = _read_at(file.fileno(), at, entries * _ENTRY.itemsize)
        except OSError as error:
            raise PartitionUnreadable(f"{path} cannot be read: {error.strerror}") from error
        if _checksum(index + fields + name.encode()) != checksum:
            raise PartitionUnreadable(f"the index of {path} does not match its checksum")
        table = np.frombuffer(index, dtype=_ENTRY)
        return cls(
            path=path,
            name=name,
            first_consumer=first_consumer,
            consumers=consumers,
            data_finished=bool(flags & _DATA_FINISHED),
            _shared=bool(flags & _SHARED),
            _entries=table[np.argsort(table["channel"], kind="stable")],
        )

    def chunks(self, consumer: int) -> npt.NDArray[np.void]:
        """Returns the entries of a consumer's chunks. Raises KeyError if the producer does not feed
        it.
        """
        channel = consumer - self.first_consumer
        if not 0 <= channel < self.consumers:
            raise KeyError(consumer)
        channels = self._entries["channel"]
        wanted = 0 if self._shared else channel
        start, end = np.searchsorted(channels, [wanted, wanted + 1])
        return self._entries[start:end]


def read_chunk(path: Path, entry: np.void) -> list[tuple[pa.RecordBatch, int]]:
    """Returns the batches of one chunk, with their sizes. Raises PartitionUnreadable."""
    offset, length = int(entry["offset"]), int(entry["length"])
    buffer = pa.allocate_buffer(length)
    try:
        # Opened for each chunk, so that the number of open files is bounded by the threads, not the
        # readers.
        with open(path, "rb", buffering=0) as file:
            _read_into(file.fileno(), memoryview(buffer), offset)
    except OSError as error:
        raise PartitionUnreadable(f"{path} cannot be read: {error.strerror or error}") from error
    if _checksum(buffer) != int(entry["checksum"]):
        raise PartitionUnreadable(
            f"bytes {offset} to {offset + length} of {path} do not match their checksum"
        )
    try:
        batches = list(pa.ipc.open_stream(buffer))
    except pa.ArrowException as error:
        raise PartitionUnreadable(
            f"{path} has a chunk that is not an Arrow IPC stream: {error}"
        ) from error
    rows = max(1, int(entry["rows"]))
    return [(batch, max(1, length * batch.num_rows // rows)) for batch in batches]


def _read_at(file: int, offset: int, length: int) -> bytes:
    content = bytearray(length)
    _read_into(file, memoryview(content), offset)
    return bytes(content)


def _read_into(file: int, target: memoryview, offset: int) -> None:
    """Reads instead of mapping: a file that is truncated while it is mapped kills the reading
    process.
    """
    while target:
        read = os.preadv(file, [target], offset)
        if not read:
            raise OSError(0, f"it ends at byte {offset}")
        target, offset = target[read:], offset + read


def _checksum(content: pa.Buffer | bytes) -> int:
    return xxhash.xxh3_64_intdigest(content)

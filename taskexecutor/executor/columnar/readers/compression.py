"""Files that are compressed as a whole.

Spark selects decompression for line-based files by file extension. It reads files without a known
extension as text: rows of garbage, or none. Therefore the first bytes of each file are checked.

Some readers mistake a truncation for the end of the file: Hadoop's bzip2 between two blocks,
zstd-jni in any frame but the first. Therefore the end of such files is checked as well.
"""

from __future__ import annotations

import io
import os
import re
from typing import Any, BinaryIO

import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.common.file_parts import COMPRESSED
from firesteel.connectors import FileSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm.engine import SparkEngine

# The formats that Spark decompresses; others have internal codecs, or read raw bytes.
_FORMATS = ("csv", "json", "text", "xml")
_BY_ARROW = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # without a call into the JVM
_BLOCKS = ("Lz4Codec", "SnappyCodec")
_MOST_ENDS = 10_000  # file extensions that are remembered
_MAGIC_BYTES = 16
_MAGIC = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08)|(?P<bzip2>BZh[1-9]1AY&SY)|(?P<Zstandard>\x28\xb5\x2f\xfd)"
    rb"|(?P<xz>\xfd7zXZ\x00)|(?P<LZMA>\]\x00\x00..\xff{8})|(?P<zip>PK\x03\x04)"
    rb"|(?P<LZ4>\x04\x22\x4d\x18)|(?P<Snappy>\xff\x06\x00\x00sNaPpY)|(?P<LZO>\x89LZO\x00)"
    rb"|(?P<compress>\x1f\x9d)|(?P<_7z>7z\xbc\xaf\x27\x1c)",
    re.DOTALL,
)
_ENDS = f"{', '.join(COMPRESSED[:-1])} or {COMPRESSED[-1]}"
_BZIP2_END = 0x177245385090
_BZIP2_END_BITS, _BZIP2_SUM_BITS = 48, 32
_FRAME = 0xFD2FB528  # of Zstandard: see RFC 8878
_SKIPPABLE_FRAMES = range(0x184D2A50, 0x184D2A60)
_RLE_BLOCK = 1  # has one byte, whatever its size


class Compression:
    """The compression of one source's files."""

    def __init__(self, engine: SparkEngine, source: FileSource) -> None:
        self._engine = engine
        self._source = source
        self._conf: Any = None
        self._codecs: dict[str, Any] = {}  # by file extension

    def codec(self, path: str) -> Any:
        """Returns Spark's codec for the file; None if Spark reads it uncompressed. The name
        decides.
        """
        _, dot, end = os.path.basename(path).rpartition(".")
        end = dot + end
        if end not in self._codecs:
            if len(self._codecs) >= _MOST_ENDS:
                self._codecs.clear()
            found = self._streams().getDecompressionCodec(self._hadoop(), self._path(f"/x{end}"))
            self._codecs[end] = found.get() if found.isDefined() else None
        return self._codecs[end]

    def beginning(self, path: str, size: int) -> bytes:
        """Returns the first bytes of the text. Raises OSError or ArrowException if they cannot be
        read.
        """
        from py4j.protocol import Py4JJavaError

        if (by_arrow := _BY_ARROW.get(os.path.splitext(path)[1].lower())) is not None:
            with pa.input_stream(path, compression=by_arrow) as stream:
                return bytes(stream.read(size))
        if self.codec(path) is None:
            with open(path, "rb") as file:
                return file.read(size)
        try:
            stream = self._streams().createInputStream(self._hadoop(), self._path(path))
            try:
                return bytes(stream.readNBytes(size))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise OSError(summary_of(error)) from error

    def check(self, path: str) -> None:
        """Raises FiresteelError if Spark would read compressed bytes as text, or a part of the file
        as the whole.
        """
        if self._source.format.lower() not in _FORMATS:
            return
        try:
            kind = _compressed_by(path)
        except OSError:
            return  # Spark raises the error or skips the file
        if not kind and not path.lower().endswith(COMPRESSED):
            return
        codec = self.codec(path)
        if codec is not None:
            self._check_end(codec, path)
        elif kind:
            raise FiresteelError(
                f"{path}: the file is compressed with {kind}, but Spark would read it as "
                f"text: it decompresses files whose names end in {_ENDS}. Compress it in one "
                "of these ways, under such a name, or not at all"
            )

    def _check_end(self, codec: Any, path: str) -> None:
        """Raises FiresteelError if the file's reader would silently stop before the end of the file
        or of the original data. Other readers report this.
        """
        name = codec.getClass().getSimpleName()
        if name not in (*_BLOCKS, *_STREAMS) or self._ignores_corrupt_files():
            return
        if name in _BLOCKS:
            self._check_blocks(codec, name, path)
            return
        kind, is_whole = _STREAMS[name]
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size and not is_whole(file, size):
                raise FiresteelError(
                    f"{path}: the file is not {kind} to its end: it was truncated or has another "
                    f"format, and Spark would skip rows. Compress all of it with {kind} again"
                )

    def _check_blocks(self, codec: Any, name: str, path: str) -> None:
        from py4j.protocol import Py4JJavaError

        cause: Exception | None = None
        try:
            if self._engine.code.type("FiresteelBlockCompression").whole(codec, path):
                return
        except Py4JJavaError as error:
            cause = error
        raise FiresteelError(
            f"{path}: the file does not have the format of Hadoop's {name}, which Spark reads, or "
            "was truncated: Spark would skip rows. Other tools write a different format under this "
            "name; compress it with gzip (.gz) or Zstandard (.zst)"
        ) from cause

    def _ignores_corrupt_files(self) -> bool:
        options = {key.lower(): value for key, value in self._source.options.items()}
        default = self._engine.session.conf.get("spark.sql.files.ignoreCorruptFiles")
        return str(options.get("ignorecorruptfiles", default)).lower() == "true"

    def _streams(self) -> Any:
        jvm: Any = self._engine.session._jvm
        return jvm.org.apache.spark.io.HadoopCodecStreams

    def _path(self, path: str) -> Any:
        jvm: Any = self._engine.session._jvm
        return jvm.org.apache.hadoop.fs.Path("file", None, path)

    def _hadoop(self) -> Any:
        if self._conf is None:
            session: Any = self._engine.session
            self._conf = session._jsparkSession.sessionState().newHadoopConf()
        return self._conf


def _compressed_by(path: str) -> str:
    """Returns the file's compression, by its content; "" if it is not a known one. Raises
    OSError.
    """
    with open(path, "rb") as file:
        found = _MAGIC.match(file.read(_MAGIC_BYTES))
    if found is not None:
        return str(found.lastgroup).removeprefix("_")
    return "Brotli" if path.lower().endswith(".br") and _is_brotli(path) else ""


def _is_brotli(path: str) -> bool:
    """Detects Brotli, which has no magic number; text is hardly ever valid Brotli."""
    try:
        with pa.input_stream(path, compression="brotli") as stream:
            return bool(stream.read(1))
    except (pa.ArrowException, OSError):
        return False


def bzip2_is_whole(file: BinaryIO, size: int) -> bool:
    """Returns whether the last bytes are the end of a stream: its marker and its checksum, which
    start at any bit.
    """
    file.seek(max(0, size - (_BZIP2_END_BITS + _BZIP2_SUM_BITS) // 8 - 1))
    bits = int.from_bytes(file.read(), "big")
    mask = (1 << _BZIP2_END_BITS) - 1
    return any(bits >> _BZIP2_SUM_BITS + pad & mask == _BZIP2_END for pad in range(8))


def zstandard_is_whole(file: BinaryIO, size: int) -> bool:
    """Returns whether the file consists of frames, the last of which ends at the end of the
    file.
    """
    try:
        while file.tell() < size:
            _pass_frame(file)
    except EOFError:
        return False
    return file.tell() == size


def _pass_frame(file: BinaryIO) -> None:
    """Skips a frame. Raises EOFError if the file ends before, or there is none."""
    magic = _number(file, 4)
    if magic in _SKIPPABLE_FRAMES:
        _skip(file, _number(file, 4))
        return
    if magic != _FRAME:
        raise EOFError
    descriptor = _number(file, 1)
    single = bool(descriptor & 0x20)
    _skip(file, (not single) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6])
    last = 0
    while not last:
        block = _number(file, 3)
        last, kind, length = block & 1, block >> 1 & 3, block >> 3
        _skip(file, 1 if kind == _RLE_BLOCK else length)
    if descriptor & 4:
        _skip(file, 4)  # the checksum


def _number(file: BinaryIO, size: int) -> int:
    found = file.read(size)
    if len(found) < size:
        raise EOFError
    return int.from_bytes(found, "little")


def _skip(file: BinaryIO, size: int) -> None:
    file.seek(size, io.SEEK_CUR)


_STREAMS = {
    "BZip2Codec": ("bzip2", bzip2_is_whole),
    "ZStandardCodec": ("Zstandard", zstandard_is_whole),
}

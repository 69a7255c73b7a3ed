"""Archives of loaded classes: a JVM maps one at its start instead of loading its classes from jars.

An archive is recorded once per machine by a JVM that does the work of later ones, and is kept in
the user's cache, in a folder whose name is a hash of its versions. The JVM checks that an
archive matches its version and its class path, and ignores it otherwise.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyspark

from firesteel.common.process.java import java_home
from firesteel.common.process.lock_file import LockFile

ARCHIVE = "classes.jsa"
_UNUSED_S = 30 * 86_400  # since the last read, as recorded by the file system
QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
# Otherwise the JVM relocates the archive to a random address, which dirties nearly all of its
# pages, so that none would be shared.
_IN_PLACE = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """An archive, whether or not it exists. `folder` also has what belongs to it."""

    folder: Path

    @classmethod
    def of_spark(cls, kind: str, facts: Iterable[str]) -> ClassArchive:
        """Returns the archive of this Java, PySpark and `facts`. Raises JavaNotFound, or
        RuntimeError without a home directory.
        """
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        release = Path(java_home()) / "release"
        version = [
            release.read_text(errors="replace") if release.exists() else "",
            str(java_home()),
            pyspark.__version__,
            str(spark_home()),
            str((spark_home() / "jars").stat().st_mtime_ns),
        ]
        key = hashlib.sha256("\0".join([*version, *facts]).encode()).hexdigest()[:16]
        return cls(cache / "firesteel" / f"{kind}-{pyspark.__version__}-{key}")

    @property
    def path(self) -> Path:
        return self.folder / ARCHIVE

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def options(self) -> tuple[str, ...]:
        """Returns options with which a JVM uses the archive."""
        return (f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto", *_IN_PLACE, *QUIET)

    def record(self, recorder: Callable[[Path], None]) -> bool:
        """Lets `recorder` write the archive to a path, unless it exists. Returns False if another
        process is recording it. Raises OSError if the folder cannot be written, and what
        `recorder` raises.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = LockFile(self.folder / "lock")
        try:
            lock.acquire()
        except BlockingIOError:
            return False
        try:
            if self.exists:
                return True
            with tempfile.TemporaryDirectory(dir=self.folder, prefix="recording-") as scratch:
                recorded = Path(scratch) / ARCHIVE
                recorder(recorded)
                recorded.chmod(0o644)
                recorded.replace(self.path)
        finally:
            lock.release()
        _remove_unused(self.folder.parent)
        return True


def recording_options(path: Path) -> tuple[str, ...]:
    """Returns options with which a JVM writes an archive to `path` when it exits."""
    return (f"-XX:ArchiveClassesAtExit={path}", *QUIET)


def spark_home() -> Path:
    return Path(pyspark.__file__).parent


def _remove_unused(folders: Path) -> None:
    """Removes folders that no start has used for a long time: old versions, deleted
    environments.
    """
    for folder in folders.glob("spark-*"):
        with contextlib.suppress(OSError):
            used = (folder / ARCHIVE).stat()
            if time.time() - max(used.st_atime, used.st_mtime) > _UNUSED_S:
                shutil.rmtree(folder)

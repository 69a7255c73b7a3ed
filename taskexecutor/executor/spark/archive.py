"""The class data archive: classes that every slot's JVM loads, parsed and verified once per machine.

With it a session is warm in about half the time and CPU. `python -m taskexecutor.executor.spark.archive` makes it (about
half a minute); engines use it if it is there and start as usual if it is not. The JVM itself checks that the archive fits its
version and the jars, and ignores it otherwise.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark

from firesteel.java import java_home
from taskexecutor.executor.spark.launch import class_path, jvm_options, spark_home

_MODULE = "taskexecutor.executor.spark.archive"
_UNUSED_S = 30 * 86_400  # by the time of the last read, as well as the file system keeps it
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


def archive_path() -> Path:
    """Where the archive for this Java and this PySpark belongs; it need not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    release = Path(java_home()) / "release"
    facts = [
        release.read_text(errors="replace") if release.exists() else "",
        str(java_home()),
        pyspark.__version__,
        str(spark_home()),
        str((spark_home() / "jars").stat().st_mtime_ns),
        " ".join(jvm_options(cores=1, heap_bytes=0)),
        class_path(),
    ]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
    return cache / "firesteel" / f"spark-{pyspark.__version__}-{key}.jsa"


def use_options() -> list[str]:
    """JVM options for a start with the archive, if there is one."""
    try:
        path = archive_path()
        if not path.exists():
            return []
    except (OSError, RuntimeError):  # no home directory
        return []
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", *_QUIET]


def build(path: Path | None = None) -> bool:
    """Makes the archive from one warm-up run in a process of its own; False if another process is making it.

    Raises OSError if the folder cannot be written.
    """
    path = path or archive_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if path.exists():
            return True
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as folder:
            made = Path(folder) / path.name
            subprocess.run([sys.executable, "-m", _MODULE, "--record", str(made)], check=True, timeout=600)
            made.chmod(0o644)
            made.replace(path)
        _remove_unused(path.parent)
    return True


def _remove_unused(folder: Path) -> None:
    """Archives that no start has touched for long: of versions and environments that are no more."""
    for archive in folder.glob("spark-*.jsa"):
        with contextlib.suppress(OSError):
            used = archive.stat()
            if time.time() - max(used.st_atime, used.st_mtime) > _UNUSED_S:
                archive.unlink()
                archive.with_suffix(".lock").unlink(missing_ok=True)


def _record(path: Path) -> None:
    from taskexecutor.executor.spark.engine import SparkEngine

    engine = SparkEngine()
    options = [f"-XX:ArchiveClassesAtExit={path}", *_QUIET]
    engine.start({}, cores=1, heap_bytes=2**30, archive_options=options)
    engine.stop(grace_s=300)


def main() -> int:
    if sys.argv[1:2] == ["--record"]:
        _record(Path(sys.argv[2]))
        return 0
    path = archive_path()
    if path.exists():
        print(f"class archive: {path}")
    elif build(path):
        print(f"class archive made: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

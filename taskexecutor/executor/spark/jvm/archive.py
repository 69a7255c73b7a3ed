"""What every slot's JVM would do anew, done once per machine: classes parsed and verified, a few
jars put right.

`python -m taskexecutor.executor.spark.jvm.archive` makes it (about half a minute; `make setup`
does). Engines use it if it is there and start as usual, at twice the cost, if it is not. It
consists of

* the class data archive, recorded from one warm-up. The JVM itself checks that it fits its version
  and the jars, and ignores it otherwise;
* copies of the jars that no archive can hold or that make every start dearer (see `_LEFT_OUT`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyspark

from firesteel.common.process.java import java_home
from taskexecutor.executor.spark.jvm.launch import class_path, jvm_options, spark_home

COMMAND = "python -m taskexecutor.executor.spark.jvm.archive"
_MODULE = "taskexecutor.executor.spark.jvm.archive"
_UNUSED_S = 30 * 86_400  # by the time of the last read, as well as the file system keeps it
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
# Or the JVM moves the archive to a random address, which writes into nearly every page of it: none
# would be shared.
_IN_PLACE = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
_ARCHIVE = "classes.jsa"

# What the copies of these jars go without. Classes of signed jars are checked at every start and
# never archived. MLlib's extension of every session starts Scala's reflection to register two
# functions: see `mllib`, which does it when needed.
_LEFT_OUT = {
    "janino-*.jar": r"META-INF/[^/]*\.(SF|DSA|RSA|EC)",
    "commons-compiler-*.jar": r"META-INF/[^/]*\.(SF|DSA|RSA|EC)",
    "spark-mllib_*.jar": r"META-INF/services/org\.apache\.spark\.sql\.SparkSessionExtensionsProvider",
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a start makes use of."""

    options: tuple[str, ...] = ()  # of the JVM
    jars: Path | None = None  # the folder of the copies


def folder() -> Path:
    """Where all this for this Java, this PySpark and this warm-up belongs; it need not exist."""
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
        str(_LEFT_OUT),
        Path(__file__)
        .with_name("warm.py")
        .read_text(),  # which decides what is loaded when the archive is made
    ]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
    return cache / "firesteel" / f"spark-{pyspark.__version__}-{key}"


def prepared() -> Prepared | None:
    """For a start, if there is something."""
    try:
        path = folder() / _ARCHIVE
        if not path.exists():
            return None
    except (OSError, RuntimeError):  # no home directory
        return None
    return Prepared(
        (f"-XX:SharedArchiveFile={path}", "-Xshare:auto", *_IN_PLACE, *_QUIET), path.parent / "jars"
    )


def build(place: Path | None = None) -> bool:
    """Makes it, with one warm-up run in a process of its own; False if another process is making
    it.

    Raises OSError if the folder cannot be written, CalledProcessError if Spark does not start.
    """
    place = place or folder()
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if (place / _ARCHIVE).exists():
            return True
        copy_jars(spark_home() / "jars", place / "jars")
        with tempfile.TemporaryDirectory(dir=place, prefix="making-") as scratch:
            made = Path(scratch) / _ARCHIVE
            subprocess.run(
                [sys.executable, "-m", _MODULE, "--record", str(made), str(place / "jars")],
                check=True,
                timeout=600,
            )
            made.chmod(0o644)
            made.replace(place / _ARCHIVE)
    _remove_unused(place.parent)
    return True


def copy_jars(jars: Path, copies: Path) -> None:
    """Those that `_LEFT_OUT` names, without what it names."""
    shutil.rmtree(copies, ignore_errors=True)
    copies.mkdir()
    for pattern, left_out in _LEFT_OUT.items():
        for jar in jars.glob(pattern):
            with (
                zipfile.ZipFile(jar) as original,
                zipfile.ZipFile(copies / jar.name, "w", zipfile.ZIP_DEFLATED) as copy,
            ):
                for member in original.infolist():
                    if not re.fullmatch(left_out, member.filename):
                        copy.writestr(member, original.read(member))


def _remove_unused(places: Path) -> None:
    """What no start has touched for long: of versions and environments that are no more."""
    for place in places.glob("spark-*"):
        with contextlib.suppress(OSError):
            used = (place / _ARCHIVE).stat()
            if time.time() - max(used.st_atime, used.st_mtime) > _UNUSED_S:
                shutil.rmtree(place)


def _record(path: Path, jars: Path) -> None:
    from taskexecutor.executor.spark.jvm.engine import SparkEngine

    engine = SparkEngine()
    engine.start(
        {},
        cores=1,
        heap_bytes=2**30,
        prepared=Prepared((f"-XX:ArchiveClassesAtExit={path}", *_QUIET), jars),
    )
    engine.stop(grace_s=300)


def main() -> int:
    if sys.argv[1:2] == ["--record"]:
        _record(Path(sys.argv[2]), Path(sys.argv[3]))
        return 0
    place = folder()
    if (place / _ARCHIVE).exists():
        print(f"Spark's classes are archived in {place}")
        return 0
    print(
        "archiving Spark's classes, which halves the start of every slot (once; about half a minute)",
        flush=True,
    )
    try:
        made = build(place)
    except (OSError, subprocess.SubprocessError) as error:
        print(
            f"Spark's classes could not be archived, slots will start more slowly: {error}",
            file=sys.stderr,
        )
        return 1
    print(f"archived in {place}" if made else f"another process is archiving them in {place}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Prepares work once per machine that every slot's JVM would otherwise repeat at its start.

`python -m taskexecutor.executor.columnar.jvm.archive` prepares it in about half a minute (`make
setup` runs it). Engines use it if it exists; otherwise they start normally, in twice the time. It
consists of

* a class data archive, recorded from one warm-up. The JVM checks that it matches its version and
  the jars, and ignores it otherwise;
* copies of the jars that cannot be archived or that slow down every start (see `_LEFT_OUT`);
* a Firesteel jar: our Java classes (see `code`) and copies of Spark's and Scala's classes without
  lambdas (see `FiresteelLambdas.java`), which are archived like Spark's, and Hadoop's default
  settings without their descriptions, since every start parses them several times.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pyspark

from firesteel.common.process.java import java_home
from firesteel.common.process.lock_file import LockFile
from taskexecutor.executor.columnar.jvm.code import sources
from taskexecutor.executor.columnar.jvm.launch import class_path, jvm_options, spark_home

COMMAND = "python -m taskexecutor.executor.columnar.jvm.archive"
_RECORDER = "taskexecutor.executor.columnar.warm_up"
_WARM_UP = Path(__file__).parents[1] / "warm_up.py"
_UNUSED_S = 30 * 86_400  # since the last read, as recorded by the file system
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
# Otherwise the JVM relocates the archive to a random address, which dirties nearly all of its
# pages, so that none would be shared.
_IN_PLACE = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
_ARCHIVE = "classes.jsa"
_OWN_FORMAT = "3"  # format of the Firesteel jar, apart from its Java classes

# Maps jars to the members that their copies omit. Classes of signed jars are verified at every
# start and never archived. MLlib's session extension needs Scala's reflection to register two
# functions: `mllib` does that on demand.
_LEFT_OUT = {
    "janino-*.jar": r"META-INF/[^/]*\.(SF|DSA|RSA|EC)",
    "commons-compiler-*.jar": r"META-INF/[^/]*\.(SF|DSA|RSA|EC)",
    "spark-mllib_*.jar": (
        r"META-INF/services/org\.apache\.spark\.sql\.SparkSessionExtensionsProvider"
    ),
}


@dataclass(frozen=True, slots=True)
class ArchivedStart:
    """How to start a JVM with an archive. Without arguments: without an archive."""

    jvm_options: tuple[str, ...] = ()
    jars: Path | None = None  # the folder of the copies


def folder() -> Path:
    """Returns the folder for this Java, PySpark and warm-up, whether or not it exists."""
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
        _OWN_FORMAT,
        _WARM_UP.read_text(),  # decides which classes are loaded while recording
        *sources().values(),
    ]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
    return cache / "firesteel" / f"spark-{pyspark.__version__}-{key}"


def archived_start() -> ArchivedStart | None:
    """Returns None if no archive has been prepared."""
    try:
        path = folder() / _ARCHIVE
        if not path.exists():
            return None
    except (OSError, RuntimeError):  # no home directory
        return None
    return ArchivedStart(
        (f"-XX:SharedArchiveFile={path}", "-Xshare:auto", *_IN_PLACE, *_QUIET), path.parent / "jars"
    )


def recording_start(archive: Path, jars: Path) -> ArchivedStart:
    """Returns options with which the JVM writes `archive` when it exits."""
    return ArchivedStart((f"-XX:ArchiveClassesAtExit={archive}", *_QUIET), jars)


def listing_start(classes: Path, jars: Path) -> ArchivedStart:
    """Returns options with which the JVM writes the names of all classes that it loads to
    `classes`.
    """
    return ArchivedStart((*_QUIET, f"-Xlog:class+load:file={classes}"), jars)


def build(place: Path | None = None) -> bool:
    """Prepares everything, with one warm-up in a separate process. Returns False if another process
    is preparing it.

    Raises OSError if the folder cannot be written, CalledProcessError if Spark does not start.
    """
    place = place or folder()
    place.mkdir(parents=True, exist_ok=True)
    lock = LockFile(place / "lock")
    try:
        lock.acquire()
    except BlockingIOError:
        return False
    try:
        if (place / _ARCHIVE).exists():
            return True
        copy_jars(spark_home() / "jars", place / "jars")
        with tempfile.TemporaryDirectory(dir=place, prefix="recording-") as scratch:
            recorded = Path(scratch) / _ARCHIVE
            subprocess.run(
                [sys.executable, "-m", _RECORDER, str(recorded), str(place / "jars")],
                check=True,
                timeout=600,
            )
            recorded.chmod(0o644)
            recorded.replace(place / _ARCHIVE)
    finally:
        lock.release()
    _remove_unused(place.parent)
    return True


def copy_jars(jars: Path, copies: Path) -> None:
    """Copies the jars that `_LEFT_OUT` names, without the members it names."""
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


def write_own_jar(classes: Mapping[str, bytes], path: Path) -> None:
    """Writes the Firesteel jar with `classes`, by the names of their files."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, content in {**classes, **hadoop_defaults(spark_home() / "jars")}.items():
            jar.writestr(name, content)


def hadoop_defaults(jars: Path) -> dict[str, bytes]:
    """Returns the files with Hadoop's default settings, without their descriptions."""
    found = {}
    for path in jars.glob("hadoop-client-api-*.jar"):
        with zipfile.ZipFile(path) as jar:
            for name in jar.namelist():
                if name.endswith("-default.xml"):
                    found[name] = _only_settings(jar.read(name))
    return found


def _only_settings(content: bytes) -> bytes:
    root = ElementTree.fromstring(content)
    root.text = None
    for setting in root:
        setting.text = setting.tail = None
        for part in list(setting):
            part.tail = None
            if part.tag not in ("name", "value", "final"):
                setting.remove(part)
    return ElementTree.tostring(root)


def _remove_unused(places: Path) -> None:
    """Removes folders that no start has used for a long time: old versions, deleted
    environments.
    """
    for place in places.glob("spark-*"):
        with contextlib.suppress(OSError):
            used = (place / _ARCHIVE).stat()
            if time.time() - max(used.st_atime, used.st_mtime) > _UNUSED_S:
                shutil.rmtree(place)


def main() -> int:
    place = folder()
    if (place / _ARCHIVE).exists():
        print(f"Spark's classes are archived in {place}")
        return 0
    print(
        "archiving Spark's classes, so that slots start twice as fast (once; about half a minute)",
        flush=True,
    )
    try:
        finished = build(place)
    except (OSError, subprocess.SubprocessError) as error:
        print(
            f"Spark's classes could not be archived; slots will start more slowly: {error}",
            file=sys.stderr,
        )
        return 1
    print(
        f"archived in {place}"
        if finished
        else f"another process is archiving Spark's classes in {place}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

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

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from firesteel.common.process import module_command
from firesteel.common.process.class_archive import (
    QUIET,
    ClassArchive,
    recording_options,
    spark_home,
)
from taskexecutor.executor.columnar.jvm.code import sources
from taskexecutor.executor.columnar.jvm.launch import class_path, jvm_options

COMMAND = "python -m taskexecutor.executor.columnar.jvm.archive"
_RECORDER = "taskexecutor.executor.columnar.warm_up"
_WARM_UP = Path(__file__).parents[1] / "warm_up.py"
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


def class_archive() -> ClassArchive:
    """Returns the archive for this Java, PySpark and warm-up, whether or not it exists."""
    return ClassArchive.of_spark(
        "spark",
        [
            " ".join(jvm_options(cores=1, heap_bytes=0)),
            class_path(),
            str(_LEFT_OUT),
            _OWN_FORMAT,
            _WARM_UP.read_text(),  # decides which classes are loaded while recording
            *sources().values(),
        ],
    )


def archived_start() -> ArchivedStart | None:
    """Returns None if no archive has been prepared."""
    try:
        archive = class_archive()
        if not archive.exists:
            return None
    except (OSError, RuntimeError):  # no home directory
        return None
    return ArchivedStart(archive.options(), archive.folder / "jars")


def recording_start(archive: Path, jars: Path) -> ArchivedStart:
    """Returns options with which the JVM writes `archive` when it exits."""
    return ArchivedStart(recording_options(archive), jars)


def listing_start(classes: Path, jars: Path) -> ArchivedStart:
    """Returns options with which the JVM writes the names of all classes that it loads to
    `classes`.
    """
    return ArchivedStart((*QUIET, f"-Xlog:class+load:file={classes}"), jars)


def build(archive: ClassArchive) -> bool:
    """Prepares everything, with one warm-up in a separate process. Returns False if another process
    is preparing it.

    Raises OSError if the folder cannot be written, CalledProcessError if Spark does not start.
    """
    jars = archive.folder / "jars"

    def recorder(path: Path) -> None:
        copy_jars(spark_home() / "jars", jars)
        subprocess.run(module_command(_RECORDER, str(path), str(jars)), check=True, timeout=600)

    return archive.record(recorder)


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


def main() -> int:
    archive = class_archive()
    place = archive.folder
    if archive.exists:
        print(f"Spark's classes are archived in {place}")
        return 0
    print(
        "archiving Spark's classes, so that slots start twice as fast (once; about half a minute)",
        flush=True,
    )
    try:
        finished = build(archive)
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

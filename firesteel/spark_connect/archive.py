"""The class archive of the front's JVM (see `class_archive`).

`python -m firesteel.spark_connect.archive` records it in about half a minute (`make setup` runs
it). Fronts use it if it exists; otherwise they start normally, in twice the time.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from firesteel.common.logs import get_logger
from firesteel.common.process import module_command, temporary
from firesteel.common.process.class_archive import ClassArchive
from firesteel.spark_connect import java_options

log = get_logger(__name__)

COMMAND = "python -m firesteel.spark_connect.archive"
RECORDING_S = 1800.0  # on a machine that is busy otherwise
RECORDER = "firesteel.spark_connect.recording"


def class_archive() -> ClassArchive:
    """Returns the archive for this Java and PySpark, whether or not it exists."""
    here = Path(__file__).parent
    decides = (Path(java_options.__file__), here / "recording.py")
    return ClassArchive.of_spark("spark-connect", [path.read_text() for path in decides])


def archive_options() -> tuple[str, ...]:
    """Returns the JVM's options for the archive; none, which the log says, if there is none."""
    with contextlib.suppress(OSError, RuntimeError):  # no home directory
        archive = class_archive()
        if archive.exists:
            return archive.options()
    log.warning("Spark Connect's classes are not archived: it starts more slowly", remedy=COMMAND)
    return ()


def record(archive: ClassArchive) -> bool:
    """Records the archive in a separate process. Returns False if another process records it.

    Raises OSError if the folder cannot be written, SubprocessError if Spark does not start.
    """

    def recorder(path: Path) -> None:
        folder = temporary.make("recording")
        try:
            with tempfile.TemporaryFile() as log:
                process = subprocess.run(
                    module_command(RECORDER, str(path), str(folder)),
                    stdout=log,
                    stderr=log,
                    timeout=RECORDING_S,
                )
                log.seek(0)
                output = log.read()
            if process.returncode or not path.exists():
                raise subprocess.CalledProcessError(process.returncode, RECORDER, output)
        finally:
            temporary.remove(folder)

    return archive.record(recorder)


def main() -> int:
    archive = class_archive()
    if archive.exists:
        print(f"Spark Connect's classes are archived in {archive.folder}")
        return 0
    print(
        "archiving Spark Connect's classes, so that PySpark programs start faster (once; about half"
        " a minute)",
        flush=True,
    )
    try:
        recorded = record(archive)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "output", None) or b""
        print(
            f"Spark Connect's classes could not be archived; PySpark programs will start more"
            f" slowly: {error}\n{output.decode(errors='replace')}",
            file=sys.stderr,
        )
        return 1
    print(
        f"archived in {archive.folder}"
        if recorded
        else f"another process is archiving Spark Connect's classes in {archive.folder}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Finds the Java for Spark: version 17 or later.

`python -m firesteel.common.process.java` prints its home, or fails with advice if there is none.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from firesteel.errors import FiresteelError

OLDEST = 17
_INSTALLED = Path("/usr/lib/jvm")


class JavaNotFound(FiresteelError):
    """There is no Java that Spark supports."""


def java_home() -> str:
    """Returns the home of a Java 17 or later: from JAVA_HOME, else from PATH, else the oldest
    suitable one in /usr/lib/jvm.

    Raises JavaNotFound with the candidates and what to install.
    """
    rejected: list[str] = []
    for home in _candidates():
        version = _major_version(home)
        if version is not None and version >= OLDEST:
            return str(home)
        rejected.append(f"{home} ({'not a Java' if version is None else f'Java {version}'})")
    looked = f" (looked at: {', '.join(dict.fromkeys(rejected))})" if rejected else ""
    raise JavaNotFound(
        f"Spark needs Java {OLDEST} or later and none was found{looked}; "
        "install one, for example with: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
    )


def _candidates() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    program = shutil.which("java")
    if program:
        yield Path(program).resolve().parent.parent
    if _INSTALLED.is_dir():
        homes = [home for home in sorted(_INSTALLED.iterdir()) if (home / "bin" / "java").exists()]
        # Spark is built on the oldest version that it supports.
        yield from sorted(homes, key=lambda home: _major_version(home) or 0)


def _major_version(home: Path) -> int | None:
    """Reads the version from the release file of every JDK and JRE: `java -version` would start a
    JVM.
    """
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return int(match.group(1)) if match else None


def main() -> int:
    try:
        print(java_home())
    except JavaNotFound as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

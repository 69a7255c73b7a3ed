"""Options of the front's JVM, for a fast start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_COLLECTOR = re.compile(r"-XX:\+Use\w+GC")
# Four times the JVM's default: most methods that the planning of a query calls some thousand times
# are not called again. Loops over rows keep their threshold.
_COMPILER = (
    "-XX:Tier4InvocationThreshold=20000",
    "-XX:Tier4MinInvocationThreshold=2400",
    "-XX:Tier4CompileThreshold=60000",
)
_START = (
    "-XX:-UsePerfData",
    "-Djava.lang.invoke.MethodHandle.COMPILE_THRESHOLD=20",
    "-Dsun.reflect.inflationThreshold=1000",
    "-Dio.netty.jfr.enabled=false",  # otherwise Netty starts the flight recorder
)


def java_options(
    folder: Path, cores: int, archive: Sequence[str], users: Sequence[str]
) -> list[str]:
    """Returns the JVM's options, which those of the user follow. A JVM accepts one garbage
    collector.
    """
    chosen = any(_COLLECTOR.fullmatch(option) for option in users)
    serial = ["-XX:+UseSerialGC"] if cores <= 2 and not chosen else []
    return [f"-Djava.io.tmpdir={folder}", *archive, *serial, *_START, *_COMPILER]

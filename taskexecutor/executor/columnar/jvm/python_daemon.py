"""Spark's daemon, which forks the Python workers that run the program's UDFs.

A UDF may raise or print text that UTF-8 cannot encode. PySpark's workers then announce an exception
without sending it, and Spark waits for it forever.

PySpark's workers collect all garbage after each task, which takes a tenth of a second once pandas
is imported, and the next bundle waits for it. These look only at what the last task has left.

The output of PySpark's own workers reaches the slot's log through Spark's JVM, with a delay and not
distinguishable from other lines. These workers write it to the log themselves.

Spark runs this as a module. It imports little of Firesteel, because each slot has such a process.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import socket
import sys
import traceback
from typing import IO, Any

from pyspark import daemon, util
from pyspark.serializers import SpecialLengths, write_int, write_with_length

from firesteel.common import output
from taskexecutor.executor import LOG_VARIABLE

_worker = daemon.worker
_handle = util.handle_worker_exception
_LENGTH_BYTES = 4
_WHOLE_EVERY = 100  # tasks


class GarbageCollector:
    """Stands for the module `gc` in PySpark's daemon."""

    def __init__(self) -> None:
        self._tasks = 0

    def collect(self) -> None:
        """Collects the garbage of a task. The survivors, mostly modules, are examined again only
        every hundredth task.
        """
        if self._tasks % _WHOLE_EVERY == 0:
            gc.unfreeze()
        self._tasks += 1
        gc.collect()
        gc.freeze()


def handle_worker_exception(
    e: BaseException, outfile: IO[bytes], hide_traceback: bool | None = None
) -> None:
    """Like PySpark's function, which workers call, but always sends a text."""
    report = io.BytesIO()
    _handle(e, report, hide_traceback)
    if len(report.getvalue()) > 2 * _LENGTH_BYTES:
        text = report.getvalue()[2 * _LENGTH_BYTES :]
    else:  # it could not be encoded
        text = "".join(traceback.format_exception(e)).encode(errors="backslashreplace")
    try:
        write_int(SpecialLengths.PYTHON_EXCEPTION_THROWN, outfile)  # type: ignore[no-untyped-call]
        write_with_length(text, outfile)  # type: ignore[no-untyped-call]
    except OSError:
        pass  # the JVM has closed the connection


def worker(sock: socket.socket, *arguments: Any) -> int:
    """Like PySpark's function, which a forked worker calls for each task."""
    _print_to_log()
    if sock.family == socket.AF_INET and hasattr(socket, "TCP_QUICKACK"):
        # Spark sends the task and its first rows in two parts, the second one when the first one is
        # acknowledged, which would take 40 ms. The next answer ends this mode.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    try:
        return _worker(sock, *arguments)
    finally:
        sys.stdout.flush()


@functools.cache
def _print_to_log() -> None:
    """Redirects what this worker prints, once."""
    fd = 1
    if path := os.environ.get(LOG_VARIABLE):
        with contextlib.suppress(OSError):  # it runs on another machine, or the log was removed
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    output.print_to(fd)


if __name__ == "__main__":
    setattr(daemon, "worker", worker)  # noqa: B010
    setattr(daemon, "gc", GarbageCollector())  # noqa: B010
    util.handle_worker_exception = handle_worker_exception
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    daemon.manager()

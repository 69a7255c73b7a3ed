"""Spark's daemon, which forks the Python workers that run the program's UDFs.

A UDF may raise or print text that UTF-8 cannot encode. PySpark's workers then announce an exception
without sending it, and Spark waits for it forever.

The output of PySpark's own workers reaches the slot's log through Spark's JVM, with a delay and not
distinguishable from other lines. These workers write it to the log themselves.

Spark runs this as a module. It imports little of Firesteel, because each slot has such a process.
"""

from __future__ import annotations

import io
import os
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


def worker(*arguments: Any) -> int:
    """Like PySpark's function, which runs in each worker right after the fork."""
    fd = 1
    if path := os.environ.get(LOG_VARIABLE):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError:
            pass  # the worker runs on another machine, or the log was removed
    output.print_to(fd)
    try:
        return _worker(*arguments)
    finally:
        sys.stdout.flush()


if __name__ == "__main__":
    setattr(daemon, "worker", worker)  # noqa: B010
    util.handle_worker_exception = handle_worker_exception
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    daemon.manager()

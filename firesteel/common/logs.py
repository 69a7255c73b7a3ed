"""Structured logs: one key=value line per event on stderr, with job, vertex, subtask and attempt
where they apply.

Logging never raises: a line that cannot be written is dropped, see firesteel.common.output.

A process calls `configure` once. A task binds its names with `task_context`; every line inside, of
this code or through the standard library's `logging`, then has them, and so has printed text. A new
thread starts without them. A process that serves one job uses `bind_process`, which binds names for
all of its lines.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO, cast

# structlog would import rich for coloured tracebacks, which logs do not have: 6 MB per process. So
# entry points import this module before structlog, and get their logger from it.
_rich = sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
import structlog  # noqa: E402

from firesteel.common import output  # noqa: E402
from firesteel.common.config.redaction import hidden  # noqa: E402
from firesteel.text import text_of  # noqa: E402

if _rich is None:
    del sys.modules["rich"]

# Events of lines that describe the log itself.
OUTPUT_FOLLOWS = "output follows"  # from a writer without times
LOG_STARTS_OVER = "the log starts over"

_FIRST_KEYS = (
    "timestamp",
    "level",
    "process",
    "logger",
    "event",
    "job_id",
    "vertex",
    "subtask",
    "attempt",
)
# Libraries that report every call at INFO.
_QUIET = ("py4j", "kazoo", "asyncio", "sqlalchemy.engine", "alembic", "urllib3")


class _Stderr:
    """Writes to the current sys.stderr, which tests replace."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


_STDERR = _Stderr()


_process_names: dict[str, str] = {}
_own: list[str] = []  # the name of this process


def configure(process: str, level: str | int = "INFO") -> Any:
    """Sets up structlog and `logging` for this process and returns its logger."""
    number = logging.getLevelNamesMapping()[level.upper()] if isinstance(level, str) else level
    name = f"{process}[{os.getpid()}]"

    def add_process(
        logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event.setdefault("process", name)
        for key, value in _process_names.items():
            event.setdefault(key, value)
        return event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_process,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, _render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _STDERR)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(_STDERR)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for noisy in _QUIET:
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))
    logging.captureWarnings(True)
    bind_process()
    _own[:] = [name]
    return structlog.get_logger()


class _Logger:
    """A logger of structlog that writes to stderr also while structlog is not configured: by
    default, it writes to stdout, which is the output of a command or of a user's program.
    """

    def __init__(self, *names: str) -> None:
        self._configured = structlog.get_logger(*names)
        self._unconfigured = structlog.wrap_logger(
            structlog.WriteLogger(cast(TextIO, _STDERR)),
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                _render,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._configured if structlog.is_configured() else self._unconfigured, name)


def get_logger(*names: str) -> Any:
    """Returns a logger for a module that also runs in processes which do not call `configure`."""
    return _Logger(*names)


def bind_process(**names: str) -> None:
    """Adds these names to every later line of this process that does not set them otherwise,
    instead of those that were bound before.
    """
    global _process_names
    _process_names = names


def line(event: str) -> bytes:
    """Returns a line for this process's log, for a writer without a logger."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    names = {"timestamp": now, "level": "info", "process": "".join(_own), "event": event}
    return f"{_render(None, 'info', {**names, **_process_names})}\n".encode()


@contextmanager
def task_context(
    *, job_id: str, vertex: str, subtask: int, parallelism: int, attempt: int
) -> Iterator[None]:
    """Adds the task's names to every line that this thread or asyncio task logs or prints inside.
    If there are several subtasks, printed lines start with the number, as "3> ".
    """
    names = _logfmt(None, "info", {"vertex": text_of(vertex), "subtask": subtask})
    with (
        bound(job_id=job_id, vertex=vertex, subtask=subtask, attempt=attempt),
        output.printed_by(str(names), f"{subtask + 1}> " if parallelism > 1 else ""),
    ):
        yield


def bound(**names: Any) -> AbstractContextManager[Any]:
    """Adds these names to every line that is logged inside."""
    return structlog.contextvars.bound_contextvars(**names)


_logfmt = structlog.processors.LogfmtRenderer(key_order=_FIRST_KEYS, drop_missing=True)


def _render(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """Formats key=value pairs on one line; a traceback follows on indented lines."""
    stack = event.pop("exception", None)
    # Keys and values come from anywhere: those that logfmt rejects must not lose the line.
    line = str(
        _logfmt(
            logger,
            method,
            {str(key).replace(" ", "_"): _plain(value) for key, value in event.items()},
        )
    )
    if stack:
        line += "\n  " + str(stack).rstrip().replace("\n", "\n  ")
    return hidden(line)


def _plain(value: Any) -> Any:
    if isinstance(value, (int, float, bool)) or value is None:
        return value
    return text_of(value)

"""Errors that users see, and what is told about an exception wherever it happened.

`FiresteelError` and what derives from it carry one clear message: what is wrong and what to do.
Everything else that is raised in a user's job becomes an `ErrorInfo`, which puts the user's own
frames first and Spark's own message in place of its Java stack.
"""

from __future__ import annotations

import errno
import re
import sysconfig
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_TEXT_CHARS = 32_000  # an error travels in messages and is kept with its job


class FiresteelError(Exception):
    """One clear message: what is wrong, what to do."""


class InvalidProgram(FiresteelError):
    """The job cannot be built as it is written."""


class ClusterUnreachable(FiresteelError):
    """Nobody answers at the address, or not a Firesteel cluster."""


class JobNotFound(FiresteelError):
    """The cluster knows no such job."""


class PayloadTooLarge(FiresteelError):
    """The job, or one of its files, is larger than the cluster takes."""


class SubmissionRejected(FiresteelError):
    """The cluster refused the job; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """What is told about one exception."""

    summary: str  # one line
    user_traceback: str = (
        ""  # the user's own frames, then the exception; empty if none of them are involved
    )
    traceback: str = ""  # everything, for whoever works on Firesteel
    timestamp_ms: int = 0
    location: str = ""  # host, TaskExecutor and slot, where known
    task_name: str = ""  # "vertex (2/4)#0", where known

    @property
    def shown(self) -> str:
        """What a user reads first."""
        return self.user_traceback or self.summary


class JobFailed(FiresteelError):
    """The job ended FAILED. `error` is the failure that ended it, None if the cluster has none on
    record.
    """

    def __init__(self, job_id: str, job_name: str = "", error: ErrorInfo | None = None) -> None:
        self.job_id = job_id
        self.job_name = job_name
        self.error = error
        name = f" ({job_name})" if job_name else ""
        where = f" in {error.task_name}" if error and error.task_name else ""
        reason = f"{where}: {error.summary}" if error else ""
        user = f"\n{error.user_traceback}" if error and error.user_traceback else ""
        super().__init__(f"job {job_id}{name} failed{reason}{user}")


class JobCanceled(FiresteelError):
    """The job ended CANCELED."""

    def __init__(self, job_id: str, job_name: str = "") -> None:
        self.job_id = job_id
        self.job_name = job_name
        super().__init__(f"job {job_id}{f' ({job_name})' if job_name else ''} was cancelled")


def error_info(
    exc: BaseException,
    *,
    location: str = "",
    task_name: str = "",
    user_code_roots: Sequence[str] = (),
) -> ErrorInfo:
    """Describes an exception. Files under `user_code_roots` are the user's wherever these folders
    are.
    """
    roots = tuple(str(Path(root).resolve()) + "/" for root in user_code_roots)
    return ErrorInfo(
        summary=_clip(summary_of(exc), 2_000),
        user_traceback=_clip(_user_traceback(exc, roots), MAX_TEXT_CHARS),
        traceback=_clip("".join(traceback.format_exception(exc)).rstrip(), MAX_TEXT_CHARS),
        timestamp_ms=time.time_ns() // 1_000_000,
        location=location,
        task_name=task_name,
    )


def summary_of(exc: BaseException) -> str:
    """One line, or three where a caret points at a place. Spark's errors are in Spark's own words,
    without the Java stack.
    """
    spark = _spark_message(exc)
    if spark is not None:
        return spark
    text = _first_line(str(exc))
    if isinstance(exc, FiresteelError):
        whole = str(exc).rstrip()
        return whole if whole.endswith("^") else text or type(exc).__name__
    if isinstance(exc, OSError) and exc.errno == errno.ENOSPC:
        return f"the disk is full ({text}); free some space, or write to another disk"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


# -- whose frame is it

_SERVICES = ("firesteel", "dispatcher", "resourcemanager", "jobmaster", "taskexecutor")
_HOME = Path(__file__).resolve().parent.parent
_OURS = tuple(f"{_HOME / service}/" for service in _SERVICES)
_STDLIB = tuple({sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/"})
# Libraries that stand between us and the user's function; their frames tell the user nothing.
_LIBRARIES = re.compile(
    r"/(?:site|dist)-packages/(?:pyspark|py4j|pyarrow|grpc|cloudpickle|click|numpy|pandas)/"
)
_ANY_LIBRARY = re.compile(r"/(?:site|dist)-packages/")
_SPARK_WORKER = re.compile(r"/(?:pyspark\.zip|py4j-[^/]*\.zip)/")


def _is_users(filename: str, roots: tuple[str, ...]) -> bool:
    if roots and filename.startswith(roots):
        return True
    if filename.startswith(("<frozen ", *_OURS)) or filename.endswith(
        (".pyx", ".pxi")
    ):  # compiled code is a library's
        return False
    if _LIBRARIES.search(filename) or _SPARK_WORKER.search(filename):
        return False
    return bool(_ANY_LIBRARY.search(filename)) or not filename.startswith(_STDLIB)


def _user_traceback(exc: BaseException, roots: tuple[str, ...]) -> str:
    """The exception and its causes, innermost first as Python prints them, with the user's frames
    only.
    """
    parts: list[str] = []
    for link, how in _chain(exc):
        told = traceback.TracebackException.from_exception(link)
        frames = traceback.StackSummary.from_list(
            [f for f in told.stack if _is_users(f.filename, roots)]
        )
        worker = _worker_traceback(link, roots)
        if not frames and not worker and not _users_syntax_error(told, roots):
            continue
        lines = ["Traceback (most recent call last):\n", *frames.format()] if frames else []
        if worker:
            text = "".join(lines) + worker
        elif _spark_message(link) is not None:
            text = "".join(lines) + f"{type(link).__name__}: {_spark_message(link)}"
        else:
            text = "".join([*lines, *told.format_exception_only()]).rstrip()
        parts += [text, how]
    return "\n\n".join(part for part in parts[:-1] if part)


_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


def _chain(exc: BaseException) -> Iterator[tuple[BaseException, str]]:
    """From the first cause to `exc`, each with the sentence that leads to the next."""
    links: list[tuple[BaseException, str]] = [(exc, "")]
    seen = {id(exc)}
    while len(links) < 20:
        last = links[-1][0]
        if last.__cause__ is not None:
            following, how = last.__cause__, _CAUSE
        elif last.__context__ is not None and not last.__suppress_context__:
            following, how = last.__context__, _CONTEXT
        else:
            break
        if id(following) in seen:
            break
        seen.add(id(following))
        links.append((following, how))
    return reversed(links)


def _users_syntax_error(told: traceback.TracebackException, roots: tuple[str, ...]) -> bool:
    filename = getattr(
        told, "filename", None
    )  # a SyntaxError has its place in itself, not in a frame
    return bool(filename) and _is_users(str(filename), roots)


# -- Spark

_LOST_TASK = re.compile(r"most recent failure: (?:Lost task [^)]*\)(?: \([^)]*\))*|[^:]*): (.*)")
_JAVA_CLASS = re.compile(
    r"^(?:Caused by: |: )?(?:[a-z_$][\w$]*\.)+[\w$]*(?:Exception|Error|Throwable)?: "
)
_RAISED = re.compile(
    r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: \w+)?"
)  # by raise_error(), which has a text of its own
_AWAITED = "Exception thrown in awaitResult:"
_WORKER_TRACEBACK = "Traceback (most recent call last):"


def _spark_message(exc: BaseException) -> str | None:
    """Spark's own message, one line; None if this is no error of Spark's or Py4J's."""
    module = type(exc).__module__
    if module.startswith("pyspark."):
        text = _description(exc)
        if _WORKER_TRACEBACK in text:  # a function of the user's that Spark ran in a Python worker
            return _exception_line(text)
        return _java_reason(text)
    if module.startswith("py4j."):
        if type(exc).__name__ in (
            "Py4JNetworkError",
            "Py4JError",
        ) and "error occurred while calling" not in str(exc):
            return f"the connection to the slot's Spark JVM is lost ({_first_line(str(exc)) or type(exc).__name__})"
        return _java_reason(str(exc))
    return None


def _description(exc: BaseException) -> str:
    """What the exception says, without asking the JVM, which may be dead."""
    return str(getattr(exc, "_desc", None) or getattr(exc, "_message", None) or exc)


def _java_reason(text: str) -> str:
    lines = text.strip().splitlines()
    line = lines[0] if lines else ""
    if line.startswith("An error occurred while calling") and len(lines) > 1:
        line = lines[1]
    if line.rstrip().endswith(_AWAITED):
        line = _first_cause(lines) or line
    lost = _LOST_TASK.search(line)
    if lost:
        line = lost.group(1)
    reason = _JAVA_CLASS.sub("", line).strip()
    said = _RAISED.fullmatch(reason)
    return (said[1] if said else reason) or "Spark gave no reason"


def _first_cause(lines: Sequence[str]) -> str:
    """The first that says something of its own; and the last one, if that one knows no more than
    where it happened.
    """
    causes = [
        line
        for line in lines
        if line.startswith("Caused by: ") and not line.rstrip().endswith(_AWAITED)
    ]
    if not causes or ".NO_HINT]" not in causes[0]:
        return causes[0] if causes else ""
    return f"{causes[0].rstrip()} ({_JAVA_CLASS.sub('', causes[-1])})"


def _exception_line(text: str) -> str:
    """The line after the last frame of a traceback that Spark quotes."""
    block = text[text.rindex(_WORKER_TRACEBACK) :].splitlines()[1:]
    return next(
        (line.strip() for line in block if line and not line.startswith(" ")), _first_line(text)
    )


def _worker_traceback(exc: BaseException, roots: tuple[str, ...]) -> str:
    """The user's frames of a traceback that Spark brought back from a Python worker, then its
    exception line.
    """
    if not type(exc).__module__.startswith("pyspark."):
        return ""
    text = _description(exc)
    if _WORKER_TRACEBACK not in text:
        return ""
    block = text[text.rindex(_WORKER_TRACEBACK) :].splitlines()[1:]
    kept: list[str] = []
    keep = False
    for line in block:
        frame = re.match(r'\s+File "([^"]+)", line \d+', line)
        if frame:
            keep = _is_users(frame.group(1), roots)
        elif line and not line.startswith(" "):
            break
        if keep:
            kept.append(line)
    return "\n".join([_WORKER_TRACEBACK, *kept, _exception_line(text)]) if kept else ""


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].strip()


def _clip(text: str, limit_chars: int) -> str:
    """Cuts the middle out of a text that is too long: its end names the exception."""
    if len(text) <= limit_chars:
        return text
    half = limit_chars // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"

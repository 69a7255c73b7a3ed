"""Describes exceptions for users: their own frames first, Spark's own message for a Java stack.

An exception is user code: its `__str__`, its notes and its causes may raise, or have text that is
not valid. Describing it never raises.
"""

from __future__ import annotations

import errno
import linecache
import re
import sysconfig
import time
import traceback
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from firesteel.common.installation import SERVICES
from firesteel.common.peer_ended import PeerEnded
from firesteel.errors import ErrorInfo, FiresteelError
from firesteel.text import clipped, text_of

MAX_TEXT_CHARS = 32_000  # an error travels in messages and is kept with its job


def error_info(
    exc: BaseException,
    *,
    location: str = "",
    task_name: str = "",
    user_code_roots: Sequence[str] = (),
) -> ErrorInfo:
    """Describes an exception. All files below `user_code_roots` count as the user's."""
    roots = tuple(str(Path(root).resolve()) + "/" for root in user_code_roots)
    try:
        summary, users = summary_of(exc), _user_traceback(exc, roots)
        whole = "".join(traceback.format_exception(exc)).rstrip()
        consequence = not users and any(isinstance(link.error, PeerEnded) for link in _chain(exc))
    except BaseException as error:  # raised by an attribute of the exception
        summary = f"{type(exc).__name__}, which cannot be described: {type(error).__name__}"
        users, whole, consequence = "", _places(exc), False
    return ErrorInfo(
        summary=clipped(summary, 2_000),
        user_traceback=clipped(users, MAX_TEXT_CHARS),
        traceback=clipped(whole, MAX_TEXT_CHARS),
        timestamp_ms=time.time_ns() // 1_000_000,
        location=location,
        task_name=task_name,
        consequence=consequence,
    )


def _places(exc: BaseException) -> str:
    """Where the exception and its causes were raised, without a call of theirs."""
    lines = []
    for link, how in _chain(exc):
        lines += [*traceback.format_tb(link.__traceback__), f"{type(link).__name__}\n", f"{how}\n"]
    return "".join(lines).rstrip()


def summary_of(exc: BaseException) -> str:
    """One line, or three where a caret points at a place; of Spark's errors, without Java stack."""
    summary = _summary_of(exc)
    if (by_name := _BY_NAME.match(summary)) is not None:
        return (
            f"{by_name[1]!r} is shipped by its name only, and the slot does not have it: functions"
            " that functools.cache and the like wrap cannot leave the program's own file; call the"
            " wrapper inside a function, or ship a module with it (--py-files)"
        )
    if _NO_MODULE.match(summary) and _MODULES not in summary:
        summary = f"{summary}; {_MODULES}"
    return summary


_BY_NAME = re.compile(
    r"AttributeError: Can't get attribute '(\w+)' on <module 'taskexecutor.executor.__main__'"
)
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named ")
_MODULES = (
    "tasks import what is installed on the cluster, the modules that the program itself imports,"
    " and what the job ships with --py-files (env.add_python_file) or --py-requirements"
    " (env.set_python_requirements)"
)


def _summary_of(exc: BaseException) -> str:
    spark = _spark_message(exc)
    if spark is not None:
        return spark
    text = _first_line(text_of(exc))
    if isinstance(exc, FiresteelError):
        whole = text_of(exc).rstrip()
        return whole if whole.endswith("^") else text or type(exc).__name__
    if isinstance(exc, OSError) and exc.errno == errno.ENOSPC:
        return f"the disk is full ({text}); free some space, or write to another disk"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


# ---- frames

_HOME = Path(__file__).resolve().parents[2]
_OURS = tuple(f"{_HOME / service}/" for service in ("firesteel", *SERVICES))
_STDLIB = tuple({sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/"})
# Libraries between us and the user's function; their frames do not help the user.
_LIBRARIES = re.compile(
    r"/(?:site|dist)-packages/(?:pyspark|py4j|pyarrow|grpc|cloudpickle|click|numpy|pandas)/"
)
_ANY_LIBRARY = re.compile(r"/(?:site|dist)-packages/")
_SPARK_WORKER = re.compile(r"/(?:pyspark\.zip|py4j-[^/]*\.zip)/")


def _is_users(filename: str, roots: tuple[str, ...]) -> bool:
    if roots and filename.startswith(roots):
        return True
    if filename.startswith(("<frozen ", *_OURS)):
        return False
    if filename.endswith((".pyx", ".pxi")):  # compiled: a library's
        return False
    if _LIBRARIES.search(filename) or _SPARK_WORKER.search(filename):
        return False
    return bool(_ANY_LIBRARY.search(filename)) or not filename.startswith(_STDLIB)


def _user_traceback(exc: BaseException, roots: tuple[str, ...]) -> str:
    """The exception and its causes, in Python's order, with the user's frames only."""
    parts: list[str] = []
    for link, how in _chain(exc):
        described = traceback.TracebackException.from_exception(link)
        frames = traceback.StackSummary.from_list(
            [f for f in described.stack if _is_users(f.filename, roots)]
        )
        worker = _worker_traceback(link, roots)
        if not frames and not worker and not _users_syntax_error(described, roots):
            continue
        lines = ["Traceback (most recent call last):\n", *frames.format()] if frames else []
        if worker:
            text = "".join(lines) + worker
        elif _spark_message(link) is not None:
            text = "".join(lines) + f"{type(link).__name__}: {_spark_message(link)}"
        else:
            text = "".join([*lines, *described.format_exception_only()]).rstrip()
        parts += [text, how]
    return "\n\n".join(part for part in parts[:-1] if part)


_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


class _Link(NamedTuple):
    error: BaseException
    transition: str  # the sentence between this error and the next


def _chain(exc: BaseException) -> Iterator[_Link]:
    """From the first cause to `exc`."""
    links = [_Link(exc, "")]
    seen = {id(exc)}
    while len(links) < 20:
        last = links[-1].error
        if last.__cause__ is not None:
            following, how = last.__cause__, _CAUSE
        elif last.__context__ is not None and not last.__suppress_context__:
            following, how = last.__context__, _CONTEXT
        else:
            break
        if id(following) in seen:
            break
        seen.add(id(following))
        links.append(_Link(following, how))
    return reversed(links)


def _users_syntax_error(described: traceback.TracebackException, roots: tuple[str, ...]) -> bool:
    filename = getattr(described, "filename", None)  # a SyntaxError names its file itself
    return bool(filename) and _is_users(str(filename), roots)


# -- Spark

_LOST_TASK = re.compile(r"most recent failure: (?:Lost task [^)]*\)(?: \([^)]*\))*|[^:]*): (.*)")
_JAVA_CLASS = re.compile(
    r"^(?:Caused by: |: )?(?:[a-z_$][\w$]*\.)+[\w$]*(?:Exception|Error|Throwable)?: "
)
# By raise_error(), with a text of the user's.
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: \w+)?")
_SQLSTATE = re.compile(r"\bSQLSTATE: \w+")
_STACK = re.compile(r"\s+at |\s+\.\.\. \d+ more|Caused by: ")
_ONLY_A_PLACE = ".NO_HINT]"  # in a message that has a place and no reason
_AWAITED = "Exception thrown in awaitResult:"
_WORKER_TRACEBACK = "Traceback (most recent call last):"


def _spark_message(exc: BaseException) -> str | None:
    """Spark's own message, one line; None if the error is neither Spark's nor Py4J's."""
    module = type(exc).__module__
    if module.startswith("pyspark."):
        text = _description(exc)
        if _WORKER_TRACEBACK in text:  # a user's function in a Python worker
            return _exception_line(text)
        return _java_reason(text)
    if module.startswith("py4j."):
        name, text = type(exc).__name__, text_of(exc)
        connection = name in ("Py4JNetworkError", "Py4JError")
        if connection and "error occurred while calling" not in text:
            return f"the connection to the slot's Spark JVM is lost ({_first_line(text) or name})"
        return _java_reason(text)
    return None


def _description(exc: BaseException) -> str:
    """The exception's text, without a call to the JVM, which may be dead."""
    return text_of(getattr(exc, "_desc", None) or getattr(exc, "_message", None) or exc)


def _java_reason(text: str) -> str:
    lines = text.strip().splitlines()
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        del lines[0]
    line = _message(lines)
    if line.rstrip().endswith(_AWAITED):
        line = _first_cause(lines) or line
    elif _ONLY_A_PLACE in line and (causes := _causes(lines)):
        line = _with_reason(line, causes)
    lost = _LOST_TASK.search(line)
    if lost:
        line = lost.group(1)
    reason = _JAVA_CLASS.sub("", line).strip()
    raised = _RAISED.fullmatch(reason)
    return (raised[1] if raised else reason) or "Spark gave no reason"


def _message(lines: Sequence[str]) -> str:
    """Returns the message at the start of the lines, in one line.

    It ends with the first line, unless that ends with a colon, or Spark's SQLSTATE follows in a
    later line. A Java stack, or the plan that an AnalysisException shows, does not belong to it.
    """
    if not lines:
        return ""
    more = takewhile(lambda line: line.strip() and not _STACK.match(line), lines[1:])
    found = [lines[0], *more]
    last = next((n for n, line in enumerate(found) if _SQLSTATE.search(line)), None)
    if last is None:
        last = len(found) - 1 if found[0].rstrip().endswith(":") else 0
    return " ".join([found[0], *(line.strip() for line in found[1 : last + 1])])


def _first_cause(lines: Sequence[str]) -> str:
    """The first cause with a message of its own; with the last, if the first only has a place."""
    causes = _causes(lines)
    if not causes or _ONLY_A_PLACE not in causes[0]:
        return causes[0] if causes else ""
    return _with_reason(causes[0], causes)


def _causes(lines: Sequence[str]) -> list[str]:
    messages = (
        _message(lines[number:])
        for number, line in enumerate(lines)
        if line.startswith("Caused by: ")
    )
    return [message for message in messages if not message.rstrip().endswith(_AWAITED)]


def _with_reason(line: str, causes: Sequence[str]) -> str:
    return f"{line.rstrip()} ({_JAVA_CLASS.sub('', causes[-1])})"


def _exception_line(text: str) -> str:
    """The line after the last frame of a traceback that Spark quotes."""
    block = text[text.rindex(_WORKER_TRACEBACK) :].splitlines()[1:]
    return next(
        (line.strip() for line in block if line and not line.startswith(" ")), _first_line(text)
    )


def _worker_traceback(exc: BaseException, roots: tuple[str, ...]) -> str:
    """The user's frames of a Python worker's traceback, then its exception line."""
    if not type(exc).__module__.startswith("pyspark."):
        return ""
    text = _description(exc)
    if _WORKER_TRACEBACK not in text:
        return ""
    block = text[text.rindex(_WORKER_TRACEBACK) :].splitlines()[1:]
    kept: list[str] = []
    keep = False
    for line, following in zip(block, [*block[1:], ""], strict=True):
        frame = re.match(r'\s+File "([^"]+)", line (\d+)', line)
        if frame:
            keep = _is_users(frame[1], roots)
        elif line and not line.startswith(" "):
            break
        if keep:
            kept.append(line)
        if frame and keep and not following.startswith("    "):
            # The worker has no source of functions that were shipped to this process.
            source = linecache.getline(frame[1], int(frame[2])).strip()
            kept += [f"    {source}"] if source else []
    return "\n".join([_WORKER_TRACEBACK, *kept, _exception_line(text)]) if kept else ""


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].strip()

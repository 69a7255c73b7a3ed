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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from firesteel.common.config.redaction import hidden
from firesteel.common.installation import SERVICES
from firesteel.errors import DATA_EXCEPTION, ErrorInfo, FiresteelError
from firesteel.text import clipped, text_of, valid_text


class PeerEnded(FiresteelError):
    """The task cannot continue because another task has ended. The cause is the other task's."""


class DescribedElsewhere(FiresteelError):
    """An error of another process, which has described it."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.summary)
        self.info = info


MAX_TEXT_CHARS = 32_000  # an error travels in messages and is kept with its job


def error_info(
    exc: BaseException,
    *,
    location: str = "",
    task_name: str = "",
    user_code_roots: Sequence[str] = (),
) -> ErrorInfo:
    """Describes an exception. Files below `user_code_roots` count as the user's."""
    if isinstance(exc, DescribedElsewhere):
        return replace(exc.info, location=location, task_name=task_name)
    roots = tuple(str(Path(root).resolve()) + "/" for root in user_code_roots)
    try:
        summary, users = summary_of(exc), _user_traceback(exc, roots)
        whole = "".join(traceback.format_exception(exc)).rstrip()
        consequence = not users and any(isinstance(link.error, PeerEnded) for link in _chain(exc))
        condition, sql_state = _condition(exc)
    except BaseException as error:  # raised by an attribute of the exception
        summary = f"{type(exc).__name__}, which cannot be described: {type(error).__name__}"
        users, whole, consequence = "", _places(exc), False
        condition = sql_state = ""
    return ErrorInfo(
        summary=clipped(hidden(summary), 2_000),
        user_traceback=clipped(hidden(users), MAX_TEXT_CHARS),
        traceback=clipped(hidden(whole), MAX_TEXT_CHARS),
        timestamp_ms=time.time_ns() // 1_000_000,
        location=location,
        task_name=task_name,
        consequence=consequence,
        condition=condition,
        sql_state=sql_state,
    )


def _places(exc: BaseException) -> str:
    """Returns where the exception and its causes were raised, without calling their methods."""
    lines = []
    for link, how in _chain(exc):
        lines += [*traceback.format_tb(link.__traceback__), f"{type(link).__name__}\n", f"{how}\n"]
    return "".join(lines).rstrip()


def summary_of(exc: BaseException) -> str:
    """Returns one line, or three if a caret marks a position; without the stack of a Java error."""
    kind, text = described = _described(exc)
    summary = str(described)
    # text only: pickle raises AttributeError without the name and the module as attributes
    by_name = _BY_NAME.match(text)
    if by_name is not None and kind == "AttributeError":
        return (
            f"{by_name[1]!r} is shipped by its name only, and the slot does not have it: functions"
            " that functools.cache and the like wrap cannot leave the program's own file; call the"
            " wrapper inside a function, or ship a module with it (--py-files)"
        )
    return f"{summary}; {_MODULES}" if kind == "ModuleNotFoundError" else summary


_BY_NAME = re.compile(r"Can't get attribute '(\w+)' on <module 'taskexecutor.executor.__main__'")
_MODULES = (
    "tasks import what is installed on the cluster, the modules that the program itself imports,"
    " and what the job ships with --py-files (env.add_python_file) or --py-requirements"
    " (env.set_python_requirements)"
)


class _Described(NamedTuple):
    kind: str  # the name of the exception's class; empty if the text alone is shown
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.kind and self.text else self.kind or self.text


def _described(exc: BaseException) -> _Described:
    spark = _spark_error(exc)
    if spark is not None:
        return spark
    text = _first_line(text_of(exc))
    if isinstance(exc, FiresteelError):
        whole = text_of(exc).rstrip()
        # text only: what to show of the message, whose caret points at a place in the line before
        caret = whole.endswith("^")
        return _Described("", whole if caret else text or type(exc).__name__)
    if isinstance(exc, OSError) and exc.errno == errno.ENOSPC:
        return _Described(
            "", f"the disk is full ({text}); free some space, or write to another disk"
        )
    return _Described(type(exc).__name__, text)


# ---- frames

_HOME = Path(__file__).resolve().parents[2]
_OURS = tuple(f"{_HOME / service}/" for service in ("firesteel", *SERVICES))
_STDLIB = tuple({sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/"})
# Libraries between Firesteel and the user's function; their frames do not help the user.
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
    """Formats the exception and its causes as Python does, with the user's frames only."""
    parts: list[str] = []
    for link, how in _chain(exc):
        described = traceback.TracebackException.from_exception(link)
        worker, of_query = _worker_traceback(link, roots), _query_traceback(link)
        users = [f for f in described.stack if _is_users(f.filename, roots)]
        places = [f'File "{frame.filename}", line {frame.lineno},' for frame in users]
        # PySpark adds the frames in the message to the exception, without their columns.
        shown = worker + of_query
        # text only: nothing else distinguishes them from the exception's own
        new = [frame for frame, at in zip(users, places, strict=True) if at not in shown]
        frames = traceback.StackSummary.from_list(new)
        if not frames and not worker and not _users_syntax_error(described, roots):
            continue
        lines = [f"{_TRACEBACK}\n", *frames.format()] if frames else []
        if worker:
            text = "".join(lines) + worker
        elif (spark := _spark_error(link)) is not None:
            text = "".join(lines) + f"{type(link).__name__}: {of_query or spark}"
        else:
            text = "".join([*lines, *described.format_exception_only()]).rstrip()
        parts += [text, how]
    return "\n\n".join(part for part in parts[:-1] if part)


def _query_traceback(exc: BaseException) -> str:
    """Returns the message of a streaming query's exception if a function of the query has failed:
    it starts with the function's traceback.
    """
    if not type(exc).__module__.startswith("pyspark."):
        return ""
    description = _description(exc).rstrip()
    # text only: how much of a message to show follows from its layout
    return description if description.startswith(_TRACEBACK) else ""


_TRACEBACK = "Traceback (most recent call last):"
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


class _Link(NamedTuple):
    error: BaseException
    transition: str  # the sentence between this error and the next


def _chain(exc: BaseException) -> Iterator[_Link]:
    """Returns the chain of exceptions, from the first cause to `exc`."""
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

# The frame of a stage's last failure in the message of a Spark job that has no cause.
_LOST_TASK = re.compile(r"most recent failure: (?:Lost task [^)]*\)(?: \([^)]*\))*|[^:]*): (.*)")
_JAVA_CLASS = re.compile(r"^(?:[a-z_$][\w$]*\.)+[\w$]*(?:Exception|Error|Throwable)?: ")
_SQLSTATE = re.compile(r"\bSQLSTATE: \w+")
_STACK = re.compile(r"\s+at |\s+\.\.\. \d+ more|Caused by: ")
_ONLY_A_PLACE = ".NO_HINT"  # ends conditions whose message has a place and no reason
_RAISED_BY_USER = "USER_RAISED_EXCEPTION"  # by raise_error(), with a text of the user's
_WRAPPER = "org.apache.spark.SparkException"
_CAUSES_MAX = 20
_NO_REASON = "Spark gave no reason"


class _Thrown(NamedTuple):
    """An exception of Spark's JVM."""

    java_class: str
    message: str
    condition: str  # Spark's name of the error; empty if it has none
    parameters: Mapping[str, str]  # of the condition
    sql_state: str = ""  # of the condition
    expression: str = ""  # whose value is wrong, as the program has it


def _spark_error(exc: BaseException) -> _Described | None:
    """Returns Spark's own message in one line; None if the error is not from Spark or Py4J."""
    module, name = type(exc).__module__, type(exc).__name__
    if not module.startswith(("pyspark.", "py4j.")):
        return None
    if worker := _worker_text(exc):  # a user's function in a Python worker
        kind, _, text = _exception_line(worker).partition(": ")
        return _Described(kind, text)
    if thrown := _thrown_by(exc):
        return _Described("", _reason(thrown))
    if module.startswith("pyspark."):  # raised in Python, or its JVM has ended
        return _Described("", _message(_description(exc)) or _NO_REASON)
    if name in ("Py4JNetworkError", "Py4JJavaError"):
        more = f" ({_first_line(text_of(exc)) or name})" if name == "Py4JNetworkError" else ""
        return _Described("", f"the connection to the slot's Spark JVM is lost{more}")
    lines = text_of(exc).strip().splitlines() or [name]  # the call, then Py4J's own exception
    return _Described("", _JAVA_CLASS.sub("", lines[min(1, len(lines) - 1)]))


def _description(exc: BaseException) -> str:
    """Returns the exception's text, without calling the JVM, which may be dead."""
    return text_of(getattr(exc, "_desc", None) or getattr(exc, "_message", None) or exc)


def _thrown_by(exc: BaseException) -> list[_Thrown]:
    """Returns the JVM's exception and its causes; empty if there is none or the JVM has ended."""
    java = getattr(exc, "java_exception", None)
    if java is None:
        java = getattr(exc, "_origin", None)
    thrown: list[_Thrown] = []
    try:
        while java is not None and len(thrown) < _CAUSES_MAX:
            java_class, message = java.getClass().getName(), java.getMessage() or ""
            condition, parameters = _condition_of(java)
            one = _Thrown(java_class, valid_text(message), condition, parameters)
            thrown.append(_with_state(one, java) if condition else one)
            java = java.getCause()
    except Exception:  # Py4J raises several classes if the JVM has ended
        pass
    return thrown


def _condition(exc: BaseException) -> tuple[str, str]:
    """Returns the condition of an error of Spark's, and its SQLSTATE: of a value that is not valid
    if there is one, for example behind that of its file. Others have none (empty).
    """
    links = (link.error for link in reversed(list(_chain(exc))))
    thrown = [one for error in links for one in _thrown_by(error) if one.condition]
    of_values = (one for one in thrown if one.sql_state.startswith(DATA_EXCEPTION))
    first = next(of_values, next(iter(thrown), None))
    return ("", "") if first is None else (first.condition, first.sql_state)


def _condition_of(java: Any) -> tuple[str, Mapping[str, str]]:
    try:
        condition = java.getCondition()
        parameters = dict(java.getMessageParameters()) if condition else {}
    except Exception:  # not a SparkThrowable
        return "", {}
    return condition or "", {key: valid_text(str(value)) for key, value in parameters.items()}


def _with_state(thrown: _Thrown, java: Any) -> _Thrown:
    """Adds the SQLSTATE and, if a value is not valid, the expression in which Spark found it."""
    try:
        thrown = thrown._replace(sql_state=java.getSqlState() or "")
        if thrown.sql_state.startswith(DATA_EXCEPTION):
            for context in java.getQueryContext():
                place = context.callSite() if str(context.contextType()) == "DataFrame" else ""
                expression = f"{context.fragment()} ({place})" if place else context.fragment()
                return thrown._replace(expression=valid_text(str(expression)))
    except Exception:  # it has no such method
        pass
    return thrown


def _reason(thrown: Sequence[_Thrown]) -> str:
    """Returns the message of the first exception that is not a wrapper. Spark wraps the error of
    a task when a stage fails, and when another thread has waited for it.
    """
    said = [
        one
        for one, cause in zip(thrown, [*thrown[1:], None], strict=True)
        if cause is None or one.condition or one.java_class != _WRAPPER
    ]
    first, last = said[0], said[-1]
    if first.condition == _RAISED_BY_USER:
        return first.parameters.get("errorMessage", "") or _NO_REASON
    reason = _message(first.message)
    lost = _LOST_TASK.search(reason)  # text only: a failed stage without a cause has no condition
    if lost:
        reason = _JAVA_CLASS.sub("", lost[1])
    if first.condition.endswith(_ONLY_A_PLACE) and last is not first:
        reason = f"{reason.rstrip()} ({_message(last.message) or last.java_class})"
    if first.expression:
        reason = f"{reason.strip()}; in the expression {first.expression}"
    return reason.strip() or first.java_class.rpartition(".")[2] or _NO_REASON


def _message(text: str) -> str:
    """Returns the message at the start of the text, in one line.

    It ends with the first line, unless that ends with a colon, or Spark's SQLSTATE follows in a
    later line. A Java stack, or the plan that an AnalysisException shows, does not belong to it.
    """
    lines = text.strip().splitlines()
    if not lines:
        return ""
    # text only: how much of a message to show follows from its layout
    stack = (n for n, line in enumerate(lines) if n and (not line.strip() or _STACK.match(line)))
    lines = lines[: next(stack, len(lines))]
    last = next((n for n, line in enumerate(lines) if _SQLSTATE.search(line)), None)
    if last is None:
        last = len(lines) - 1 if lines[0].rstrip().endswith(":") else 0  # text only: as above
    return " ".join([lines[0], *(line.strip() for line in lines[1 : last + 1])])


def _worker_text(exc: BaseException) -> str:
    """Returns the traceback of a Python worker that Spark quotes; empty if there is none."""
    if not type(exc).__module__.startswith(("pyspark.", "py4j.")):
        return ""
    thrown = _thrown_by(exc)
    quoted = [value for one in thrown for value in one.parameters.values()]
    if not thrown and type(exc).__name__ == "PythonException":  # its JVM has ended
        quoted = [_description(exc)]
    parts = (text.rpartition(_TRACEBACK) for text in quoted)
    return next((f"{marker}{traceback}" for _, marker, traceback in parts if marker), "")


def _exception_line(worker: str) -> str:
    """Returns the line after the last frame of a traceback."""
    block = worker.splitlines()[1:]
    lines = (line.strip() for line in block if line and not line[0].isspace())
    return next(lines, _first_line(worker))


def _worker_traceback(exc: BaseException, roots: tuple[str, ...]) -> str:
    """Returns the user's frames of a Python worker's traceback, then its exception line."""
    worker = _worker_text(exc)
    if not worker:
        return ""
    block = worker.splitlines()[1:]
    kept: list[str] = []
    keep = False
    for line, following in zip(block, [*block[1:], ""], strict=True):
        frame = re.match(r'\s+File "([^"]+)", line (\d+)', line)
        if frame:
            keep = _is_users(frame[1], roots)
        elif line and not line[0].isspace():
            break
        if keep:
            kept.append(line)
        if frame and keep and not following.startswith("    "):
            # The worker has no source of functions that were shipped to this process.
            source = linecache.getline(frame[1], int(frame[2])).strip()
            kept += [f"    {source}"] if source else []
    return "\n".join([_TRACEBACK, *kept, _exception_line(worker)]) if kept else ""


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].strip()

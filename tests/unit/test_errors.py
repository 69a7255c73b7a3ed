from __future__ import annotations

import errno
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import (
    AnalysisException,
    PySparkException,
    PythonException,
    StreamingQueryException,
)

from firesteel.common.config import Configuration
from firesteel.common.error_report import MAX_TEXT_CHARS, error_info, summary_of
from firesteel.common.rpc.convert import ERROR
from firesteel.errors import ErrorInfo, FiresteelError, JobFailed
from taskexecutor.executor.exchange import (
    ExchangeClosed,
    PartitionAbandoned,
    PartitionFailed,
    SchemaChanged,
)


def told(function: Any, *arguments: Any, **more: Any) -> ErrorInfo:
    try:
        function(*arguments)
    except BaseException as error:
        return error_info(error, **more)
    raise AssertionError("nothing was raised")


def user_function(folder: Path, body: str) -> Any:
    """A function from a file of the user's."""
    path = folder / "job.py"
    path.write_text("def run(*arguments):\n" + textwrap.indent(body, "    "))
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["run"]


def frames(info: ErrorInfo) -> list[str]:
    return [
        line.strip()
        for line in info.user_traceback.splitlines()
        if line.lstrip().startswith("File ")
    ]


def test_only_the_users_frames_are_in_the_users_traceback(tmp_path: Path) -> None:
    run = user_function(tmp_path, "import json\nreturn json.loads('{')")
    info = told(run)
    assert info.summary.startswith("JSONDecodeError: Expecting property name")
    assert frames(info) == [
        f'File "{__file__}", line {told.__code__.co_firstlineno + 2}, in told',
        f'File "{tmp_path}/job.py", line 3, in run',
    ]
    assert info.user_traceback.splitlines()[-1] == info.summary.replace(
        "JSONDecodeError", "json.decoder.JSONDecodeError"
    )
    assert "decoder.py" in info.traceback


def test_libraries_between_us_and_the_user_are_left_out(tmp_path: Path) -> None:
    for body in (
        "import pandas as pd\npd.DataFrame({'a': []})['b']",
        "import pyarrow as pa\npa.table({'a': []}).column('b')",
    ):
        info = told(user_function(tmp_path, body))
        assert [
            frame for frame in frames(info) if "job.py" not in frame and __file__ not in frame
        ] == []
        assert "KeyError" in info.summary


def test_without_a_frame_of_the_users_there_is_no_users_traceback() -> None:
    try:
        Configuration({"taskmanager.numberOfTaskSlots": "x"})
    except FiresteelError as error:
        error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr] # without this test's own
        info = error_info(error)
    assert info.user_traceback == ""
    assert info.shown == info.summary
    assert info.summary.startswith("taskmanager.numberOfTaskSlots: 'x' is not allowed")


def test_causes_are_shown_first_cause_first(tmp_path: Path) -> None:
    body = (
        "try:\n"
        "    {}['origin']\n"
        "except KeyError as error:\n"
        "    raise ValueError('no origin') from error"
    )
    run = user_function(tmp_path, body)
    text = told(run).user_traceback
    assert (
        text.index("KeyError: 'origin'")
        < text.index("direct cause")
        < text.index("ValueError: no origin")
    )
    assert text.splitlines()[-1] == "ValueError: no origin"


def test_what_we_wrap_around_a_users_error_does_not_hide_it(tmp_path: Path) -> None:
    run = user_function(tmp_path, "return 1 / 0")
    try:
        try:
            run()
        except ZeroDivisionError as error:
            raise FiresteelError("the function of 'ratio' raised") from error
    except FiresteelError as error:
        error.__traceback__ = None
        info = error_info(error)
    assert info.summary == "the function of 'ratio' raised"
    assert info.user_traceback.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_ring_of_causes_ends(tmp_path: Path) -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert error_info(one).summary == "ValueError: one"


def test_the_users_folders_count_wherever_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "pandas"
    folder.mkdir(parents=True)
    run = user_function(folder, "return {}['x']")
    assert not [frame for frame in frames(told(run)) if "job.py" in frame]
    assert [
        frame for frame in frames(told(run, user_code_roots=[str(tmp_path)])) if "job.py" in frame
    ]


def test_a_syntax_error_shows_its_place(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("flights = env.from_source(\n")
    info = told(compile, path.read_text(), str(path), "exec")
    assert info.summary == "SyntaxError: '(' was never closed (job.py, line 1)"
    assert "flights = env.from_source(" in info.user_traceback
    assert "^" in info.user_traceback


def test_a_full_disk_says_what_to_do() -> None:
    info = error_info(OSError(errno.ENOSPC, "No space left on device", "/data/out"))
    assert info.summary.startswith(
        "the disk is full ([Errno 28] No space left on device: '/data/out'); free"
    )
    assert error_info(pa.ArrowInvalid("first\nsecond")).summary == "ArrowInvalid: first"


class Throwable:
    """A Java exception, as Py4J shows it."""

    def __init__(
        self,
        message: str | None,
        cause: Throwable | None = None,
        *,
        java_class: str = "org.apache.spark.SparkException",
        condition: str | None = None,
        **parameters: str,
    ) -> None:
        self._message = message
        self._cause = cause
        self._class = java_class
        self._condition = condition
        self._parameters = parameters

    def getClass(self) -> Throwable:
        return self

    def getName(self) -> str:
        return self._class

    def getMessage(self) -> str | None:
        return self._message

    def getCause(self) -> Throwable | None:
        return self._cause

    def getCondition(self) -> str | None:
        if not self._class.startswith("org.apache.spark."):
            raise Py4JError("Method getCondition([]) does not exist")
        return self._condition

    def getMessageParameters(self) -> dict[str, str]:
        return self._parameters


class JavaError(Py4JJavaError):
    """An error as Py4J raises it, without a JVM."""

    def __init__(self, thrown: Any) -> None:
        self.java_exception = thrown

    def __str__(self) -> str:
        raise Py4JNetworkError("the JVM has ended")


JavaError.__module__ = Py4JJavaError.__module__
JavaError.__name__ = Py4JJavaError.__name__


class Ended:
    """A Java exception whose JVM has ended."""

    def __getattr__(self, name: str) -> Any:
        raise Py4JNetworkError("An error occurred while trying to connect")


def spark(
    condition: str, message: str, cause: Throwable | None = None, **parameters: str
) -> Throwable:
    return Throwable(message, cause, condition=condition, **parameters)


COLUMN = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `orgin` cannot be resolved."
    " SQLSTATE: 42703"
)
IO = "java.io.IOException"
ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure:"
    " Lost task 0.0 in stage 3.0 (TID 3) (host executor driver): java.lang.ArithmeticException:"
    " / by zero\n\tat a.b(C.java)\n\nDriver stacktrace:\n"
)
RAISED = "[USER_RAISED_EXCEPTION] row 7 is bad SQLSTATE: P0001"


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (AnalysisException(f"{COLUMN};\n'Project ['orgin]\n+- Range"), f"{COLUMN};"),
        (JavaError(spark("X", "[X] no.")), "[X] no."),
        (JavaError(Throwable(ABORTED)), "/ by zero"),
        (
            JavaError(Throwable(ABORTED, Throwable("as said", java_class=IO))),
            "as said",
        ),
        (
            JavaError(
                Throwable(
                    "der andere Thread hat nichts geliefert",
                    spark(
                        "READ.NO_HINT",
                        "[READ.NO_HINT] Error while reading file x.  SQLSTATE: K",
                        Throwable(
                            "x is not a Parquet file", java_class="java.lang.RuntimeException"
                        ),
                    ),
                )
            ),
            "[READ.NO_HINT] Error while reading file x.  SQLSTATE: K (x is not a Parquet file)",
        ),
        (
            JavaError(Throwable("one", Throwable("two", Throwable("Illegal", java_class=IO)))),
            "Illegal",
        ),
        (
            JavaError(Throwable(None, java_class="java.lang.NullPointerException")),
            "NullPointerException",
        ),
        (
            Py4JNetworkError("Answer is empty"),
            "the connection to the slot's Spark JVM is lost (Answer is empty)",
        ),
        (JavaError(Ended()), "the connection to the slot's Spark JVM is lost"),
        (
            Py4JError(
                "An error occurred while calling o1.x. Trace:\npy4j.Py4JException: Method x([])"
                " does not exist\n\tat py4j.reflection\n"
            ),
            "Method x([]) does not exist",
        ),
        (Py4JError("An error occurred while calling o1.x"), "An error occurred while calling o1.x"),
        (
            JavaError(spark("USER_RAISED_EXCEPTION", RAISED, errorMessage="row 7 is bad")),
            "row 7 is bad",
        ),
        (
            JavaError(
                spark(
                    "CANNOT_MERGE_SCHEMAS",
                    "[CANNOT_MERGE_SCHEMAS] Failed merging schemas:\nInitial schema:\n"
                    '"STRUCT<n: INT>"\nSchema that cannot be merged with the initial schema:\n'
                    '"STRUCT<n: BIGINT>". SQLSTATE: 42KD9\n\tat a.b(C.java)',
                )
            ),
            "[CANNOT_MERGE_SCHEMAS] Failed merging schemas: Initial schema: "
            '"STRUCT<n: INT>" Schema that cannot be merged with the initial schema: '
            '"STRUCT<n: BIGINT>". SQLSTATE: 42KD9',
        ),
        (
            JavaError(
                Throwable(
                    "a wrapper", spark("X", "[X] These do not fit:\n  a\n  b\n\tat a.b(C.java)")
                )
            ),
            "[X] These do not fit: a b",
        ),
        (PySparkException("[CANNOT_PARSE] bad type `strin`"), "[CANNOT_PARSE] bad type `strin`"),
    ],
)
def test_sparks_errors_are_shown_in_its_own_words(error: BaseException, summary: str) -> None:
    assert error_info(error).summary == summary


def test_a_users_function_inside_spark_shows_its_own_lines() -> None:
    quoted = textwrap.dedent("""\
        [PYTHON_EXCEPTION] An exception was thrown from the Python worker. See the stack trace.
        Traceback (most recent call last):
          File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 1, in main
            process()
          File "/home/ada/job.py", line 7, in ratio
            return a / b
                   ~~^~~
        ZeroDivisionError: division by zero
        SQLSTATE: 38000""")
    info = error_info(PythonException(quoted))
    assert info.summary == "ZeroDivisionError: division by zero"
    assert info.user_traceback.splitlines() == [
        "Traceback (most recent call last):",
        '  File "/home/ada/job.py", line 7, in ratio',
        "    return a / b",
        "           ~~^~~",
        "ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize(
    ("state", "contexts", "shown"),
    [
        ("22012", [("SQL", "a / b", "")], "; in the expression a / b"),
        ("22018", [("DataFrame", "cast", "job.py:7")], "; in the expression cast (job.py:7)"),
        ("22012", [], ""),
        ("42703", [("SQL", "orgin", "")], ""),
        (None, [("SQL", "a / b", "")], ""),
    ],
)
def test_the_expression_of_a_wrong_value_is_shown(
    state: str | None, contexts: Sequence[tuple[str, str, str]], shown: str
) -> None:
    thrown: Any = spark("CONDITION", "[CONDITION] It is wrong. SQLSTATE: x")
    thrown.getSqlState = lambda: state
    thrown.getQueryContext = lambda: [
        SimpleNamespace(
            contextType=lambda kind=kind: kind,
            fragment=lambda text=text: text,
            callSite=lambda place=place: place,
        )
        for kind, text, place in contexts
    ]
    info = error_info(JavaError(thrown))
    assert info.summary == f"[CONDITION] It is wrong. SQLSTATE: x{shown}"
    assert (info.condition, info.sql_state) == ("CONDITION", state or "")
    assert info.of_program == (state is not None and state.startswith("22"))


def test_a_value_that_is_not_valid_is_found_behind_its_file() -> None:
    cause: Any = spark("MALFORMED_RECORD_IN_PARSING", "[MALFORMED_RECORD_IN_PARSING] It is.")
    cause.getSqlState = lambda: "22023"
    thrown: Any = spark("FAILED_READ_FILE.NO_HINT", "[FAILED_READ_FILE.NO_HINT] a.json", cause)
    thrown.getSqlState = lambda: "KD001"
    info = error_info(JavaError(thrown))
    assert (info.condition, info.sql_state) == ("MALFORMED_RECORD_IN_PARSING", "22023")


def test_a_users_function_is_found_behind_sparks_wrappers() -> None:
    quoted = (
        "Traceback (most recent call last):\n"
        '  File "/home/ada/job.py", line 7, in ratio\n'
        "    return a / b\n"
        "ZeroDivisionError: division by zero\n"
    )
    thrown = spark("PYTHON_EXCEPTION", f"[PYTHON_EXCEPTION] {quoted}", traceback=quoted)
    info = error_info(JavaError(spark("TASK_WRITE_FAILED", "[TASK_WRITE_FAILED] no.", thrown)))
    assert info.condition == "TASK_WRITE_FAILED"
    assert info.summary == "ZeroDivisionError: division by zero"
    assert info.user_traceback.splitlines()[1:] == quoted.splitlines()[1:]


def test_a_module_that_a_slot_lacks_says_what_slots_have() -> None:
    missing = ModuleNotFoundError("kein Modul namens 'mine'")
    assert "; tasks import what is installed on the cluster" in summary_of(missing)
    quoted = "Traceback (most recent call last):\n  ...\nModuleNotFoundError: kein Modul"
    worker = JavaError(spark("PYTHON_EXCEPTION", "", traceback=quoted))
    assert "; tasks import what is installed on the cluster" in summary_of(worker)
    assert "tasks import" not in summary_of(ValueError("ModuleNotFoundError: No module named x"))


def test_lines_that_a_spark_worker_lacks_are_added(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def ratio(a, b):\n    return a / b\n")
    quoted = (
        "An exception was thrown from the Python worker.\n"
        "Traceback (most recent call last):\n"
        f'  File "{tmp_path}/job.py", line 2, in ratio\n'
        "ZeroDivisionError: division by zero\n"
    )
    lines = error_info(PythonException(quoted)).user_traceback.splitlines()
    assert lines[2:] == ["    return a / b", "ZeroDivisionError: division by zero"]


def test_the_lines_of_a_worker_are_shown_once(tmp_path: Path) -> None:
    """PySpark adds a worker's frames to the exception that it raises."""
    run = user_function(tmp_path, "raise error")
    quoted = (
        "Traceback (most recent call last):\n"
        f'  File "{tmp_path}/job.py", line 2, in run\n'
        "    raise error\n"
        "ZeroDivisionError: division by zero"
    )

    def fail(kind: type[PySparkException], message: str) -> None:
        run.__globals__["error"] = kind(message)
        run()

    of_worker = told(fail, PythonException, f"From the Python worker.\n{quoted}")
    of_query = told(fail, StreamingQueryException, f"{quoted}\nquery 'q' failed")
    for info in (of_worker, of_query):
        assert [line for line in frames(info) if "job.py" in line] == [
            f'File "{tmp_path}/job.py", line 2, in run'
        ]
    assert of_query.user_traceback.endswith(f"StreamingQueryException: {quoted}\nquery 'q' failed")


def test_what_is_too_long_keeps_both_ends(tmp_path: Path) -> None:
    info = told(user_function(tmp_path, "raise ValueError('x' * 10**6 + 'the end')"))
    assert len(info.summary) < 3_000
    assert len(info.user_traceback) < MAX_TEXT_CHARS + 100
    assert info.user_traceback.startswith("Traceback")
    assert info.user_traceback.endswith("the end")


def test_an_error_survives_its_message() -> None:
    info = told(pd.DataFrame, 1, location="host, TaskExecutor 1, slot 0", task_name="Map (1/2)#0")
    assert (info.location, info.task_name) == ("host, TaskExecutor 1, slot 0", "Map (1/2)#0")
    assert info.timestamp_ms > 0
    assert ERROR.decode(ERROR.encode(info)) == info


def test_a_failed_job_says_why() -> None:
    info = ErrorInfo(
        summary="KeyError: 'x'",
        user_traceback="Traceback ...\nKeyError: 'x'",
        task_name="Map (1/2)#0",
    )
    assert str(JobFailed("0" * 32, "delays", info)) == (
        f"job {'0' * 32} (delays) failed in Map (1/2)#0: KeyError: 'x'\n"
        "Traceback ...\nKeyError: 'x'"
    )
    assert str(JobFailed("0" * 32)) == f"job {'0' * 32} failed"


def test_a_place_that_a_caret_points_at_stays_in_the_summary() -> None:
    assert (
        summary_of(FiresteelError("unknown column m\n  max(m)\n      ^"))
        == "unknown column m\n  max(m)\n      ^"
    )
    assert summary_of(FiresteelError("unknown column m\nand more")) == "unknown column m"


SURROGATE = "\ud83d"  # as of json.loads and os.fsdecode


class WithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError(SURROGATE)

    __repr__ = __str__


class RaisingNotes(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise SystemExit(SURROGATE)


def raised_from(cause: BaseException) -> None:
    try:
        raise cause
    except BaseException as error:
        raise ValueError("the consequence") from error


def raised(error: BaseException) -> None:
    raise error


def with_notes(*notes: Any) -> ValueError:
    error = ValueError("noted")
    error.__notes__ = [*notes]
    return error


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (ValueError(SURROGATE), r"ValueError: \ud83d"),
        (ValueError("a\0b"), r"ValueError: a\x00b"),
        (WithoutText(), "WithoutText: <WithoutText without text: __str__ raised RuntimeError>"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (with_notes(SURROGATE, WithoutText()), "ValueError: noted"),
        (RaisingNotes("x"), "RaisingNotes, which cannot be described: SystemExit"),
        (
            BaseExceptionGroup(SURROGATE, [WithoutText()]),
            r"ExceptionGroup: \ud83d (1 sub-exception)",
        ),
        (FiresteelError(SURROGATE), r"\ud83d"),
        (PythonException(SURROGATE, {}), r"\ud83d"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_an_exception_does_its_report_can_be_sent(
    error: BaseException, summary: str
) -> None:
    for how in (raised, raised_from):
        info = told(how, error, location=SURROGATE, task_name=SURROGATE)
        assert ERROR.decode(ERROR.encode(info)) == info
        if how is raised:
            assert info.summary.startswith(summary)
        assert type(error).__name__ in info.traceback
        assert __file__ in info.traceback


LOST = PartitionFailed(result_id="r", producer=1, attempt=0, address="a:1", reason="it died")


@pytest.mark.parametrize(
    ("error", "consequence"),
    [
        (LOST, True),
        (PartitionAbandoned(result_id="r", producer=1, consumer=0, reason="it died"), True),
        (ExchangeClosed("the partition was aborted"), True),
        (FiresteelError("PartitionFailed: the producer failed"), False),
        (SchemaChanged("PartitionFailed"), False),
    ],
)
def test_the_class_of_an_error_says_whether_another_task_has_ended(
    error: Exception, consequence: bool
) -> None:
    info = error_info(error)
    assert info.consequence is consequence
    wrapper = FiresteelError("the task cannot continue")
    wrapper.__cause__ = error
    assert error_info(wrapper).consequence is consequence
    assert ERROR.decode(ERROR.encode(info)) == info


def test_a_consequence_has_no_frame_of_the_user(tmp_path: Path) -> None:
    function = user_function(tmp_path, "raise ValueError() from arguments[0]")
    assert not told(function, LOST, user_code_roots=[str(tmp_path)]).consequence

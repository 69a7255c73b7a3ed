"""No decision depends on the words of an error: the check of `make lint` finds those that do."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from scripts.message_tests import findings

ROOT = Path(__file__).resolve().parents[2]


def found(source: str, path: str = "module.py") -> list[int]:
    """Returns the lines."""
    return [finding.line for finding in findings(textwrap.dedent(source), path)]


TESTS = {
    "in str": 'if "standby" in str(error): ...',
    "not in repr": 'if "standby" not in repr(error): ...',
    "in details": 'if "limit" in error.details(): ...',
    "in details or nothing": 'if "limit" in (error.details() or ""): ...',
    "details are equal": 'if error.details() == "no": ...',
    "details differ": 'if "no" != error.details(): ...',
    "one of several": 'if str(error) in ("a", "b"): ...',
    "startswith": 'if str(error).startswith("no"): ...',
    "endswith of the first line": 'if str(error).splitlines()[0].endswith("no"): ...',
    "find in lower case": 'if str(error).lower().find("no") >= 0: ...',
    "argument": 'if error.args[0] == "no": ...',
    "format": 'if "no" in f"{error}!": ...',
    "strerror": 'if error.strerror == "No space left on device": ...',
    "the driver's error": 'if "duplicate key" in str(error.orig): ...',
    "the driver's error, or the error": 'if "x" in str(getattr(error, "orig", error)): ...',
    "the cause": 'if "no" in str(error.__cause__): ...',
    "of Java": 'if thrown.getMessage().startswith("Exception thrown in awaitResult"): ...',
    "search": 're.search("no", str(error))',
    "compiled": "PATTERN.fullmatch(str(error))",
    "match": "match str(error):\n    case 'no' | 'never': ...",
    "summary": 'if "NOT_FOUND" in summary_of(error): ...',
    "comprehension": 'any("no" in line for line in str(error).splitlines())',
    "conditional": 'a = 1 if "no" in str(error) else 2',
    "assertion": 'assert "no" in str(error)',
}


@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_a_test_of_a_message_is_found(test: str) -> None:
    assert found(f"import re\n\n{test}\n") == [3]
    for before in ("try:\n    work()\nexcept OSError as error:\n", "def of(error: OSError):\n"):
        source = before + textwrap.indent(test, "    ")
        assert found(source) == [before.count("\n") + 1]
    renamed = re.sub(r"\berror\b", "problem", test)
    if not re.search(r"thrown|\.orig|__cause__", test):  # which only errors have
        assert not found(renamed), "it is not an error"
    source = "try:\n    work()\nexcept OSError as problem:\n" + textwrap.indent(renamed, "    ")
    assert found(source) == [4]


def test_a_message_is_found_in_variables_and_in_parameters() -> None:
    assert found("""\
        def of(error):
            code, text = error.code(), error.details() or error.code().name
            if "limit" in text:
                return None
            first = text.splitlines()[0]
            return is_away(first) or helper.refused(said=first)

        def is_away(text: str) -> bool:
            return any(words in text for words in ("GOAWAY", "Socket closed"))

        def refused(said: str) -> bool:
            return said.startswith("this Dispatcher")

        def of_a_file(text: str) -> bool:
            return text.startswith("PAR1")
        """) == [3, 9, 12]


def test_a_message_is_found_in_what_a_function_returns() -> None:
    assert found("""\
        def reason(error):
            return str(error).strip()

        def first(problem: Exception):
            return reason(problem) == "gone"
        """) == [5]


def test_what_is_no_message_is_not_found() -> None:
    assert not found("""\
        import errno

        def of(error: OSError, name: str, text: str):
            if error.errno == errno.ENOSPC or "x" in name or text.startswith("y"):
                return str(error)
            if error.code() is UNAVAILABLE or reason_of(error) is Reason.NOT_LEADER:
                return f"{name}: {error}".splitlines()[0]
            if job.details() == other.details() or error.filename.endswith(".csv"):
                return error.details() or ""
            if error.getCondition() == "UNRESOLVED_COLUMN" or error.pgcode.startswith("08"):
                return error.args
            return str(error) or type(error).__name__
        """)


def test_a_name_that_gets_another_value_is_no_message() -> None:
    assert not found("""\
        def of(error):
            text = str(error)
            log(text)
            text = "a" + "b"
            return "a" in text
        """)


@pytest.mark.parametrize(
    ("comment", "allowed"),
    [
        ("# text only: the library has nothing else", True),
        ("# text only", False),
        ("# text only:", False),
        ("# noqa", False),
    ],
)
def test_an_exception_is_marked_with_its_reason(comment: str, allowed: bool) -> None:
    for source in (
        f'if "no" in str(error):  {comment}\n    pass\n',
        f'{comment}\nif "no" in str(error):\n    pass\n',
        f'found = any(\n    "no" in line  {comment}\n    for line in str(error).split()\n)\n',
    ):
        assert (not found(source)) is allowed
    assert found(f'a = 1  {comment}\nif "no" in str(error):\n    pass\n') == [2]


def test_calls_are_ended_with_a_reason() -> None:
    abort = "async def call(request, context):\n    await context.abort(CODE, 'no')\n"
    assert found(abort) == [2]
    assert found(abort.replace("context.", "self._context.")) == [2]
    assert not found(abort, "/somewhere/firesteel/common/rpc/status.py")
    assert not found("partition.abort('it was released')\n")


def test_the_command_names_file_and_line_and_fails(tmp_path: Path) -> None:
    def run(*paths: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "scripts/message_tests.py", *map(str, paths)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    (tmp_path / "right.py").write_text("a = 1\n")
    (tmp_path / "wrong.py").write_text('\nif "no" in str(error): ...\n')
    ended = run(tmp_path)
    assert ended.returncode == 1
    place = f"{tmp_path}/wrong.py:2: "
    assert ended.stdout == f"{place}a comparison with the text of an error\n"
    assert (run(tmp_path / "right.py").returncode, run().returncode) == (0, 0)


def test_the_services_have_no_such_test() -> None:
    services = ("dispatcher", "firesteel", "jobmaster", "resourcemanager", "taskexecutor")
    files = [file for service in services for file in sorted((ROOT / service).rglob("*.py"))]
    assert not [f for file in files for f in findings(file.read_text(), str(file))]

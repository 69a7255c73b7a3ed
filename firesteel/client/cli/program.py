"""Runs a user's job file as `python` does, so that its errors look the same."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from firesteel.client.execution_context import ExecutionContext, StopProgram, active
from firesteel.common.error_report import error_info
from firesteel.errors import FiresteelError, JobCanceled, JobFailed
from firesteel.plan import deferred_columns


class ProgramFailed(FiresteelError):
    """The job file has an error; the message is the user's traceback."""


def run_program(path: Path, arguments: Sequence[str], context: ExecutionContext) -> None:
    """Runs the file as `__main__` in the context, and closes the context.

    Raises ProgramFailed, JobFailed, JobCanceled; SystemExit as the program itself raised it.
    """
    deferred_columns.install()  # also for a program that imports PySpark before Firesteel
    with active(context), _as_main(path, arguments):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except StopProgram:
            return
        except (JobFailed, JobCanceled):
            raise
        except FiresteelError as error:
            raise _placed(error, path) from error
        except SystemExit as exit_:
            if exit_.code in (None, 0) and not context.executed:
                raise _nothing_executed(path) from None
            raise
        except Exception as error:
            raise _failed(error, path) from error
    if not context.executed:
        raise _nothing_executed(path)


def check_syntax(path: Path) -> None:
    """Raises ProgramFailed, before anything is started for the file."""
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        text = "".join(traceback.format_exception_only(error)).rstrip()
        raise ProgramFailed(f"{path.name} is not valid Python:\n{text}") from None
    except (OSError, ValueError) as error:
        raise ProgramFailed(f"{path} cannot be read as Python: {error}") from None


@contextlib.contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, search_path = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = search_path


def _nothing_executed(path: Path) -> ProgramFailed:
    return ProgramFailed(
        f"{path.name} never called env.execute(): nothing was run;"
        ' end the program with env.execute("a name")'
    )


def _failed(error: Exception, path: Path) -> ProgramFailed:
    info = error_info(error, user_code_roots=(str(path.resolve().parent),))
    return ProgramFailed(f"{path.name} failed:\n{info.user_traceback or info.summary}")


def _placed(error: FiresteelError, path: Path) -> FiresteelError:
    """Adds the line of the job file in which the error was raised, if there is one."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    if not frames:
        return error
    line = f"\n    {frames[-1].line}" if frames[-1].line else ""
    return ProgramFailed(f"{path.name}, line {frames[-1].lineno}: {error}{line}")

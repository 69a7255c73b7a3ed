"""Runs a user's job file as `python` does, so that its errors look the same."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.client.cli.own_spark import OwnSpark, SparkRefused, own_spark
from firesteel.client.execution_context import ExecutionContext, StopProgram, active
from firesteel.client.signals import is_ending
from firesteel.client.spark_programs.detection import is_pyspark_program
from firesteel.common.config import options
from firesteel.common.error_report import error_info
from firesteel.common.globs import not_readable
from firesteel.errors import FiresteelError, JobCanceled, JobFailed
from firesteel.plan import deferred_columns

if TYPE_CHECKING:
    from firesteel.client.spark_programs.front_process import FrontProcess


class ProgramFailed(FiresteelError):
    """The job file has an error; the message is the user's traceback."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Describes a run of a program that ended without an exception."""

    exit_code: object = None  # the argument of sys.exit: None, a number, or an object to print
    jobs: int = 0  # the number of executed jobs
    masters: Sequence[str] = ()  # masters of Spark that the program used in this process
    connected: bool = False  # a PySpark program that has used sessions of the run

    def notice(self, path: Path) -> str:
        """Explains where a program without jobs ran; empty if it executed one, or ran its queries
        by a session of the run.
        """
        if self.jobs or self.connected:
            return ""
        where = f" on its own Spark ({', '.join(self.masters)})" if self.masters else ""
        return (
            f"{path.name} ran as an ordinary Python program in this process{where}. It submitted no"
            " job to Firesteel, because it never called env.execute()."
        )


def run_program(path: Path, arguments: Sequence[str], context: ExecutionContext) -> Ran:
    """Runs the file as `__main__` in the context, and closes the context.

    In the mode "plan-only", the program stops at the first job that it executes. Before, it may
    create DataFrames of Spark but must not call their actions. Otherwise, a PySpark program gets
    sessions of Spark Connect, whose streaming queries are jobs. Raises ProgramFailed, also for a
    pipeline that is never executed, JobFailed or JobCanceled.
    """
    plan_only = context.mode == "plan-only"
    code: object = None
    with (
        active(context),
        _as_main(path, arguments),
        _spark_of(path, context, refuse=plan_only) as spark,
        _sessions_of(path, context) as front,
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except (StopProgram, SparkRefused):
            pass
        except (JobFailed, JobCanceled):
            raise
        except FiresteelError as error:
            raise _placed(error, path) from error
        except KeyboardInterrupt:
            context.cancel_collecting()
            raise
        except SystemExit as exit_:
            code = exit_.code
            if is_ending(code):
                context.cancel_collecting()
        except Exception as error:
            raise _failed(error, path) from error
    if code in (None, 0) and not context.executed:
        if any(graph.nodes for graph in context.graphs):
            raise _not_executed(path, "it built a pipeline, and no job was run")
        if plan_only:
            raise _not_executed(path, "there is no plan to show")
    return Ran(code, len(context.executed), spark.masters, connected=bool(front and front.used))


@contextlib.contextmanager
def _sessions_of(path: Path, context: ExecutionContext) -> Iterator[FrontProcess | None]:
    """Prepares PySpark for the program, by whether it is a PySpark program."""
    if context.mode == "plan-only" or not is_pyspark_program(path):
        with deferred_columns.installed():  # functions may be used before Environment()
            yield None
        return
    if context.overrides.get(options.RECOVERY_PATH.key):
        raise ProgramFailed(
            f"{path.name} is a PySpark program, whose queries continue from their"
            f" checkpointLocation: run it without -s ({options.RECOVERY_PATH.key})"
        )
    from firesteel.client.spark_programs.compatibility import connect_sessions
    from firesteel.client.spark_programs.front_process import FrontProcess

    front = FrontProcess(path, context)
    try:
        with connect_sessions(front):
            yield front
    finally:
        front.stop()


@contextlib.contextmanager
def _spark_of(path: Path, context: ExecutionContext, *, refuse: bool) -> Iterator[OwnSpark]:
    """Raises ProgramFailed if Spark was refused, however the program handled it."""
    with own_spark(path, refuse=refuse) as spark:
        try:
            yield spark
        finally:
            if spark.refusal and not context.executed:
                raise ProgramFailed(
                    "`firesteel info` runs nothing on Spark, but the program calls an action of"
                    f" Spark before it executes a job: {spark.refusal}"
                ) from None


def check_syntax(path: Path) -> None:
    """Raises ProgramFailed for an invalid file, before anything is started for it."""
    if kind := not_readable(str(path)):
        raise ProgramFailed(f"{path} is {kind}; a program is a regular file")
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


def _not_executed(path: Path, consequence: str) -> ProgramFailed:
    return ProgramFailed(
        f"{path.name} never called env.execute(): {consequence};"
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

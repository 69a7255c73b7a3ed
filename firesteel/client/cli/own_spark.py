"""The use that a program makes of Spark in its own process, apart from Firesteel's jobs.

Every way to Spark leads through a SparkContext or `SparkSession.builder`: pyspark.sql, RDDs,
pyspark.pandas and Spark Connect.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class SparkRefused(BaseException):
    """The program may not use Spark. Not an Exception, so that programs do not catch it."""


@dataclass(slots=True)
class OwnSpark:
    masters: list[str] = field(default_factory=list)  # of the sessions that the program created
    refusal: str = ""  # where it tried to create one; empty: nowhere


@contextlib.contextmanager
def own_spark(program: Path, *, refuse: bool) -> Iterator[OwnSpark]:
    """Observes whether code inside the `with` creates a SparkContext or a SparkSession.

    `refuse`: creating one raises SparkRefused before anything of Spark starts.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    use = OwnSpark()

    def entry(original: Callable[..., Any], master_of: Callable[..., str]) -> Any:
        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            if refuse:
                use.refusal = use.refusal or _place(program)
                raise SparkRefused
            made = original(*arguments, **named)
            master = master_of(arguments[0] if made is None else made)
            if master not in use.masters:
                use.masters.append(master)
            return made

        return call

    context, session = SparkContext.__init__, SparkSession.Builder.getOrCreate
    setattr(SparkContext, "__init__", entry(context, lambda made: str(made.master)))  # noqa: B010
    setattr(SparkSession.Builder, "getOrCreate", entry(session, _master_of_session))  # noqa: B010
    try:
        yield use
    finally:
        setattr(SparkContext, "__init__", context)  # noqa: B010
        setattr(SparkSession.Builder, "getOrCreate", session)  # noqa: B010


def _master_of_session(session: Any) -> str:
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return "Spark Connect"
    return str(session.sparkContext.master)


def _place(program: Path) -> str:
    """The line of the program that leads here; of a module that it imports, if there is none."""
    frames = [frame for frame in traceback.extract_stack() if frame.filename == str(program)]
    if not frames:
        return program.name
    line = f":\n    {frames[-1].line}" if frames[-1].line else ""
    return f"{program.name}, line {frames[-1].lineno}{line}"

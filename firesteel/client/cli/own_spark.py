"""Observes a program's use of Spark in its own process, apart from Firesteel's jobs.

Every use of Spark involves a SparkContext or `SparkSession.builder`: pyspark.sql, RDDs,
pyspark.pandas and Spark Connect.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WRITER = "save insertInto saveAsTable json parquet text csv xml orc jdbc"
_WRITER_V2 = "create replace createOrReplace append overwrite overwritePartitions"
_FRAME = (
    "approxQuantile checkpoint collect corr count cov crosstab first foreach foreachPartition"
    " freqItems head isEmpty localCheckpoint show tail take toArrow toLocalIterator toPandas"
)
# The methods that run a Spark job for their result, or have an effect outside the session.
ACTIONS = {
    "pyspark.sql.classic.dataframe.DataFrame": _FRAME,
    "pyspark.sql.readwriter.DataFrameWriter": _WRITER,
    "pyspark.sql.readwriter.DataFrameWriterV2": _WRITER_V2,
    "pyspark.sql.merge.MergeIntoWriter": "merge",
    "pyspark.sql.streaming.readwriter.DataStreamWriter": "start toTable",
    "pyspark.sql.catalog.Catalog": "analyzeTable createDatabase createExternalTable createTable"
    " dropDatabase dropTable dropView recoverPartitions truncateTable",
    "pyspark.core.context.SparkContext": "runJob",
    "pyspark.core.rdd.RDD": "aggregate collect collectAsMap collectWithJobGroup count countApprox"
    " countApproxDistinct countByKey countByValue first fold foreach foreachPartition histogram"
    " isEmpty lookup max mean meanApprox min reduce reduceByKeyLocally sampleStdev sampleVariance"
    " saveAsHadoopDataset saveAsHadoopFile saveAsNewAPIHadoopDataset saveAsNewAPIHadoopFile"
    " saveAsPickleFile saveAsSequenceFile saveAsTextFile stats stdev sum sumApprox take takeOrdered"
    " takeSample toLocalIterator top treeAggregate treeReduce variance",
}
# Imported only for a session of Spark Connect, because the import is slow.
CONNECT_ACTIONS = {
    "pyspark.sql.connect.dataframe.DataFrame": _FRAME,
    "pyspark.sql.connect.readwriter.DataFrameWriter": _WRITER,
    "pyspark.sql.connect.readwriter.DataFrameWriterV2": _WRITER_V2,
    "pyspark.sql.connect.merge.MergeIntoWriter": "merge",
    "pyspark.sql.connect.streaming.readwriter.DataStreamWriter": "start toTable",
}
# These describe a DataFrame or an RDD, and may run Spark jobs to determine its schema or
# partitions.
DESCRIPTIONS = {
    "pyspark.sql.session.SparkSession": "createDataFrame",
    "pyspark.core.rdd.RDD": "sortBy sortByKey zipWithIndex",
}
SQL = ("pyspark.sql.session.SparkSession", "pyspark.sql.connect.session.SparkSession")

_NO_STATEMENT = re.compile(
    r"""(?:--[^\n]*|/\*.*?\*/|\s|\()+|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`""", re.S
)
_READING = re.compile(
    r"(SELECT|VALUES|TABLE|FROM|WITH|MAP|REDUCE|SHOW|DESC|DESCRIBE|EXPLAIN|SET|RESET|USE|LIST"
    r"|DECLARE|DROP (TEMP|TEMPORARY)|REFRESH|CACHE LAZY|UNCACHE|CLEAR CACHE"
    r"|CREATE (OR REPLACE )?(GLOBAL )?(TEMP|TEMPORARY))\b",
    re.I,
)
_INSERT = re.compile(r"\bINSERT (INTO|OVERWRITE)\b", re.I)


class SparkRefused(BaseException):
    """The program must not run this on Spark. Not an Exception, so that programs do not catch
    it.
    """


@dataclass(slots=True)
class OwnSpark:
    masters: list[str] = field(default_factory=list)  # of the sessions that the program created
    refusal: str = ""  # the first action that was refused, and its place; empty: none


@contextlib.contextmanager
def own_spark(program: Path, *, refuse: bool) -> Iterator[OwnSpark]:
    """Observes whether code inside the `with` block creates a SparkContext or a SparkSession.

    With `refuse`, an action raises SparkRefused before Spark runs anything for it. Sessions,
    DataFrames and RDDs may be created.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    use = OwnSpark()
    with contextlib.ExitStack() as patches:
        refusals = _Refusals(program, use, patches) if refuse else None

        def observed(original: Callable[..., Any], master_of: Callable[..., str]) -> Any:
            @functools.wraps(original)
            def call(*arguments: Any, **named: Any) -> Any:
                made = original(*arguments, **named)
                master = master_of(arguments[0] if made is None else made)
                if master not in use.masters:
                    use.masters.append(master)
                if refusals is not None and master == _CONNECT:
                    refusals.install(CONNECT_ACTIONS, SQL[1])
                return made

            return call

        _patch(patches, SparkContext, "__init__", lambda f: observed(f, lambda m: str(m.master)))
        _patch(
            patches,
            SparkSession.Builder,
            "getOrCreate",
            lambda f: observed(f, _master_of_session),
        )
        if refusals is not None:
            refusals.install(ACTIONS, SQL[0])
            refusals.let(DESCRIPTIONS)
        yield use


class _Refusals:
    """Replaces methods of PySpark until the stack of `patches` is closed."""

    def __init__(self, program: Path, use: OwnSpark, patches: contextlib.ExitStack) -> None:
        self._program = program
        self._use = use
        self._patches = patches
        self._installed: set[str] = set()
        self._describing = threading.local()

    def install(self, actions: dict[str, str], session: str) -> None:
        if session in self._installed:
            return
        self._installed.add(session)
        for owner in actions:
            for name in actions[owner].split():
                self._patch(owner, name, self._refusing(f"{owner.rpartition('.')[2]}.{name}()"))
        self._patch(session, "sql", self._checking_statement)

    def let(self, descriptions: dict[str, str]) -> None:
        for owner in descriptions:
            for name in descriptions[owner].split():
                self._patch(owner, name, self._letting)

    def _patch(self, owner: str, name: str, replacement: Callable[[Any], Any]) -> None:
        module, _, class_name = owner.rpartition(".")
        _patch(
            self._patches,
            getattr(importlib.import_module(module), class_name),
            name,
            replacement,
        )

    def _refusing(self, action: str) -> Callable[[Any], Any]:
        def replacement(original: Callable[..., Any]) -> Any:
            @functools.wraps(original)
            def call(*arguments: Any, **named: Any) -> Any:
                if getattr(self._describing, "depth", 0):
                    return original(*arguments, **named)
                raise self._refused(action)

            return call

        return replacement

    def _checking_statement(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def sql(session: Any, sqlQuery: str, *arguments: Any, **named: Any) -> Any:
            if not only_reads(sqlQuery):
                raise self._refused("SparkSession.sql() with a statement that has an effect")
            return original(session, sqlQuery, *arguments, **named)

        return sql

    def _letting(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            self._describing.depth = getattr(self._describing, "depth", 0) + 1
            try:
                return original(*arguments, **named)
            finally:
                self._describing.depth -= 1

        return call

    def _refused(self, action: str) -> SparkRefused:
        self._use.refusal = self._use.refusal or f"{action} in {_place(self._program)}"
        return SparkRefused()


def only_reads(statement: str) -> bool:
    """Whether `SparkSession.sql` only analyses a query, reads the catalog or changes the session
    for this statement.
    """
    text = _NO_STATEMENT.sub(" ", statement).strip()
    return bool(_READING.match(text)) and not _INSERT.search(text)


def _patch(
    patches: contextlib.ExitStack, owner: type, name: str, replacement: Callable[[Any], Any]
) -> None:
    original = getattr(owner, name)
    own = name in vars(owner)
    setattr(owner, name, replacement(original))
    patches.callback(*((setattr, owner, name, original) if own else (delattr, owner, name)))


_CONNECT = "Spark Connect"


def _master_of_session(session: Any) -> str:
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return _CONNECT
    return str(session.sparkContext.master)


def _place(program: Path) -> str:
    """Returns the program's line that leads here, or that of an imported module if there is
    none.
    """
    frames = [frame for frame in traceback.extract_stack() if frame.filename == str(program)]
    if not frames:
        return program.name
    line = f":\n    {frames[-1].line}" if frames[-1].line else ""
    return f"{program.name}, line {frames[-1].lineno}{line}"

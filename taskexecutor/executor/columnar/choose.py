"""Decides whether rows are read and computed by Spark, by Arrow, or by Firesteel's own code.

Spark reads and computes everything. The faster ways are taken only where their results are exactly
Spark's. Each rule here is a function of facts. It returns why the faster way is excluded, or an
empty text if it may be taken:

    rule             faster way                          otherwise
    ---------------  ----------------------------------  -------------------------------------------
    arrow_reads      Arrow reads the source's files      Spark's readers do
    scan_is_cached   a cached plan over Spark's readers  a plan is made for the files of each bundle
    fits_one_task    the calling thread runs the bundle  a Spark job on all cores does
    columns_pass     Arrow columns in shared memory      Arrow messages, row by row
    source_columns   Arrow's columns enter a plan        Spark reads and computes in one plan
    grouped_outside  Firesteel groups the plan's rows    the plan does
    leave_ungrouped  rows are merged after the exchange  they are grouped before

Two decisions depend on content. Arrow's readers leave a file or a block to Spark whenever the two
might read it differently (`readers.pieces.Differs`). A plan is cached if running it repeatedly is
sound (`cached_plans.reusable_plan`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import pyarrow as pa

from firesteel.common.units import MIB
from firesteel.connectors.file_source import LISTING_OPTIONS, FileSource
from taskexecutor.executor.columnar.schemas import is_plain

# How `firesteel show --full` names the ways.
ARROW, SPARK, ARROW_OR_SPARK = "Arrow", "Spark", "Arrow, or Spark by content"
CACHED_PLAN, NEW_PLAN = "Spark, cached plan", "Spark, plan per bundle"
ONE_TASK, ONE_JOB = "Spark, one task for all rows", "Spark, one job for all rows"
SELECTION = "Firesteel, selects columns"
GROUPING = "Firesteel, groups columns"
CACHED_PLAN_AND_GROUPING = f"{CACHED_PLAN}; {GROUPING}"
PYTHON = "Python"

WHOLE_BYTES = 32 * MIB  # larger bundles whose rows are related can only spill in a job
BUNDLE_ROWS = 100_000  # larger bundles of a slot with several cores run on all of them, as a job
FEW_ROWS = 1_000  # they are merged faster than Spark creates its hash table for an aggregate
MOST_CSV_COLUMNS = 20_000  # Spark's limit is 20480

_ARROW_FORMATS = ("csv", "parquet")
_FILE_COLUMN = "_metadata"  # hidden, about a row's file, unless the files have a column of the name
CSV_SEPARATORS = {",": ",", ";": ";", "|": "|", "\t": "\t", "\\t": "\t"}
# By lower-case option: the values for which Arrow reads like Spark; None: all values.
_CSV_OPTIONS: dict[str, tuple[str, ...] | None] = {
    "header": ("true", "false"),
    "sep": tuple(CSV_SEPARATORS),
    "delimiter": tuple(CSV_SEPARATORS),
    "nullvalue": None,
    "quote": ('"',),
    "escape": ("\\", '"'),
    "encoding": ("utf-8", "utf8"),
    "charset": ("utf-8", "utf8"),
    "mode": ("permissive",),
    "multiline": ("false",),
    "enforceschema": ("true",),
    "inferschema": None,  # already done
    "samplingratio": None,
    "ignoreleadingwhitespace": ("false",),
    "ignoretrailingwhitespace": ("false",),
}
# These do not affect how a file is read.
_PARQUET_OPTIONS = frozenset({"basepath", "mergeschema", "recursivefilelookup"})
_MORE_CORES = "a Spark job uses more cores"


class Slot(Protocol):
    """The facts of a slot."""

    cores: int

    @property
    def is_local(self) -> bool:
        """Whether the slot's JVM runs its plans."""

    def setting(self, name: str) -> str:
        """Returns the session's value of a setting of Spark."""


def arrow_reads(
    source: FileSource, schema: pa.Schema, folder_columns: Collection[str], slot: Slot
) -> str:
    """Decides whether Arrow reads the files of a source. `folder_columns` are the columns given by
    the files' paths.
    """
    if source.format not in _ARROW_FORMATS:
        return f"Arrow does not read {source.format}"
    if _is_distributed(slot):
        return _MORE_CORES
    if not _distinct(schema.names):
        return "two columns have one name"
    if _FILE_COLUMN in schema.names:
        return f"the column {_FILE_COLUMN} may be Spark's"
    for name in folder_columns:
        if name not in schema.names or not is_plain(schema.field(name).type):
            return f"folders give the column {name}"
    in_files = pa.schema([field for field in schema if field.name not in folder_columns])
    if source.format == "csv":
        return _arrow_reads_csv(source, schema, in_files, slot)
    for option in source.options:
        if option.lower() not in _PARQUET_OPTIONS:
            return f"the option {option}"
    if slot.setting("spark.sql.files.ignoreCorruptFiles").lower() == "true":
        return "spark.sql.files.ignoreCorruptFiles skips unreadable files"
    return ""


def _arrow_reads_csv(source: FileSource, schema: pa.Schema, in_files: pa.Schema, slot: Slot) -> str:
    if slot.setting("spark.sql.legacy.timeParserPolicy").upper() == "LEGACY":
        return "spark.sql.legacy.timeParserPolicy is LEGACY"
    if slot.setting("spark.sql.columnNameOfCorruptRecord") in schema.names:
        return "malformed rows are returned in a column"
    for name, value in ((key.lower(), value) for key, value in source.options.items()):
        if name not in _CSV_OPTIONS:
            return f"the option {name}"
        allowed = _CSV_OPTIONS[name]
        if allowed is not None and value not in allowed and value.lower() not in allowed:
            return f"the option {name} is {value!r}"
    if len(in_files) > MOST_CSV_COLUMNS:
        return f"there are {len(in_files)} columns"
    for field in in_files:
        if not is_plain(field.type):
            return f"column {field.name!r} is {field.type}"
    return ""


def scan_is_cached(source: FileSource, slot: Slot) -> str:
    """Decides whether one plan over Spark's readers may read any of the source's files."""
    if options := spark_lists_files(source):
        return f"the option {options[0]} chooses among files"
    return _MORE_CORES if _is_distributed(slot) else ""


def spark_lists_files(source: FileSource) -> list[str]:
    """Returns the options with which Spark omits files when it lists them."""
    return sorted(LISTING_OPTIONS.intersection(map(str.lower, source.options)))


def fits_one_task(rows: int, size_bytes: int, cores: int, *, whole: bool) -> str:
    """Decides whether the calling thread runs a bundle. `whole`: the plan relates the rows of the
    bundle to each other.
    """
    if whole and size_bytes > WHOLE_BYTES:
        return f"{size_bytes} bytes are related to each other, which only a job can spill"
    return _MORE_CORES if rows > BUNDLE_ROWS and cores > 1 else ""


def columns_pass(schema: pa.Schema, *, enter: bool, leave: bool = True) -> str:
    """Decides how the rows of a bundle enter and leave a cached plan. `enter` and `leave`: the
    JVM's half supports the types of the rows and of the results.
    """
    if not _distinct(schema.names):
        return "two columns have one name"
    if not enter:
        return "its rows have columns that Spark cannot read from Arrow"
    return "" if leave else "its results have columns that Spark cannot write to Arrow"


def source_columns(*, enter: bool, leave: bool = True, asks_for_file: bool = False) -> str:
    """Decides whether the columns that Arrow has read may enter the operators' plan."""
    if not enter:
        return "its rows cannot enter and leave Spark as columns"
    if not leave:
        return "its results do not leave Spark as columns"
    return "it reads the name of a row's file" if asks_for_file else ""


def grouped_outside(*, numbers: bool, leave: bool, unchanged: bool = False) -> str:
    """Decides whether Firesteel groups the rows of a partial aggregate. `numbers`: they only
    contribute numbers, which Spark's generated code aggregates fastest. `unchanged`: these are
    columns of the source, so that Spark has nothing to compute.
    """
    if not leave:
        return "its rows do not leave Spark as columns"
    return "" if unchanged or not numbers else "Spark aggregates numbers as fast"


def leave_ungrouped(rows: int) -> str:
    """Decides whether the rows of a bundle leave a partial aggregate without being grouped."""
    return "" if rows <= FEW_ROWS else "groups are fewer than rows"


def computed_by(*, spark: bool, grouped: bool) -> str:
    """Returns how a cached plan computes."""
    if grouped:
        return CACHED_PLAN_AND_GROUPING if spark else GROUPING
    return CACHED_PLAN if spark else SELECTION


def _is_distributed(slot: Slot) -> bool:
    return slot.cores > 1 or not slot.is_local


def _distinct(names: Collection[str]) -> bool:
    return len({name.lower() for name in names}) == len(names)

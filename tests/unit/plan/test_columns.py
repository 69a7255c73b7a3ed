"""PySpark's functions in a program, without a JVM."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pandas as pd
import pytest
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType

from firesteel import Environment
from firesteel.errors import InvalidProgram
from firesteel.operators import PartialWindowAggregateSpec, RunningAggregateSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.plan.column_sql import expression_sql

Environment()  # from here on, functions of PySpark work without a session


@F.udf("string")
def loud(text):
    return text.upper()


@F.udf(returnType=StringType())
def quiet(text):
    return text.lower()


@F.pandas_udf("double")
def doubled(values: pd.Series) -> pd.Series:
    return values * 2


@pytest.mark.parametrize(
    ("function", "kind"), [(loud, StringType), (quiet, StringType), (doubled, DoubleType)]
)
def test_a_function_of_module_level_is_shipped_without_a_session(function: Any, kind: type) -> None:
    shipped = cloudpickle.loads(cloudpickle.dumps(lambda df: function(df)))
    assert callable(shipped)
    assert isinstance(function.returnType, kind)


@pytest.mark.parametrize(
    ("ddl", "shown"),
    [
        ("array<double>", "array<double>"),
        ("a int, b string", "struct<a:int,b:string>"),
        ("DECIMAL(10, 2)", "decimal(10,2)"),
    ],
)
def test_return_types_are_parsed_without_a_session(ddl: str, shown: str) -> None:
    assert F.udf(lambda value: value, ddl).returnType.simpleString() == shown


def test_an_unknown_return_type_is_refused() -> None:
    with pytest.raises(InvalidProgram, match=r"'strin' is not a type.*StringType\(\)"):
        F.udf(lambda value: value, "strin")


@pytest.mark.parametrize(
    ("column", "sql"),
    [
        (lambda: F.sum("x"), "sum(x)"),
        (lambda: F.count("*"), "count(*)"),
        (lambda: F.countDistinct("a", "b"), "count(DISTINCT a, b)"),
        (lambda: F.max("case"), "max(`case`)"),
        (lambda: F.first("x", True), "first(x, true)"),
        (lambda: F.first("x"), "first(x)"),
        (
            lambda: F.sum(F.col("x") * 2) / F.count(F.lit(1)) - 0.5,
            "((sum((x * 2)) / count(1)) - 0.5D)",
        ),
        (
            lambda: F.sum(F.when(F.col("x") > 1, "it's").when(F.isnull("y"), "b").otherwise(None)),
            "sum(CASE WHEN (x > 1) THEN 'it\\'s' WHEN isnull(y) THEN 'b' ELSE NULL END)",
        ),
        (lambda: F.max(F.struct("price", "article")), "max(struct(price, article))"),
        (lambda: F.sum(F.col("x").cast(LongType())), "sum(CAST(x AS bigint))"),
        (lambda: F.sum(F.col("s.x").cast("int")), "sum(CAST(s.x AS int))"),
        (lambda: F.count_if(~F.col("x").isin(1, 2)), "count_if((NOT (x IN (1, 2))))"),
        (lambda: F.expr("sum(x)"), "(sum(x))"),
        (
            lambda: F.percentile_approx("x", [0.5, 0.9]),
            "percentile_approx(x, array(0.5D, 0.9D), 10000)",
        ),
    ],
)
def test_columns_have_sql_text(column: Callable[[], Column], sql: str) -> None:
    assert expression_sql("aggregate", column()) == sql
    (parsed,) = parse_aggregates([column().alias("it")], time_column="at")
    assert parsed.name == "it"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (lambda: F.max(loud("x")).alias("m"), r"loud\(\) is a user-defined function.*transform"),
        (lambda: F.max(F.transform("x", lambda v: v)).alias("m"), "SQL text"),
        (lambda: 3, "as text, or Columns such as"),
    ],
)
def test_what_has_no_sql_text_is_refused(column: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        parse_aggregates([column()])


def test_names_are_quoted_where_sql_needs_it() -> None:
    columns = [F.sum("x").alias("the sum"), F.max("x").alias("null")]
    assert [expression_sql("aggregate", column) for column in columns] == [
        "sum(x) AS `the sum`",
        "max(x) AS `null`",
    ]
    assert [item.name for item in parse_aggregates(columns)] == ["the sum", "null"]


def test_columns_and_text_give_the_same_aggregates() -> None:
    columns = parse_aggregates([F.sum("x").alias("s"), F.count("*").alias("n")])
    assert columns == parse_aggregates(["sum(x) AS s", "count(*) AS n"])


def test_a_program_takes_columns() -> None:
    env = Environment(parallelism=2)
    rows = env.from_sequence(0, 10).filter(F.col("value") > 1)
    rows.key_by("value").aggregate(F.count("*").alias("n")).print()
    graph = env.job_graph("columns")
    names = [operator.name for vertex in graph.vertices for operator in vertex.operators]
    assert names[1] == "Filter((value > 1))"
    specs = [
        cloudpickle.loads(operator.spec)
        for vertex in graph.vertices
        for operator in vertex.operators
    ]
    for spec in specs:
        if isinstance(spec, (PartialWindowAggregateSpec, RunningAggregateSpec)):
            assert [item.sql for item in spec.aggregates] == ["count(*) AS n"]


def test_a_recorded_column_is_shown_by_its_calls() -> None:
    assert str(F.col("x") > 1) == "Column<'col('x').gt(1)'>"


PYSPARK = """
import logging
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column, functions as F, types, udf, utils
from pyspark.sql.classic import column, table_arg, window
from pyspark.sql.functions import builtin, partitioning

OWNERS = (
    *(types, udf, utils, column, table_arg, window, builtin, partitioning),
    *(Column, column.Column, udf.UserDefinedFunction),
)

def attributes():
    return [dict(vars(owner)) for owner in OWNERS]

def works():
    try:
        F.udf(len, "int")(F.col("x").cast(types.LongType()))
    except PySparkRuntimeError:
        return False
    return True

original = attributes()
logging.basicConfig(level="DEBUG", format="%(message)s")
"""


def in_new_process(program: str) -> str:
    """Returns the log of a program, which must not fail."""
    ended = subprocess.run(
        [sys.executable, "-c", PYSPARK + program], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_an_import_leaves_pyspark_unchanged_and_the_first_environment_says_what_it_does() -> None:
    log = in_new_process("""
import firesteel, firesteel.connectors, firesteel.client.cli
from firesteel import DataStream, Environment
assert attributes() == original
assert not works()
logging.info("imported")
Environment()
assert attributes() != original
assert works()
Environment()
""")
    before, after = log.split("imported\n")
    assert "PySpark" not in before
    assert after.count("PySpark's functions work without a SparkContext from now on") == 1


def test_a_run_of_a_program_restores_pyspark() -> None:
    in_new_process("""
from firesteel import Environment
from firesteel.plan.deferred_columns import installed
with installed():
    assert works()  # before any Environment, as `firesteel run` promises
    Environment()
    kept = F.col("x") + 1
assert attributes() == original
assert str(kept) == "Column<'col('x').plus(1)'>"
Environment()
with installed():
    pass
assert works()  # the program's own Environment keeps its effect
""")

"""A newcomer's wrong programs, and the message that each gets: one line that names the thing, the
place in the program (the line marked `# <-`) and what to do.

Most are refused where they are written or before data flows; the last ones fail while they run.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from firesteel.client.cli import main

from .conftest import Session, firesteel

BEGINNING = """\
import datetime

import pyarrow as pa
from pyspark.sql import functions as F

from firesteel import Environment, Tumbling, Watermarks
from firesteel.connectors import CollectSink, FileSink, FileSource, PostgresSink, SequenceSource

COLUMNS = "time TIMESTAMP, shop STRING, article STRING, pieces INT, price DOUBLE"
env = Environment()


def csv(path="sales.csv"):
    return FileSource(path, format="csv", header=True, schema=COLUMNS)


def sales():
    return env.from_source(csv(), watermarks=Watermarks.bounded("time"))

"""
DAYS = 'sales().key_by("shop").window(Tumbling("1 day"))'

REFUSED_AT_ONCE = {
    "a forgotten sink": (
        'sales().filter("pieces > 1")  # <-',
        r"no sink: the rows of 'Filter\(pieces > 1\)' .* go nowhere; end a stream with sink_to",
    ),
    "a sink's class": (
        "sales().sink_to(CollectSink)  # <-",
        r"sink_to\(\) takes a Sink, such as FileSink or CollectSink, not type",
    ),
    "a path for a source": (
        'env.from_source("sales.csv").print()  # <-',
        r"from_source\(\) takes a Source, such as FileSource or PythonSource, not str",
    ),
    "a misspelt option": (
        'env.from_source(FileSource("sales.csv", format="csv", hedaer=True)).print()  # <-',
        "format csv has no option 'hedaer'; did you mean header?",
    ),
    "an option of another format": (
        'env.from_source(FileSource("sales", format="parquet", header=True)).print()  # <-',
        "format parquet has no option 'header'; omit it",
    ),
    "a misspelt argument": (
        'env.from_source(FileSource("sales.csv", format="csv", malfromed="drop")).print()  # <-',
        "format csv has no option 'malfromed'; did you mean malformed?",
    ),
    "a misspelt choice": (
        'env.from_source(FileSource("sales.csv", format="csv", malformed="ignore")).print()  # <-',
        "malformed is 'ignore'; allowed: fail, drop, side_output",
    ),
    "a forgotten format": (
        'env.from_source(FileSource("sales.csv")).print()  # <-',
        "missing 1 required keyword-only argument: 'format'",
    ),
    "a forgotten alias": (
        f'{DAYS}.aggregate("sum(pieces) / count(*)").print()  # <-',
        r"aggregate\(\): .*AS",
    ),
    "a column outside of aggregates": (
        f'{DAYS}.aggregate("pieces AS p").print()  # <-',
        r"column pieces must be inside an aggregate \(count, sum",
    ),
    "a misspelt function": (
        f'{DAYS}.aggregate("cuont(*) AS n").print()  # <-',
        "unknown function cuont; did you mean count?",
    ),
    "a Python function among Spark's": (
        """
        @F.udf("int")
        def twice(n):
            return 2 * n
        sales().key_by("shop").aggregate(F.sum(twice("pieces")).alias("n")).print()  # <-
        """,
        r"twice\(\) is a user-defined function.* call it in an earlier transform",
    ),
    "a window without event time": (
        'env.from_source(csv()).key_by("shop").window(Tumbling("1 day"))  # <-',
        r"its sources have no watermarks; give the source watermarks=Watermarks.bounded\(...\)",
    ),
    "a window without keys": (
        'sales().window(Tumbling("1 day")).aggregate("count(*) AS n").print()  # <-',
        r"DataStream has no window; call key_by\(...\) first",
    ),
    "a window that is not aggregated": (
        f"{DAYS}.print()  # <-",
        r"WindowedStream has no print; call aggregate\(...\) or apply\(...\) first",
    ),
    "a misspelt duration": (
        'sales().key_by("shop").window(Tumbling("1 houre"))  # <-',
        "the size of a Tumbling window is '1 houre'; specify a duration such as '1 day'",
    ),
    "a number for a duration": (
        'Watermarks.bounded("time", max_out_of_orderness=5)  # <-',
        "max_out_of_orderness is 5; specify a duration such as '1 day'",
    ),
    "pandas' square brackets": (
        'sales().filter(sales()["pieces"] > 1).print()  # <-',
        r"stream\['pieces'\]: a stream is not a DataFrame.* Name the column in SQL",
    ),
    "a loop over a stream": (
        "for row in sales(): print(row)  # <-",
        r"a stream cannot be iterated over.* use execute_and_collect\(iterate=",
    ),
    "pandas' groupby": (
        'sales().groupby("shop").sum()  # <-',
        r'DataStream has no groupby; use key_by\("column"\)',
    ),
    "SQL for a function": (
        """sales().transform("pieces > 1").print()  # <-""",
        r"transform\(\) takes a function, not str",
    ),
    "a function of too few arguments": (
        "sales().foreach_batch(lambda df: df.show())  # <-",
        r"foreach_batch\(\) takes a function of two arguments, not <lambda>\(df\): too many",
    ),
    "a class for a processor": (
        """
        from pyspark.sql.streaming import StatefulProcessor
        class Last(StatefulProcessor): pass
        sales().key_by("shop").transform_with_state(Last, "shop STRING")  # <-
        """,
        r"takes a StatefulProcessor, not its class: Last\(...\)",
    ),
    "a generator in a lambda": (
        """
        ids = iter(n for n in range(3))
        sales().map_in_arrow(lambda it: [next(ids)] and it).print()  # <-
        """,
        r"cannot be shipped: .* refers to 'ids' \(generator\) .*create it inside the function",
    ),
    "one uid twice": (
        """
        sales().filter("pieces > 1", uid="more").filter("price > 1", uid="more").print()  # <-
        """,
        "the uid 'more' is used by two operators.* give one of them a different",
    ),
    "a misspelt key of the configuration": (
        """
        env = Environment(configuration={"paralelism.default": "2"})
        env.from_sequence(0, 9).print()
        env.execute("with warnings as errors")  # <-
        """,
        "unknown configuration key paralelism.default, .* did you mean parallelism.default?",
    ),
    "a bad value in the configuration": (
        """
        env = Environment(configuration={"parallelism.default": "two"})
        env.from_sequence(0, 9).print()
        env.execute()  # <-
        """,
        "parallelism.default: 'two' is not allowed; expected a whole number",
    ),
    "a parallelism in quotes": (
        'sales().print().set_parallelism("2")  # <-',
        "parallelism is '2'; it must be a whole number of at least 1",
    ),
    "an upsert without a key": (
        'sales().sink_to(PostgresSink("postgresql://db/shop", "sales", mode="upsert"))  # <-',
        r'key=\["column", ...\] is required with mode="upsert", and only there',
    ),
    "a path that is not local": (
        'sales().sink_to(FileSink("s3://bucket/sales"))  # <-',
        "the file system 's3' is not supported yet; use a local path",
    ),
    "an end before the start": (
        "env.from_sequence(10, 0).print()  # <-",
        "end must not be before start",
    ),
    "a file to ship that is not there": (
        'env.add_python_file("helper.py")  # <-',
        r"add_python_file\('helper.py'\): there is no such file",
    ),
}

REFUSED_BEFORE_DATA_FLOWS = {
    "a misspelt column in SQL": (
        'sales().filter("peices > 1").print()  # <-',
        "`peices` cannot be resolved. Did you mean .*`pieces`",
    ),
    "a misspelt column in a function": (
        """
        def taxed(df):
            return df.withColumn("taxed", F.col("pirce") * 1.19)
        sales().transform(taxed).print()  # <-
        """,
        "`pirce` cannot be resolved. Did you mean .*`price`",
    ),
    "a misspelt column in an aggregate": (
        f'{DAYS}.aggregate("sum(peices) AS n").print()  # <-',
        r"aggregate\('sum\(peices\) AS n'\): .*`peices` cannot be resolved",
    ),
    "a misspelt method in a function": (
        'sales().transform(lambda df: df.wher("pieces > 1")).print()  # <-',
        "`wher` is not supported",
    ),
    "SQL that does not parse": (
        'sales().filter("pieces > ").print()  # <-',
        "Syntax error at or near end of input",
    ),
    "a condition that is not boolean": (
        'sales().filter("pieces").print()  # <-',
        'Filter expression "pieces" of type "INT" is not a boolean',
    ),
    "a key that the window has dropped": (
        f'{DAYS}.aggregate("count(*) AS n").key_by("article").aggregate("sum(n) AS n").print()  # <-',
        r'key_by\("article"\): no such column; the stream has: shop, window_start, window_end, n',
    ),
    "event time in a column of texts": (
        """
        texts = sales().transform(lambda df: df.withColumn("time", df.time.cast("string")))
        texts.assign_timestamps_and_watermarks(Watermarks.bounded("time")).print()  # <-
        """,
        "'time' is string, but event time must be a timestamp; read it as TIMESTAMP",
    ),
    "event time in a column that is not there": (
        'env.from_source(csv(), watermarks=Watermarks.bounded("tiem")).print()  # <-',
        "column 'tiem': no such column; .* did you mean 'time'?",
    ),
    "event time without a time zone": (
        """
        env = Environment(configuration={"spark.sql.session.timeZone": "Asia/Tokyo"})
        local = FileSource("sales.csv", format="csv", header=True, schema="time TIMESTAMP_NTZ")
        env.from_source(local, watermarks=Watermarks.bounded("time")).print()  # <-
        """,
        "'time' is timestamp_ntz, which is not an instant while .* is Asia/Tokyo; read it as TIMESTAMP",
    ),
    "a forgotten return": (
        """
        def large(df):
            df.where("pieces > 1")
        sales().transform(large).print()  # <-
        """,
        r"transform\(large\) returned NoneType; it must return a pyspark.sql.DataFrame",
    ),
    "a transform that is not row by row": (
        'sales().transform(lambda df: df.groupBy("shop").count()).print()  # <-',
        r"groupBy \(Aggregate\) works on one bundle of rows .*; use key_by",
    ),
    "a transform that counts its rows": (
        """
        def shares(df):
            return df.withColumn("share", F.lit(1 / df.count()))
        sales().transform(shares).print()  # <-
        """,
        r"count\(\) \(job.py, line 21\) works on one bundle of rows at a time.*; use window_all",
    ),
    "an aggregate of updates": (
        """
        totals = sales().key_by("shop", "article").aggregate("sum(pieces) AS pieces", name="Totals")
        totals.key_by("shop").aggregate("sum(pieces) AS pieces").print()  # <-
        """,
        r"it would count each update of 'Totals' \(job.py, line 20\) as an additional row.*; make it",
    ),
    "a join with a stream": (
        """
        others = env.from_sequence(0, 9)
        others.print()
        sales().transform(lambda df: df.join(others, "shop")).print()  # <-
        """,
        r"used where PySpark takes a DataFrame; to combine streams, use union\(...\) or connect",
    ),
    "a union of different columns": (
        "sales().union(env.from_sequence(0, 9)).print()  # <-",
        "the streams that are united have different columns: time .*; value int64",
    ),
    "a file that does not exist": (
        'env.from_source(csv("sale.csv")).print()  # <-',
        "source path '.*/sale.csv' does not exist; correct the path",
    ),
    "an unknown format": (
        'env.from_source(FileSource("sales.csv", format="excel")).print()  # <-',
        "as excel: there is no such format; Spark supports csv, json",
    ),
    "an unknown format to write": (
        'sales().sink_to(FileSink("out/sales", format="xlsx"))  # <-',
        "FileSink cannot write format 'xlsx'; allowed: csv, json, orc, parquet, text",
    ),
    "an unknown type in a source's schema": (
        'env.from_source(FileSource("sales.csv", format="csv", schema="shop STRNG")).print()  # <-',
        "FileSource schema 'shop STRNG' does not parse: .*STRNG",
    ),
    "an unknown type in a function's schema": (
        'sales().map_in_arrow(iter, "shop STRNG").print()  # <-',
        "MapInArrow.*: its schema 'shop STRNG' does not parse: .*STRNG",
    ),
    "an unknown type of a state": (
        """
        from firesteel import CoProcessFunction
        class Counts(CoProcessFunction):
            def open(self, context):
                self.count = context.get_state("count", "BIGNT")
        keyed = sales().connect(sales()).key_by("shop", "shop")
        keyed.co_process(Counts(), "shop STRING").print()  # <-
        """,
        r"Counts\.open failed: state 'count': its schema 'BIGNT' does not parse: ",
    ),
    "lists in CSV": (
        """
        lists = sales().transform(lambda df: df.selectExpr("array(pieces) AS list"))
        lists.sink_to(FileSink("out/lists", format="csv"))  # <-
        """,
        "column 'list' is list<.*>, which CSV cannot hold; use parquet or json",
    ),
    "two sinks on one path": (
        """
        sales().sink_to(FileSink("out/same"))
        env.from_sequence(0, 9).sink_to(FileSink("out/same"))  # <-
        """,
        r"/out/same is the folder of two sinks with different columns .*; give each sink a",
    ),
    "a database that is down": (
        'sales().sink_to(PostgresSink("postgresql://me:secret@127.0.0.1:1/db", "sales"))  # <-',
        r"cannot connect to postgresql://\*+@127.0.0.1:1/db: .*Connection refused",
    ),
    "a function that is shipped by name": (
        """
        import functools
        @functools.cache
        def twice(n):
            return 2 * n
        sales().map_in_arrow(lambda batches: [twice(2)] and batches).print()  # <-
        """,
        r"'twice' is shipped by its name only.* ship a module with it \(--py-files\)",
    ),
}

FAILED_WHILE_RUNNING = {
    "a module that is not installed": (
        """
        def imported(batches):
            import nonsuch
            return batches
        sales().map_in_arrow(imported).print()  # <-
        """,
        "No module named 'nonsuch'; tasks import what is installed .* --py-requirements",
    ),
    "columns that were not declared": (
        'sales().map_in_arrow(lambda it: (b.select(["shop"]) for b in it)).print()  # <-',
        "the function yielded another schema than it declares: expected time .*; got shop string",
    ),
    "values of another type": (
        """
        def numbers(batches):
            for batch in batches:
                yield batch.select(["shop"])
        sales().map_in_arrow(numbers, "shop INT").print()  # <-
        """,
        "expected shop int32; got shop string; column 'shop': Failed to parse string: 'north'",
    ),
    "times without a zone": (
        """
        def now(batches):
            for batch in batches:
                times = [datetime.datetime(2024, 3, 1)] * batch.num_rows
                yield pa.record_batch({"at": times})
        sales().map_in_arrow(now, "at TIMESTAMP").print()  # <-
        """,
        r"column 'at': its times have no zone.* datetime.now\(timezone.utc\), or .*TIMESTAMP_NTZ",
    ),
    "a filter for rows": (
        "sales().filter(lambda row: row.pieces > 1).print()  # <-",
        "'pyarrow.lib.RecordBatch' object has no attribute 'pieces'",
    ),
    "rows for batches": (
        "sales().map_in_arrow(lambda it: (r for b in it for r in b.to_pylist())).print()  # <-",
        "the function yielded dict; it must yield pyarrow.RecordBatch",
    ),
    "a text that is not a number": (
        """
        def number(df):
            return df.withColumn("number", F.col("shop").cast("int"))
        sales().transform(number).print()  # <-
        """,
        'The value \'north\' of the type "STRING" cannot be cast to "INT".*Use `try_cast`',
    ),
}

PROGRAMS = {**REFUSED_AT_ONCE, **REFUSED_BEFORE_DATA_FLOWS, **FAILED_WHILE_RUNNING}
assert len(PROGRAMS) >= 60


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sales.csv").write_text(
        "time,shop,article,pieces,price\n2024-03-01 09:00:00,north,steel,2,7.5\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, program: str) -> int:
    """Writes job.py; returns the number of the line that is marked."""
    text = BEGINNING + textwrap.dedent(program).strip() + "\n"
    if "env.execute(" not in program:
        text += 'env.execute("wrong")\n'
    (folder / "job.py").write_text(text)
    (line,) = (n for n, words in enumerate(text.splitlines(), 1) if words.endswith("# <-"))
    return line


def check(folder: Path, what: str, *arguments: str) -> str:
    """Runs the command on the program; returns what it prints of the error."""
    program, message = PROGRAMS[what]
    line = written(folder, program)
    run = CliRunner().invoke(main, [*arguments, "job.py"])
    assert run.exit_code == 1, run.output
    lines = run.stderr.splitlines()
    told = [words for words in lines if re.search(message, words)]
    assert told, run.stderr
    traceback = f'File "job.py", line {line}, in <module>'  # above Python's own errors
    placed = f"job.py, line {line}" in told[-1] or any(traceback in words for words in lines)
    assert placed, run.stderr
    assert "taskexecutor/" not in run.stderr, "no frames of ours"
    return run.stderr


@pytest.mark.parametrize("what", REFUSED_AT_ONCE)
def test_a_program_that_is_refused_where_it_is_written(folder: Path, what: str) -> None:
    check(folder, what, "info")


@pytest.mark.parametrize("what", REFUSED_BEFORE_DATA_FLOWS)
def test_a_program_that_is_refused_before_data_flows(
    session: Session, folder: Path, what: str
) -> None:
    assert " failed in " not in check(folder, what, "run", "-m", session.address)


@pytest.mark.parametrize("what", FAILED_WHILE_RUNNING)
def test_a_program_that_fails_while_it_runs(session: Session, folder: Path, what: str) -> None:
    assert " failed in Source" in check(folder, what, "run", "-m", session.address)


def test_a_role_that_the_database_does_not_know(
    session: Session, folder: Path, postgres: str
) -> None:
    url = postgres.replace("postgresql://postgres:", "postgresql://stranger:secret")
    line = written(folder, f'sales().sink_to(PostgresSink("{url}", "sales"))  # <-')
    run = CliRunner().invoke(main, ["run", "-m", session.address, "job.py"])
    assert f"job.py, line {line}: PostgresSink: cannot connect to" in run.stderr
    assert 'role "stranger" does not exist' in run.stderr
    assert "secret" not in run.stderr


def test_a_dataframe_of_a_session_outside_of_functions(session: Session, folder: Path) -> None:
    """Runs in a separate process, which has a JVM."""
    line = written(
        folder,
        """
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
        prices = spark.range(9).withColumnRenamed("id", "price")
        sales().transform(lambda df: df.join(prices, "price")).print()  # <-
        """,
    )
    run = firesteel("run", "-m", session.address, "job.py", cwd=folder)
    assert run.returncode == 1
    assert re.search(
        rf"'Transform' \(job.py, line {line}\) cannot be shipped: .*"
        r"refers to 'prices' \(DataFrame\).* create it inside the function",
        run.stderr,
    )

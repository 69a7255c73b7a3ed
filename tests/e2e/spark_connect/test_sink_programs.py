"""PySpark programs whose queries are run again: their sinks continue where they were. The programs
run one after the other in one front, and then again in another one.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Session, firesteel
from tests.kafka.broker import Kafka
from tests.kafka.records import Record, create_topic, produce, read

# Runs programs, each of them with a new session. The front ships modules that this file imports.
ALL = """
    import json, runpy, sys, traceback

    from pyspark.sql import SparkSession
    import naming

    for path, *arguments in json.loads(sys.argv[1]):
        print("program", path, flush=True)
        sys.argv = [path, *arguments]
        try:
            runpy.run_path(path, run_name="__main__")
        except BaseException:
            print("program failed", traceback.format_exc(), flush=True)
        SparkSession.active().stop()
"""
COUNTS = """
    import json, sys

    from pyspark.sql import SparkSession
    import naming

    spark = SparkSession.builder.getOrCreate()
    folder, factor = sys.argv[1], 10
    words = spark.readStream.schema("word string").json(f"{folder}/in")

    def note(df, batch_id):
        kind = naming.kind(df)
        assert df.sparkSession.range(2).count() == spark.range(2).count()
        rows = {row.word: row["count"] * factor for row in df.collect()}
        with open(f"{folder}/calls", "a") as file:
            file.write(json.dumps([kind, batch_id, rows]) + "\\n")

    def start():
        writer = words.groupBy("word").count().writeStream.outputMode("update").foreachBatch(note)
        return writer.option("checkpointLocation", f"{folder}/state")

    query = start().trigger(availableNow=True).start()
    print("id", query.id)
    query.awaitTermination()
    query = start().start()
    try:
        start().start()
    except Exception as error:
        print("twice", type(error).__name__, error)
    query.stop()
    print("active", query.isActive)
"""
BROKEN = """
    import os, sys

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    folder = sys.argv[1]
    spark.conf.set("spark.sql.streaming.checkpointLocation", f"{folder}/state")
    numbers = spark.readStream.schema("n long").json(f"{folder}/in")

    def note(df, batch_id):
        values = sorted(row.n for row in df.collect())
        if 13 in values and not os.path.exists(f"{folder}/mended"):
            raise ValueError("13 is broken")
        with open(f"{folder}/calls", "a") as file:
            file.write(f"{batch_id} {values}\\n")

    query = numbers.writeStream.foreachBatch(note).queryName("numbers").start()
    try:
        query.processAllAvailable()
        with open(f"{folder}/in/{sys.argv[2]}.json", "w") as file:
            file.write('{"n": %s}\\n' % sys.argv[2])
        query.processAllAvailable()
        query.stop()
    except Exception as error:
        print("failed", "13 is broken" in str(error), error)
"""
TOPICS = """
    import sys

    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    servers, source, target, folder = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    records = kafka.option("subscribe", source).option("startingOffsets", "earliest").load()
    doubled = records.select((F.col("value").cast("string").cast("long") * 2).alias("n"))
    writer = doubled.selectExpr("cast(n as string) AS value").writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", target)
    query = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
    query.awaitTermination()
    print("ended", query.exception())

    def copy(df, batch_id):
        for sign in "-1", "-2":
            copied = df.selectExpr(f"concat('{sign}', value) AS value").write.format("kafka")
            copied.option("kafka.bootstrap.servers", servers).option("topic", target).save()

    writer = records.selectExpr("cast(value as string) AS value").writeStream.foreachBatch(copy)
    writer = writer.option("checkpointLocation", f"{folder}-copies").trigger(availableNow=True)
    writer.start().awaitTermination()
"""
RECORDS = """
    import json, sys

    from pyspark.sql import SparkSession

    servers, source, target = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()

    def read(**options):
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
        table = reader.option("subscribe", source).options(**options).load()
        return sorted(tuple(row) for row in table.select("partition", "offset", "value").collect())

    def write(query, **options):
        writer = spark.sql(query).write.format("kafka").option("kafka.bootstrap.servers", servers)
        writer.options(**options).save()

    def refused(action, *arguments, **options):
        try:
            print("record", action(*arguments, **options))
        except Exception as error:
            print("record", type(error).__name__, " ".join(str(error).split("JVM")[0].split()))

    some = json.dumps({source: {"0": 1, "1": -2}})
    print("records", read(startingOffsets=some, endingOffsets=json.dumps({source: {"0": 3, "1": 1}})))
    refused(read, startingOffset="earliest")
    refused(read, startingOffsets=json.dumps({source: {"0": 1}}))
    refused(read, startingOffsets=json.dumps({source: {"0": 300, "1": 0}}))
    refused(read, endingOffsets=json.dumps({source: {"0": 300, "1": 0}}))
    refused(read, startingTimestamp="4000000000000")
    print("none", read(startingTimestamp="4000000000000", startingOffsetsByTimestampStrategy="latest"))
    refused(write, "SELECT 3L AS value", topic=target)
    refused(write, "SELECT 'v' AS value, cast(null AS string) AS topic")
    refused(write, "SELECT 'v' AS value", topic=f"{target}-missing")
    write("SELECT 'é' AS value, X'00FF' AS key, 1 AS partition, 'other' AS unused", topic=target)
"""
OUTER = """
    import json, sys

    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.builder.getOrCreate()
    folder, run = sys.argv[1:]
    words = spark.readStream.schema("word string, n long").json(f"{folder}/in")
    if run == "13":
        observed = words.observe("gone", F.sum("n")).observe("words", F.count("*").alias("rows"))
    else:
        observed = words.observe("words", F.max("word").alias("last"))
    names = spark.createDataFrame([("a", "Ada"), ("b", "Bob")], "word string, name string")
    known = names.where("word <> 'b'")

    def note(df, batch_id):
        found = df.join(known, "word", "left").withColumn("others", F.lit(names.count()))
        rows = sorted(list(row.asDict().items()) for row in found.collect())
        print("batch", batch_id, rows, flush=True)

    writer = observed.writeStream.foreachBatch(note).option("checkpointLocation", f"{folder}/state")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    print("progress", [(p["batchId"], p["numInputRows"]) for p in query.recentProgress])
    for name, row in sorted(query.lastProgress["observedMetrics"].items()):
        print("observed", name, row.asDict())

    twice = words.join(names, words.word == names.word).drop("n").select("*", words.word)
    twice.writeStream.format("memory").queryName("twice").trigger(
        availableNow=True
    ).start().awaitTermination()
    table = spark.table("twice")
    print("twice", table.columns, sorted(map(tuple, table.collect())))

    @F.udf("long")
    def broken(n):
        open(f"{folder}/calls", "a").write("called\\n")
        raise ValueError("no such number")

    query = words.coalesce(1).select(broken("n")).writeStream.format("noop").start()
    try:
        query.awaitTermination()
    except Exception as error:
        calls = open(f"{folder}/calls").read().split()
        print(type(error).__name__, "no such number" in str(error), len(calls))
"""
TABLE = """
    import json, sys

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    folder, number = sys.argv[1:]
    words = spark.readStream.schema("word string, n long").json(f"{folder}/in")

    spark.sql(
        "CREATE TABLE known (n BIGINT, word STRING) USING json PARTITIONED BY (word)"
        f" LOCATION '{folder}/known'"
    )

    def fill(name="heard", format="parquet"):
        writer = words.select("n", "word").writeStream.format(format).partitionBy("word")
        writer = writer.option("compression", {"json": "gzip"}.get(format, "snappy"))
        writer = writer.option("path", f"{folder}/table")
        writer = writer.option("checkpointLocation", f"{folder}/{name}-state")
        writer.trigger(availableNow=True).toTable(name).awaitTermination()
        print("table", sorted(map(tuple, spark.table(name).collect())))

    fill()
    with open(f"{folder}/in/{number}-more.json", "w") as more:
        more.write(json.dumps({"word": "c", "n": int(number)}))
    fill()
    fill("known", "json")
    spark.sql("CREATE OR REPLACE VIEW letters AS SELECT 'a' AS word")
    other = words.selectExpr("word", "n AS m")
    writer = other.writeStream.option("checkpointLocation", f"{folder}/other")
    for name, format in ("heard", "parquet"), ("heard", "json"), ("letters", "parquet"):
        try:
            writer.format(format).toTable(name)
        except Exception as refused:
            print("refused", type(refused).__name__, str(refused).splitlines()[0])
"""
COMPLETE = """
    import sys

    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.builder.getOrCreate()
    (folder,) = sys.argv[1:]
    words = spark.readStream.schema("word string, at timestamp").json(f"{folder}/in")
    session = F.session_window("at", "1 second")
    sessions = words.withWatermark("at", "0 seconds").groupBy(session, "word").count()
    for name, counts in ("words", words.groupBy("word").count()), ("sessions", sessions):
        def note(df, batch_id, name=name):
            print(name, batch_id, sorted((row.word, row["count"]) for row in df.collect()))

        writer = counts.writeStream.outputMode("complete").foreachBatch(note)
        writer = writer.option("checkpointLocation", f"{folder}/{name}")
        writer.trigger(availableNow=True).start().awaitTermination()
"""
PROGRAMS = {
    "counts": COUNTS,
    "complete": COMPLETE,
    "broken": BROKEN,
    "topics": TOPICS,
    "records": RECORDS,
    "outer": OUTER,
    "table": TABLE,
}
NAMING = "def kind(df):\n    return type(df).__module__\n"


@dataclass(frozen=True, slots=True)
class Runs:
    """Describes what both runs left. Each program has a folder with its name."""

    folder: Path
    printed: tuple[str, ...]  # by all programs of a run, and by their functions in slots
    records: tuple[list[int], ...]  # in the target topic, after each run
    table: tuple[str, list[Record]]  # the name of a topic, and the records of another one


@pytest.fixture(scope="module")
def runs(shared_cluster: Session, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    shared_cluster.wait_until_all_slots_are_free()
    folder = tmp_path_factory.mktemp("programs")
    (folder / "naming.py").write_text(NAMING)
    (folder / "all.py").write_text(textwrap.dedent(ALL))
    for name, text in PROGRAMS.items():
        (folder / name / "in").mkdir(parents=True)
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    source, target = create_topic(kafka, partitions=3), create_topic(kafka, partitions=2)
    values, written = create_topic(kafka, partitions=2), create_topic(kafka, partitions=2)
    produce(kafka, values, [Record(value=str(n).encode(), partition=n % 2) for n in range(10)])
    printed, records = [], []

    def put(name: str, *rows: dict[str, Any]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(number: str) -> None:
        arguments = [
            ["counts.py", str(folder / "counts")],
            ["complete.py", str(folder / "complete")],
            ["broken.py", str(folder / "broken"), number],
            ["topics.py", kafka.bootstrap, source, target, str(folder / "topics/state")],
            ["outer.py", str(folder / "outer"), number],
            ["table.py", str(folder / "table"), number],
        ]
        if not printed:
            arguments.append(["records.py", kafka.bootstrap, values, written])
        program = ("all.py", json.dumps(arguments))
        done = firesteel("run", "-m", shared_cluster.address, "-p", "2", *program, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "program failed" not in done.stdout, done.stdout
        printed.append(done.stdout)
        records.append(sorted(int(each.value or b"") for each in read(kafka, target)))

    put("counts/in/1.json", *({"word": word} for word in "aba"))
    at = "2024-01-01T00:00:00Z"
    put("complete/in/1.json", *({"word": word, "at": at} for word in "abcdefgh"))
    put("broken/in/1.json", {"n": 1})
    produce(kafka, source, [str(n).encode() for n in range(100)])
    put("outer/in/1.json", {"word": "a", "n": 1}, {"word": "b", "n": 1})
    put("table/in/1.json", {"word": "a", "n": 1}, {"word": "b", "n": 1})
    run("13")

    put("counts/in/2.json", *({"word": word} for word in "bc"))
    put("complete/in/2.json", {"word": "b", "at": at})
    shutil.copy(folder / "broken/calls", folder / "broken/calls-before")
    (folder / "broken/mended").touch()
    produce(kafka, source, [str(n).encode() for n in range(100, 200)])
    put("outer/in/2.json", {"word": "a", "n": 1})
    put("table/in/2.json", {"word": "a", "n": 2})
    run("14")
    return Runs(folder, tuple(printed), tuple(records), (values, read(kafka, written)))


def test_an_aggregate_continues_in_another_run(runs: Runs) -> None:
    folder = runs.folder / "counts"
    calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    assert [kind for kind, *_ in calls] == ["pyspark.sql.classic.dataframe"] * len(calls)
    assert [call[1:] for call in calls] == [[0, {"a": 20, "b": 10}], [1, {"b": 20, "c": 10}]]
    ids = [re.search("^id (.*)$", said, re.M)[1] for said in runs.printed]  # type: ignore[index]
    assert ids[0] == ids[1] == json.loads((folder / "state/metadata").read_text())["id"]
    for said in runs.printed:
        assert (
            "twice AnalysisException [CONCURRENT_STREAM_LOG_UPDATE] the checkpointLocation" in said
        )
        assert f"{folder}/state is in use by job " in said
        assert "active False" in said


def test_a_complete_result_has_the_groups_of_every_subtask(runs: Runs) -> None:
    first, second = (said.splitlines() for said in runs.printed)
    for name in "words", "sessions":
        assert f"{name} 0 {[(word, 1) for word in 'abcdefgh']}" in first
        assert f"{name} 1 {[(word, 1 + (word == 'b')) for word in 'abcdefgh']}" in second


def test_a_query_that_failed_continues_with_the_batch_that_failed(runs: Runs) -> None:
    first, second = runs.printed
    assert "failed True" in first, first
    assert "failed" not in second
    folder = runs.folder / "broken"
    assert (folder / "calls-before").read_text() == "0 [1]\n"
    assert (folder / "calls").read_text() == "0 [1]\n1 [13]\n2 [14]\n"
    assert (folder / "state/numbers/metadata").exists()


def test_records_of_a_topic_reach_another_one(runs: Runs) -> None:
    for said in runs.printed:
        assert "ended None" in said
    for records, count in zip(runs.records, (100, 200), strict=True):
        assert [n for n in records if n >= 0] == [n * 2 for n in range(count)]
        copied = (int(f"{sign}{n}") for sign in ("-1", "-2") for n in range(count))
        assert [n for n in records if n < 0] == sorted(copied)


def test_tables_of_kafka_are_checked_and_have_the_bytes_of_records(runs: Runs) -> None:
    source, written = runs.table
    said = [line for line in runs.printed[0].splitlines() if line.startswith(("record", "none"))]
    first, *problems = said
    assert first == "records [(0, 1, b'2'), (0, 2, b'4'), (1, 0, b'1')]"
    assert "none []" in problems
    problems.remove("none []")
    analysis = "record AnalysisException [PYTHON_DATA_SOURCE_ERROR] Failed to"
    partitions = f"{analysis} generate Python data source read partitions: firesteel.errors."
    worker = "record PythonException An exception was thrown from the Python worker."
    for line, start, text in zip(
        problems,
        [
            "record IllegalArgumentException KafkaSource: Spark's Kafka source has no option",
            *[partitions] * 4,
            f"{analysis} initialize Python data source writer: firesteel.errors.InvalidProgram: v",
            *[worker] * 2,
        ],
        [
            "'startingOffset'; did you mean startingOffsets?",
            f"start has no offset for topic {source}, partition 1;",
            f"topic {source}, partition 0: the read starts at offset 300, after its end at offset 5",
            f"topic {source}, partition 0: the read ends at offset 300, and the partition at offset 5",
            "it has no record with a timestamp of 4000000000000 ms or later",
            "value attribute type must be string or binary, not bigint",
            "firesteel.errors.FiresteelError: the column 'topic' of a row is null;",
            "does not exist, and Firesteel does not create topics; similar names: ",
        ],
        strict=True,
    ):
        assert line.startswith(start) and text in line and "Traceback" not in line, line
    (record,) = written
    assert (record.key, record.value, record.partition) == (b"\x00\xff", "é".encode(), 1)


def test_outer_dataframes_repeated_names_and_the_first_error(runs: Runs) -> None:
    first, second = (said.splitlines() for said in runs.printed)
    a = [("word", "a"), ("n", 1), ("name", "Ada"), ("others", 2)]
    b = [("word", "b"), ("n", 1), ("name", None), ("others", 2)]
    assert f"batch 0 {[a, b]}" in first
    assert "progress [(0, 2)]" in first
    columns = ["word", "word", "name", "word"]
    assert f"twice {columns} {[('a', 'a', 'Ada', 'a'), ('b', 'b', 'Bob', 'b')]}" in first
    assert "StreamingQueryException True 1" in first
    assert f"batch 1 {[a]}" in second
    assert "progress [(1, 1)]" in second
    observed = [[line for line in said if line.startswith("observed")] for said in (first, second)]
    assert observed == [
        ["observed gone {'sum(n)': 2}", "observed words {'rows': 2}"],
        ["observed words {'last': 'a'}"],
    ]


def test_a_table_of_the_catalog_is_written_and_read(runs: Runs) -> None:
    first, second = (
        [line for line in said.splitlines() if "table" in line] for said in runs.printed
    )
    rows, more = [(1, "a"), (1, "b")], [(1, "a"), (1, "b"), (2, "a"), (13, "c")]
    assert first[1:4] == [f"table {rows}", *[f"table {[*rows, (13, 'c')]}"] * 2]
    assert second[1:4] == [f"table {more}", *[f"table {[*more, (14, 'c')]}"] * 2]
    for problem in (
        "'heard'): the query has the columns word STRING,m BIGINT, and the table n BIGINT,word STRING",
        "'heard'): the table has the format parquet, the query writes json; add .format(",
        "'letters'): its format is view; streams write tables of files: csv, json, ",
    ):
        assert any(
            line.startswith(f"refused AnalysisException toTable({problem}") for line in first
        )

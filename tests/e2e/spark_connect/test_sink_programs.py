"""PySpark programs whose queries are run again: their sinks continue where they were."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

from tests.e2e.conftest import Session, firesteel
from tests.kafka.broker import Kafka
from tests.kafka.records import create_topic, produce, read


def run(session: Session, folder: Path, program: str, *arguments: str) -> str:
    """Runs a program on the cluster; returns what it prints."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    done = firesteel("run", "-m", session.address, str(path), *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def test_an_aggregate_continues_in_another_run(session: Session, tmp_path: Path) -> None:
    (tmp_path / "naming.py").write_text("def kind(df):\n    return type(df).__module__\n")
    files = tmp_path / "in"
    files.mkdir()

    def put(name: str, *words: str) -> None:
        (files / name).write_text("".join(json.dumps({"word": word}) + "\n" for word in words))

    put("1.json", "a", "b", "a")
    first = run(session, tmp_path, COUNTS, str(tmp_path))
    put("2.json", "b", "c")
    second = run(session, tmp_path, COUNTS, str(tmp_path))
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert [kind for kind, *_ in calls] == ["pyspark.sql.classic.dataframe"] * len(calls)
    assert [call[1:] for call in calls] == [[0, {"a": 20, "b": 10}], [1, {"b": 20, "c": 10}]]
    ids = [re.search("^id (.*)$", said, re.M)[1] for said in (first, second)]  # type: ignore[index]
    assert ids[0] == ids[1] == json.loads((tmp_path / "state/metadata").read_text())["id"]
    for said in (first, second):
        assert (
            "twice AnalysisException [CONCURRENT_STREAM_LOG_UPDATE] the checkpointLocation" in said
        )
        assert f"{tmp_path}/state is in use by job " in said
        assert "active False" in said


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


def test_a_query_that_failed_continues_with_the_batch_that_failed(
    session: Session, tmp_path: Path
) -> None:
    files = tmp_path / "in"
    files.mkdir()
    (files / "1.json").write_text('{"n": 1}\n')
    said = run(session, tmp_path, BROKEN, str(tmp_path), "13")
    assert "failed True" in said, said
    assert (tmp_path / "calls").read_text() == "0 [1]\n"
    (tmp_path / "mended").touch()
    assert "failed" not in run(session, tmp_path, BROKEN, str(tmp_path), "14")
    assert (tmp_path / "calls").read_text() == "0 [1]\n1 [13]\n2 [14]\n"
    assert (tmp_path / "state/numbers/metadata").exists()


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
"""


def test_records_of_a_topic_reach_another_one(
    session: Session, kafka: Kafka, tmp_path: Path
) -> None:
    source, target = create_topic(kafka, partitions=3), create_topic(kafka, partitions=2)
    arguments = (kafka.bootstrap, source, target, str(tmp_path / "state"))
    for begin in (0, 100):
        produce(kafka, source, [str(n).encode() for n in range(begin, begin + 100)])
        assert "ended None" in run(session, tmp_path, TOPICS, *arguments)
        found = sorted(int(record.value or b"") for record in read(kafka, target))
        assert found == [n * 2 for n in range(begin + 100)]


OUTER = """
    import json, sys

    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.builder.getOrCreate()
    folder = sys.argv[1]
    words = spark.readStream.schema("word string, n long").json(f"{folder}/in")
    names = spark.createDataFrame([("a", "Ada"), ("b", "Bob")], "word string, name string")
    known = names.where("word <> 'b'")

    def note(df, batch_id):
        found = df.join(known, "word", "left").withColumn("others", F.lit(names.count()))
        rows = sorted(list(row.asDict().items()) for row in found.collect())
        print("batch", batch_id, rows, flush=True)

    writer = words.writeStream.foreachBatch(note).option("checkpointLocation", f"{folder}/state")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    print("progress", [(p["batchId"], p["numInputRows"]) for p in query.recentProgress])

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


def test_outer_dataframes_repeated_names_and_the_first_error(
    session: Session, tmp_path: Path
) -> None:
    files = tmp_path / "in"
    files.mkdir()

    def put(name: str, *words: str) -> None:
        rows = [json.dumps({"word": word, "n": len(word)}) for word in words]
        (files / name).write_text("\n".join(rows))

    put("1.json", "a", "b")
    first = run(session, tmp_path, OUTER, str(tmp_path)).splitlines()
    a = [("word", "a"), ("n", 1), ("name", "Ada"), ("others", 2)]
    b = [("word", "b"), ("n", 1), ("name", None), ("others", 2)]
    assert f"batch 0 {[a, b]}" in first
    assert "progress [(0, 2)]" in first
    columns = ["word", "word", "name", "word"]
    assert f"twice {columns} {[('a', 'a', 'Ada', 'a'), ('b', 'b', 'Bob', 'b')]}" in first
    assert "StreamingQueryException True 1" in first
    (tmp_path / "calls").unlink()
    put("2.json", "a")
    second = run(session, tmp_path, OUTER, str(tmp_path)).splitlines()
    assert f"batch 1 {[a]}" in second
    assert "progress [(1, 1)]" in second

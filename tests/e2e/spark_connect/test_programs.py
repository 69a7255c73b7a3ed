"""PySpark programs that know nothing of Firesteel, run by `firesteel run`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.e2e.conftest import ROOT, WARM_S, Session, firesteel
from tests.waiting import eventually

BATCH = """
    import datetime, decimal, json, sys

    from pyspark.sql import SparkSession, Window
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    import helper

    @F.udf(StringType())
    def shout(word):
        return helper.loud(word)

    spark = (
        SparkSession.builder.appName("batch")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "Europe/Berlin")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = [
        ("a", 1, 1.5, datetime.datetime(2024, 3, 31, 1, 30)),
        ("b", None, float("nan"), None),
        ("a", 3, -0.0, datetime.datetime(2024, 10, 27, 2, 30)),
    ]
    df = spark.createDataFrame(rows, "k string, n int, d double, t timestamp")
    df.createOrReplaceTempView("rows")
    df.printSchema()
    df.orderBy("k", "n").show(truncate=False)
    df.select(shout("k").alias("loud"), F.window("t", "1 hour").alias("w")).orderBy("w").show(
        truncate=False
    )
    spark.sql("SELECT k, sum(n) s, collect_list(n) l FROM rows GROUP BY k ORDER BY k").show()
    ranked = df.withColumn("r", F.row_number().over(Window.partitionBy("k").orderBy("n")))
    ranked.orderBy("k", "r").show()
    pandas = df.where("n IS NOT NULL").mapInPandas(
        lambda frames: (frame.assign(n=frame.n * 2) for frame in frames), df.schema
    )
    print(sorted(row.n for row in pandas.collect()))
    print(df.toPandas().attrs)  # pandas writes them to Parquet, as JSON
    path = sys.argv[1]
    df.write.partitionBy("k").mode("overwrite").parquet(path)
    print(spark.read.parquet(path).groupBy("k").count().orderBy("k").collect())
    print(spark.conf.get("spark.sql.shuffle.partitions"), spark.version, df.isStreaming)
    print([table.name for table in spark.catalog.listTables()])
    for query in ("SELECT nope FROM rows", "SELECT 1 / (n - 1) FROM rows", "SELEC 1", "FROM gone"):
        try:
            spark.sql(query).collect()
        except Exception as error:
            print(type(error).__name__, error.getCondition(), error.getSqlState())
            print(sorted(error.getMessageParameters().items()))

    @F.udf("int")
    def broken(n):
        raise ValueError("no such number")

    try:
        df.select(broken("n")).collect()
    except Exception as error:
        print(type(error).__name__, "no such number" in str(error), "in broken" in str(error))
"""
HELPER = "def loud(word):\n    return word and word.upper() + '!'\n"


def write(folder: Path, name: str, program: str) -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(program))
    return path


def nothing_works_in(folder: Path) -> None:
    def ended() -> bool:
        return not any(_works_in(process, folder) for process in psutil.process_iter())

    eventually(ended, "all processes of the program have ended")


def _works_in(process: psutil.Process, folder: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        return Path(process.cwd()) == folder
    return False


@contextlib.contextmanager
def running(program: Path, session: Session, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`firesteel run` on the session cluster, in the folder of the program."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # or the child ignores it
    run = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "run", "-m", session.address, str(program), *arguments],
        cwd=program.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


def until(run: subprocess.Popen[str], text: str) -> str:
    """Reads the output of the program until a line starts with this."""
    assert run.stdout is not None
    lines = []
    for line in run.stdout:
        lines.append(line)
        if line.startswith(text):
            return "".join(lines)
    raise AssertionError(f"no {text!r} in {''.join(lines)}\n{run.stderr and run.stderr.read()}")


def test_a_batch_program_prints_what_it_prints_with_spark(tmp_path: Path) -> None:
    write(tmp_path, "helper.py", HELPER)
    program = write(tmp_path, "batch.py", BATCH)
    ours = firesteel("run", "-t", "local", str(program), str(tmp_path / "ours"), cwd=tmp_path)
    assert ours.returncode == 0, ours.stderr
    sparks = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "sparks")],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=WARM_S,
        check=False,
    )
    assert sparks.returncode == 0, sparks.stderr
    assert ours.stdout == sparks.stdout
    assert "A!" in ours.stdout
    assert "AnalysisException" in ours.stdout
    assert "JVM stacktrace" not in ours.stderr
    assert "ordinary Python program" not in ours.stderr
    nothing_works_in(tmp_path)


def test_a_program_that_fails_shows_its_traceback_and_leaves_nothing(
    session: Session, tmp_path: Path
) -> None:
    program = write(
        tmp_path,
        "fails.py",
        """
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[9]").getOrCreate()
        spark.range(3).rdd.map(print)
        """,
    )
    run = firesteel("run", "-m", session.address, str(program), cwd=tmp_path)
    assert run.returncode == 1
    assert ".master('local[9]') has no effect" in run.stderr
    assert "fails.py, line 4: rdd is not available" in run.stderr
    assert "mapInPandas" in run.stderr
    assert "spark.range(3).rdd.map(print)" in run.stderr
    nothing_works_in(tmp_path)


def test_a_program_that_fails_before_its_session_starts_nothing(tmp_path: Path) -> None:
    program = write(tmp_path, "early.py", "import pyspark\n1 / 0\n")
    run = firesteel("run", "-t", "local", str(program), cwd=tmp_path)
    assert run.returncode == 1
    assert 'early.py", line 2' in run.stderr
    assert "Starting Spark Connect" not in run.stderr


QUERIES = """
    import json, os, sys, time

    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.streaming import StreamingQueryListener

    spark = SparkSession.builder.getOrCreate()
    events = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event):
            events.append(["started", event.name])

        def onQueryProgress(self, event):
            events.append(["progress", event.progress.batchId, event.progress.numInputRows])

        def onQueryTerminated(self, event):
            events.append(["terminated", event.exception])

    listener = Listener()
    spark.streams.addListener(listener)
    folder = sys.argv[1]
    rows = spark.readStream.schema("n long").json(folder)

    def write(name, numbers):
        with open(f"{folder}/.{name}", "w") as file:
            file.writelines(json.dumps({"n": n}) + "\\n" for n in numbers)
        os.rename(f"{folder}/.{name}", f"{folder}/{name}")

    def refusal(start):
        try:
            start()
        except Exception as error:
            return type(error).__name__, str(error)

    write("a.json", range(10))
    counts = rows.groupBy((F.col("n") % 2).alias("odd")).count()
    console = counts.orderBy("odd").writeStream.outputMode("complete").format("console")
    query = console.queryName("counts").start()
    print("twice", refusal(console.start))
    print("active", [each.name for each in spark.streams.active])
    print("got", spark.streams.get(query.id).runId == query.runId, spark.streams.get(query.runId))
    query.processAllAvailable()
    write("b.json", range(5))
    query.processAllAvailable()
    print("waited", query.awaitTermination(0.1), spark.streams.awaitAnyTermination(0.1))
    progress = query.lastProgress
    print("last", progress.name, progress.numInputRows, progress["batchId"] == progress.batchId)
    print("total", sum(each.numInputRows for each in query.recentProgress))
    print("sink", progress.sink.description)
    print("source", progress.sources[0].description)
    print("state", [each.operatorName for each in progress.stateOperators] != [])
    print("status", query.status)
    query.explain()
    query.stop()
    query.stop()
    print("stopped", query.isActive, query.status["message"], query.exception())
    print("awaited", query.awaitTermination(), spark.streams.awaitAnyTermination())
    spark.streams.resetTerminated()
    print("reset", spark.streams.awaitAnyTermination(0.1))

    def broken(batch, number):
        raise ValueError(f"batch {number} is broken")

    failing = rows.writeStream.foreachBatch(broken).queryName("failing").start()
    print("failed", refusal(failing.awaitTermination))
    print("exception", type(failing.exception()).__name__, failing.status["message"][:25])
    print("any", refusal(spark.streams.awaitAnyTermination)[0])
    print("format", refusal(rows.writeStream.format("bogus").start))
    print("mode", refusal(rows.writeStream.outputMode("complete").format("console").start))
    print("active", spark.streams.active)
    spark.streams.removeListener(listener)
    print(json.dumps({"events": events}))
"""


def test_the_query_object_behaves(session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    program = write(tmp_path, "queries.py", QUERIES)
    run = firesteel("run", "-m", session.address, str(program), str(folder), cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    said = dict(re.findall(r"^(\w+) (.*)$", run.stdout, re.M))
    assert "IllegalArgumentException" in said["twice"]
    assert "name counts as a query with that name is already active" in said["twice"]
    assert "active ['counts']" in run.stdout
    assert said["got"] == "True None"
    assert said["waited"] == "False False"
    assert said["last"] == "counts 5 True"
    assert said["total"] == "15"
    assert said["sink"].startswith("ConsoleTable")
    assert said["source"].startswith("FileStreamSource[file:/")
    assert said["state"] == "True"
    assert "'message': 'Waiting for data to arrive'" in said["status"]
    assert said["stopped"] == "False Stopped None"
    assert said["awaited"] == "None None"
    assert said["reset"] == "False"
    tables = re.findall(r"Batch: (\d)\n-+\n((?:[+|].*\n)+)", run.stdout)
    assert [number for number, _ in tables] == ["0", "1"]
    assert re.findall(r"\| *(\d)\| *(\d+)\|", tables[-1][1]) == [("0", "8"), ("1", "7")]
    failed = said["failed"]
    assert failed.startswith("('StreamingQueryException'")
    assert f'File "{program}"' in failed
    assert failed.index("in broken") < failed.index("runId = ")
    assert "ValueError: batch 0 is broken" in failed
    assert said["exception"] == "StreamingQueryException Terminated with exception"
    assert said["any"] == "StreamingQueryException"
    assert "DATA_SOURCE_NOT_FOUND" in said["format"]
    assert said["mode"].startswith("('AnalysisException'")
    assert said["active"] == "[]"
    events = json.loads(run.stdout[run.stdout.index('{"events"') :].splitlines()[0])["events"]
    assert [event for event in events if event[0] == "started"] == [
        ["started", "counts"],
        ["started", "failing"],
    ]
    assert ["progress", 0, 10] in events
    assert ["progress", 1, 5] in events
    ended = [event[1] for event in events if event[0] == "terminated"]
    assert ended[0] is None
    assert "batch 0 is broken" in ended[1]
    listed = firesteel("list", "-a", "-m", session.address).stdout
    assert re.search(r": counts \(CANCELED\)", listed)
    assert re.search(r": failing \(FAILED\)", listed)
    nothing_works_in(tmp_path)


WAITS = """
    import sys
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    rows = spark.readStream.schema("n long").json(sys.argv[1])
    writer = rows.groupBy().sum().writeStream.outputMode("complete").format("console")
    query = writer.option("checkpointLocation", sys.argv[2]).queryName("sums").start()
    print("id", query.id)
    if "exit" in sys.argv:
        query.processAllAvailable()
        sys.exit(3)
    query.awaitTermination()
"""


def test_a_query_that_its_program_leaves_is_stopped_and_continues_later(
    session: Session, tmp_path: Path
) -> None:
    """In an embedded cluster, which ends with the second program."""
    folder, location = tmp_path / "in", tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "a.json").write_text('{"n": 1}\n{"n": 2}\n')
    program = write(tmp_path, "waits.py", WAITS)
    with running(program, session, str(folder), str(location)) as run:
        first = until(run, "Batch: 0")
        assert re.search(r"\b3\|", until(run, "| "))
        [job] = [each for each in session.client.list_jobs() if each.name == "sums"]
        assert not job.status.globally_terminal
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=WARM_S)
    assert run.returncode == 130
    assert "query sums was active when the program ended, and is stopped" in err
    assert f"its state is kept in {location}" in err
    assert "Traceback" not in err
    assert session.client.job_details(job.job_id).status.globally_terminal
    nothing_works_in(tmp_path)

    (folder / "b.json").write_text('{"n": 10}\n')
    again = firesteel(
        "run",
        *("-t", "local", "--task-executors", "1", "--slots", "1"),
        *(str(program), str(folder), str(location), "exit"),
        cwd=tmp_path,
    )
    assert again.returncode == 3, again.stderr
    assert re.search(r"\b13\|", again.stdout)
    assert re.search(r"Job has been submitted with JobID [0-9a-f]{32}", again.stderr)
    ids = re.findall(r"^id (.*)$", first + again.stdout, re.M)
    assert len(ids) == 2
    assert ids[0] == ids[1]
    assert "its state is kept" in again.stderr
    nothing_works_in(tmp_path)


def test_no_process_outlives_a_killed_program(session: Session, tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "killed.py",
        """
        import time
        from pyspark.sql import SparkSession
        SparkSession.builder.getOrCreate().range(1).show()
        print("ready")
        time.sleep(1000)
        """,
    )
    with running(program, session) as run:
        until(run, "ready")
        run.kill()
        run.wait()
        nothing_works_in(tmp_path)


PARTITIONS = """
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Numbers(DataSourceStreamReader):
        def initialOffset(self):
            return {"n": 0}

        def latestOffset(self):
            return {"n": 300}

        def partitions(self, start, end):
            return [InputPartition((n, n + 100)) for n in range(start["n"], end["n"], 100)]

        def read(self, partition):
            for n in range(*partition.value):
                yield (n,)

        def commit(self, end):
            pass

    class NumbersSource(DataSource):
        @classmethod
        def name(cls):
            return "numbers"

        def schema(self):
            return "n int"

        def streamReader(self, schema):
            return Numbers()

    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(NumbersSource)
    rows = spark.readStream.format("numbers").load()
    query = rows.writeStream.format("memory").queryName("found").start()
    query.processAllAvailable()
    print(spark.sql("SELECT count(*), sum(n) FROM found").collect())
    print("read", sum(progress.numInputRows for progress in query.recentProgress))
    query.stop()
"""


def test_partitions_of_a_data_source_in_python_are_read(session: Session, tmp_path: Path) -> None:
    program = write(tmp_path, "partitions.py", PARTITIONS)
    run = firesteel("run", "-m", session.address, "-p", "2", str(program), cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "[Row(count(1)=300, sum(n)=44850)]" in run.stdout
    assert "read 300" in run.stdout

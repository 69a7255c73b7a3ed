"""PySpark programs that use parts of PySpark that do not run here, and the texts that users see."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.e2e.conftest import Session, firesteel

REFUSED = """
    import sys

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[9]").getOrCreate()
    rate = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    left, right = rate.selectExpr("value AS a"), rate.selectExpr("value AS b")
    state = sys.argv[1]

    def attempt(what, act):
        try:
            act()
        except Exception as error:
            print(what, type(error).__name__, str(error).splitlines()[0])

    attempt("collect", rate.collect)
    attempt("delta", rate.writeStream.format("delta").option("checkpointLocation", state).start)
    attempt("consle", rate.writeStream.format("consle").start)
    attempt("source", lambda: spark.readStream.format("delat").load().schema)
    attempt("rdd", lambda: rate.rdd)
    attempt("_jvm", lambda: spark._jvm)
    attempt("_jdf", lambda: rate._jdf)
    attempt("parallelize", lambda: spark.sparkContext.parallelize([1]))
    pairs = left.join(right, left.a == right.b).writeStream.format("noop")
    query = pairs.option("checkpointLocation", state).queryName("pairs").start()
    attempt("twice", rate.writeStream.format("noop").option("checkpointLocation", state).start)
    query.stop()
"""
CONNECT = "is not available, because the program runs with Spark Connect"


def test_each_refusal_says_what_to_do(session: Session, tmp_path: Path) -> None:
    program, state = tmp_path / "refused.py", tmp_path / "state"
    program.write_text(textwrap.dedent(REFUSED))
    run = firesteel("run", "-m", session.address, str(program), str(state), cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line for line in run.stdout.splitlines() if not line.startswith("Job has been")]
    said = dict(line.split(" ", 1) for line in lines)
    [job] = [each.job_id for each in session.client.list_jobs() if each.name == "pairs"]
    not_found = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delat."
    assert not_found in said.pop("source")
    assert said == {
        "collect": "AnalysisException Queries with streaming sources must be executed with"
        " writeStream.start(), or from a streaming table or flow definition within a Spark"
        " Declarative Pipeline.;",
        "delta": "AnalysisException [DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta."
        " Streams do not write delta themselves. Write it in foreachBatch, with"
        " df.write.format('delta'), which needs io.delta:delta-spark (spark.jars.packages)."
        " SQLSTATE: 42K02",
        "consle": "AnalysisException [DATA_SOURCE_NOT_FOUND] Failed to find the data source:"
        " consle. Did you mean console? SQLSTATE: 42K02",
        "rdd": f"NotAvailable rdd {CONNECT}: use the DataFrame API: mapInPandas or mapInArrow for"
        " functions of partitions, a udf for functions of values, foreachBatch or foreach for"
        " effects",
        "_jvm": f"NotAvailable _jvm {CONNECT}: use the DataFrame API or spark.sql(...), which need"
        " no access to the JVM",
        "_jdf": f"NotAvailable _jdf {CONNECT}: use the DataFrame API or spark.sql(...), which need"
        " no access to the JVM",
        "parallelize": f"NotAvailable sparkContext.parallelize {CONNECT}: create a DataFrame with"
        " spark.createDataFrame(rows, schema)",
        "twice": "AnalysisException [CONCURRENT_STREAM_LOG_UPDATE] the checkpointLocation"
        f" {state} is in use by job {job} ('pairs'): stop that query first, or name another"
        " location. Multiple streaming jobs detected. Please make sure only one streaming job runs"
        " on a specific checkpoint location at a time. SQLSTATE: 40000",
    }
    assert (
        "Warning: .master('local[9]') has no effect: this program's queries run on Firesteel, and"
        " its batch queries on the Spark of the run" in run.stderr
    )
    assert "Warning: Join(inner, " in run.stderr
    assert (
        " keeps all rows of both streams forever, because its condition does not bound the"
        " distance of their event times: call withWatermark on both streams, and add a condition"
        " such as b.time BETWEEN a.time AND a.time + INTERVAL 1 HOUR" in run.stderr
    )


def test_a_program_without_a_session_or_job_is_named(session: Session, tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text("import pyspark\nprint(pyspark.__name__)\n")
    run = firesteel("run", "-m", session.address, str(program), cwd=tmp_path)
    assert (run.returncode, run.stdout) == (0, "pyspark\n")
    assert (
        "plain.py ran as an ordinary Python program in this process. It submitted no job to"
        " Firesteel, because it never called env.execute()." in run.stderr
    )

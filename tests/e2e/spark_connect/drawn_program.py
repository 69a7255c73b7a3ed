"""A PySpark program that runs drawn queries, each of them twice: over the first rows of its
streams, and again from its checkpointLocation once more rows have arrived.

Arguments: a folder for the rows and results; the seed of the rows; how many queries run at a time;
the seeds of the queries.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import drawn_queries
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

FOLDER, ROWS, THREADS, *SEEDS = Path(sys.argv[1]), *map(int, sys.argv[2:])
PHASES = 2

spark = (
    SparkSession.builder.appName("drawn")
    .master("local[2]")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "Europe/Berlin")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
SCHEMA = "k STRING, n BIGINT, d DOUBLE, at TIMESTAMP"
names = spark.createDataFrame(
    [("a", "one"), ("b", "two"), ("b", "three"), (None, "none")], "k STRING, label STRING"
)


@F.udf("string")
def shout(text):
    return None if text is None else f"{text}!"


def halved(frames):
    for frame in frames:
        yield frame.assign(d=frame.d / 2)


def run(query, phase):
    """Returns the rows that the run adds, or why there are none."""
    space = {"a": streams["a"], "b": streams["b"], "names": names, "F": F}
    folder = FOLDER / f"query-{query.seed}"
    path = folder / "rows"

    def keep(batch, batch_id):
        batch.selectExpr(
            f"{batch_id} AS batch_id",
            "to_json(struct(*), map('ignoreNullFields', 'false')) AS json",
        ).write.mode("append").parquet(f"{path}-{phase}")

    try:
        frame = eval(query.text, space | {"shout": shout, "halved": halved})
        columns = [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema]
        if query.sink == "files":
            frame = frame.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false')) AS json")
        writer = frame.writeStream.outputMode(query.mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(folder / "state"))
        if query.sink == "files":
            writer = writer.format("parquet").option("path", f"{path}")
        else:
            writer = writer.foreachBatch(keep)
        started = writer.start()
    except Exception as error:
        return {"refused": type(error).__name__, "why": str(error)[:2_000]}
    try:
        started.awaitTermination()
    except Exception as error:
        return {"failed": type(error).__name__, "why": str(error)[:4_000]}
    return {"columns": columns, "rows": found(query, path, phase)}


def found(query, path, phase):
    """Returns the rows of a phase of a query; of files, those of all phases so far."""
    if query.sink == "files":
        return sorted(
            row.json for row in spark.read.schema("json STRING").parquet(str(path)).collect()
        )
    if not Path(f"{path}-{phase}").exists():
        return []
    batches = {}
    for row in spark.read.parquet(f"{path}-{phase}").collect():
        batches.setdefault(row.batch_id, []).append(row.json)
    if query.mode == "complete":
        batches = {0: batches[max(batches)]} if batches else {}
    return sorted(text for texts in batches.values() for text in texts)


streams = {}
for name in ("a", "b"):
    (FOLDER / name).mkdir(parents=True)
    streams[name] = spark.readStream.schema(SCHEMA).json(str(FOLDER / name))
queries = [drawn_queries.query(seed) for seed in SEEDS]
for phase in range(PHASES):
    for name in ("a", "b"):
        lines = [json.dumps(row) + "\n" for row in drawn_queries.rows(ROWS, name, phase)]
        for part in range(3):
            (FOLDER / name / f"{phase}-{part}.json").write_text("".join(lines[part::3]))
    with ThreadPoolExecutor(THREADS) as threads:
        ran = threads.map(run, queries, [phase] * len(queries))
        for query, result in zip(queries, ran, strict=True):
            (FOLDER / f"result-{query.seed}-{phase}.json").write_text(json.dumps(result))
print("finished", len(queries), flush=True)

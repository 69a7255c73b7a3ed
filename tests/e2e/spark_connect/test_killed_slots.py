"""A program that knows nothing of Firesteel, and whose slots are killed: its results are exactly
once. Its functions send the SIGKILL themselves, so that it comes at known points.
"""

from __future__ import annotations

import json
import textwrap
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

from tests.e2e.conftest import Session, firesteel

KILLS = """
    import os, signal
    from pathlib import Path

    import psutil

    def die_once(marker):
        if not os.path.exists(marker):
            Path(marker).touch()
            process = psutil.Process()
            while "taskexecutor.executor" not in process.cmdline():
                process = process.parent()
            process.send_signal(signal.SIGKILL)
            signal.pause()  # in a worker of the slot
"""
PROGRAM = """
    import json, os, sys

    from pyspark.sql import SparkSession

    import kills

    folder = sys.argv[1]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.readStream.schema("n LONG").json(f"{folder}/in")

    def write(batch, batch_id):
        if batch_id == 0:
            kills.die_once(f"{folder}/before")
        batch.write.mode("overwrite").parquet(f"{folder}/batches/id={batch_id}")
        with open(f"{folder}/ids", "a") as file:
            file.write(f"{batch_id}\\n")
        if batch_id == 1:
            kills.die_once(f"{folder}/after")

    def same(frames):
        for frame in frames:
            if (frame.n == 25).any():
                kills.die_once(f"{folder}/mapping")
            yield frame

    written = rows.writeStream.foreachBatch(write)
    written = written.option("checkpointLocation", f"{folder}/batches_state").start()
    files = rows.mapInPandas(same, "n LONG").writeStream.format("parquet")
    files = files.option("checkpointLocation", f"{folder}/files_state").start(f"{folder}/files")
    for number in range(4):
        with open(f"{folder}/.{number}", "w") as file:
            file.writelines(json.dumps({"n": number * 10 + n}) + "\\n" for n in range(10))
        os.rename(f"{folder}/.{number}", f"{folder}/in/{number}.json")
        for query in (written, files):
            query.processAllAvailable()
    print("failures", written.exception(), files.exception())
    for query in (written, files):
        print("read", sum(progress["numInputRows"] for progress in query.recentProgress))
    written.stop()
    files.stop()
"""


def test_results_are_exactly_once_when_slots_are_killed(session: Session, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, text in (("kills.py", KILLS), ("program.py", PROGRAM)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    program = str(tmp_path / "program.py")
    run = firesteel("run", "-m", session.address, program, str(tmp_path), cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "failures None None" in run.stdout
    assert run.stdout.count("read 40\n") == 2, "rows that are read again count once"
    assert all((tmp_path / marker).exists() for marker in ("before", "after", "mapping"))
    ids = list(map(json.loads, (tmp_path / "ids").read_text().split()))
    assert ids.count(1) == 2
    assert all(later in (earlier, earlier + 1) for earlier, later in pairwise(ids)), ids
    for folder in ("batches", "files"):
        assert sorted(pq.read_table(tmp_path / folder)["n"].to_pylist()) == list(range(40))

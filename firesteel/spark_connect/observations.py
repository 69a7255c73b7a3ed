"""The metrics of `DataFrame.observe()` in a streaming query, for its progress."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from firesteel.client.client import Client
from firesteel.common.time_zones import SESSION_TIME_ZONE, python_zone
from firesteel.connectors import CollectSink
from firesteel.datastream import DataStreamSink
from firesteel.errors import FiresteelError
from firesteel.operators import BatchesSpec
from firesteel.spark_connect.aggregates import ObservedStream
from firesteel.spark_connect.memory import MemoryTable
from firesteel.spark_connect.progress import OBSERVATION

Metrics = dict[str, dict[str, Any]]  # values as in JSON, by observation and metric


def collect(observed: ObservedStream) -> DataStreamSink:
    """Adds the sink of an observation's metrics, which the front reads."""
    spec, uid = BatchesSpec(marks=True), observed.uid
    stream = observed.stream.operator("Batches", spec, uid=f"{uid}-batches").set_parallelism(1)
    return stream.sink_to(CollectSink(), name=OBSERVATION, uid=f"{uid}-sink").set_parallelism(1)


class Observation:
    """Reads the metrics of one `observe()` from its running job. `settings` are those of Spark SQL;
    the time zone is that of times.
    """

    def __init__(
        self,
        client: Client,
        job_id: str,
        observed: ObservedStream,
        operator_id: str,
        settings: Mapping[str, str],
    ) -> None:
        self.name = observed.name
        self.table = MemoryTable(
            client,
            job_id,
            operator_id,
            name=observed.name,
            schema=observed.schema,
            output_mode="append",
        )
        self._metrics = observed.schema.names
        self._zone = settings.get(SESSION_TIME_ZONE, "UTC")
        (self.without_rows,) = self._rows(observed.without_rows)

    def take(self, until: int | None) -> dict[int | None, dict[str, Any]]:
        """Returns the metrics since the last call, up to a checkpoint, by the checkpoint that ended
        their batch. Batches without rows have none.
        """
        return {
            ended: row for ended, rows in self.table.take_rows(until) for row in self._rows(rows)
        }

    def _rows(self, table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
        columns = [column.to_pylist() for column in table.columns]
        return [
            {
                name: in_json(value, self._zone)
                for name, value in zip(self._metrics, row, strict=True)
            }
            for row in zip(*columns, strict=True)
        ]


def metrics_of(observations: Sequence[Observation], until: int | None) -> list[Metrics]:
    """Returns the metrics of a batch that a checkpoint has ended, or the end of the job: one
    element, or one for each of several checkpoints.
    """
    if not observations:
        return []
    taken = [(each, each.take(until)) for each in observations]
    ends = {end for _, metrics in taken for end in metrics} or {until}
    return [
        {each.name: metrics.get(end, each.without_rows) for each, metrics in taken}
        for end in sorted(ends, key=lambda end: (end is None, end))
    ]


def in_json(value: Any, zone: str) -> Any:
    """Returns a value as Spark writes it in the JSON of progress: times are those of the zone, in
    whole seconds. If Python does not have the zone, they are in UTC and end with Z.
    """
    match value:
        case Decimal():
            return float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.datetime():
            return _second(value, zone)
        case datetime.date() | datetime.timedelta():
            return str(value)
        case dict():
            return {name: in_json(each, zone) for name, each in value.items()}
        case list():
            return [in_json(each, zone) for each in value]
        case _:
            return value


def _second(moment: datetime.datetime, zone: str) -> str:
    suffix = ""
    if moment.tzinfo is not None:
        try:
            moment = moment.astimezone(python_zone(zone))
        except FiresteelError:
            moment, suffix = moment.astimezone(datetime.UTC), "Z"
    return f"{moment:%Y-%m-%d %H:%M:%S}{suffix}"

"""The trigger of a streaming query, as the checkpoint interval of its job.

The rows between two checkpoints are what Spark calls a batch.

    none                  a checkpoint every second
    processingTime=T      a checkpoint every T; "0 seconds" is as none
    availableNow, once    the job ends when it has read what its sources have; all of its rows are
                          one batch, unless a source limits the size of batches
    continuous=T          a checkpoint every T; rows are written as they are computed
    realTime=T            as continuous; in update mode only, and T is at least 5 s
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from pyspark.sql.connect.proto.commands_pb2 import WriteStreamOperationStart

from firesteel.common.config import options
from firesteel.spark_connect.refusals import Refused, SparkError

DEFAULT_MS = 1_000
SHORTEST_MS = 100  # a checkpoint costs some milliseconds of every task
# The interval for jobs that end by themselves: their savepoint makes the batch. A job that reads
# for longer restarts from a checkpoint.
ENDING_MS = 3_600_000
SHORTEST_REAL_TIME_MS = 5_000

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When the rows of a query become visible, and when it ends."""

    interval_ms: int | None  # of checkpoints; None: not set
    ends: bool = False  # once all sources are read up to where they are now
    immediate: bool = False  # rows are written before the checkpoint
    text: str = ""  # as Spark shows it

    def configuration(self, *, limited: bool = False) -> dict[str, str]:
        """Returns the options of the job. `limited`: a source limits its rows per checkpoint, so a
        job that ends needs several.
        """
        interval_ms = self.interval_ms
        if interval_ms is None and self.ends and not limited:
            interval_ms = ENDING_MS
        interval_ms = max(SHORTEST_MS, DEFAULT_MS if interval_ms is None else interval_ms)
        return {options.CHECKPOINT_INTERVAL.key: f"{interval_ms} ms"}


def trigger_of(request: WriteStreamOperationStart) -> Trigger:
    """Returns the trigger of a query. Raises Refused for values that Spark refuses."""
    match request.WhichOneof("trigger"):
        case "processing_time_interval":
            interval_ms = _interval_ms(request.processing_time_interval)
            text = f"ProcessingTimeTrigger({interval_ms})"
            return Trigger(interval_ms=interval_ms or None, text=text)
        case "available_now":
            return Trigger(interval_ms=None, ends=True, text="AvailableNowTrigger")
        case "once":
            return Trigger(interval_ms=None, ends=True, text="OneTimeTrigger")
        case "continuous_checkpoint_interval":
            interval_ms = _interval_ms(request.continuous_checkpoint_interval)
            text = f"ContinuousTrigger({interval_ms})"
            return Trigger(interval_ms=interval_ms or None, immediate=True, text=text)
        case "real_time_batch_duration":
            return _real_time(request)
        case _:
            return Trigger(interval_ms=None, text="ProcessingTimeTrigger(0)")


def _real_time(request: WriteStreamOperationStart) -> Trigger:
    interval_ms = _interval_ms(request.real_time_batch_duration)
    if interval_ms < SHORTEST_REAL_TIME_MS:
        raise Refused(
            f"The real-time trigger interval is set to {interval_ms} ms. This is less than the"
            f" {SHORTEST_REAL_TIME_MS} ms minimum specified by"
            " spark.sql.streaming.realTimeMode.minBatchDuration.",
            error=SparkError.ILLEGAL_ARGUMENT,
            condition="INVALID_STREAMING_REAL_TIME_MODE_TRIGGER_INTERVAL",
            parameters={
                "interval": str(interval_ms),
                "minBatchDuration": str(SHORTEST_REAL_TIME_MS),
            },
            sql_state="22023",
        )
    mode = request.output_mode or "append"
    if mode.lower() != "update":
        raise Refused(
            "Streaming real-time mode has the following limitation: The output mode"
            f" {mode.capitalize()} is not supported. To work around this limitation, set the output"
            " mode to Update.",
            error=SparkError.ILLEGAL_ARGUMENT,
            condition="STREAMING_REAL_TIME_MODE.OUTPUT_MODE_NOT_SUPPORTED",
            parameters={"outputMode": mode.capitalize()},
            sql_state="0A000",
        )
    return Trigger(interval_ms=interval_ms, immediate=True, text=f"RealTimeTrigger({interval_ms})")


def _interval_ms(text: str) -> int:
    """Parses an interval as Spark does: "10 seconds", "interval 1 minute 30 seconds"."""
    words = text.lower().split()
    if words and words[0] == "interval":
        del words[0]
    if not words:
        raise _bad_interval(text, "INPUT_IS_EMPTY", "Interval string cannot be empty.")
    total_us = Fraction(0)
    while words:
        number = words.pop(0)
        if (match := _NUMBER.match(number)) is None:
            raise _bad_interval(text, "UNRECOGNIZED_NUMBER", f"Unrecognized number '{number}'.")
        if match.end() < len(number):  # "10s" is not an interval
            raise _bad_interval(text, "INVALID_VALUE", f"Invalid value '{number}'.")
        if not words:
            why = f"Expect a unit name after '{number}' but hit EOL."
            raise _bad_interval(text, "MISSING_UNIT", why)
        word = words.pop(0)
        unit = word.removesuffix("s")
        if unit in ("month", "year"):
            raise Refused(
                f"Doesn't support month or year interval: {text}",
                error=SparkError.ILLEGAL_ARGUMENT,
            )
        if unit not in _UNITS_US:
            raise _bad_interval(text, "INVALID_UNIT", f"Invalid unit '{word}'.")
        if "." in number and unit != "second":
            why = f"'{word}' cannot have fractional part."
            raise _bad_interval(text, "INVALID_FRACTION", why)
        total_us += Fraction(number) * _UNITS_US[unit]
    if total_us < 0:
        raise Refused(
            "requirement failed: the interval of trigger should not be negative",
            error=SparkError.ILLEGAL_ARGUMENT,
        )
    return int(total_us) // 1_000


def _bad_interval(text: str, condition: str, why: str) -> Refused:
    return Refused(
        f"Error parsing '{text}' to interval. Please ensure that the value provided is in a valid"
        f" format for defining an interval, such as '10 seconds'. {why}",
        error=SparkError.ILLEGAL_ARGUMENT,
        condition=f"INVALID_INTERVAL_FORMAT.{condition}",
        parameters={"input": text},
        sql_state="22006",
    )

"""The triggers of streaming queries."""

from __future__ import annotations

import pytest
from pyspark.sql.connect.proto.commands_pb2 import WriteStreamOperationStart

from firesteel.spark_connect.refusals import Refused, SparkError
from firesteel.spark_connect.triggers import ENDING_MS, trigger_of

INTERVAL = "execution.checkpointing.interval"


@pytest.mark.parametrize(
    ("interval", "milliseconds"),
    [
        ("10 seconds", 10_000),
        ("interval 1 minute 30 seconds", 90_000),
        ("1.5 seconds", 1_500),
        ("2 DAYS", 172_800_000),
        ("500 milliseconds", 500),
        ("1500 microseconds", 100),
        ("0 seconds", 1_000),
    ],
)
def test_processing_time_is_the_checkpoint_interval(interval: str, milliseconds: int) -> None:
    trigger = trigger_of(WriteStreamOperationStart(processing_time_interval=interval))
    assert trigger.configuration() == {INTERVAL: f"{milliseconds} ms"}
    assert not trigger.ends


def test_without_a_trigger_there_is_a_checkpoint_every_second() -> None:
    trigger = trigger_of(WriteStreamOperationStart())
    assert trigger.configuration() == {INTERVAL: "1000 ms"}
    assert trigger.text == "ProcessingTimeTrigger(0)"


@pytest.mark.parametrize("kind", ["available_now", "once"])
def test_a_query_that_ends_makes_one_batch_unless_a_source_limits_it(kind: str) -> None:
    trigger = trigger_of(WriteStreamOperationStart(**{kind: True}))  # type: ignore[arg-type]
    assert trigger.ends
    assert trigger.configuration() == {INTERVAL: f"{ENDING_MS} ms"}
    assert trigger.configuration(limited=True) == {INTERVAL: "1000 ms"}


def test_continuous_and_real_time_write_rows_at_once() -> None:
    continuous = trigger_of(WriteStreamOperationStart(continuous_checkpoint_interval="2 seconds"))
    assert (continuous.immediate, continuous.interval_ms) == (True, 2_000)
    real_time = trigger_of(
        WriteStreamOperationStart(real_time_batch_duration="5 minutes", output_mode="update")
    )
    assert (real_time.immediate, real_time.interval_ms) == (True, 300_000)


@pytest.mark.parametrize(
    ("interval", "condition", "words"),
    [
        ("soon", "INVALID_INTERVAL_FORMAT.UNRECOGNIZED_NUMBER", "'soon'"),
        ("10s", "INVALID_INTERVAL_FORMAT.INVALID_VALUE", "'10s'"),
        ("10", "INVALID_INTERVAL_FORMAT.MISSING_UNIT", "after '10'"),
        ("interval", "INVALID_INTERVAL_FORMAT.INPUT_IS_EMPTY", "empty"),
        ("1 fortnight", "INVALID_INTERVAL_FORMAT.INVALID_UNIT", "'fortnight'"),
        ("1.5 minutes", "INVALID_INTERVAL_FORMAT.INVALID_FRACTION", "fractional"),
        ("1 month", "", "month or year"),
        ("-1 second", "", "should not be negative"),
    ],
)
def test_intervals_that_spark_refuses(interval: str, condition: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        trigger_of(WriteStreamOperationStart(processing_time_interval=interval))
    assert refused.value.condition == condition
    assert refused.value.error is SparkError.ILLEGAL_ARGUMENT


def test_real_time_needs_five_seconds_and_update_mode() -> None:
    with pytest.raises(Refused, match="5000 ms minimum") as refused:
        trigger_of(
            WriteStreamOperationStart(real_time_batch_duration="1 second", output_mode="update")
        )
    assert refused.value.condition == "INVALID_STREAMING_REAL_TIME_MODE_TRIGGER_INTERVAL"
    with pytest.raises(Refused, match="output mode Append is not supported"):
        trigger_of(WriteStreamOperationStart(real_time_batch_duration="5 seconds"))

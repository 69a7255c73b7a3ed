"""A slot's process dies at each point of writing to Kafka exactly once, and a broker between
prepare and commit; the records are visible once all the time, and no transaction stays open.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.common.failpoints import Failpoint
from tests.kafka.broker import Kafka
from tests.long import long_after

from .conftest import Session
from .kafka_exactly_once import kafka_job

# Where processes die, one after the other: those of recoveries need a death before.
DEATHS = [
    [Failpoint.KAFKA_COMMIT_BEFORE, Failpoint.KAFKA_DESCRIBED],
    [Failpoint.KAFKA_FLUSHED, Failpoint.KAFKA_ABORT_AFTER],
    [Failpoint.KAFKA_PREPARED],
    [Failpoint.SNAPSHOT_AFTER],
    [Failpoint.ACKNOWLEDGED],
    [Failpoint.METADATA_AFTER],
    [Failpoint.ROW_AFTER],
    [Failpoint.NOTIFICATION_BEFORE],
    [Failpoint.KAFKA_COMMIT_AFTER],
    [Failpoint.NOTIFICATION_BEFORE, Failpoint.KAFKA_END_AFTER],
]


@pytest.mark.parametrize(
    "deaths", long_after(1, [DEATHS[:1], DEATHS]), ids=["representative", "all"]
)
def test_records_are_visible_once_wherever_a_process_dies(
    session: Session, kafka: Kafka, tmp_path: Path, failpoints: Path, deaths: list[list[Failpoint]]
) -> None:
    armed: list[Path] = []
    try:
        with kafka_job(session, kafka, tmp_path) as job:
            job.progress("the start")
            for points in deaths:
                armed = [failpoints / point.value for point in points]
                for path in armed:
                    path.touch()
                for path in armed:
                    job.wait(lambda path=path: not path.exists(), f"somebody dies at {path.name}")
                job.slots_are_warm()
                job.progress(f"the death at {points}")
                job.nothing_lingers()
    finally:
        for path in armed:
            path.unlink(missing_ok=True)


@pytest.mark.long
def test_a_broker_that_dies_between_prepare_and_commit_loses_nothing(
    session: Session, tmp_path: Path, failpoints: Path
) -> None:
    """The process that wrote the transactions dies as well, in the second round."""
    with Kafka() as kafka, kafka_job(session, kafka, tmp_path) as job:
        for points in ([], [Failpoint.KAFKA_COMMIT_BEFORE]):
            job.progress("the start")
            for point in points:
                (failpoints / point.value).touch()
                job.wait(lambda p=point: not (failpoints / p.value).exists(), f"a death at {point}")
                job.slots_are_warm()
            kafka.kill()
            kafka.restart()
            job.progress("the restart of the broker")
            job.nothing_lingers()

"""Random deaths, with a fixed seed; `make chaos` draws others, and cuts, for as long as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import every_state, every_trigger
from tests.e2e.batches import batch_jobs
from tests.e2e.chaos import HEARTBEAT_TIMEOUT_S, KILLS, Chaos, Fault, drawn
from tests.e2e.conftest import SLOTS, Session
from tests.e2e.exactly_once import exactly_once_job
from tests.e2e.kafka_both_ends import both_ends_job
from tests.kafka.broker import Kafka
from tests.waiting import eventually

SEED = 1
EACH = dict.fromkeys(KILLS, 1) | {
    Fault.TASK: 1,
    Fault.JOB_MASTER: 2,
    Fault.PAUSED_JOB_MASTER: 1,
    Fault.PAUSED_SLOT: 1,
    Fault.ZOMBIE: 1,
}
MANY = EACH | {
    Fault.TASK: 3,
    Fault.SLOT: 4,
    Fault.JOB_MASTER: 10,
    Fault.DISPATCHER: 2,
    Fault.RESOURCE_MANAGER: 2,
}
FEW = (Fault.JOB_MASTER, Fault.SLOT)  # the first restarts no task
SEVERAL = (Fault.JOB_MASTER, Fault.SLOT, Fault.TASK_EXECUTOR, Fault.TASK)
IN_FILES = {"state__backend__type": "rocksdb", "execution__checkpointing__incremental": "true"}


@pytest.mark.long  # test_failpoints.py kills processes where it matters
@pytest.mark.parametrize("faults", [EACH, MANY], ids=["each", "many"])
def test_rows_count_once_whoever_dies(
    session: Session, tmp_path: Path, postgres: str, faults: dict[Fault, int]
) -> None:
    timeout = f"{HEARTBEAT_TIMEOUT_S:g} s"
    state = IN_FILES if faults is EACH else {}
    with exactly_once_job(
        session,
        tmp_path,
        postgres,
        enough_for_s=250.0,
        operators=every_state,
        heartbeat__timeout=timeout,
        **state,
    ) as job:
        job.progress("the start")
        Chaos(session, job, SEED).inject_all(drawn(SEED, faults))
        job.await_few_checkpoints()
        if state:
            job.await_few_shared_files()
    eventually(lambda: session.free_slots() == SLOTS, "every slot is free")


@pytest.mark.long  # test_checkpoints.py kills jobs with timers and windows
@pytest.mark.parametrize("faults", [FEW, SEVERAL], ids=["few", "several"])
def test_rows_fire_once_by_triggers_timers_and_calls_in_flight(
    session: Session, tmp_path: Path, postgres: str, faults: tuple[Fault, ...]
) -> None:
    with exactly_once_job(
        session,
        tmp_path,
        postgres,
        operators=every_trigger,
        heartbeat__timeout=f"{HEARTBEAT_TIMEOUT_S:g} s",
    ) as job:
        job.progress("the start")
        Chaos(session, job, SEED).inject_all(faults)


@pytest.mark.long  # test_kafka_failpoints.py has the deaths, integration/test_kafka_broker.py the broker
def test_records_pass_from_topic_to_topic_once(session: Session, tmp_path: Path) -> None:
    with Kafka() as kafka, both_ends_job(session, kafka, tmp_path) as job:
        job.progress("the start")
        Chaos(session, job, SEED).inject_all([Fault.SLOT, Fault.BROKER, Fault.TASK])


@pytest.mark.long
def test_records_pass_once_while_each_of_three_brokers_dies(
    session: Session, tmp_path: Path
) -> None:
    with Kafka(3) as kafka, both_ends_job(session, kafka, tmp_path) as job:
        job.progress("the start")
        for broker in range(3):
            kafka.kill(broker)
            job.progress("other brokers lead")
            kafka.restart(broker)
            job.progress("the broker is back")


def test_a_batch_has_the_rows_that_it_has_without_faults(session: Session, tmp_path: Path) -> None:
    with batch_jobs(session, tmp_path) as jobs:
        Chaos(session, jobs, SEED).inject_all([Fault.RESOURCE_MANAGER, Fault.SLOT])
    eventually(lambda: session.free_slots() == SLOTS, "every slot is free")

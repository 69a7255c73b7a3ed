"""A cluster with running, restarting, failed and finished jobs, for clients of its REST API."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

from firesteel import Environment, Tumbling, Watermarks
from firesteel.client.cluster.directory import ClusterDirectory
from firesteel.client.job_details import JobDetails
from firesteel.common.states import JobStatus
from firesteel.connectors import SequenceSource
from firesteel.errors import JobFailed
from tests import credentials
from tests.clients import packages
from tests.e2e.conftest import Session, own_cluster, running
from tests.waiting import eventually

Batches = Iterator[pa.RecordBatch]


class Jobs:
    """The cluster with its jobs. `rest` is the URL of the REST API."""

    def __init__(self, session: Session, directory: Path) -> None:
        self.session = session
        state = ClusterDirectory(session.cluster.directory).read()
        self.rest = f"http://{state.rest_address}"
        self.token = credentials.folder().token()
        self._directory = directory

    def start(self) -> None:
        self.failed = self.session.submit(failing(), name="failed")
        self.finished = self.submit_finished()
        with pytest.raises(JobFailed):
            self.session.client.wait(self.failed)
        delay = {
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "1 h",
        }
        self.restarting = self.session.submit(failing(delay), name="restarting")
        self.running = self.submit(windows(self._directory, parallelism=2), "running")
        eventually(
            lambda: self.details(self.restarting).status is JobStatus.RESTARTING, "restarting"
        )
        eventually(lambda: len(self._completed(self.running)) > 2, "checkpoints are complete")

    def submit(self, env: Environment, name: str) -> str:
        """Returns the job's id once it runs."""
        job_id = self.session.submit(env, name=name)
        self.session.wait_until(job_id, running)
        return job_id

    def submit_finished(self) -> str:
        """Returns the job's id once it has finished."""
        job_id = self.session.submit(numbers(100), name="finished")
        self.session.client.wait(job_id)
        return job_id

    def submit_numbers(self, name: str) -> str:
        """Submits a job with checkpoints; returns once it runs."""
        env = Environment(configuration=checkpoints(self._directory))
        env.from_source(SequenceSource(0, 10**12, rate_per_s=100)).rebalance().print()
        return self.submit(env, name)

    def details(self, job_id: str) -> JobDetails:
        return self.session.client.job_details(job_id)

    def _completed(self, job_id: str) -> list[int]:
        checkpoints = self.details(job_id).checkpoints
        return [c.checkpoint_id for c in checkpoints if c.state == "COMPLETED"]


def numbers(count: int, **configuration: str) -> Environment:
    env = Environment(configuration=configuration)
    env.from_sequence(0, count).print()
    return env


def failing(configuration: dict[str, str] | None = None) -> Environment:
    def fail(batches: Batches) -> Batches:
        for batch in batches:
            raise ValueError(f"row {batch.column('value')[0]} is bad")
            yield batch

    env = Environment(configuration=configuration or {})
    env.from_sequence(0, 100).rebalance().map_in_arrow(fail, name="Failing").print()
    return env


def checkpoints(directory: Path) -> dict[str, str]:
    return {
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": str(directory / "checkpoints"),
    }


def windows(directory: Path, parallelism: int) -> Environment:
    """Counts the output of a slow function by key and second."""

    def slowly(batches: Batches) -> Batches:
        for batch in batches:
            time.sleep(batch.num_rows / 5_000)
            yield batch

    unaligned = {"execution.checkpointing.unaligned.enabled": "true"}
    env = Environment(parallelism=parallelism, configuration=checkpoints(directory) | unaligned)
    rows = env.from_source(SequenceSource(0, 10**12)).transform(
        lambda df: df.selectExpr(
            "value", "concat('k', value % 7) AS key", "timestamp_millis(value) AS at"
        )
    )
    slow = rows.rebalance().map_in_arrow(slowly, name="Slow")
    timed = slow.assign_timestamps_and_watermarks(Watermarks.bounded("at"))
    counts = timed.key_by("key").window(Tumbling("1 second")).aggregate("count(*) AS n")
    counts.print()
    return env


@pytest.fixture(scope="session")
def clients() -> None:
    packages.install()


@pytest.fixture(scope="session")
def jobs(clients: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    directory = tmp_path_factory.mktemp("clients")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with own_cluster(
        directory / "cluster",
        slots=4,
        rest__port="0",
        rest__limit__requests_per_second="0",
        rest__limit__failures_per_second="0",
    ) as session:
        made = Jobs(session, directory)
        made.start()
        yield made
        session.cancel_all()

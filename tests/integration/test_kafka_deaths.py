"""A process that writes to Kafka exactly once dies at each point of the protocol, and a broker
between prepare and commit. A consumer of committed records sees each of them once all the time, and
never a part of a transaction; no transaction stays open.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from firesteel.common.failpoints import FOLDER, Failpoint
from tests.kafka.broker import Kafka
from tests.kafka.committed import SPLITS, CommittedReader, nothing_lingers
from tests.kafka.records import create_topic
from tests.long import long_after
from tests.waiting import PATIENCE_S, eventually

# Where processes die, one after the other: those of recoveries need a death before.
DEATHS = (
    (Failpoint.KAFKA_COMMIT_BEFORE, Failpoint.KAFKA_DESCRIBED),
    (Failpoint.KAFKA_FLUSHED, Failpoint.KAFKA_ABORT_AFTER),
    (Failpoint.KAFKA_PREPARED, Failpoint.KAFKA_ABORT_AFTER),
    (Failpoint.SNAPSHOT_AFTER,),
    (Failpoint.NOTIFICATION_BEFORE, Failpoint.KAFKA_END_AFTER),
    (Failpoint.KAFKA_COMMIT_AFTER,),
    (Failpoint.NOTIFICATION_AFTER,),
    (Failpoint.KAFKA_COMMIT_BEFORE, Failpoint.KAFKA_DESCRIBED, Failpoint.KAFKA_DESCRIBED),
)


class Writer:
    """The processes, one at a time, and the consumer."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self._kafka, self._folder = kafka, folder
        self._failpoints = folder / "failpoints"
        self._failpoints.mkdir()
        self.prefix = f"writer-{uuid.uuid4().hex[:8]}"
        self._topic = create_topic(kafka, partitions=2)
        self.reader = CommittedReader(kafka, self._topic)
        self.reader.start()
        self.process = self._start()

    def dies_at(self, point: Failpoint) -> None:
        """Waits for the death, and starts the next process."""
        armed = self._failpoints / point.value
        armed.touch()
        eventually(lambda: self.process.poll() is not None, f"a death at {point}")
        assert self.process.returncode == -signal.SIGKILL
        assert not armed.exists()
        self.process = self._start()

    def progress(self, what: str) -> None:
        before = list(self.reader.batches)
        eventually(
            lambda: (
                self._problem()
                or all(n > m + 2 for n, m in zip(self.reader.batches, before, strict=True))
            ),
            f"batches after {what}",
            patience_s=2 * PATIENCE_S,
        )
        assert not (problem := self._problem()), problem

    def nothing_lingers(self) -> None:
        nothing_lingers(self._kafka, self.prefix)

    def finish(self) -> None:
        (self._folder / "end").touch()
        assert self.process.wait(60) == 0
        self.nothing_lingers()
        _, batches, _ = pickle.loads((self._folder / "checkpoint").read_bytes())
        eventually(
            lambda: self.reader.problem or self.reader.batches == [batches] * SPLITS,
            f"all {batches} batches are visible",
        )
        assert not self.reader.problem, self.reader.problem

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.stop()

    def _problem(self) -> str:
        if self.process.poll() is not None:
            return f"the process has ended with {self.process.returncode}"
        return self.reader.problem

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = (str(self._folder), self._kafka.bootstrap, self._topic, self.prefix)
        return subprocess.Popen(
            [sys.executable, "-m", "tests.integration.kafka_writer", *arguments],
            env={**os.environ, FOLDER: str(self._failpoints)},
        )


@pytest.fixture
def writer(kafka: Kafka, tmp_path: Path) -> Iterator[Writer]:
    found = Writer(kafka, tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("deaths", long_after(1, [DEATHS[:1], DEATHS]), ids=["one", "all"])
def test_records_are_visible_once_wherever_a_process_dies(
    writer: Writer, deaths: tuple[tuple[Failpoint, ...], ...]
) -> None:
    writer.progress("the start")
    for points in deaths:
        for point in points:
            writer.dies_at(point)
        writer.progress(f"the deaths at {points}")
        writer.nothing_lingers()
    writer.finish()


@pytest.mark.long
@pytest.mark.parametrize("deaths", [(), (Failpoint.KAFKA_COMMIT_BEFORE,)], ids=["alone", "both"])
def test_a_broker_that_dies_between_prepare_and_commit_loses_nothing(
    tmp_path: Path, deaths: tuple[Failpoint, ...]
) -> None:
    with Kafka() as kafka:
        writer = Writer(kafka, tmp_path)
        try:
            writer.progress("the start")
            for point in deaths:
                writer.dies_at(point)
            kafka.kill()
            time.sleep(3)  # the writer runs into it
            kafka.restart()
            writer.progress("the restart of the broker")
            writer.nothing_lingers()
            writer.finish()
        finally:
            writer.close()
